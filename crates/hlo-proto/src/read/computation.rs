//! One computation: its instructions, its root, its parameters.

use super::{Fallible, Reader};
use crate::table::{hlo_computation, hlo_instruction};
use crate::view::{View, text_of};
use cranelift_entity::EntityRef;
use hlo_ir::names::{Name, is_type_name};
use hlo_ir::{CompId, InstId};

/// Instructions of one computation by the low half of their ids. Most files number them without large gaps.
#[derive(Default)]
pub(crate) struct IdMap {
    dense: Vec<u32>,
    sparse: hashbrown::HashMap<u32, InstId>,
}

const NONE: u32 = u32::MAX;
/// Ids from this one on are looked up by hash.
const MAX_DENSE: usize = 1 << 24;

impl IdMap {
    pub(crate) fn clear(&mut self) {
        self.dense.clear();
        self.sparse.clear();
    }

    /// Binds an id; false if it is taken.
    #[inline]
    fn insert(&mut self, id: i64, inst: InstId, n_insts: usize) -> bool {
        let low = id as u32;
        let index = low as usize;
        if index >= MAX_DENSE.min(self.dense.len().max(n_insts) * 4 + 64) {
            return self.get(id).is_none() && self.sparse.insert(low, inst).is_none();
        }
        if index >= self.dense.len() {
            self.dense.resize((index + 1).max(n_insts), NONE);
        }
        match self.dense.get_mut(index) {
            Some(slot) if *slot == NONE && !self.sparse.contains_key(&low) => {
                *slot = inst.as_u32();
                true
            }
            Some(_) | None => false,
        }
    }

    /// The instruction of an id.
    #[inline]
    pub(crate) fn get(&self, id: i64) -> Option<InstId> {
        match self.dense.get(id as u32 as usize) {
            Some(&inst) if inst != NONE => Some(InstId::from_u32(inst)),
            Some(_) | None if self.sparse.is_empty() => None,
            Some(_) | None => self.sparse.get(&(id as u32)).copied(),
        }
    }
}

impl<'a> Reader<'a> {
    /// Reads the instructions of a computation.
    pub(crate) fn computation(&mut self, comp: CompId, view: &View<'a>) -> Fallible<()> {
        self.ids.clear();
        let n_insts = view.slices(hlo_computation::instructions).count();
        let mut waiting: Vec<(InstId, View<'a>)> = Vec::new();
        let mut fields = View::default();
        for bytes in view.slices(hlo_computation::instructions) {
            fields.refill(bytes);
            let name = fields.bytes(hlo_instruction::name);
            let id = InstId::new(self.module.n_inst_slots());
            let read = self.instruction(comp, &fields);
            let inst = read.map_err(|error| format!("`{}`: {error}", text_of(name)))?;
            if !self.ids.insert(fields.int(hlo_instruction::id), id, n_insts) {
                let found = fields.int(hlo_instruction::id) as u32;
                return Err(format!("`{}`: expected an id of its own, found {found} a second time", text_of(name)));
            }
            if fields.has(hlo_instruction::control_predecessor_ids) {
                waiting.push((id, fields.clone()));
            }
            self.module.add_instruction(inst);
            self.module.inst_mut(id).name = self.inst_name(name);
        }
        self.control_predecessors(&waiting)?;
        self.finish(comp, view)
    }

    fn control_predecessors(&mut self, waiting: &[(InstId, View<'a>)]) -> Fallible<()> {
        for (inst, fields) in waiting {
            let before = fields.ints(hlo_instruction::control_predecessor_ids).map(|id| self.ids.get(id));
            let Some(before) = before.collect::<Option<Vec<InstId>>>() else {
                let name = self.module.inst_name(*inst);
                return Err(format!("`{name}`: expected control predecessors of its computation, found another id"));
            };
            self.module.marks_mut(*inst).control_predecessors = before;
        }
        Ok(())
    }

    /// Chooses the root, puts the instructions in the order of the schedule, and numbers the parameters.
    fn finish(&mut self, comp: CompId, view: &View<'a>) -> Fallible<()> {
        let root = view.int(hlo_computation::root_id);
        let root = self.ids.get(root).ok_or_else(|| format!("expected the id of its root, found {root}"))?;
        self.module.comp_mut(comp).root = Some(root).into();
        if let Some(sequence) = self.sequences.remove(&view.int(hlo_computation::id)) {
            self.schedule(comp, &sequence)?;
        }
        let renumbered = self.module.renumber_params(comp);
        renumbered
            .map_err(|number| format!("expected parameter numbers 0, 1, 2, … once each, found otherwise at {number}"))
    }

    fn schedule(&mut self, comp: CompId, ids: &[i64]) -> Fallible<()> {
        let order: Option<Vec<InstId>> = ids.iter().map(|&id| self.ids.get(id)).collect();
        let insts = &self.module.comp(comp).insts;
        let Some(order) = order.filter(|order| order.len() == insts.len()) else {
            return Err(format!("expected a schedule of its {} instructions, found another", insts.len()));
        };
        // The instructions of a computation were added one after the other.
        let first = insts.first().map_or(0, |id| id.index());
        let mut is_done = vec![false; insts.len()];
        for &id in &order {
            let operands = &self.module.inst(id).operands;
            let is_ready = operands.iter().all(|operand| is_done.get(operand.index() - first) == Some(&true));
            let slot = is_done.get_mut(id.index() - first).filter(|is_done| is_ready && !**is_done);
            let name = || self.module.inst_name(id);
            *slot.ok_or_else(|| format!("`{}`: expected it once in the schedule, after its operands", name()))? = true;
        }
        self.module.comp_mut(comp).insts = order;
        Ok(())
    }

    /// The name of an instruction, unique in the module: an earlier one of that name keeps it.
    #[inline]
    fn inst_name(&mut self, text: &'a [u8]) -> Name {
        let own = match std::str::from_utf8(text) {
            Ok(text) if is_plain_name(text) => self.module.names.intern(text),
            Ok(_) | Err(_) => self.module.names.intern(&plain_name(text)),
        };
        if self.take(own) {
            return own;
        }
        let stem = self.module.names.get(own).to_string();
        loop {
            let fresh = self.module.names.fresh(&stem);
            if self.take(fresh) {
                return fresh;
            }
        }
    }

    /// Takes a name; false if an instruction has it.
    #[inline]
    fn take(&mut self, name: Name) -> bool {
        if self.taken.len() <= name.index() {
            self.taken.resize((name.index() + 1).next_multiple_of(1024), false);
        }
        self.taken.get_mut(name.index()).is_some_and(|slot| !std::mem::replace(slot, true))
    }
}

/// Whether text can have the name.
#[inline]
fn is_plain_name(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    !name.is_empty() && name.bytes().all(is_plain) && !is_type_name(name)
}

/// A name like this one that text can have: XLA, too, puts `_` for other characters.
#[cold]
pub(crate) fn plain_name(name: &[u8]) -> String {
    let plain = |&b: &u8| if b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-') { char::from(b) } else { '_' };
    let name: String = name.iter().map(plain).collect();
    if name.is_empty() || is_type_name(&name) { name + "_" } else { name }
}
