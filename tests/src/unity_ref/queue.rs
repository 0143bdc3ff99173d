//! Substitutions, best first (§5.1): the graph of least cost is taken from a queue, all substitutions make candidates of it, and those that are
//! not worse than the best one by a factor are queued.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};

use super::Picoseconds;
use super::layers::Degrees;
use super::substitutions::Substitutions;
use super::views::{ParallelGraph, Views};

/// How far the queue goes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Budget {
    /// A candidate is queued where it costs less than so many times the best one.
    pub alpha: f64,
    /// Graphs that are taken from the queue.
    pub n_pops: u64,
    /// Layers of a candidate.
    pub most_layers: usize,
}

impl Default for Budget {
    /// Those of the paper.
    fn default() -> Budget {
        Budget { alpha: 1.05, n_pops: 10, most_layers: 1000 }
    }
}

/// A graph, its cost, and how many branches run beside others.
pub(crate) type Priced = (Picoseconds, u32, ParallelGraph);

/// The best graph that the queue meets.
pub(crate) fn best(views: &mut Views<'_>, rules: &mut Substitutions, base: ParallelGraph, budget: Budget) -> Priced {
    views.counts.n_base_graphs += 1;
    let (cost, n_beside) = views.cost(&base);
    let mut best = (cost, n_beside, base.clone());
    let mut seen: HashSet<(Vec<u32>, Vec<Degrees>)> = HashSet::from([identity(&base)]);
    let mut graphs = vec![base];
    let mut queue = BinaryHeap::from([Reverse((cost, 0))]);
    for _ in 0..budget.n_pops {
        let Some(Reverse((_, number))) = queue.pop() else { break };
        views.counts.n_pops += 1;
        let graph = graphs[number].clone();
        for candidate in rules.candidates(&graph) {
            views.counts.n_candidates += 1;
            if candidate.layers.len() > budget.most_layers || !seen.insert(identity(&candidate)) {
                continue;
            }
            let (cost, n_beside) = views.cost(&candidate);
            if cost < best.0 {
                best = (cost, n_beside, candidate.clone());
            }
            if (cost as f64) < budget.alpha * best.0 as f64 {
                queue.push(Reverse((cost, graphs.len())));
                graphs.push(candidate);
            }
        }
    }
    best
}

fn identity(graph: &ParallelGraph) -> (Vec<u32>, Vec<Degrees>) {
    (graph.layers.iter().map(|layer| layer.uid).collect(), graph.degrees.clone())
}
