//! Lanes of a device, on which kernels, collectives and copies by its copy engine run beside each other: when tasks run, and in
//! which order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What runs one task at a time, in order of issue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Kernels, products, copies.
    Compute,
    /// Collectives.
    Communication,
    /// Asynchronous copies, which a copy engine does.
    Copy,
}

const N_LANES: usize = 3;

/// Tasks in an order in which each comes after all that it needs.
#[derive(Clone, Copy, Debug)]
pub struct Tasks<'t> {
    /// The lane of each.
    pub lanes: &'t [Lane],
    /// Seconds that each takes.
    pub durations_s: &'t [f64],
    /// For each the earlier tasks that must have ended before it begins, each once.
    pub needs: &'t [Vec<usize>],
}

/// When a task runs, in seconds from the beginning.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct TaskSpan {
    /// When it begins.
    pub start_s: f64,
    /// When it has ended.
    pub end_s: f64,
}

impl Tasks<'_> {
    /// For each task the length of the longest chain of tasks that begins with it, in picoseconds.
    pub fn chains(&self) -> Vec<u64> {
        let mut chains = vec![0u64; self.durations_s.len()];
        for i in (0..self.durations_s.len()).rev() {
            chains[i] = chains[i].saturating_add(picoseconds(self.durations_s[i]));
            for &earlier in &self.needs[i] {
                chains[earlier] = chains[earlier].max(chains[i]);
            }
        }
        chains
    }

    /// The tasks with the longest chain first.
    pub fn by_chain(&self) -> Vec<usize> {
        let chains = self.chains();
        let mut order: Vec<usize> = (0..chains.len()).collect();
        order.sort_by_key(|&i| Reverse(chains[i]));
        order
    }

    /// The tasks that collectives need first, else in this order.
    pub fn feeding_first(&self, mut order: Vec<usize>) -> Vec<usize> {
        let mut feeds = vec![false; self.lanes.len()];
        for (_, needs) in self.lanes.iter().zip(self.needs).filter(|(lane, _)| **lane == Lane::Communication) {
            needs.iter().for_each(|&earlier| feeds[earlier] = true);
        }
        order.sort_by_key(|&i| !feeds[i]);
        order
    }

    /// The order in which the lanes take tasks. A lane that is free takes, of the tasks whose needs have ended, the first in
    /// `wanted`.
    pub fn list_schedule(&self, wanted: &[usize]) -> Vec<usize> {
        let n = self.durations_s.len();
        let mut rank = vec![0usize; n];
        wanted.iter().enumerate().for_each(|(at, &i)| rank[i] = at);
        let mut n_open: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); n];
        self.needs.iter().enumerate().for_each(|(i, list)| list.iter().for_each(|&earlier| users[earlier].push(i)));
        let mut needs_end = vec![0u64; n];
        let mut queues: [Queue; N_LANES] = Default::default();
        for i in (0..n).filter(|&i| n_open[i] == 0) {
            queues[self.lane(i)].later.push(Reverse((0, i)));
        }
        let mut order = Vec::with_capacity(n);
        while let Some((now, which)) =
            (0..N_LANES).filter_map(|which| queues[which].next().map(|now| (now, which))).min()
        {
            let queue = &mut queues[which];
            while let Some(&Reverse((_, i))) = queue.later.peek().filter(|Reverse((time, _))| *time <= now) {
                queue.later.pop();
                queue.ready.push(Reverse((rank[i], i)));
            }
            let Some(Reverse((_, task))) = queue.ready.pop() else { break };
            let end = now.saturating_add(picoseconds(self.durations_s[task]));
            queue.free = end;
            order.push(task);
            for &user in &users[task] {
                n_open[user] -= 1;
                needs_end[user] = needs_end[user].max(end);
                if n_open[user] == 0 {
                    queues[self.lane(user)].later.push(Reverse((needs_end[user], user)));
                }
            }
        }
        order
    }

    /// When each task runs, by its number, if the lanes take them in this order.
    pub fn run(&self, order: &[usize]) -> Vec<TaskSpan> {
        let mut spans = vec![TaskSpan::default(); self.durations_s.len()];
        let mut free = [0.0f64; N_LANES];
        for &i in order {
            let lane = self.lane(i);
            let start_s = self.needs[i].iter().fold(free[lane], |start, &earlier| start.max(spans[earlier].end_s));
            spans[i] = TaskSpan { start_s, end_s: start_s + self.durations_s[i] };
            free[lane] = spans[i].end_s;
        }
        spans
    }

    fn lane(&self, i: usize) -> usize {
        match self.lanes[i] {
            Lane::Compute => 0,
            Lane::Communication => 1,
            Lane::Copy => 2,
        }
    }
}

/// A time as a number that orders exactly. Sums of such numbers stop at the largest, which is some 200 days.
fn picoseconds(seconds: f64) -> u64 {
    (seconds * 1e12) as u64
}

/// When a lane is free, tasks whose needs have ended, and tasks that only wait for time to pass.
#[derive(Default)]
struct Queue {
    free: u64,
    ready: BinaryHeap<Reverse<(usize, usize)>>,
    later: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Queue {
    /// When its next task can begin.
    fn next(&self) -> Option<u64> {
        match (self.ready.peek(), self.later.peek()) {
            (Some(_), _) => Some(self.free),
            (None, Some(Reverse((time, _)))) => Some(self.free.max(*time)),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Lane::{Communication, Compute};

    #[test]
    fn a_collective_hides_behind_a_kernel_that_does_not_need_it() {
        // 0 makes what 1 sends; 2 is independent work; 3 reads what 1 received.
        let lanes = [Compute, Communication, Compute, Compute];
        let durations_s = [1.0, 4.0, 3.0, 1.0];
        let needs = [vec![], vec![0], vec![], vec![1]];
        let tasks = Tasks { lanes: &lanes, durations_s: &durations_s, needs: &needs };
        assert_eq!(tasks.chains(), [6, 5, 3, 1].map(|s| s * 1_000_000_000_000));
        let order = tasks.list_schedule(&tasks.by_chain());
        let spans = tasks.run(&order);
        let end = |i: usize| spans[i].end_s;
        assert_eq!([end(0), end(1), end(2), end(3)], [1.0, 5.0, 4.0, 6.0]);
        // In the order 2, 0, 1, 3 nothing hides the collective.
        assert_eq!(tasks.run(&[2, 0, 1, 3])[3].end_s, 9.0);
    }
    #[test]
    fn times_beyond_what_a_number_holds_are_the_longest() {
        let durations_s = [1e7; 4];
        let tasks =
            Tasks { lanes: &[Compute; 4], durations_s: &durations_s, needs: &[vec![], vec![0], vec![1], vec![2]] };
        let order = tasks.list_schedule(&tasks.by_chain());
        assert_eq!(order, [0, 1, 2, 3]);
        assert_eq!(tasks.run(&order)[3].end_s, 4e7);
    }
}
