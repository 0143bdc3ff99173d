//! Waits of each list of steps: of any two that conflict on different streams, the later is ordered behind the earlier.
//!
//! The check keeps its own record of who touched which bytes. It shares no code with the pass that adds the waits.

use crate::plan::ranges::{RangeMap, range};
use crate::plan::{Plan, Step, Work};

/// The last steps (index and one, 0 for none) of each stream that read some bytes and that wrote them.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct LastUse {
    read: [usize; 2],
    written: [usize; 2],
}

pub(super) fn check(plan: &Plan, steps: &[Step], errors: &mut Vec<String>) {
    let mut uses: RangeMap<LastUse> = RangeMap::default();
    // How many steps of the other stream (by index in the list) are known to have ended when a stream gets here.
    let mut known = [0usize; 2];
    for (i, step) in steps.iter().enumerate() {
        match &step.work {
            Work::While { condition, body, .. } => [condition, body].into_iter().for_each(|s| check(plan, s, errors)),
            Work::Conditional { branches, .. } => branches.iter().for_each(|s| check(plan, s, errors)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
        let own = step.stream.number();
        for &earlier in &step.waits_for {
            let other = steps.get(earlier as usize).filter(|_| (earlier as usize) < i);
            if other.is_none_or(|other| other.stream == step.stream) {
                let name = &step.name;
                errors.push(format!("{name}: waits for {earlier}, which is no earlier step of the other stream"));
                continue;
            }
            known[own] = known[own].max(earlier as usize + 1);
        }
        if step.work.is_barrier() {
            uses = RangeMap::default();
            known = [i + 1; 2];
            continue;
        }
        let last = find_last_conflict(plan, step, &uses);
        if last > known[own] {
            let (at, name) = (last - 1, steps.get(last - 1).map_or("", |s| s.name.as_str()));
            errors.push(format!("{}: must wait for step {at} ({name})", step.name));
        }
        note_uses(plan, i, step, &mut uses);
    }
}

/// The last step (index and one) of the other stream that touched bytes that this step touches, one of them writing.
fn find_last_conflict(plan: &Plan, step: &Step, uses: &RangeMap<LastUse>) -> usize {
    let other = 1 - step.stream.number();
    let accesses = step.work.accesses(plan);
    let of_reads =
        accesses.reads.iter().flat_map(|&b| uses.within(range(plan, b))).map(|(.., last)| last.written[other]);
    let of_writes = accesses.writes.iter().flat_map(|&b| uses.within(range(plan, b)));
    let of_writes = of_writes.map(|(.., last)| last.written[other].max(last.read[other]));
    of_reads.chain(of_writes).max().unwrap_or(0)
}

/// Enters what a step reads and writes.
fn note_uses(plan: &Plan, index: usize, step: &Step, uses: &mut RangeMap<LastUse>) {
    let own = step.stream.number();
    let accesses = step.work.accesses(plan);
    for &buffer in &accesses.reads {
        uses.update(range(plan, buffer), |last| {
            let mut last = last.copied().unwrap_or_default();
            last.read[own] = index + 1;
            last
        });
    }
    for &buffer in &accesses.writes {
        // Earlier uses need no record: they are ordered before this step, or an error has been noted.
        let mut last = LastUse::default();
        last.written[own] = index + 1;
        uses.set(range(plan, buffer), last);
    }
}
