//! Calls, loops and branches. A loop's state has one buffer for each leaf: copies bring the initial value in before the
//! loop and the new value in at the end of each round; most of them go away when [`crate::buffers`] finds that both can lie
//! in one place. The host reads predicates back, so each must be the same on all devices.

use super::{Leaves, Lowering};
use crate::GpuError;
use crate::buffers::Home;
use crate::plan::{BufferId, Step, Work};
use hlo_analysis::replication::Across;
use hlo_analysis::values::{CallSite, InstLeaf, Through, arguments, condition_and_body, follow};
use hlo_ir::{CompId, InstId};

impl Lowering<'_> {
    /// Lowers a call as its callee, in place.
    pub(crate) fn call(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let Some(&callee) = self.module.called(inst).first() else {
            return Err(self.unsupported(inst, "expected a callee, found none"));
        };
        let arguments = self.argument_leaves(CallSite { inst, slot: 0 }, callee);
        let (inner, result) = self.computation(callee, arguments)?;
        steps.extend(inner);
        self.bind(inst, result)
    }

    pub(crate) fn loop_(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let Some((condition, body)) = condition_and_body(self.module, inst) else {
            return Err(self.unsupported(inst, "expected a condition and a body, found none"));
        };
        self.check_predicate(inst, self.root_of(condition)?)?;
        let name = self.module.inst_name(inst).to_string();
        let initial = self.argument_leaves(CallSite::of_body(inst), body).pop().unwrap_or_default();
        let invariant = self.invariant_leaves(body);
        let mut state = Leaves::new();
        for (k, &leaf) in initial.iter().enumerate() {
            let Some(from) = leaf.filter(|_| !invariant.contains(&k)) else {
                state.push(leaf);
                continue;
            };
            let shape = self.draft.plan.buffers[from].shape.clone();
            let carry = self.draft.add_value(&format!("{name}.{k}"), shape, Home::Temporary);
            self.copy(&name, from, carry, steps);
            state.push(Some(carry));
        }
        let (condition, predicate) = self.computation(condition, vec![state.clone()])?;
        let Some(predicate) = predicate.first().copied().flatten() else {
            return Err(self.unsupported(inst, "expected a condition that returns pred[], found no array"));
        };
        let (mut body, result) = self.computation(body, vec![state.clone()])?;
        let carried = self.hand_round(&name, &state, &result, &mut body);
        let n_trips = self.frequencies().trip_count(inst).map_or(1, |trips| trips.count);
        self.step(&name, Work::While { condition, predicate, body, carried, n_trips }, steps);
        self.bind(inst, state)
    }

    /// Copies a round's results into the state, of which it gives the leaves that are new. A result that is another leaf of
    /// the state is saved first.
    fn hand_round(&mut self, name: &str, state: &Leaves, result: &Leaves, body: &mut Vec<Step>) -> Vec<BufferId> {
        let value = |draft: &crate::buffers::Draft, b: BufferId| draft.value_of[b];
        let carried: Vec<_> = state.iter().flatten().map(|&b| value(&self.draft, b)).collect();
        let mut moves = Vec::new();
        for (&to, &from) in state.iter().zip(result) {
            let (Some(to), Some(from)) = (to, from) else { continue };
            if value(&self.draft, to) == value(&self.draft, from) {
                continue;
            }
            let mut from = from;
            if carried.contains(&value(&self.draft, from)) {
                let shape = self.draft.plan.buffers[from].shape.clone();
                let saved = self.draft.add_value(&format!("{name}.saved"), shape, Home::Temporary);
                self.copy(name, from, saved, body);
                from = saved;
            }
            moves.push((from, to));
        }
        moves.iter().for_each(|&(from, to)| self.copy(name, from, to, body));
        moves.into_iter().map(|(_, to)| to).collect()
    }

    /// Leaves of a body's parameter that its root hands on unchanged.
    fn invariant_leaves(&self, body: CompId) -> Vec<usize> {
        let computation = self.module.comp(body);
        let (Some(root), Some(&param)) = (computation.root.expand(), computation.params.first()) else { return vec![] };
        let n = self.module.shape(param).n_leaves();
        let is_handed_on = |&k: &usize| {
            let from = follow(self.module, InstLeaf::new(root, k as u32), Through::TUPLES, |inst| inst == param);
            from == InstLeaf::new(param, k as u32)
        };
        (0..n).filter(is_handed_on).collect()
    }

    pub(crate) fn conditional(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let Some(&selector_inst) = self.module.inst(inst).operands.first() else {
            return Err(self.unsupported(inst, "expected a selector, found none"));
        };
        self.check_predicate(inst, selector_inst)?;
        let selector = self.operand(inst, 0)?;
        let name = self.module.inst_name(inst).to_string();
        let results = self.result_leaves(inst);
        let mut branches = Vec::new();
        for (slot, callee) in (0..).zip(self.module.called(inst)) {
            let arguments = self.argument_leaves(CallSite { inst, slot }, callee);
            let (mut branch, leaves) = self.computation(callee, arguments)?;
            for (&from, &to) in leaves.iter().zip(&results) {
                if let (Some(from), Some(to)) = (from, to) {
                    self.copy(&name, from, to, &mut branch);
                }
            }
            branches.push(branch);
        }
        let even = vec![1.0 / branches.len().max(1) as f64; branches.len()];
        let shares = self.frequencies().branch_shares(inst).map_or(even, |shares| shares.shares.to_vec());
        self.step(&name, Work::Conditional { selector, branches, shares }, steps);
        self.bind(inst, results)
    }

    /// What a call site gives for each parameter of what it calls.
    fn argument_leaves(&self, site: CallSite, callee: CompId) -> Vec<Leaves> {
        arguments(self.module, site, callee).map(|(_, operand)| self.leaves(operand).clone()).collect()
    }

    fn root_of(&self, comp: CompId) -> Result<InstId, GpuError> {
        let root = self.module.comp(comp).root.expand();
        root.ok_or_else(|| GpuError::unsupported(self.module.comp_name(comp), "expected a root, found none"))
    }

    /// The host decides for all devices at once, so the value that it reads must be the same on all of them.
    fn check_predicate(&mut self, inst: InstId, predicate: InstId) -> Result<(), GpuError> {
        if self.module.n_devices() <= 1 || self.replication().is_replicated(predicate, 0, Across::Devices) {
            return Ok(());
        }
        let reason = format!(
            "expected a predicate that is proven to be the same on all {} devices, found `{}`, of which that is not known \
             (is a parameter that it depends on marked as replicated?)",
            self.module.n_devices(),
            self.module.inst_name(predicate)
        );
        Err(self.unsupported(inst, reason))
    }
}
