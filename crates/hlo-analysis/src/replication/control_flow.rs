//! Transfer functions of calls, loops and branches.

use super::solver::{Fact, Frame, Solver, Wanting};
use super::*;
use crate::values::{CallSite, condition_and_body};

impl Solver<'_> {
    pub(super) fn call(&mut self, inst: InstId, frame: &Frame, n: usize) -> Wanting<Fact> {
        match self.module.called(inst).first() {
            Some(&callee) => {
                let args = self.argument_leaves(CallSite { inst, slot: 0 }, callee, frame);
                let result = self.result_of(callee, &args, frame.control())?;
                Ok(self.fit(result, n))
            }
            None => Ok(self.unknown(n)),
        }
    }

    /// Descends from the init until the body keeps the state; devices whose conditions differ leave at other times.
    ///
    /// Each round lowers the state or ends: the lattice is finite, and once the engine's budget is spent a round no
    /// longer depends on the state. So what is recorded last is a fixpoint.
    pub(super) fn while_loop(&mut self, inst: InstId, frame: &mut Frame, n: usize) -> Wanting<Fact> {
        let Some((condition, body)) = condition_and_body(self.module, inst) else { return Ok(self.unknown(n)) };
        let (mut state, mut control) = match frame.loop_state.take() {
            Some(resumed) => resumed,
            None => {
                let init = self.argument_leaves(CallSite::of_body(inst), body, frame);
                (self.fit(init.into(), n).to_vec(), frame.control())
            }
        };
        loop {
            match self.loop_round(condition, body, &state, control) {
                Ok((next, next_control)) if (&next, next_control) == (&state, control) => return Ok(state.into()),
                Ok(next) => (state, control) = next,
                Err(wanted) => {
                    frame.loop_state = Some((state, control));
                    return Err(wanted);
                }
            }
        }
    }

    fn loop_round(
        &mut self,
        condition: hlo_ir::CompId,
        body: hlo_ir::CompId,
        state: &[Classes],
        control: Classes,
    ) -> Wanting<(Vec<Classes>, Classes)> {
        let go_on = self.result_of(condition, state, control)?;
        let go_on = go_on.first().copied().unwrap_or(self.pool.bottom());
        let control = self.pool.meet(control, go_on);
        let mut next: Vec<Classes> = state.iter().map(|&s| self.pool.meet(s, control)).collect();
        let after = self.result_of(body, &next, control)?;
        let after = self.fit(after, next.len());
        for (leaf, &after) in next.iter_mut().zip(after.iter()) {
            *leaf = self.pool.meet(*leaf, after);
        }
        Ok((next, control))
    }

    pub(super) fn conditional(&mut self, inst: InstId, frame: &Frame, n: usize) -> Wanting<Fact> {
        let predicate = self.first_operand(inst, frame).first().copied().unwrap_or(self.pool.bottom());
        let control = self.pool.meet(frame.control(), predicate);
        let mut result = vec![predicate; n];
        for (slot, branch) in (0..).zip(self.module.called(inst)) {
            let args = self.argument_leaves(CallSite { inst, slot }, branch, frame);
            let leaves = self.result_of(branch, &args, control)?;
            for (leaf, &fact) in result.iter_mut().zip(self.fit(leaves, n).iter()) {
                *leaf = self.pool.meet(*leaf, fact);
            }
        }
        Ok(result.into())
    }
}
