//! Asynchronous chains that get their operands late.
//!
//! XLA from 2026 on lets an `async-start` take the first operands of its computation alone, or leave a place for its result out;
//! `async-update`s further along the chain bind the rest. Here a chain begins where its last operand is bound: nothing can run before.
//! Readers bring modules into this form, so that all else sees chains whose parts have one shape.

use crate::attrs::{AsyncAttrs, Attrs};
use crate::infer::agrees;
use crate::module::{CompId, InstId, Module, Operands};
use crate::op::Opcode;
use crate::shape::Shape;
use hashbrown::HashMap;

impl Module {
    /// Has each chain of asynchronous instructions begin at the last update that binds operands or a place of its result, and removes what
    /// stood before that in the chain. A chain stays as it is, for the verifier to refuse, where another instruction needs a removed part.
    pub fn bind_async_operands(&mut self) {
        let is_late = |&inst: &InstId| self.binds_late(inst) || self.whole_result(inst).is_some();
        let all = self.computations().iter();
        let late: Vec<CompId> = all.copied().filter(|&comp| self.comp(comp).insts.iter().any(is_late)).collect();
        for comp in late {
            for chain in self.late_chains(comp) {
                self.begin_at_last(comp, &chain);
            }
            // From start to done: an update takes the shape that its predecessor has by then.
            for inst in self.comp(comp).insts.clone() {
                if let Some(shape) = self.whole_result(inst) {
                    self.inst_mut(inst).shape = self.shapes.intern(shape);
                }
            }
        }
    }

    /// The shape of a start, or of an update after one, with the place of the result that it leaves out because an operand is that place.
    fn whole_result(&self, inst: InstId) -> Option<Shape> {
        let instruction = self.inst(inst);
        let parts = self.shape(inst).as_tuple()?;
        let is_left_out = |part: &Shape| part.as_tuple().is_some_and(<[Shape]>::is_empty);
        let result = if instruction.opcode == Opcode::AsyncStart {
            let attrs = AsyncAttrs::of(&instruction.attrs).filter(|a| !a.output_to_operand_aliasing.is_empty())?;
            self.shape(self.comp(attrs.calls?).root.expand()?)
        } else if instruction.opcode == Opcode::AsyncUpdate {
            self.shape(*instruction.operands.first()?).as_tuple()?.get(1)?
        } else {
            return None;
        };
        if !is_left_out(parts.get(1)?) || is_left_out(result) {
            return None;
        }
        let mut parts = parts.to_vec();
        parts[1] = result.clone();
        Some(Shape::Tuple(parts))
    }

    /// Whether an update binds what its predecessor in the chain has not.
    fn binds_late(&self, inst: InstId) -> bool {
        let instruction = self.inst(inst);
        let Some(&before) = instruction.operands.first().filter(|_| instruction.opcode == Opcode::AsyncUpdate) else {
            return false;
        };
        instruction.operands.len() > 1 || !agrees(self.shape(before), self.shape(inst))
    }

    /// The chains of a computation, each from its start to the last update that binds something.
    fn late_chains(&self, comp: CompId) -> Vec<Vec<InstId>> {
        let mut chains: Vec<Vec<InstId>> = Vec::new();
        let mut chain_of: HashMap<InstId, usize> = HashMap::new();
        for &inst in &self.comp(comp).insts {
            let instruction = self.inst(inst);
            if instruction.opcode == Opcode::AsyncStart {
                chain_of.insert(inst, chains.len());
                chains.push(vec![inst]);
            } else if let Some(chain) = instruction.operands.first().and_then(|before| chain_of.get(before).copied())
                && instruction.opcode == Opcode::AsyncUpdate
            {
                chain_of.insert(inst, chain);
                chains[chain].push(inst);
            }
        }
        for chain in &mut chains {
            let n = chain.iter().rposition(|&inst| self.binds_late(inst)).map_or(0, |last| last + 1);
            chain.truncate(n);
        }
        chains.retain(|chain| !chain.is_empty());
        chains
    }

    /// Makes the last part of a chain its start.
    fn begin_at_last(&mut self, comp: CompId, chain: &[InstId]) {
        let [before @ .., last] = chain else { return };
        let Some(&start) = before.first() else { return };
        let insts = &self.comp(comp).insts;
        // Each part before the last one goes, so nothing but its successor may name it.
        let names_removed = |&&inst: &&InstId| {
            let chained =
                chain.iter().position(|&part| part == inst).and_then(|place| chain.get(place.checked_sub(1)?));
            let instruction = self.inst(inst);
            let others = instruction.operands.iter().enumerate().filter(|(k, o)| !(*k == 0 && chained == Some(*o)));
            let removed = |inst: &InstId| before.contains(inst);
            others.into_iter().any(|(_, operand)| removed(operand))
                || instruction.control_predecessors().iter().any(removed)
                || removed(&inst) && !instruction.control_predecessors().is_empty()
        };
        if insts.iter().find(names_removed).is_some()
            || self.comp(comp).root.expand().is_some_and(|root| before.contains(&root))
        {
            return;
        }
        let mut operands: Operands = self.inst(start).operands.clone();
        for &part in &chain[1..] {
            operands.extend(self.inst(part).operands.iter().skip(1).copied());
        }
        let attrs: Attrs = match AsyncAttrs::of(&self.inst(start).attrs) {
            Some(attrs) => attrs.clone().into(),
            None => return,
        };
        let instruction = self.inst_mut(*last);
        (instruction.opcode, instruction.operands, instruction.attrs) = (Opcode::AsyncStart, operands, attrs);
        self.comp_mut(comp).insts.retain(|inst| !before.contains(inst));
    }
}
