//! The cheapest choice of one candidate for each node of a graph whose nodes and edges have costs, by elimination.
//!
//! A node with one neighbour is taken into the neighbour's costs, a node between two neighbours into an edge between these; parallel edges
//! add. What is left without such nodes is not reducible: then the node with the most neighbours is fixed at the candidate that is
//! cheapest with the best that each neighbour has for it, and elimination goes on. Without such nodes the result is exact. Cost: for each
//! node of two neighbours the product of the three numbers of candidates.

use hlo_pass::{Deadline, OutOfTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Costs of pairs of candidates: `costs[a * n + b]`.
#[derive(Clone, Debug)]
pub(super) struct PairCosts {
    pub n_columns: usize,
    pub costs: Arc<Vec<f64>>,
}

impl PairCosts {
    fn at(&self, row: usize, column: usize) -> f64 {
        self.costs.get(row * self.n_columns + column).copied().unwrap_or(f64::INFINITY)
    }
}

/// A graph of costs.
#[derive(Default)]
pub(super) struct CostGraph {
    /// The costs of each node's candidates; none is empty.
    pub nodes: Vec<Vec<f64>>,
    /// By pair of nodes, the lower first.
    edges: BTreeMap<(usize, usize), PairCosts>,
    neighbours: Vec<BTreeSet<usize>>,
}

/// What was eliminated, and how its choice follows from others.
enum Eliminated {
    Leaf { node: usize, neighbour: usize, best: Vec<usize> },
    Between { node: usize, neighbours: [usize; 2], n_columns: usize, best: Vec<usize> },
    Fixed { node: usize, choice: usize },
}

/// The choices, and their cost.
pub(super) struct Choices {
    /// By node.
    pub of: Vec<usize>,
    pub cost: f64,
    /// Nodes that were fixed because nothing could be eliminated; 0: the choices are the best ones.
    pub n_fixed: usize,
}

impl CostGraph {
    /// Adds a node.
    pub(super) fn add_node(&mut self, costs: Vec<f64>) -> usize {
        self.nodes.push(costs);
        self.neighbours.push(BTreeSet::new());
        self.nodes.len() - 1
    }

    /// Adds the costs of pairs of candidates of two nodes: rows are the first one's.
    pub(super) fn add_edge(&mut self, one: usize, other: usize, costs: PairCosts) {
        if one == other {
            for (k, cost) in self.nodes[one].iter_mut().enumerate() {
                *cost += costs.at(k, k);
            }
            return;
        }
        let costs = if one < other { costs } else { transposed(&costs) };
        let key = (one.min(other), one.max(other));
        match self.edges.get_mut(&key) {
            Some(known) => {
                let sums = known.costs.iter().zip(costs.costs.iter()).map(|(a, b)| a + b).collect();
                known.costs = Arc::new(sums);
            }
            None => drop(self.edges.insert(key, costs)),
        }
        self.neighbours[one].insert(other);
        self.neighbours[other].insert(one);
    }

    /// The edge between two nodes, rows the first one's; it is removed.
    fn take_edge(&mut self, one: usize, other: usize) -> PairCosts {
        self.neighbours[one].remove(&other);
        self.neighbours[other].remove(&one);
        let costs = self.edges.remove(&(one.min(other), one.max(other)));
        let costs = costs.unwrap_or_else(|| PairCosts { n_columns: 0, costs: Arc::default() });
        if one < other { costs } else { transposed(&costs) }
    }

    /// Chooses a candidate for every node.
    ///
    /// # Errors
    /// The time is over.
    pub(super) fn solve(mut self, deadline: Deadline) -> Result<Choices, OutOfTime> {
        let mut queue: BTreeSet<(usize, usize)> =
            self.neighbours.iter().enumerate().map(|(node, near)| (near.len(), node)).collect();
        let (mut log, mut n_fixed, mut cost) = (Vec::new(), 0, 0.0);
        while let Some(&(degree, node)) = queue.first() {
            deadline.check()?;
            let (degree, node) =
                if degree > 2 { queue.last().copied().unwrap_or((degree, node)) } else { (degree, node) };
            queue.remove(&(degree, node));
            let near: Vec<usize> = self.neighbours[node].iter().copied().collect();
            for &other in &near {
                queue.remove(&(self.neighbours[other].len(), other));
            }
            log.push(match *near.as_slice() {
                [] => self.alone(node, &mut cost),
                [one] => self.leaf(node, one),
                [one, other] => self.between(node, [one, other]),
                _ => {
                    n_fixed += 1;
                    self.fix(node, &near, &mut cost)
                }
            });
            queue.extend(near.iter().map(|&other| (self.neighbours[other].len(), other)));
        }
        let mut of = vec![0; self.nodes.len()];
        for step in log.into_iter().rev() {
            match step {
                Eliminated::Fixed { node, choice } => of[node] = choice,
                Eliminated::Leaf { node, neighbour, best } => of[node] = best[of[neighbour]],
                Eliminated::Between { node, neighbours: [one, other], n_columns, best } => {
                    of[node] = best[of[one] * n_columns + of[other]];
                }
            }
        }
        Ok(Choices { of, cost, n_fixed })
    }

    fn alone(&self, node: usize, cost: &mut f64) -> Eliminated {
        let choice = least(self.nodes[node].iter().copied());
        *cost += self.nodes[node].get(choice).copied().unwrap_or(0.0);
        Eliminated::Fixed { node, choice }
    }

    fn leaf(&mut self, node: usize, neighbour: usize) -> Eliminated {
        let edge = self.take_edge(node, neighbour);
        let own = &self.nodes[node];
        let mut best = Vec::new();
        let mut added = Vec::new();
        for column in 0..self.nodes[neighbour].len() {
            let total = |row: usize| own[row] + edge.at(row, column);
            let choice = least((0..own.len()).map(total));
            best.push(choice);
            added.push(total(choice));
        }
        self.nodes[neighbour].iter_mut().zip(added).for_each(|(cost, more)| *cost += more);
        Eliminated::Leaf { node, neighbour, best }
    }

    fn between(&mut self, node: usize, neighbours: [usize; 2]) -> Eliminated {
        let [one, other] = neighbours;
        // Rows are the neighbours', so that the innermost loop runs along a row of both.
        let (to_one, to_other) = (transposed(&self.take_edge(node, one)), transposed(&self.take_edge(node, other)));
        let own = &self.nodes[node];
        let n = own.len();
        let n_columns = self.nodes[other].len();
        let (mut best, mut costs) = (Vec::new(), Vec::new());
        let mut with_one = vec![0.0; n];
        for a in to_one.costs.chunks(n.max(1)) {
            for ((sum, x), y) in with_one.iter_mut().zip(own).zip(a) {
                *sum = x + y;
            }
            for b in to_other.costs.chunks(n.max(1)) {
                let (mut choice, mut lowest) = (0, f64::INFINITY);
                for (k, (x, y)) in with_one.iter().zip(b).enumerate() {
                    if x + y < lowest {
                        (choice, lowest) = (k, x + y);
                    }
                }
                best.push(choice);
                costs.push(lowest);
            }
        }
        self.add_edge(one, other, PairCosts { n_columns, costs: Arc::new(costs) });
        Eliminated::Between { node, neighbours, n_columns, best }
    }

    fn fix(&mut self, node: usize, near: &[usize], cost: &mut f64) -> Eliminated {
        let edges: Vec<PairCosts> = near.iter().map(|&other| self.take_edge(node, other)).collect();
        let with_best = |row: usize| {
            let of_edge = |(edge, &other): (&PairCosts, &usize)| {
                let total = self.nodes[other].iter().enumerate().map(|(column, own)| own + edge.at(row, column));
                total.fold(f64::INFINITY, f64::min)
            };
            self.nodes[node][row] + edges.iter().zip(near).map(of_edge).sum::<f64>()
        };
        let choice = least((0..self.nodes[node].len()).map(with_best));
        *cost += self.nodes[node].get(choice).copied().unwrap_or(0.0);
        for (edge, &other) in edges.iter().zip(near) {
            for (column, own) in self.nodes[other].iter_mut().enumerate() {
                *own += edge.at(choice, column);
            }
        }
        Eliminated::Fixed { node, choice }
    }
}

fn transposed(costs: &PairCosts) -> PairCosts {
    let n_rows = costs.costs.len() / costs.n_columns.max(1);
    let all = (0..costs.n_columns).flat_map(|column| (0..n_rows).map(move |row| (row, column)));
    PairCosts { n_columns: n_rows, costs: Arc::new(all.map(|(row, column)| costs.at(row, column)).collect()) }
}

/// The place of the first of the lowest costs.
fn least(costs: impl Iterator<Item = f64>) -> usize {
    costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A graph with costs drawn by a linear congruence, and its cost when every choice is tried.
    fn drawn(n_nodes: usize, pairs: &[(usize, usize)], seed: u64) -> (CostGraph, f64) {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            f64::from((state >> 40) as u32 % 97)
        };
        let sizes: Vec<usize> = (0..n_nodes).map(|k| 2 + k % 3).collect();
        let mut graph = CostGraph::default();
        for &size in &sizes {
            graph.add_node((0..size).map(|_| next()).collect());
        }
        let mut all = Vec::new();
        for &(a, b) in pairs {
            let costs: Vec<f64> = (0..sizes[a] * sizes[b]).map(|_| next()).collect();
            let costs = PairCosts { n_columns: sizes[b], costs: Arc::new(costs) };
            graph.add_edge(a, b, costs.clone());
            all.push((a, b, costs));
        }
        let mut best = f64::INFINITY;
        for mut code in 0..sizes.iter().product::<usize>() {
            let choice: Vec<usize> = sizes
                .iter()
                .map(|size| {
                    let digit = code % size;
                    code /= size;
                    digit
                })
                .collect();
            let own: f64 = choice.iter().enumerate().map(|(node, &k)| graph.nodes[node][k]).sum();
            best = best.min(own + all.iter().map(|(a, b, costs)| costs.at(choice[*a], choice[*b])).sum::<f64>());
        }
        (graph, best)
    }

    #[test]
    fn what_can_be_eliminated_is_exact() {
        for seed in 0..40 {
            let pairs = [(0, 1), (1, 2), (2, 0), (2, 3), (4, 3), (3, 5), (5, 2), (6, 0), (0, 6)];
            let (graph, best) = drawn(7, &pairs, seed);
            let choices = graph.solve(Deadline::default()).expect("no end");
            assert_eq!((choices.cost, choices.n_fixed), (best, 0), "seed {seed}");
        }
    }

    #[test]
    fn what_cannot_is_fixed_and_counted() {
        let pairs: Vec<(usize, usize)> = (0..4).flat_map(|a| (0..a).map(move |b| (a, b))).collect();
        let (graph, best) = drawn(4, &pairs, 1);
        let choices = graph.solve(Deadline::default()).expect("no end");
        assert!(choices.cost >= best && choices.n_fixed == 1, "{} {best}", choices.cost);
    }
}
