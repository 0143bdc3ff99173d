//! The bytes of a module to the module.

mod computation;
mod groups;
mod header;
mod instruction;
mod literal;
mod metadata;
mod payload;
pub(crate) mod shape;
mod sharding;
mod value;

use crate::check::{Unheld, check};
use crate::kept::{Kept, KeptField, OfInstruction, Step};
use crate::opcodes::OpcodeTable;
use crate::table::{hlo_computation, hlo_module};
use crate::view::{View, text_of};
use computation::IdMap;
use cranelift_entity::packed_option::ReservedValue;
use hashbrown::HashMap;
use hlo_ir::names::Name;
use hlo_ir::{CompId, Module};
pub(crate) use literal::read_literal;
use shape::ShapeCache;
pub(crate) use shape::read_shape;

/// What is wrong, without the place.
pub(crate) type Fallible<T> = Result<T, String>;

/// The state of one reading.
pub(crate) struct Reader<'a> {
    module: Module,
    shapes: ShapeCache<'a>,
    opcodes: &'static OpcodeTable,
    /// Computations by their ids.
    comps: HashMap<i64, CompId>,
    /// Instructions of the computation that is being read.
    ids: IdMap,
    /// Which names instructions have.
    taken: Vec<bool>,
    /// Schedules by the ids of their computations.
    sequences: HashMap<i64, Vec<i64>>,
    /// Texts that metadata refers to by their places.
    payloads: Vec<&'a [u8]>,
}

/// Reads a module and what it cannot hold from the bytes of an HloModuleProto.
///
/// # Errors
/// What is wrong, and where: a byte and a field for damage, an instruction for what has no meaning.
pub(crate) fn read_module(bytes: &[u8]) -> Fallible<(Module, Kept)> {
    let unheld = check(bytes, &hlo_module::MESSAGE)?;
    let view = View::of(bytes);
    let mut reader = Reader {
        module: Module::new(text_of(view.bytes(hlo_module::name))),
        shapes: ShapeCache::default(),
        opcodes: OpcodeTable::get(),
        comps: HashMap::new(),
        ids: IdMap::default(),
        taken: Vec::new(),
        sequences: HashMap::new(),
        payloads: view.slices(hlo_module::payloads).collect(),
    };
    reader.whole(&view)?;
    let mut module = reader.module;
    let kept = kept_of(&module, unheld);
    module.bind_async_operands();
    Ok((module, kept))
}

impl<'a> Reader<'a> {
    fn whole(&mut self, view: &View<'a>) -> Fallible<()> {
        let comps: Vec<View<'a>> = view.messages(hlo_module::computations).collect();
        self.name_computations(&comps)?;
        self.sequences = header::read_schedule(view);
        self.module.header.is_scheduled = view.has(hlo_module::schedule);
        let all: Vec<CompId> = self.module.computations().to_vec();
        for (&comp, fields) in all.iter().zip(&comps) {
            let read = self.computation(comp, fields);
            read.map_err(|error| format!("computation `{}`: {error}", self.module.comp_name(comp)))?;
        }
        let id = view.int(hlo_module::entry_computation_id);
        let name = view.text(hlo_module::entry_computation_name);
        let by_name = || all.iter().copied().find(|&comp| self.module.comp_name(comp) == name);
        let entry = self.comps.get(&id).copied().or_else(by_name);
        let entry = entry.ok_or_else(|| format!("expected the id of the entry computation, found {id}"))?;
        self.module.set_entry(entry);
        self.header(view)?;
        self.callees_first(&all);
        Ok(())
    }

    /// Adds the computations, so that instructions can call those that stand later.
    fn name_computations(&mut self, comps: &[View<'a>]) -> Fallible<()> {
        let n_insts = comps.iter().map(|view| view.slices(hlo_computation::instructions).count()).sum();
        self.module.reserve(n_insts);
        for view in comps {
            let text = view.text(hlo_computation::name);
            let text = computation::plain_name(text.as_bytes());
            let known = self.module.names.find(&text).is_some();
            let name = if known { self.module.names.fresh(&text) } else { self.module.names.intern(&text) };
            let comp = self.module.add_computation(name);
            let thread = Some(view.text(hlo_computation::execution_thread));
            self.module.comp_mut(comp).execution_thread =
                thread.filter(|thread| !thread.is_empty() && thread != "main");
            let id = view.int(hlo_computation::id);
            if self.comps.insert(id, comp).is_some() {
                return Err(format!("computation `{text}`: expected an id of its own, found {id} a second time"));
            }
        }
        Ok(())
    }

    /// Puts computations before their callers, as text needs them; most files have them so.
    fn callees_first(&mut self, all: &[CompId]) {
        let mut is_done = vec![false; all.len()];
        let is_ordered = all.iter().all(|&comp| {
            let calls = |inst: &hlo_ir::InstId| {
                self.module.called(*inst).into_iter().all(|callee| is_done[callee.as_u32() as usize])
            };
            let is_fine = self.module.comp(comp).insts.iter().all(calls);
            is_done[comp.as_u32() as usize] = true;
            is_fine
        });
        if !is_ordered {
            let order = self.module.callees_first(all);
            self.module.set_computation_order(order);
        }
    }

    fn name_for_now(&self) -> Name {
        Name::reserved_value()
    }
}

/// What the check found that a module cannot hold, by the parts of the module.
fn kept_of(module: &Module, unheld: Vec<Unheld<'_>>) -> Kept {
    let mut kept = Kept::default();
    // Ids of computations are given in the order of the file, and those of instructions within.
    let mut starts: Vec<u32> = Vec::new();
    for field in unheld {
        let of = |place: &[Step]| KeptField { place: place.into(), bytes: field.bytes.into() };
        match &field.place[..] {
            [comp, rest @ ..] if comp.number == hlo_module::computations.number => {
                if starts.is_empty() {
                    starts = first_insts(module);
                }
                let id = CompId::from_u32(comp.index);
                match rest {
                    [inst, rest @ ..] if inst.number == hlo_computation::instructions.number => {
                        let inst = hlo_ir::InstId::from_u32(starts[comp.index as usize] + inst.index);
                        let name = module.inst_name(inst);
                        let entry = kept.insts.entry(inst).or_insert_with(|| OfInstruction {
                            opcode: module.inst(inst).opcode,
                            name: name.into(),
                            fields: Vec::new(),
                        });
                        entry.fields.push(of(rest));
                    }
                    rest => {
                        let entry = kept.comps.entry(id).or_insert_with(|| (module.comp_name(id).into(), Vec::new()));
                        entry.1.push(of(rest));
                    }
                }
            }
            place => kept.module.push(of(place)),
        }
    }
    kept
}

/// The number of the first instruction of each computation, in the order in which they were read.
fn first_insts(module: &Module) -> Vec<u32> {
    let mut starts = vec![0; module.n_comp_slots()];
    for &comp in module.computations() {
        let first = module.comp(comp).insts.iter().map(|id| id.as_u32()).min();
        if let Some(slot) = starts.get_mut(comp.as_u32() as usize) {
            *slot = first.unwrap_or(0);
        }
    }
    starts
}
