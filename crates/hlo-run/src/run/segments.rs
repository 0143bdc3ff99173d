//! A list of steps as segments: runs of steps on the compute stream that a device may record once and then launch as one.
//!
//! A segment begins where a step waits for the other stream and ends behind a step that the other stream waits for, so that
//! launching it as one neither delays nor hurries anything that it did not before. Collectives, loops and branches stand
//! alone: NCCL is called outside of recordings, and the host decides on loops.

use std::ops::Range;

use hlo_gpu::plan::{Step, Stream, Work};

/// Some steps of a list, one after the other.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Segment {
    /// Which.
    pub range: Range<usize>,
    /// Whether a device may record them.
    pub is_recordable: bool,
}

/// The segments of a list, in order; together they are the list.
pub(super) fn segments(steps: &[Step]) -> Vec<Segment> {
    let is_awaited = awaited(steps);
    let mut segments: Vec<Segment> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let is_recordable = is_recordable(step);
        let goes_on = is_recordable && step.waits_for.is_empty() && i > 0 && !is_awaited[i - 1];
        match segments.last_mut() {
            Some(last) if goes_on && last.is_recordable => last.range.end = i + 1,
            _ => segments.push(Segment { range: i..i + 1, is_recordable }),
        }
    }
    segments
}

/// Which steps of a list others wait for.
pub(super) fn awaited(steps: &[Step]) -> Vec<bool> {
    let mut is_awaited = vec![false; steps.len()];
    for &earlier in steps.iter().flat_map(|step| &step.waits_for) {
        if let Some(slot) = is_awaited.get_mut(earlier as usize) {
            *slot = true;
        }
    }
    is_awaited
}

fn is_recordable(step: &Step) -> bool {
    let is_simple = match step.work {
        Work::Launch { .. } | Work::Gemm(_) | Work::Copy { .. } | Work::Fill { .. } => true,
        Work::Collective(_) | Work::While { .. } | Work::Conditional { .. } => false,
    };
    is_simple && step.stream == Stream::Compute
}

#[cfg(test)]
mod tests {
    use super::*;
    use cranelift_entity::EntityRef;
    use hlo_gpu::plan::BufferId;

    fn step(stream: Stream, waits_for: &[u32]) -> Step {
        let work = Work::Fill { to: BufferId::new(0), byte: 0 };
        Step { name: String::new(), stream, waits_for: waits_for.to_vec(), work }
    }

    #[test]
    fn segments_end_where_streams_meet() {
        let (compute, communication) = (Stream::Compute, Stream::Communication);
        let steps = [
            step(compute, &[]),
            step(compute, &[]),
            step(communication, &[1]),
            step(compute, &[]),
            step(compute, &[]),
            step(compute, &[2]),
            step(compute, &[]),
        ];
        let found: Vec<(Range<usize>, bool)> =
            segments(&steps).into_iter().map(|segment| (segment.range, segment.is_recordable)).collect();
        assert_eq!(found, [(0..2, true), (2..3, false), (3..5, true), (5..7, true)]);
        let steps = [step(compute, &[]), step(compute, &[]), step(compute, &[]), step(communication, &[0])];
        assert_eq!(segments(&steps).len(), 3, "a step that is awaited ends its segment");
    }
}
