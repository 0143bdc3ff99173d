//! Collectives in flight: no two at once share more than one device.
//!
//! A collective on a device waits for its group and keeps the device's resources meanwhile. Of two collectives that may be in flight
//! at once, one device can run the first before the second and another the second before the first; where both devices belong to both,
//! each waits for the other for ever (openxla/xla issue 19026). The steps of one stream are issued one after the other, so only
//! collectives on different streams, of which none waits for the other, can meet.

use crate::plan::{CollectiveCall, Plan, Step, Work};
use hlo_analysis::in_flight;

pub(super) fn check(plan: &Plan, steps: &[Step], errors: &mut Vec<String>) {
    // Of each stream: its collectives since the last barrier, by index in the list, and how many steps of the other stream
    // are known to have ended.
    let mut issued: [Vec<usize>; 2] = Default::default();
    let mut known = [0usize; 2];
    for (i, step) in steps.iter().enumerate() {
        match &step.work {
            Work::While { condition, body, .. } => [condition, body].into_iter().for_each(|s| check(plan, s, errors)),
            Work::Conditional { branches, .. } => branches.iter().for_each(|s| check(plan, s, errors)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
        if step.work.is_barrier() {
            issued = Default::default();
            known = [i + 1; 2];
            continue;
        }
        let own = step.stream.number();
        let ended = step.waits_for.iter().map(|&earlier| earlier as usize + 1).max().unwrap_or(0);
        known[own] = known[own].max(ended);
        let Work::Collective(call) = &step.work else { continue };
        for &other in issued[1 - own].iter().rev().take_while(|&&other| other >= known[own]) {
            let Work::Collective(earlier) = &steps[other].work else { continue };
            if let Some((a, b)) = shared_pair(plan, earlier, call) {
                errors.push(format!(
                    "{}: may be in flight together with step {other} ({}), and devices {a} and {b} take part in both",
                    step.name, steps[other].name
                ));
            }
        }
        issued[own].push(i);
    }
}

/// Two devices of one group of the one collective that are in one group of the other as well.
fn shared_pair(plan: &Plan, one: &CollectiveCall, other: &CollectiveCall) -> Option<(u32, u32)> {
    let groups = |call: &CollectiveCall| -> Vec<Vec<u32>> {
        match call.kind.pairs() {
            Some(pairs) => pairs.iter().map(|&(from, to)| vec![from, to]).collect(),
            None => plan.communicators.get(call.communicator).cloned().unwrap_or_default(),
        }
    };
    in_flight::shared_pair(&groups(one), &groups(other))
}
