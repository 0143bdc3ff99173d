//! Calls, loops and branches. A loop's state has one buffer for each leaf: copies bring the initial value in before the
//! loop and the new value in at the end of each round; most of them go away when [`crate::buffers`] finds that both can lie
//! in one place. The host reads predicates back, so each must be the same on all devices.

use super::{Leaves, Lowering};
use crate::GpuError;
use crate::buffers::Home;
use crate::plan::{BufferId, Step, Work};
use hlo_analysis::replication::Across;
use hlo_ir::attrs::Attrs;
use hlo_ir::{CompId, InstId};

impl Lowering<'_> {
    /// Lowers a call as its callee, in place.
    pub(crate) fn call(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let Attrs::Call(attrs) = &self.module.inst(inst).attrs else {
            return Err(self.unsupported(inst, "expected the attributes of a call, found others"));
        };
        let Some(callee) = attrs.to_apply else { return Err(self.unsupported(inst, "expected a callee, found none")) };
        let arguments = self.module.inst(inst).operands.iter().map(|&o| self.leaves(o).clone()).collect();
        let (inner, result) = self.computation(callee, arguments)?;
        steps.extend(inner);
        self.bind(inst, result)
    }

    pub(crate) fn loop_(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let instruction = self.module.inst(inst);
        let (Attrs::While(attrs), Some(&initial)) = (&instruction.attrs, instruction.operands.first()) else {
            return Err(self.unsupported(inst, "expected the attributes of a while, found others"));
        };
        let (Some(condition), Some(body)) = (attrs.condition, attrs.body) else {
            return Err(self.unsupported(inst, "expected a condition and a body, found none"));
        };
        self.check_predicate(inst, self.root_of(condition)?)?;
        let name = self.module.inst_name(inst).to_string();
        let initial = self.leaves(initial).clone();
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
        self.step(&name, Work::While { condition, predicate, body, carried }, steps);
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
        (0..n).filter(|&k| self.comes_from(root, k, param, k)).collect()
    }

    /// Whether leaf `k` of `inst` is leaf `source_leaf` of `source`, through tuples alone.
    fn comes_from(&self, mut inst: InstId, mut k: usize, source: InstId, source_leaf: usize) -> bool {
        use hlo_ir::op::Flow;
        loop {
            if inst == source {
                return k == source_leaf;
            }
            let instruction = self.module.inst(inst);
            match (instruction.opcode.row().flow, &instruction.attrs) {
                (Flow::Tuple, _) => {
                    let mut operands = instruction.operands.iter().copied();
                    let found = operands.find(|&o| {
                        let n = self.module.shape(o).n_leaves();
                        let is_here = k < n;
                        k = if is_here { k } else { k - n };
                        is_here
                    });
                    let Some(operand) = found else { return false };
                    inst = operand;
                }
                (Flow::GetTupleElement, Attrs::TupleIndex(attrs)) => {
                    let Some(&tuple) = instruction.operands.first() else { return false };
                    let elements = self.module.shape(tuple).as_tuple().unwrap_or_default();
                    let before = elements.iter().take(usize::try_from(attrs.index).unwrap_or(0));
                    k += before.map(hlo_ir::Shape::n_leaves).sum::<usize>();
                    inst = tuple;
                }
                (_, _) => return false,
            }
        }
    }

    pub(crate) fn conditional(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let instruction = self.module.inst(inst);
        let Some(&selector_inst) = instruction.operands.first() else {
            return Err(self.unsupported(inst, "expected a selector, found none"));
        };
        self.check_predicate(inst, selector_inst)?;
        let selector = self.operand(inst, 0)?;
        let name = self.module.inst_name(inst).to_string();
        let results = self.result_leaves(inst);
        let mut branches = Vec::new();
        for (k, callee) in self.module.called(inst).into_iter().enumerate() {
            let Some(&operand) = instruction.operands.get(k + 1) else {
                return Err(self.unsupported(inst, format!("expected an operand for branch {k}, found none")));
            };
            let arguments = vec![self.leaves(operand).clone()];
            let (mut branch, leaves) = self.computation(callee, arguments)?;
            for (&from, &to) in leaves.iter().zip(&results) {
                if let (Some(from), Some(to)) = (from, to) {
                    self.copy(&name, from, to, &mut branch);
                }
            }
            branches.push(branch);
        }
        self.step(&name, Work::Conditional { selector, branches }, steps);
        self.bind(inst, results)
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
