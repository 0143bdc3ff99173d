//! Say what each step waits for: the last earlier step of the other stream that touched bytes that it touches, if one of
//! the two writes. Steps of one stream run in order, so one wait is enough, and a wait that an earlier step of the same
//! stream already made is left out. At the beginning and the end of a loop's or branch's list both streams have caught up
//! with each other, so a list needs waits of its own steps only, and none across a loop or branch in it.

use crate::plan::{BufferId, Place, Plan, Step, Stream, Work};

/// Bytes at a place.
pub(crate) type Range = (Place, u64, u64);

/// The bytes of a buffer.
pub(crate) fn range(plan: &Plan, buffer: BufferId) -> Range {
    let buffer = &plan.buffers[buffer];
    (buffer.place, buffer.offset_bytes, buffer.offset_bytes + buffer.shape.memory_bytes())
}

/// Whether two ranges share a byte.
pub(crate) fn meet(a: &Range, b: &Range) -> bool {
    a.0 == b.0 && a.1 < b.2 && b.1 < a.2
}

/// What a step touches: bytes read, bytes written.
pub(crate) type Touched = (Vec<Range>, Vec<Range>);

/// What a step touches, without the steps inside it.
pub(crate) fn touched(plan: &Plan, work: &Work) -> Touched {
    let accesses = work.accesses(plan);
    let ranges = |list: &[BufferId]| list.iter().map(|&b| range(plan, b)).collect();
    (ranges(&accesses.reads), ranges(&accesses.writes))
}

/// Whether one of two steps writes what the other touches.
pub(crate) fn conflict(a: &Touched, b: &Touched) -> bool {
    let any = |x: &[Range], y: &[Range]| x.iter().any(|r| y.iter().any(|s| meet(r, s)));
    any(&a.1, &b.1) || any(&a.1, &b.0) || any(&a.0, &b.1)
}

/// Whether a step is a point at which both streams catch up with each other.
pub(crate) fn is_barrier(work: &Work) -> bool {
    matches!(work, Work::While { .. } | Work::Conditional { .. })
}

/// Fills in `waits_for` of all steps.
pub fn add_waits(plan: &Plan, steps: &mut [Step]) {
    for step in steps.iter_mut() {
        match &mut step.work {
            Work::While { condition, body, .. } => {
                add_waits(plan, condition);
                add_waits(plan, body);
            }
            Work::Conditional { branches, .. } => branches.iter_mut().for_each(|branch| add_waits(plan, branch)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
    let touched: Vec<Touched> = steps.iter().map(|step| touched(plan, &step.work)).collect();
    // Steps of each stream since the last barrier, and the first step of the other stream not yet waited for by it.
    let mut issued: [Vec<usize>; 2] = [Vec::new(), Vec::new()];
    let mut waited = [0usize; 2];
    for i in 0..steps.len() {
        steps[i].waits_for.clear();
        if is_barrier(&steps[i].work) {
            issued.iter_mut().for_each(Vec::clear);
            waited = [i + 1; 2];
            continue;
        }
        let (own, other) = match steps[i].stream {
            Stream::Compute => (0, 1),
            Stream::Communication => (1, 0),
        };
        let not_waited = issued[other].iter().rev().take_while(|&&earlier| earlier >= waited[own]);
        let found = not_waited.copied().find(|&earlier| conflict(&touched[i], &touched[earlier]));
        if let Some(earlier) = found {
            steps[i].waits_for.push(earlier as u32);
            waited[own] = earlier + 1;
        }
        issued[own].push(i);
    }
}
