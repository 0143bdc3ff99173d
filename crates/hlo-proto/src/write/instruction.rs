//! One instruction, its fields by ascending number.

use super::ModuleWriter;
use super::groups::write_groups;
use super::literal::write_literal;
use super::sharding::write_sharding;
use super::value::{write_metadata, write_value};
use crate::bindings::{At, bindings};
use crate::table::*;
use crate::writer::Writer;
use hlo_ir::attrs::{AsyncAttrs, Attrs, DomainSharding, FieldRef, FieldRefs, Marks, Presence, Word};
use hlo_ir::groups::ReplicaGroups;
use hlo_ir::{CompId, DType, InstId, Instruction, Opcode};
use smallvec::SmallVec;

/// The attributes that are still to be written, by ascending number of their fields.
struct Waiting<'m> {
    inst: &'m Instruction,
    fields: FieldRefs<'m>,
    order: SmallVec<[(u32, u8); 16]>,
    next: usize,
}

impl<'m> Waiting<'m> {
    fn new(inst: &'m Instruction) -> Waiting<'m> {
        let fields = inst.attrs.fields();
        let places = bindings(inst.attrs.format()).iter().enumerate();
        let mut order: SmallVec<[(u32, u8); 16]> =
            places.filter_map(|(i, at)| Some((number_in(*at, inst.opcode)?, i as u8))).collect();
        order.sort();
        Waiting { inst, fields, order, next: 0 }
    }
}

/// The number of the field that holds an attribute: a ragged dot has its dimension numbers in another one.
fn number_in(at: At, opcode: Opcode) -> Option<u32> {
    let ragged = hlo_instruction::ragged_dot_dimension_numbers.number;
    let is_ragged = opcode == Opcode::RaggedDot;
    match at {
        At::DotDims(_) if is_ragged => Some(ragged),
        At::In(message, _) if message.number == ragged && !is_ragged => None,
        at => at.number(),
    }
}

impl ModuleWriter<'_> {
    /// Appends the fields of an instruction.
    pub(crate) fn instruction(&mut self, w: &mut Writer, id: InstId) {
        use hlo_instruction as i;
        let module = self.module;
        let inst = module.inst(id);
        let no_marks = Marks::default();
        let marks = inst.marks.as_deref().unwrap_or(&no_marks);
        let mut attrs = Waiting::new(inst);
        w.bytes(i::name, self.inst_name(id).as_bytes());
        w.bytes(i::opcode, inst.opcode.name().as_bytes());
        self.shapes.write(w, i::shape, inst.shape, &module.shapes);
        if let Some(metadata) = &marks.metadata {
            w.message(i::metadata, |w| write_metadata(w, metadata));
        }
        if let Attrs::Constant(value) = &inst.attrs {
            w.message_if_any(i::literal, |w| write_literal(w, value, module.shape(id)));
        }
        self.attributes_below(w, i::id.number, &mut attrs);
        w.int(i::id, self.id_of(id));
        w.ints(i::operand_ids, inst.operands.iter().map(|&operand| self.id_of(operand)));
        w.ints(i::control_predecessor_ids, marks.control_predecessors.iter().map(|&before| self.id_of(before)));
        let called = self.called(id);
        w.ints(i::called_computation_ids, called.iter().map(|&comp| self.comp_id(comp)));
        if let Some(sharding) = &marks.sharding {
            let shape = module.shape(id);
            let n_leaves = shape.as_tuple().map(|_| shape.n_leaves());
            w.message(i::sharding, |w| write_sharding(w, sharding, n_leaves));
        }
        if let Some(config) = &marks.backend_config {
            w.text(i::backend_config, config);
        }
        // A module cannot say otherwise, and text means it.
        w.bool(i::is_stable, matches!(inst.attrs, Attrs::TopK(_)));
        self.attributes_below(w, i::frontend_attributes.number, &mut attrs);
        if !marks.frontend_attributes.is_empty() {
            w.message(i::frontend_attributes, |w| write_frontend_attributes(w, &marks.frontend_attributes));
        }
        self.attributes_below(w, i::statistics_viz.number, &mut attrs);
        crate::braces::write_attribute(w, i::statistics_viz, &marks.statistics.0);
        self.attributes_below(w, i::original_value.number, &mut attrs);
        crate::braces::write_attribute(w, i::original_value, &marks.origin.0);
        self.attributes_below(w, i::result_accuracy.number, &mut attrs);
        crate::braces::write_attribute(w, i::result_accuracy, &marks.result_accuracy.0);
        self.attributes_below(w, u32::MAX, &mut attrs);
    }

    /// Appends the attributes whose fields have numbers below `limit`.
    #[inline]
    fn attributes_below(&mut self, w: &mut Writer, limit: u32, attrs: &mut Waiting<'_>) {
        while let Some(&(number, first)) = attrs.order.get(attrs.next).filter(|(number, _)| *number < limit) {
            let at = bindings(attrs.inst.attrs.format()).get(usize::from(first)).copied();
            let same = attrs.order.get(attrs.next..).unwrap_or(&[]).iter().take_while(|(n, _)| *n == number).count();
            match at {
                Some(At::In(message, _)) => self.message_of(w, message, same, attrs),
                Some(At::DotDims(_)) => self.message_of(w, dot_field(attrs.inst.opcode), same, attrs),
                Some(at) => {
                    if let Some(&field) = attrs.fields.get(usize::from(first)) {
                        self.attribute(w, attrs.inst, at, field);
                    }
                }
                None => {}
            }
            attrs.next += same;
        }
    }

    /// Appends the next `n` attributes, which are fields of one message.
    fn message_of(&mut self, w: &mut Writer, message: Field, n: usize, attrs: &Waiting<'_>) {
        let format = attrs.inst.attrs.format();
        let group = attrs.order.get(attrs.next..attrs.next + n).unwrap_or(&[]);
        let presence = |i: u8| format.fields().get(usize::from(i)).map(|field| field.1);
        let is_present = group.iter().any(|&(_, i)| presence(i) != Some(Presence::IfSet));
        // XLA writes the precision of each operand where it is the default as well.
        let precisions: Vec<Word> = vec!["default".into(); attrs.inst.operands.len()];
        let mut own: SmallVec<[(bool, Field, FieldRef<'_>); 8]> = SmallVec::new();
        for &(_, i) in group {
            match (bindings(format).get(usize::from(i)), attrs.fields.get(usize::from(i))) {
                (Some(At::In(_, field)), Some(FieldRef::Words(words))) if words.is_empty() => {
                    own.push((false, *field, FieldRef::Words(&precisions)));
                }
                (Some(At::In(_, field)), Some(&value)) => own.push((false, *field, value)),
                (Some(At::DotDims(field)), Some(&value)) => own.push((true, *field, value)),
                (Some(_) | None, _) => {}
            }
        }
        own.sort_by_key(|(is_dot, field, _)| (!is_dot, field.number));
        let is_ragged = attrs.inst.opcode == Opcode::RaggedDot;
        let write = |w: &mut Writer| {
            let (dot, rest): (SmallVec<[_; 8]>, SmallVec<[_; 8]>) =
                own.iter().partition(|(is_dot, ..)| *is_dot && is_ragged);
            if !dot.is_empty() {
                w.message(ragged_dot_dimension_numbers::dot_dimension_numbers, |w| write_all(w, &dot));
            }
            write_all(w, &rest);
        };
        if is_present { w.message(message, write) } else { w.message_if_any(message, write) }
    }

    /// Appends an attribute that is a field of the instruction.
    fn attribute(&mut self, w: &mut Writer, inst: &Instruction, at: At, value: FieldRef<'_>) {
        use hlo_instruction as i;
        match (at, value) {
            (At::Groups, FieldRef::Groups(groups)) if self.is_for_old_readers => {
                let lists = groups.expand().map(ReplicaGroups::List);
                write_groups(w, lists.as_ref().unwrap_or(groups));
            }
            (At::Groups, FieldRef::Groups(groups)) => write_groups(w, groups),
            (At::Order, FieldRef::Word(word)) => w.text(i::comparison_type, self.compare_type(inst, word.as_str())),
            (At::Own(field), FieldRef::Shape(shape)) => {
                if let Some(shape) = shape {
                    self.shapes.write(w, field, *shape, &self.module.shapes);
                }
            }
            (At::Own(field), FieldRef::Shapes(Some(shapes))) => {
                w.bool(i::constrain_layout, true);
                shapes.iter().for_each(|&shape| self.shapes.write(w, field, shape, &self.module.shapes));
            }
            (At::Own(_), FieldRef::DomainSharding(Some(domain))) => {
                let DomainSharding { kind: _, entry, exit } = &**domain;
                // What the text calls the entry, the proto calls the exit.
                w.message(i::domain_entry_sharding, |w| write_sharding(w, exit, None));
                w.message(i::domain_exit_sharding, |w| write_sharding(w, entry, None));
            }
            (At::Own(field), FieldRef::RawLiteral(raw)) => crate::raw_literal::write(w, field, &raw.0),
            (At::Own(field), FieldRef::Raw(raw)) if field.number == i::dynamic_slice_sizes.number => {
                w.ints(field, crate::braces::parse_slice_sizes(&raw.0));
            }
            (At::Own(field), FieldRef::OptText(_)) if field.number == i::async_execution_thread.number => {
                w.text(field, self.thread(inst));
            }
            (At::Own(field) | At::Present(field), value) => {
                write_value(w, field, matches!(at, At::Present(_)), value);
            }
            (At::In(..) | At::DotDims(_) | At::Called(_) | At::Calls(_) | At::Groups | At::Order | At::Nowhere, _) => {}
        }
    }

    /// The thread of a part of a chain of asynchronous instructions: that of its start.
    fn thread<'s>(&'s self, mut inst: &'s Instruction) -> &'s str {
        // A chain of a well-formed module ends; the bound is for others.
        for _ in 0..self.module.n_inst_slots() {
            let Some(attrs) = AsyncAttrs::of(&inst.attrs) else { break };
            if let Some(thread) = &attrs.async_execution_thread {
                return &thread.0;
            }
            let before = inst.operands.first().filter(|_| inst.opcode != Opcode::AsyncStart);
            let Some(&before) = before else { break };
            inst = self.module.inst(before);
        }
        "main"
    }

    /// The type of a comparison: what its operands' type says where the module has none.
    fn compare_type<'w>(&self, inst: &Instruction, word: &'w str) -> &'w str {
        if !word.is_empty() {
            return word;
        }
        let dtype = inst.operands.first().and_then(|&id| self.module.shape(id).as_array()).map(|array| array.dtype);
        default_order(dtype)
    }

    /// The computations that an instruction calls, in the order of the proto.
    #[inline]
    fn called(&mut self, id: InstId) -> SmallVec<[CompId; 2]> {
        let inst = self.module.inst(id);
        let mut called: SmallVec<[CompId; 2]> = SmallVec::new();
        if !inst.attrs.format().names_comps() {
            return called;
        }
        inst.attrs.for_each_comp(&mut |comp| called.push(comp));
        if matches!(inst.attrs, Attrs::While(_)) {
            // The proto has the body first.
            called.reverse();
        }
        if matches!(inst.attrs, Attrs::Async(_)) {
            let of_chain = inst.operands.first().and_then(|start| self.async_calls.get(start)).copied();
            if called.is_empty() {
                called.extend(of_chain);
            }
            if let Some(&comp) = called.first() {
                self.async_calls.insert(id, comp);
            }
        }
        called
    }
}

fn write_all(w: &mut Writer, fields: &[&(bool, Field, FieldRef<'_>)]) {
    fields.iter().for_each(|(_, field, value)| write_value(w, *field, false, *value));
}

/// The field for the dimension numbers of a dot.
fn dot_field(opcode: Opcode) -> Field {
    if opcode == Opcode::RaggedDot {
        hlo_instruction::ragged_dot_dimension_numbers
    } else {
        hlo_instruction::dot_dimension_numbers
    }
}

/// The order in which values of a type are compared unless the module says otherwise.
fn default_order(dtype: Option<DType>) -> &'static str {
    match dtype {
        Some(dtype) if dtype.is_float() || dtype.is_complex() => "FLOAT",
        Some(dtype) if dtype.class() == hlo_ir::NumberClass::Signed => "SIGNED",
        Some(_) | None => "UNSIGNED",
    }
}

/// Appends the pairs of a map.
pub(crate) fn write_frontend_attributes(w: &mut Writer, pairs: &[(String, String)]) {
    for (key, value) in pairs {
        w.message(frontend_attributes::map, |w| {
            w.text(map_entry::key, key);
            w.text(map_entry::value, value);
        });
    }
}
