//! What every plan holds, checked without regard to how it was made.
//!
//! - Every byte that a step reads was written before: by the caller (parameters, constants) or by an earlier step.
//! - Nothing writes to constants, device ids, or (unless it is an output that lies there) outside its place.
//! - Of two steps on different streams that touch the same bytes, one of them writing, the later waits for the earlier, itself
//!   or by the order of its stream and earlier waits.
//! - A communicator's groups are disjoint and within the devices, and sizes of collectives agree. Each device runs the
//!   same list of steps, and each decision of the host is the same for all devices: so all ranks of a communicator issue
//!   the same sequence.

use super::{BufferId, CollectiveCall, CollectiveKind, Place, Plan, Step, Stream, Work};
use crate::buffers::waits::{Range, Touched, conflict, is_barrier, range, touched};
use std::collections::BTreeMap;

/// Checks a plan.
///
/// # Errors
/// What is wrong, one sentence for each thing.
pub fn verify(plan: &Plan) -> Result<(), Vec<String>> {
    let mut check = Check { plan, errors: Vec::new() };
    check.places();
    check.communicators();
    let mut written = Written::default();
    for buffer in plan.buffers.values() {
        match buffer.place {
            Place::Parameter(leaf) => {
                let whole = plan.parameters.get(leaf as usize).map(|&b| plan.buffers[b].shape.memory_bytes());
                written.add((buffer.place, 0, whole.unwrap_or(0)));
            }
            Place::Constant(id) => written.add((buffer.place, 0, plan.constants.get(id).map_or(0, |c| c.byte_size()))),
            Place::DeviceIds => written.add((buffer.place, 0, 8)),
            Place::Output(_) | Place::Arena => {}
        }
    }
    check.steps(&plan.steps, &mut written);
    for &output in &plan.outputs {
        check.read("the caller", output, &written);
    }
    check.streams(&plan.steps);
    if check.errors.is_empty() { Ok(()) } else { Err(check.errors) }
}

/// Bytes written so far: disjoint ranges `start → end` of each place.
#[derive(Clone, Default, PartialEq)]
struct Written {
    ranges: BTreeMap<Place, BTreeMap<u64, u64>>,
}

impl Written {
    fn add(&mut self, (place, mut start, mut end): Range) {
        let ranges = self.ranges.entry(place).or_default();
        if start >= end {
            return;
        }
        let touching: Vec<u64> =
            ranges.range(..=end).rev().take_while(|(_, e)| **e >= start).map(|(s, _)| *s).collect();
        for key in touching {
            if let Some(e) = ranges.remove(&key) {
                (start, end) = (start.min(key), end.max(e));
            }
        }
        ranges.insert(start, end);
    }

    fn has(&self, (place, start, end): Range) -> bool {
        start >= end
            || self
                .ranges
                .get(&place)
                .and_then(|ranges| ranges.range(..=start).next_back())
                .is_some_and(|(_, &e)| e >= end)
    }

    /// What both have written.
    fn both(&self, other: &Written) -> Written {
        let mut both = Written::default();
        for (&place, ranges) in &self.ranges {
            for (&start, &end) in ranges {
                for (&s, &e) in other.ranges.get(&place).into_iter().flatten() {
                    both.add((place, start.max(s), end.min(e)));
                }
            }
        }
        both
    }
}

struct Check<'p> {
    plan: &'p Plan,
    errors: Vec<String>,
}

impl Check<'_> {
    fn places(&mut self) {
        for (id, buffer) in self.plan.buffers.iter() {
            let leaf_bytes = |list: &[BufferId], leaf: u32| {
                list.get(leaf as usize).map_or(0, |&b| self.plan.buffers[b].shape.memory_bytes())
            };
            let room = match buffer.place {
                Place::Parameter(leaf) => leaf_bytes(&self.plan.parameters, leaf),
                Place::Output(leaf) => leaf_bytes(&self.plan.outputs, leaf),
                Place::Arena => self.plan.arena_bytes,
                Place::Constant(constant) => self.plan.constants.get(constant).map_or(0, |c| c.byte_size()),
                Place::DeviceIds => 8,
            };
            let end = buffer.offset_bytes.saturating_add(buffer.shape.memory_bytes());
            if end > room {
                self.errors.push(format!("{id} ({buffer}): expected an end within {room} B, found {end}"));
            }
        }
    }

    fn communicators(&mut self) {
        let n_devices = self.plan.n_replicas.saturating_mul(self.plan.n_partitions);
        for (id, groups) in self.plan.communicators.iter() {
            let mut members: Vec<u32> = groups.iter().flatten().copied().collect();
            members.sort_unstable();
            let n = members.len();
            members.dedup();
            if members.len() != n {
                self.errors.push(format!("{id}: expected disjoint groups, found a device twice"));
            }
            if members.last().is_some_and(|&last| last >= n_devices) {
                self.errors.push(format!("{id}: expected devices below {n_devices}, found {members:?}"));
            }
        }
    }

    fn read(&mut self, who: &str, buffer: BufferId, written: &Written) {
        let range = range(self.plan, buffer);
        if !written.has(range) {
            self.errors.push(format!("{who}: reads {buffer} ({}) before it is written", self.plan.buffers[buffer]));
        }
    }

    fn steps(&mut self, steps: &[Step], written: &mut Written) {
        for step in steps {
            match &step.work {
                Work::While { condition, predicate, body } => {
                    self.steps(condition, written);
                    self.read(&step.name, *predicate, written);
                    // What a body writes is there for the next round, but not behind a loop that never runs.
                    let mut inside = written.clone();
                    self.steps(body, &mut inside);
                }
                Work::Conditional { selector, branches } => {
                    self.read(&step.name, *selector, written);
                    let mut behind: Option<Written> = None;
                    for branch in branches {
                        let mut inside = written.clone();
                        self.steps(branch, &mut inside);
                        behind = Some(behind.map_or(inside.clone(), |b| b.both(&inside)));
                    }
                    *written = behind.unwrap_or_else(|| written.clone());
                }
                work @ (Work::Launch { .. }
                | Work::Gemm(_)
                | Work::Collective(_)
                | Work::Copy { .. }
                | Work::Fill { .. }) => {
                    let accesses = work.accesses(self.plan);
                    accesses.reads.iter().for_each(|&b| self.read(&step.name, b, written));
                    for &buffer in &accesses.writes {
                        self.write(&step.name, buffer);
                        written.add(range(self.plan, buffer));
                    }
                    if let Work::Collective(call) = work {
                        self.collective(&step.name, call);
                    }
                }
            }
        }
    }

    fn write(&mut self, who: &str, buffer: BufferId) {
        if let Place::Constant(_) | Place::DeviceIds = self.plan.buffers[buffer].place {
            self.errors.push(format!("{who}: writes to {buffer} ({}), which is only read", self.plan.buffers[buffer]));
        }
    }

    fn collective(&mut self, who: &str, call: &CollectiveCall) {
        let Some(groups) = self.plan.communicators.get(call.communicator) else {
            self.errors.push(format!("{who}: expected a communicator, found {}", call.communicator));
            return;
        };
        let n = groups.first().map_or(0, Vec::len) as u64;
        for &(input, output) in &call.calls {
            let bytes = |b: BufferId| self.plan.buffers[b].shape.memory_bytes();
            let (given, taken) = (bytes(input), bytes(output));
            let is_right = match call.kind {
                CollectiveKind::AllReduce(_) | CollectiveKind::AllToAll | CollectiveKind::Permute(_) => given == taken,
                CollectiveKind::ReduceScatter(_) => given == taken * n,
                CollectiveKind::AllGather => given * n == taken,
            };
            if !is_right {
                let kind = call.kind.name();
                self.errors.push(format!("{who}: {kind} over {n} devices of {given} B gives no {taken} B"));
            }
        }
    }

    /// Waits of each list of steps: of any two that conflict on different streams, the later is ordered behind the earlier.
    fn streams(&mut self, steps: &[Step]) {
        let touched: Vec<Touched> = steps.iter().map(|step| touched(self.plan, &step.work)).collect();
        // How many steps of the other stream (by index in the list) are known to have ended when a stream gets here.
        let mut known = [0usize; 2];
        let lane = |step: &Step| usize::from(step.stream == Stream::Communication);
        let mut barrier = 0;
        for (i, step) in steps.iter().enumerate() {
            if is_barrier(&step.work) {
                known = [i + 1; 2];
                barrier = i + 1;
                match &step.work {
                    Work::While { condition, body, .. } => [condition, body].into_iter().for_each(|s| self.streams(s)),
                    Work::Conditional { branches, .. } => branches.iter().for_each(|s| self.streams(s)),
                    Work::Launch { .. }
                    | Work::Gemm(_)
                    | Work::Collective(_)
                    | Work::Copy { .. }
                    | Work::Fill { .. } => {}
                }
                continue;
            }
            let own = lane(step);
            for &earlier in &step.waits_for {
                let earlier = earlier as usize;
                if earlier >= i || steps[earlier].stream == step.stream {
                    self.errors.push(format!(
                        "{}: waits for {earlier}, which is no earlier step of the other stream",
                        step.name
                    ));
                    continue;
                }
                known[own] = known[own].max(earlier + 1);
            }
            for (earlier, other) in steps.iter().enumerate().take(i).skip(barrier) {
                let is_ordered = lane(other) == own || earlier < known[own];
                if !is_ordered && conflict(&touched[i], &touched[earlier]) {
                    self.errors.push(format!("{}: must wait for step {earlier} ({})", step.name, other.name));
                }
            }
        }
    }
}
