//! When values live.
//!
//! All steps, loops and branches opened, stand on one line; a step at position `p` reads and writes at the point `p`.
//! A value lives from the point of its write to the point of its last read, both included; a value that is written
//! again (a loop's state, a branch's result) lives in several intervals with holes between them. Found by one walk back over
//! the steps with the set of live values; a loop's first walk finds what lives around it.

use super::Draft;
use crate::plan::{BufferId, PlanValueId, Step, Work};
use cranelift_entity::{EntitySet, SecondaryMap};
use hashbrown::HashSet;
use hlo_ir::ArrayShape;
use smallvec::SmallVec;

/// A piece of a value's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Interval {
    /// Point of the write; 0 for what is there from the beginning.
    pub start: u32,
    /// Point of the last read; `u32::MAX` for outputs.
    pub end: u32,
}

/// The intervals of each value, in order.
pub(crate) type Lives = SecondaryMap<PlanValueId, SmallVec<[Interval; 2]>>;

/// When each value of a draft lives.
pub(crate) fn find_lives(draft: &Draft) -> Lives {
    let mut live: EntitySet<PlanValueId> = EntitySet::new();
    draft.plan.outputs.iter().for_each(|&b| {
        live.insert(draft.value_of[b]);
    });
    let mut walk = Walk { draft, lives: Lives::new(), open: SecondaryMap::new(), records: true };
    for value in live.iter() {
        walk.open[value] = u32::MAX;
    }
    let end = 1 + n_points(&draft.plan.steps);
    walk.block(&draft.plan.steps, end, &mut live);
    for value in live.iter() {
        let interval = Interval { start: 0, end: walk.open[value] };
        walk.lives[value].push(interval);
    }
    for value in draft.values.keys() {
        walk.lives[value].reverse();
    }
    walk.lives
}

/// How many points steps take: one each, one more where a loop or each branch ends, and one for a loop's predicate.
fn n_points(steps: &[Step]) -> u32 {
    steps.iter().map(|step| n_points_of(&step.work)).sum()
}

fn n_points_of(work: &Work) -> u32 {
    match work {
        Work::While { condition, body, .. } => 3 + n_points(condition) + n_points(body),
        Work::Conditional { branches, .. } => 1 + branches.iter().map(|b| 1 + n_points(b)).sum::<u32>(),
        Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => 1,
    }
}

struct Walk<'d> {
    draft: &'d Draft,
    lives: Lives,
    /// End of the interval of each value that lives at the walk's point.
    open: SecondaryMap<PlanValueId, u32>,
    /// Whether intervals are written down.
    records: bool,
}

impl Walk<'_> {
    /// Walks back over steps whose points end before `end`; `live` is what lives after them and becomes what lives before.
    fn block(&mut self, steps: &[Step], end: u32, live: &mut EntitySet<PlanValueId>) {
        let first_writes = self.first_writes(steps);
        let mut held = self.held_values(steps);
        let mut point = end;
        for (i, step) in steps.iter().enumerate().rev() {
            let after = point;
            point -= n_points_of(&step.work);
            while let Some((_, value)) = held.pop_if(|(until, _)| *until >= i) {
                self.begin(value, point, live);
            }
            match &step.work {
                Work::While { condition, predicate, body, .. } => {
                    self.around_loop(condition, *predicate, body, point, after, live);
                }
                Work::Conditional { selector, branches, .. } => self.branches(*selector, branches, point, live),
                work @ (Work::Launch { .. }
                | Work::Gemm(_)
                | Work::Collective(_)
                | Work::Copy { .. }
                | Work::Fill { .. }) => {
                    let accesses = work.accesses(&self.draft.plan);
                    for &buffer in &accesses.writes {
                        let value = self.draft.value_of[buffer];
                        self.begin(value, point, live);
                        if self.is_whole(buffer) || first_writes.contains(&(i, value)) {
                            self.close(value, point, live);
                        }
                    }
                    for &buffer in &accesses.reads {
                        self.begin(self.draft.value_of[buffer], point, live);
                    }
                }
            }
        }
    }

    /// The steps that are the first of a block to write a part of a value that no step of it writes whole.
    fn first_writes(&self, steps: &[Step]) -> HashSet<(usize, PlanValueId)> {
        let mut seen: HashSet<PlanValueId> = HashSet::new();
        let mut first = HashSet::new();
        for (i, step) in steps.iter().enumerate() {
            for buffer in step.work.accesses(&self.draft.plan).writes {
                let value = self.draft.value_of[buffer];
                if !self.is_whole(buffer) && seen.insert(value) {
                    first.insert((i, value));
                }
            }
        }
        first
    }

    /// What collectives of a block still use after they are issued, with the step until which they do, in order of these. An
    /// operand that the result may lie over needs no life of its own.
    fn held_values(&self, steps: &[Step]) -> Vec<(usize, PlanValueId)> {
        let mut found = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            let Work::Collective(call) = &step.work else { continue };
            let until = call.calls.first().and_then(|(_, output)| self.draft.held.get(output));
            let Some(until) = until.map(|&until| until as usize).filter(|&until| until > i) else { continue };
            for &(input, output) in &call.calls {
                let pair = (self.draft.value_of[input], self.draft.value_of[output]);
                found.extend((!self.draft.shareable.contains(&pair)).then_some((until, pair.0)));
                found.push((until, pair.1));
            }
        }
        found.sort();
        found
    }

    fn is_whole(&self, buffer: BufferId) -> bool {
        let shape: &ArrayShape = &self.draft.plan.buffers[buffer].shape;
        shape.memory_bytes() == self.draft.values[self.draft.value_of[buffer]].bytes
    }

    /// The value lives at a point.
    fn begin(&mut self, value: PlanValueId, point: u32, live: &mut EntitySet<PlanValueId>) {
        if live.insert(value) {
            self.open[value] = point;
        }
    }

    /// The value is written at a point.
    fn close(&mut self, value: PlanValueId, point: u32, live: &mut EntitySet<PlanValueId>) {
        if live.contains(value) {
            live.remove(value);
            if self.records {
                let interval = Interval { start: point, end: self.open[value] };
                self.lives[value].push(interval);
            }
        }
    }

    /// Points of a loop: `first`, the condition's, the predicate's, the body's, and the last one, before `after`.
    fn around_loop(
        &mut self,
        condition: &[Step],
        predicate: BufferId,
        body: &[Step],
        first: u32,
        after: u32,
        live: &mut EntitySet<PlanValueId>,
    ) {
        let behind = live.clone();
        let at_predicate = first + 1 + n_points(condition);
        let predicate = self.draft.value_of[predicate];
        // What lives before the condition lives after the body too: walked without writing down until nothing is new.
        let (records, open) = (self.records, self.open.clone());
        self.records = false;
        let mut around: EntitySet<PlanValueId> = EntitySet::new();
        loop {
            let mut inner = around.clone();
            self.block(body, after - 1, &mut inner);
            inner.extend(behind.iter());
            self.begin(predicate, at_predicate, &mut inner);
            self.block(condition, at_predicate, &mut inner);
            let n_before = around.iter().count();
            around.extend(inner.iter());
            if around.iter().count() == n_before {
                break;
            }
        }
        (self.records, self.open) = (records, open);
        around.iter().for_each(|value| self.begin(value, after - 1, live));
        self.block(body, after - 1, live);
        behind.iter().for_each(|value| self.begin(value, at_predicate, live));
        self.begin(predicate, at_predicate, live);
        self.block(condition, at_predicate, live);
    }

    /// Points of branches: `first`, then for each branch its steps' and one more. On the line a value that only one branch
    /// needs lives across the branches before it too, which is more than it must.
    fn branches(&mut self, selector: BufferId, branches: &[Vec<Step>], first: u32, live: &mut EntitySet<PlanValueId>) {
        let behind = live.clone();
        let mut end = first + 1 + branches.iter().map(|b| 1 + n_points(b)).sum::<u32>();
        for branch in branches.iter().rev() {
            end -= 1;
            behind.iter().for_each(|value| self.begin(value, end, live));
            self.block(branch, end, live);
            end -= n_points(branch);
        }
        self.begin(self.draft.value_of[selector], first, live);
    }
}
