//! Put collectives that follow each other into one call of the library.
//!
//! A collective of few bytes is all latency, and each is a launch. Collectives of one kind between the same devices can be one group of
//! calls: none of them then begins before the last one's inputs are there, and what reads the first one's result waits for all. Whether
//! that pays, the modelled time says: [`super::assign_fastest`] tries it with several limits.

use super::Draft;
use crate::plan::{CollectiveCall, Step, Work};

/// Combines collectives of `steps`, which stand in an order that they can run in, up to `limit_bytes` for each call. `needs` are the
/// earlier steps that each must follow. Gives the steps in an order that they can run in.
pub(crate) fn combine(draft: &Draft, steps: Vec<Step>, needs: &[Vec<usize>], limit_bytes: u64) -> Vec<Step> {
    let mut list = Combined { limit_bytes, open: None, waiting: Vec::new(), steps: Vec::with_capacity(steps.len()) };
    let mut waits = vec![false; steps.len()];
    for (i, step) in steps.into_iter().enumerate() {
        waits[i] = needs[i].iter().any(|&earlier| waits[earlier]);
        if let Work::Collective(call) = &step.work {
            if !list.takes(draft, call, waits[i]) {
                list.close();
                waits.fill(false);
            }
            waits[i] = true;
            list.join(draft, step);
        } else if waits[i] {
            list.waiting.push(step);
        } else {
            list.steps.push(step);
        }
    }
    list.close();
    list.steps
}

struct Combined {
    limit_bytes: u64,
    /// The call that further collectives may join, and its bytes.
    open: Option<(Step, u64)>,
    /// What waits for it.
    waiting: Vec<Step>,
    /// What comes before it.
    steps: Vec<Step>,
}

impl Combined {
    /// Whether a collective can join the open call, or be the first one.
    fn takes(&self, draft: &Draft, call: &CollectiveCall, waits_for_open: bool) -> bool {
        let Some((Step { work: Work::Collective(open), .. }, bytes)) = &self.open else { return true };
        let is_alike = open.kind == call.kind && open.communicator == call.communicator && call.kind.pairs().is_none();
        // What one call reads, another may write over.
        let inputs =
            |call: &CollectiveCall| call.calls.iter().map(|&(input, _)| draft.value_of[input]).collect::<Vec<_>>();
        let is_read = inputs(call).iter().any(|value| inputs(open).contains(value));
        is_alike && !is_read && !waits_for_open && bytes.saturating_add(bytes_of(draft, call)) <= self.limit_bytes
    }

    fn join(&mut self, draft: &Draft, step: Step) {
        let Work::Collective(call) = &step.work else { return };
        let more = bytes_of(draft, call);
        if let Some((Step { work: Work::Collective(open), .. }, bytes)) = &mut self.open {
            open.calls.extend_from_slice(&call.calls);
            *bytes = bytes.saturating_add(more);
        } else {
            self.open = Some((step, more));
        }
    }

    fn close(&mut self) {
        self.steps.extend(self.open.take().map(|(step, _)| step));
        self.steps.append(&mut self.waiting);
    }
}

/// Bytes of the larger sides of a collective's calls.
fn bytes_of(draft: &Draft, call: &CollectiveCall) -> u64 {
    let bytes = |buffer| draft.plan.buffers[buffer].shape.memory_bytes();
    call.calls.iter().fold(0, |sum: u64, &(a, b)| sum.saturating_add(bytes(a).max(bytes(b))))
}
