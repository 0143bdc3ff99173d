//! Say what each step waits for: the last earlier step of the other stream that touched bytes that it touches, if one of
//! the two writes. Steps of one stream run in order, so one wait is enough, and a wait that an earlier step of the same
//! stream already made is left out. Both streams catch up with each other at the beginning and the end of the list of a
//! loop or branch. So a list needs waits of its own steps only, and none across a loop or branch in it.

use crate::plan::ranges::{RangeMap, range};
use crate::plan::{Plan, Step, Work};

/// The last steps of each stream that read and wrote each byte; a step's number is its index and one, 0 stands for none.
#[derive(Default)]
struct Touched {
    last: RangeMap<Last>,
}

#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Last {
    read: [u32; 2],
    write: [u32; 2],
}

impl Touched {
    /// Enters the step with this index; gives the last step (index and one) of the other stream that conflicts with it.
    fn enter(&mut self, plan: &Plan, index: usize, step: &Step) -> usize {
        let (own, other, number) = (step.stream.number(), 1 - step.stream.number(), index as u32 + 1);
        let accesses = step.work.accesses(plan);
        let mut found = 0;
        for &buffer in &accesses.reads {
            let range = range(plan, buffer);
            found = self.last.within(range).map(|(_, _, last)| last.write[other]).fold(found, u32::max);
        }
        for &buffer in &accesses.writes {
            let range = range(plan, buffer);
            let touched = self.last.within(range).map(|(_, _, last)| last.write[other].max(last.read[other]));
            found = touched.fold(found, u32::max);
        }
        for &buffer in &accesses.reads {
            self.last.update(range(plan, buffer), |last| {
                let mut last = last.copied().unwrap_or_default();
                last.read[own] = number;
                last
            });
        }
        for &buffer in &accesses.writes {
            // Whoever touches these bytes next comes after this step, and so after all before it.
            let mut last = Last::default();
            last.write[own] = number;
            self.last.set(range(plan, buffer), last);
        }
        found as usize
    }
}

/// Fills in `waits_for` of all steps.
pub(crate) fn add_waits(plan: &Plan, steps: &mut [Step]) {
    let mut touched = Touched::default();
    // The first step of the other stream that each stream has not yet waited for.
    let mut waited = [0usize; 2];
    for (i, step) in steps.iter_mut().enumerate() {
        step.waits_for.clear();
        match &mut step.work {
            Work::While { condition, body, .. } => {
                add_waits(plan, condition);
                add_waits(plan, body);
            }
            Work::Conditional { branches, .. } => branches.iter_mut().for_each(|branch| add_waits(plan, branch)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
        if step.work.is_barrier() {
            touched = Touched::default();
            waited = [i + 1; 2];
            continue;
        }
        let found = touched.enter(plan, i, step);
        let own = step.stream.number();
        if found > waited[own] {
            step.waits_for.push(found as u32 - 1);
            waited[own] = found;
        }
    }
}
