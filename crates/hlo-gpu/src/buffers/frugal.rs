//! An order of steps that takes little memory.
//!
//! The walk takes the steps that nothing needs, in the order of the text, and visits their operands depth-first, longest
//! dependency chain first. So a step is placed when something needs it: the zeros that a scatter adds to are made right
//! before the scatter. A step that frees at least as much as it writes, or writes little, is placed as soon as it can be.
//! The walk is linear, but for the search for the next step that frees.

use super::{Draft, Home};
use crate::plan::{BufferId, PlanValueId, Step, Work};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeSet;

/// What is less than the largest value of a list by this factor is little.
const LITTLE: u64 = 64;

/// How many steps read each value, those of loops and branches too; outputs are read once more.
pub(crate) fn count_readers(draft: &Draft, steps: &[Step]) -> SecondaryMap<PlanValueId, u32> {
    let mut counts = SecondaryMap::new();
    count(draft, steps, &mut counts);
    draft.plan.outputs.iter().for_each(|&b| counts[draft.value_of[b]] += 1);
    counts
}

fn count(draft: &Draft, steps: &[Step], counts: &mut SecondaryMap<PlanValueId, u32>) {
    for step in steps {
        values(draft, &step.work.accesses(&draft.plan).reads).into_iter().for_each(|value| counts[value] += 1);
        match &step.work {
            Work::While { condition, body, .. } => [condition, body].into_iter().for_each(|s| count(draft, s, counts)),
            Work::Conditional { branches, .. } => branches.iter().for_each(|s| count(draft, s, counts)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}

/// The values of buffers, each once.
fn values(draft: &Draft, buffers: &[BufferId]) -> Vec<PlanValueId> {
    let mut values: Vec<PlanValueId> = buffers.iter().map(|&b| draft.value_of[b]).collect();
    values.sort();
    values.dedup();
    values
}

/// The order, as indices; `needs` are the earlier steps that each must follow, `readers` those of [`count_readers`] that are
/// still to come.
pub(crate) fn frugal_order(
    draft: &Draft,
    steps: &[Step],
    needs: &[Vec<usize>],
    readers: &mut SecondaryMap<PlanValueId, u32>,
) -> Vec<usize> {
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); steps.len()];
    needs.iter().enumerate().for_each(|(i, list)| list.iter().for_each(|&earlier| users[earlier].push(i)));
    let accesses = steps.iter().map(|step| step.work.accesses(&draft.plan));
    let accesses: Vec<_> = accesses.map(|a| [values(draft, &a.reads), values(draft, &a.writes)]).collect();
    let mut depth = vec![0u32; steps.len()];
    for (i, list) in needs.iter().enumerate() {
        depth[i] = list.iter().map(|&earlier| depth[earlier] + 1).max().unwrap_or(0);
    }
    let deepest_first = |list: &Vec<usize>| {
        let mut list = list.clone();
        list.sort_by_key(|&earlier| (std::cmp::Reverse(depth[earlier]), earlier));
        list
    };
    let written = accesses.iter().flat_map(|[_, writes]| writes.iter().map(|&v| draft.values[v].bytes));
    let little_bytes = written.max().unwrap_or(0) / LITTLE;
    let mut walk = Walk {
        draft,
        needs: needs.iter().map(deepest_first).collect(),
        little_bytes,
        accesses,
        readers,
        n_open: needs.iter().map(Vec::len).collect(),
        is_placed: vec![false; steps.len()],
        ready: BTreeSet::new(),
        order: Vec::with_capacity(steps.len()),
        users,
    };
    for anchor in (0..steps.len()).filter(|&i| walk.users[i].is_empty()).collect::<Vec<_>>() {
        walk.demand(anchor);
    }
    walk.order
}

struct Walk<'d> {
    draft: &'d Draft,
    /// The earlier steps that each must follow, in the order in which they are demanded.
    needs: Vec<Vec<usize>>,
    /// Bytes that are little.
    little_bytes: u64,
    users: Vec<Vec<usize>>,
    /// Values read and written by each step.
    accesses: Vec<[Vec<PlanValueId>; 2]>,
    readers: &'d mut SecondaryMap<PlanValueId, u32>,
    /// How many of the steps that each must follow are not placed yet.
    n_open: Vec<usize>,
    is_placed: Vec<bool>,
    /// Steps that could be placed next, but take more than they free.
    ready: BTreeSet<usize>,
    order: Vec<usize>,
}

impl Walk<'_> {
    /// Places a step behind all that it needs.
    fn demand(&mut self, step: usize) {
        let mut open = vec![(step, 0)];
        while let Some((step, next)) = open.pop() {
            if self.is_placed[step] {
                continue;
            }
            match self.needs[step].get(next) {
                Some(&earlier) => {
                    open.push((step, next + 1));
                    open.push((earlier, 0));
                }
                None => {
                    self.put(step);
                    self.put_freeing();
                }
            }
        }
    }

    fn put(&mut self, step: usize) {
        self.is_placed[step] = true;
        self.ready.remove(&step);
        self.order.push(step);
        for value in &self.accesses[step][0] {
            self.readers[*value] = self.readers[*value].saturating_sub(1);
        }
        for &user in &self.users[step] {
            self.n_open[user] -= 1;
            if self.n_open[user] == 0 {
                self.ready.insert(user);
            }
        }
    }

    /// Places steps that free at least what they write, as long as there are any.
    fn put_freeing(&mut self) {
        while let Some(step) = self.ready.iter().copied().find(|&step| self.is_freeing(step)) {
            self.put(step);
        }
    }

    fn is_freeing(&self, step: usize) -> bool {
        let bytes = |value: &PlanValueId| match self.draft.values[*value].home {
            Home::Temporary => self.draft.values[*value].bytes,
            Home::Parameter { .. } | Home::Constant(_) | Home::DeviceIds => 0,
        };
        let [reads, writes] = &self.accesses[step];
        let freed: u64 = reads.iter().filter(|value| self.readers[**value] == 1).map(bytes).sum();
        let written: u64 = writes.iter().map(bytes).sum();
        written <= freed.max(self.little_bytes)
    }
}
