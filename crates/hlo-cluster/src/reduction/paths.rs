//! Programs are the ways from the start to the goal of a [`Graph`]: counting, listing and pricing them.

use crate::reduction::graph::{Edge, Graph};

/// Times closer than this are the same: sums of equal terms in another order.
const SAME: f64 = 1e-12;

/// Whether a time is less than another by more than rounding.
pub(crate) fn is_less(a_s: f64, b_s: f64) -> bool {
    a_s < b_s * (1.0 - SAME)
}

impl Graph {
    /// The number of programs by size (steps); as long as the longest program.
    pub fn counts_by_size(&self) -> Vec<u128> {
        self.counts().first().cloned().unwrap_or_default()
    }

    /// The number of programs of at most `max_size` steps; none for a graph whose start is its goal.
    pub fn n_programs(&self, max_size: Option<usize>) -> u128 {
        let counts = self.counts_by_size();
        counts.iter().take(max_size.map_or(counts.len(), |n| n.saturating_add(1))).skip(1).sum()
    }

    /// By state, by number of further steps: the ways to the goal.
    fn counts(&self) -> Vec<Vec<u128>> {
        let mut counts: Vec<Vec<u128>> = vec![Vec::new(); self.edges.len()];
        for at in (0..self.edges.len()).rev() {
            let mut of_state = if at as u32 == self.goal { vec![1] } else { Vec::new() };
            for edge in &self.edges[at] {
                let rest = &counts[edge.to as usize];
                if of_state.len() < rest.len() + 1 {
                    of_state.resize(rest.len() + 1, 0);
                }
                rest.iter().enumerate().for_each(|(n, ways)| of_state[n + 1] += ways);
            }
            counts[at] = of_state;
        }
        counts
    }

    /// Calls `found` with every program of at most `max_size` steps, in the order of their texts.
    pub fn for_each_program(&self, max_size: usize, found: &mut impl FnMut(&[Edge])) {
        let mut steps = Vec::new();
        self.walk(0, max_size, &mut steps, found);
    }

    fn walk(&self, at: u32, left: usize, steps: &mut Vec<Edge>, found: &mut impl FnMut(&[Edge])) {
        if at == self.goal {
            if !steps.is_empty() {
                found(steps);
            }
            return;
        }
        if left == 0 {
            return;
        }
        for edge in &self.edges[at as usize] {
            steps.push(*edge);
            self.walk(edge.to, left - 1, steps, found);
            steps.pop();
        }
    }
}

/// A program with its predicted time.
#[derive(Clone, PartialEq, Debug)]
pub struct ReductionProgram {
    /// Predicted time in seconds.
    pub seconds: f64,
    /// Its steps.
    pub steps: Vec<Edge>,
}

/// A graph whose edges have a time.
pub struct Priced<'g> {
    graph: &'g Graph,
    /// By state, by edge.
    seconds: Vec<Vec<f64>>,
}

impl<'g> Priced<'g> {
    /// Prices every edge of a graph.
    pub fn new(graph: &'g Graph, mut price: impl FnMut(&Edge) -> f64) -> Priced<'g> {
        let seconds = graph.edges.iter().map(|edges| edges.iter().map(&mut price).collect()).collect();
        Priced { graph, seconds }
    }

    /// The time of the fastest program of at most `max_size` steps in seconds; infinity where there is none.
    pub fn least_s(&self, max_size: Option<usize>) -> f64 {
        let n_states = self.graph.edges.len();
        if max_size.is_some_and(|most| most < n_states) {
            return self.best(max_size).map_or(f64::INFINITY, |p| p.seconds);
        }
        let mut least = vec![f64::INFINITY; n_states];
        for at in (0..n_states).rev() {
            let edges = self.graph.edges[at].iter().zip(&self.seconds[at]);
            let through = edges.map(|(edge, s)| s + least[edge.to as usize]).fold(f64::INFINITY, f64::min);
            least[at] = if at as u32 == self.graph.goal { 0.0 } else { through };
        }
        least.first().copied().unwrap_or(f64::INFINITY)
    }

    /// The fastest program of at most `max_size` steps; among equals the shortest, then the first in text order.
    pub fn best(&self, max_size: Option<usize>) -> Option<ReductionProgram> {
        let front = self.front(max_size);
        front.into_iter().next_back()
    }

    /// The Pareto front of time against steps: programs by growing number of steps, each faster than all before it.
    pub fn front(&self, max_size: Option<usize>) -> Vec<ReductionProgram> {
        let table = self.fastest_by_size(max_size);
        let mut front: Vec<ReductionProgram> = Vec::new();
        for n in 1..table.len() {
            let Some((seconds, _)) = table[n].first().copied().flatten() else { continue };
            if front.last().is_none_or(|last| is_less(seconds, last.seconds)) {
                front.push(ReductionProgram { seconds, steps: self.trace(&table, n) });
            }
        }
        front
    }

    /// By number of steps, by state: the fastest way to the goal of exactly so many steps, and its first edge.
    fn fastest_by_size(&self, max_size: Option<usize>) -> Vec<Vec<Option<(f64, usize)>>> {
        let n_states = self.graph.edges.len();
        let mut none_yet = vec![None; n_states];
        if let Some(goal) = none_yet.get_mut(self.graph.goal as usize) {
            *goal = Some((0.0, 0));
        }
        let mut table = vec![none_yet];
        while table.len() <= max_size.unwrap_or(usize::MAX) {
            let before = &table[table.len() - 1];
            let best_of = |at: usize| {
                let mut best: Option<(f64, usize)> = None;
                for (i, edge) in self.graph.edges[at].iter().enumerate() {
                    let Some((rest, _)) = before[edge.to as usize] else { continue };
                    let seconds = self.seconds[at][i] + rest;
                    if best.is_none_or(|(fastest, _)| is_less(seconds, fastest)) {
                        best = Some((seconds, i));
                    }
                }
                best
            };
            let next: Vec<_> = (0..n_states).map(best_of).collect();
            if next.iter().all(Option::is_none) {
                break;
            }
            table.push(next);
        }
        table
    }

    fn trace(&self, table: &[Vec<Option<(f64, usize)>>], n: usize) -> Vec<Edge> {
        let (mut at, mut steps) = (0usize, Vec::new());
        for left in (1..=n).rev() {
            let Some((_, i)) = table[left][at] else { break };
            let edge = self.graph.edges[at][i];
            steps.push(edge);
            at = edge.to as usize;
        }
        steps
    }

    /// How many programs of at most `max_size` steps take less than `limit_s` seconds.
    pub fn n_faster(&self, limit_s: f64, max_size: Option<usize>) -> u128 {
        let counts = self.graph.counts();
        let n_states = counts.len();
        let (mut least, mut most) = (vec![f64::INFINITY; n_states], vec![f64::NEG_INFINITY; n_states]);
        for at in (0..n_states).rev() {
            if at as u32 == self.graph.goal {
                (least[at], most[at]) = (0.0, 0.0);
            }
            for (edge, s) in self.graph.edges[at].iter().zip(&self.seconds[at]) {
                least[at] = least[at].min(s + least[edge.to as usize]);
                most[at] = most[at].max(s + most[edge.to as usize]);
            }
        }
        let bounds = Bounds { counts, least, most };
        let longest = bounds.counts.first().map_or(0, Vec::len);
        self.count_below(&bounds, 0, limit_s * (1.0 - SAME), max_size.unwrap_or(longest).min(longest))
    }

    fn count_below(&self, bounds: &Bounds, at: usize, limit_s: f64, left: usize) -> u128 {
        if bounds.least[at] >= limit_s {
            return 0;
        }
        if bounds.most[at] < limit_s {
            return bounds.counts[at].iter().take(left + 1).sum();
        }
        if left == 0 {
            return 0;
        }
        let edges = self.graph.edges[at].iter().zip(&self.seconds[at]);
        edges.map(|(edge, s)| self.count_below(bounds, edge.to as usize, limit_s - s, left - 1)).sum()
    }
}

/// By state: ways to the goal by steps, and the least and most time that they take.
struct Bounds {
    counts: Vec<Vec<u128>>,
    least: Vec<f64>,
    most: Vec<f64>,
}
