//! What lies in each byte when a step reads it, and on which devices it is equal.

use super::labels::{LabelId, Labels};
use crate::plan::ranges::{Range, RangeMap, range};
use crate::plan::{BufferId, CollectiveKind, Place, Plan, PlanValueId, Step, Work};

/// What a byte holds: a value, where the value begins in the place, and on which devices it is equal.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Held {
    value: PlanValueId,
    begin: u64,
    label: LabelId,
}

type State = RangeMap<Held>;

pub(super) fn check(plan: &Plan, errors: &mut Vec<String>) {
    let n_devices = plan.n_replicas.saturating_mul(plan.n_partitions).max(1);
    let mut check = Check { plan, labels: Labels::new(n_devices), errors };
    let mut state = check.given(n_devices);
    check.steps(&plan.steps, &mut state);
    for &output in &plan.outputs {
        check.read("the caller", output, &state);
    }
}

struct Check<'p> {
    plan: &'p Plan,
    labels: Labels,
    errors: &'p mut Vec<String>,
}

impl Check<'_> {
    fn held(&self, id: BufferId, label: LabelId) -> Held {
        let buffer = &self.plan.buffers[id];
        Held { value: buffer.value, begin: buffer.offset_bytes.saturating_sub(buffer.value_offset_bytes), label }
    }

    /// What the caller wrote: parameters, constants, device ids.
    fn given(&mut self, n_devices: u32) -> State {
        let mut state = State::default();
        for (&id, facts) in self.plan.parameters.iter().zip(&self.plan.parameter_facts) {
            let label = match facts.classes.len() == n_devices as usize {
                true => self.labels.by_key(facts.classes.iter()),
                false => Labels::UNIQUE,
            };
            state.set(range(self.plan, id), self.held(id, label));
        }
        let n_partitions = self.plan.n_partitions.max(1);
        let replicas = self.labels.by_key((0..n_devices).map(|device| device / n_partitions));
        let partitions = self.labels.by_key((0..n_devices).map(|device| device % n_partitions));
        for id in self.plan.buffers.keys() {
            match self.plan.buffers[id].place {
                Place::Constant(_) => state.set(range(self.plan, id), self.held(id, Labels::EQUAL)),
                Place::DeviceIds => {
                    state.set((Place::DeviceIds, 0, 4), self.held(id, replicas));
                    state.set((Place::DeviceIds, 4, 8), self.held(id, partitions));
                }
                Place::Parameter(_) | Place::Output(_) | Place::Arena => {}
            }
        }
        state
    }

    /// Whether a buffer holds its value; gives where that is equal.
    fn read(&mut self, who: &str, id: BufferId, state: &State) -> LabelId {
        let bytes = range(self.plan, id);
        if !state.covers(bytes) {
            self.errors.push(format!("{who}: reads {id} ({}) before it is written", self.plan.buffers[id]));
            return Labels::UNIQUE;
        }
        let wanted = self.held(id, Labels::EQUAL);
        let mut label = Labels::EQUAL;
        for (_, _, held) in state.within(bytes) {
            if (held.value, held.begin) != (wanted.value, wanted.begin) {
                let (buffer, found) = (&self.plan.buffers[id], held.value);
                self.errors.push(format!("{who}: reads {id} ({buffer}), where {found} lies and not {}", wanted.value));
                return Labels::UNIQUE;
            }
            label = self.labels.join(label, held.label);
        }
        label
    }

    fn steps(&mut self, steps: &[Step], state: &mut State) {
        for step in steps {
            match &step.work {
                Work::While { condition, predicate, body, carried, .. } => {
                    self.loop_(&step.name, condition, *predicate, body, state);
                    self.carried(&step.name, body, carried);
                }
                Work::Conditional { selector, branches, .. } => {
                    let label = self.read(&step.name, *selector, state);
                    self.decide(&step.name, *selector, label);
                    let mut behind: Option<State> = None;
                    for branch in branches {
                        let mut inside = state.clone();
                        self.steps(branch, &mut inside);
                        behind = Some(match behind {
                            Some(behind) => self.both(&behind, &inside),
                            None => inside,
                        });
                    }
                    *state = behind.unwrap_or_else(|| state.clone());
                }
                work @ (Work::Launch { .. }
                | Work::Gemm(_)
                | Work::Collective(_)
                | Work::Copy { .. }
                | Work::Fill { .. }) => self.work(&step.name, work, state),
            }
        }
    }

    fn work(&mut self, who: &str, work: &Work, state: &mut State) {
        let accesses = work.accesses(self.plan);
        let read: Vec<LabelId> = accesses.reads.iter().map(|&b| self.read(who, b, state)).collect();
        let all = read.iter().fold(Labels::EQUAL, |all, &label| self.labels.join(all, label));
        for (k, &written) in accesses.writes.iter().enumerate() {
            let label = match work {
                Work::Launch { kernel, .. } => match self.plan.kernel_facts[*kernel].depends.get(k) {
                    Some(depends) => {
                        let used = depends.iter().map(|&i| read.get(i).copied().unwrap_or(Labels::UNIQUE));
                        used.fold(Labels::EQUAL, |all, label| self.labels.join(all, label))
                    }
                    None => all,
                },
                Work::Collective(call) => {
                    let own = read.get(k).copied().unwrap_or(Labels::UNIQUE);
                    let groups = &self.plan.communicators[call.communicator];
                    match &call.kind {
                        CollectiveKind::Pairs(pairs) => self.labels.of_pairs(own, pairs),
                        CollectiveKind::Groups { scatters, .. } => self.labels.of_groups(own, groups, *scatters),
                    }
                }
                Work::Gemm(_) | Work::Copy { .. } | Work::Fill { .. } => all,
                Work::While { .. } | Work::Conditional { .. } => Labels::UNIQUE,
            };
            state.set(range(self.plan, written), self.held(written, label));
        }
    }

    /// What the host decides by must be the same on all devices, or their sequences of steps would differ.
    fn decide(&mut self, who: &str, buffer: BufferId, label: LabelId) {
        if !self.labels.is_equal(label) {
            let found = &self.plan.buffers[buffer];
            self.errors.push(format!(
                "{who}: decides by {buffer} ({found}), which is not known to be the same on all devices"
            ));
        }
    }

    /// Walks a loop until what is known at its beginning is known after each round too.
    fn loop_(&mut self, who: &str, condition: &[Step], predicate: BufferId, body: &[Step], state: &mut State) {
        let n_errors = self.errors.len();
        loop {
            self.errors.truncate(n_errors);
            let mut behind = state.clone();
            self.steps(condition, &mut behind);
            let label = self.read(who, predicate, &behind);
            self.decide(who, predicate, label);
            let mut after = behind.clone();
            self.steps(body, &mut after);
            let both = self.both(state, &after);
            // A byte that held a value before the loop and another after a round: whoever reads it in the next is told.
            if both == *state || self.errors.len() > n_errors {
                *state = behind;
                return;
            }
            *state = both;
        }
    }

    /// Whether a round writes all of the state that it should compute anew.
    fn carried(&mut self, who: &str, body: &[Step], carried: &[BufferId]) {
        let mut written: RangeMap<()> = RangeMap::default();
        note_written(self.plan, body, &mut written);
        for &id in carried {
            if !written.covers(range(self.plan, id)) {
                let buffer = &self.plan.buffers[id];
                self.errors.push(format!("{who}: no step of its body writes all of {id} ({buffer}), which it carries"));
            }
        }
    }

    /// What two states agree on.
    fn both(&mut self, a: &State, b: &State) -> State {
        let mut both = State::default();
        for ((place, start, end), x) in a.all() {
            let pieces: Vec<(Range, Held)> =
                b.within((place, start, end)).map(|(s, e, y)| ((place, s, e), *y)).collect();
            for (range, y) in pieces {
                if (x.value, x.begin) == (y.value, y.begin) {
                    let label = self.labels.join(x.label, y.label);
                    both.set(range, Held { label, ..*x });
                }
            }
        }
        both
    }
}

/// Enters what steps write, those of inner loops and branches too.
fn note_written(plan: &Plan, steps: &[Step], written: &mut RangeMap<()>) {
    for step in steps {
        step.work.accesses(plan).writes.iter().for_each(|&b| written.set(range(plan, b), ()));
        match &step.work {
            Work::While { condition, body, .. } => {
                [condition, body].into_iter().for_each(|list| note_written(plan, list, written));
            }
            Work::Conditional { branches, .. } => branches.iter().for_each(|list| note_written(plan, list, written)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}
