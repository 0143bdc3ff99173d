//! The memory of one device over a run: every moment of the entry's schedule, with the computations that it calls inside.

use super::buffer_table::END;
use super::schedule_walk::{ContextId, Moment, PeakFinder};
use hlo_ir::{InstId, Module};

/// Points of a curve at most. Beyond, a call or a loop is one point: its peak.
const MAX_POINTS: usize = 400_000;

/// Calls within calls that are followed.
const MAX_DEPTH: usize = 64;

/// The memory at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPoint {
    /// The instruction that runs; `None` before the first.
    pub inst: Option<InstId>,
    /// Bytes that live: arguments, constants, outputs and temporaries.
    pub bytes: u64,
}

/// The curve of a run of `start`; `given_bytes` live all the time.
pub(super) fn curve(
    module: &Module,
    finder: &mut PeakFinder<'_>,
    start: ContextId,
    given_bytes: u64,
) -> Vec<MemoryPoint> {
    let mut points = Vec::new();
    follow(module, finder, (start, 0), i64::try_from(given_bytes).unwrap_or(i64::MAX), &mut points);
    points
}

/// Adds the moments of a computation that begins with `base_bytes` in memory.
fn follow(
    module: &Module,
    finder: &mut PeakFinder<'_>,
    (id, depth): (ContextId, usize),
    base_bytes: i64,
    points: &mut Vec<MemoryPoint>,
) {
    let computation = module.comp(finder.computation(id));
    for Moment { bytes, position, within } in finder.moments(id, depth) {
        let bytes = base_bytes.saturating_add(bytes);
        if let Some(within) = within.filter(|_| depth < MAX_DEPTH && points.len() < MAX_POINTS) {
            let most_bytes = finder.peak(within, depth + 1).bytes;
            follow(module, finder, (within, depth + 1), bytes.saturating_sub(most_bytes), points);
            continue;
        }
        let inst = match position {
            Some(END) => computation.root.expand(),
            Some(position) => computation.insts.get(position as usize).copied(),
            None => None,
        };
        points.push(MemoryPoint { inst, bytes: u64::try_from(bytes).unwrap_or(0) });
    }
}
