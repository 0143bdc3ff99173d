//! Waits of each list of steps: of any two that conflict on different streams, the later is ordered behind the earlier.

use crate::buffers::waits::{Touched, is_barrier, lane};
use crate::plan::{Plan, Step, Work};

pub(super) fn check(plan: &Plan, steps: &[Step], errors: &mut Vec<String>) {
    let mut touched = Touched::default();
    // How many steps of the other stream (by index in the list) are known to have ended when a stream gets here.
    let mut known = [0usize; 2];
    for (i, step) in steps.iter().enumerate() {
        match &step.work {
            Work::While { condition, body, .. } => [condition, body].into_iter().for_each(|s| check(plan, s, errors)),
            Work::Conditional { branches, .. } => branches.iter().for_each(|s| check(plan, s, errors)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
        let own = lane(step);
        for &earlier in &step.waits_for {
            let other = steps.get(earlier as usize).filter(|_| (earlier as usize) < i);
            if other.is_none_or(|other| lane(other) == own) {
                let name = &step.name;
                errors.push(format!("{name}: waits for {earlier}, which is no earlier step of the other stream"));
                continue;
            }
            known[own] = known[own].max(earlier as usize + 1);
        }
        if is_barrier(&step.work) {
            touched = Touched::default();
            known = [i + 1; 2];
            continue;
        }
        let last = touched.enter(plan, i, step);
        if last > known[own] {
            let (at, name) = (last - 1, steps.get(last - 1).map_or("", |s| s.name.as_str()));
            errors.push(format!("{}: must wait for step {at} ({name})", step.name));
        }
    }
}
