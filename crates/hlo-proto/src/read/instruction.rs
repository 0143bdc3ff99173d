//! One instruction: opcode, shape, operands, attributes, marks.

use super::groups::read_groups;
use super::literal::read_literal;
use super::metadata::{read_metadata, read_payload};
use super::sharding::read_sharding;
use super::value::read_value;
use super::{Fallible, Reader};
use crate::bindings::{At, bindings};
use crate::table::*;
use crate::view::{View, text_of};
use hlo_ir::attrs::{
    AttrFormat, Attrs, CompareAttrs, Comparison, DomainSharding, FieldMut, Marks, Metadata, Presence, RawLiteral,
};
use hlo_ir::literal::ConstantValue;
use hlo_ir::module::Operands;
use hlo_ir::op::Arity;
use hlo_ir::{CompId, DType, Instruction, Opcode, Shape, ShapeId};
use smallvec::SmallVec;
use std::sync::Arc;

impl<'a> Reader<'a> {
    /// Reads an instruction of `comp`; its name and its control predecessors come later.
    pub(crate) fn instruction(&mut self, comp: CompId, view: &View<'a>) -> Fallible<Instruction> {
        use hlo_instruction as i;
        let (opcode, direction) = self.opcode(view.bytes(i::opcode))?;
        let row = opcode.row();
        let shape = self.shapes.shape(view.bytes(i::shape), &mut self.module.shapes)?;
        let mut operands = Operands::new();
        for id in view.ints(i::operand_ids) {
            let found = self.ids.get(id);
            operands.push(found.ok_or_else(|| format!("expected operands that stand before it, found id {id}"))?);
        }
        if !row.arity.accepts(operands.len()) {
            return Err(wrong_arity(row.arity, operands.len()));
        }
        let mut attrs = match row.format {
            AttrFormat::Plain => Attrs::Plain,
            AttrFormat::Constant => Attrs::Constant(Box::new(self.constant(view, shape)?)),
            format => {
                let mut attrs = Attrs::default_of(format).unwrap_or(Attrs::Plain);
                self.attributes(view, opcode, &operands, &mut attrs)?;
                attrs
            }
        };
        if let (Some(compare), Some(direction)) = (CompareAttrs::of_mut(&mut attrs), direction) {
            compare.direction = direction;
        }
        self.module.normalize_attrs(&operands, &mut attrs);
        let marks = read_marks(view, self.module.shapes.get(shape), &self.payloads)?;
        let name = self.name_for_now();
        Ok(Instruction { opcode, shape, name, parent: comp, operands, attrs, marks })
    }

    /// The opcode of a name; old names of comparisons say the direction.
    #[inline]
    fn opcode(&mut self, name: &'a [u8]) -> Fallible<(Opcode, Option<Comparison>)> {
        if let Some(opcode) = self.opcodes.find(name) {
            return Ok((opcode, None));
        }
        let direction = match name {
            b"equal-to" => Comparison::Eq,
            b"not-equal-to" => Comparison::Ne,
            b"greater-than-or-equal-to" => Comparison::Ge,
            b"greater-than" => Comparison::Gt,
            b"less-than-or-equal-to" => Comparison::Le,
            b"less-than" => Comparison::Lt,
            _ => return Err(format!("expected an opcode, found `{}`", text_of(name))),
        };
        Ok((Opcode::Compare, Some(direction)))
    }

    fn constant(&self, view: &View<'a>, shape: ShapeId) -> Fallible<ConstantValue> {
        match view.message(hlo_instruction::literal) {
            Some(literal) => read_literal(&literal, self.module.shapes.get(shape)),
            None => Ok(ConstantValue::Elided),
        }
    }

    /// Fills the attributes of an opcode's format.
    fn attributes(&mut self, view: &View<'a>, opcode: Opcode, operands: &Operands, attrs: &mut Attrs) -> Fallible<()> {
        let format = attrs.format();
        let called = self.called(view)?;
        let first = operands.first().and_then(|&id| self.module.shape(id).as_array());
        let selector = first.map(|array| array.dtype);
        if format == AttrFormat::Conditional
            && !first.is_some_and(|a| a.rank() == 0 && matches!(a.dtype, DType::Pred | DType::S32))
        {
            return Err("expected `pred[]` or `s32[]` as first operand, found another shape".into());
        }
        let operand =
            operands.first().filter(|_| format == AttrFormat::Permuting).map(|&id| self.module.shape(id).clone());
        let mut places = bindings(format).iter().zip(format.fields());
        let mut outcome = Ok(());
        attrs.for_each_field_mut(&mut |field| {
            let Some((&at, &(_, presence))) = places.next() else { return };
            if outcome.is_err() {
                return;
            }
            outcome = match (at, field) {
                (At::Own(place) | At::Present(place), field) => {
                    self.own(view, place, presence, operand.as_ref(), field)
                }
                (At::In(message, place), field) => match view.message(message) {
                    Some(inner) => read_value(&inner, place, presence == Presence::Required, field),
                    None => Ok(()),
                },
                (At::DotDims(place), field) => match dot_dims(view, opcode) {
                    Some(inner) => read_value(&inner, place, false, field),
                    None => Ok(()),
                },
                (At::Called(n), FieldMut::Comp(comp)) => {
                    *comp = called.get(n).copied().filter(|_| is_called_alone(format, selector));
                    match comp {
                        None if presence == Presence::Required => {
                            Err(format!("expected {} called computations, found {}", n + 1, called.len()))
                        }
                        Some(_) | None => Ok(()),
                    }
                }
                (At::Calls(n), FieldMut::Comps(comps)) => {
                    if format != AttrFormat::Conditional || !is_called_alone(format, selector) {
                        comps.extend(called.iter().skip(n));
                    }
                    Ok(())
                }
                (At::Groups, FieldMut::Groups(groups)) => read_groups(view).map(|found| *groups = found),
                (At::Order, FieldMut::Word(word)) => {
                    word.0 = compare_order(view, selector);
                    Ok(())
                }
                (At::Called(_) | At::Calls(_) | At::Groups | At::Order | At::Nowhere, _) => Ok(()),
            };
        });
        outcome?;
        if let Attrs::Async(attrs) = attrs {
            if opcode != Opcode::AsyncStart {
                // What a chain calls is kept at its start only.
                (attrs.calls, attrs.async_execution_thread) = (None, None);
            } else if attrs.calls.is_none() {
                return Err("expected 1 called computation, found 0".to_string());
            }
        }
        Ok(())
    }

    /// Reads a field of the instruction itself.
    fn own(
        &mut self,
        view: &View<'a>,
        place: Field,
        presence: Presence,
        operand: Option<&Shape>,
        field: FieldMut<'_>,
    ) -> Fallible<()> {
        use hlo_instruction as i;
        match field {
            FieldMut::Shape(shape) => {
                if view.has(place) {
                    *shape = Some(self.shapes.shape(view.bytes(place), &mut self.module.shapes)?);
                }
                Ok(())
            }
            FieldMut::Shapes(shapes) => {
                if view.bool(i::constrain_layout) {
                    let pool = &mut self.module.shapes;
                    let found = view.slices(place).map(|bytes| self.shapes.shape(bytes, pool));
                    *shapes = Some(found.collect::<Fallible<_>>()?);
                }
                Ok(())
            }
            FieldMut::DomainSharding(domain) => {
                let sharding = |place| match view.message(place) {
                    Some(sharding) => read_sharding(&sharding),
                    None => Err("expected the shardings of both sides of a domain, found none".to_string()),
                };
                // What the text calls the entry, the proto calls the exit.
                let (exit, entry) = (sharding(i::domain_entry_sharding)?, sharding(i::domain_exit_sharding)?);
                *domain = Some(Box::new(DomainSharding { kind: "sharding".into(), entry, exit }));
                Ok(())
            }
            FieldMut::RawLiteral(raw) => {
                if let Some(literal) = view.message(place) {
                    *raw = RawLiteral(crate::raw_literal::read(&literal)?);
                }
                Ok(())
            }
            FieldMut::Raw(raw) if place.number == i::dynamic_slice_sizes.number => {
                let sizes: Vec<i64> = view.ints(place).collect();
                raw.0 = crate::braces::slice_sizes(&sizes, operand);
                Ok(())
            }
            FieldMut::Raw(raw) => {
                raw.0 = crate::braces::read_attribute(view, place, &Shape::Token)?;
                Ok(())
            }
            field => read_value(view, place, presence == Presence::Required, field),
        }
    }

    /// The computations that an instruction calls, in the order of the proto.
    #[inline]
    fn called(&self, view: &View<'a>) -> Fallible<SmallVec<[CompId; 2]>> {
        let find = |id: i64| {
            self.comps.get(&id).copied().ok_or_else(|| format!("expected the id of a computation, found {id}"))
        };
        view.ints(hlo_instruction::called_computation_ids).map(find).collect()
    }
}

/// Whether a computation stands in a field of its own: those of a custom call and of a conditional by number stand in a list.
fn is_called_alone(format: AttrFormat, selector: Option<DType>) -> bool {
    match format {
        AttrFormat::Custom => false,
        AttrFormat::Conditional => selector == Some(DType::Pred),
        _ => true,
    }
}

/// The dimension numbers of a dot.
fn dot_dims<'a>(view: &View<'a>, opcode: Opcode) -> Option<View<'a>> {
    use ragged_dot_dimension_numbers as r;
    if opcode == Opcode::RaggedDot {
        return view.message(hlo_instruction::ragged_dot_dimension_numbers)?.message(r::dot_dimension_numbers);
    }
    view.message(hlo_instruction::dot_dimension_numbers)
}

/// The order of a comparison as text has it; jaxlib from 0.12 on says it of the values and not of their type.
fn compare_order(view: &View<'_>, operand: Option<DType>) -> String {
    let is_partial = operand.is_some_and(|dtype| dtype.is_float() || dtype.is_complex());
    match view.bytes(hlo_instruction::comparison_order) {
        b"TOTAL" if is_partial => "TOTALORDER".into(),
        b"TOTAL" | b"PARTIAL" => String::new(),
        _ => view.text(hlo_instruction::comparison_type),
    }
}

fn read_marks(view: &View<'_>, shape: &Shape, payloads: &[&[u8]]) -> Fallible<Option<Arc<Marks>>> {
    use hlo_instruction as i;
    let mut marks = Marks::default();
    let mut metadata = view.message(i::metadata).map(|metadata| read_metadata(&metadata)).transpose()?;
    if let (Some(view), Some(metadata)) = (view.message(i::metadata), metadata.as_deref_mut()) {
        read_payload(&view, payloads, metadata)?;
    }
    marks.metadata = metadata.filter(|metadata| **metadata != Metadata::default());
    marks.sharding = view.message(i::sharding).map(|sharding| read_sharding(&sharding)).transpose()?;
    marks.backend_config = Some(view.text(i::backend_config)).filter(|config| !config.is_empty());
    if let Some(attributes) = view.message(i::frontend_attributes) {
        marks.frontend_attributes = read_frontend_attributes(&attributes);
    }
    for (mark, field) in [
        (&mut marks.statistics, i::statistics_viz),
        (&mut marks.origin, i::original_value),
        (&mut marks.result_accuracy, i::result_accuracy),
    ] {
        if view.has(field) {
            mark.0 = crate::braces::read_attribute(view, field, shape)?;
        }
    }
    marks.normalize();
    Ok((!marks.is_empty()).then(|| Arc::new(marks)))
}

/// Reads the pairs of a map, which has no order: by key, as XLA prints them.
pub(crate) fn read_frontend_attributes(view: &View<'_>) -> Vec<(String, String)> {
    let pair = |entry: View<'_>| (entry.text(map_entry::key), entry.text(map_entry::value));
    let mut pairs: Vec<(String, String)> = view.messages(frontend_attributes::map).map(pair).collect();
    pairs.sort();
    pairs
}

#[cold]
fn wrong_arity(arity: Arity, found: usize) -> String {
    let (word, n) = match arity {
        Arity::Exactly(n) => ("exactly", n),
        Arity::AtLeast(n) => ("at least", n),
    };
    format!("expected {word} {n} operands, found {found}")
}
