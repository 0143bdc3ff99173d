//! Minimum cut of a directed graph, by Dinic's algorithm.
//!
//! E. A. Dinic 1970, *Algorithm for solution of a problem of maximum flow in networks with power estimation*: shortest augmenting
//! paths in phases, here `O(V²·E)` in the worst case and near-linear on the many small, shallow components that
//! weight updates make. Capacities are whole numbers, so the cut is exact.

use std::collections::VecDeque;

/// A vertex of the graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Vertex(u32);

/// More than any sum of finite capacities: an arc of this capacity is never cut.
pub const UNCUTTABLE: u128 = 1 << 124;

/// A flow network under construction, and then its residual graph.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Arcs by vertex; an arc and its reverse are neighbours (`arc ^ 1`).
    arcs_of: Vec<Vec<u32>>,
    to: Vec<u32>,
    residual: Vec<u128>,
}

/// A minimum cut.
#[derive(Clone, Debug)]
pub(crate) struct MinCut {
    /// Sum of the capacities cut; at least [`UNCUTTABLE`] if every cut has to take such an arc.
    pub value: u128,
    on_sink_side: Vec<bool>,
}

impl MinCut {
    /// Whether a vertex is on the sink's side.
    pub(crate) fn is_on_sink_side(&self, vertex: Vertex) -> bool {
        self.on_sink_side.get(vertex.0 as usize).copied().unwrap_or(false)
    }
}

impl Network {
    /// The source.
    pub(crate) const SOURCE: Vertex = Vertex(0);
    /// The sink.
    pub(crate) const SINK: Vertex = Vertex(1);

    /// A network with only a source and a sink.
    pub(crate) fn new() -> Network {
        Network { arcs_of: vec![Vec::new(), Vec::new()], to: Vec::new(), residual: Vec::new() }
    }

    /// A new vertex.
    pub(crate) fn add_vertex(&mut self) -> Vertex {
        self.arcs_of.push(Vec::new());
        Vertex(self.arcs_of.len() as u32 - 1)
    }

    /// `capacity` is paid if `from` ends on the source's side and `to` on the sink's.
    pub(crate) fn add_arc(&mut self, from: Vertex, to: Vertex, capacity: u128) {
        if capacity == 0 || from == to {
            return;
        }
        let arc = self.to.len() as u32;
        self.to.extend([to.0, from.0]);
        self.residual.extend([capacity, 0]);
        self.arcs_of[from.0 as usize].push(arc);
        self.arcs_of[to.0 as usize].push(arc + 1);
    }

    /// Finds the minimum cut with the smallest sink side, of those that have as many of `wanted` on it as any minimum cut has.
    pub(crate) fn cut(mut self, wanted: &[Vertex]) -> MinCut {
        let mut value = 0u128;
        let mut next = vec![0u32; self.arcs_of.len()];
        while let Some(levels) = self.levels() {
            next.fill(0);
            while let Some(flow) = self.augment(&levels, &mut next) {
                value = value.saturating_add(flow);
            }
            if value >= UNCUTTABLE {
                break;
            }
        }
        // Any set that the source does not reach, together with all that reaches the set, can be on the sink's side.
        let from_source = self.reached_from_source();
        let possible = wanted.iter().filter(|vertex| !from_source[vertex.0 as usize]);
        MinCut { value, on_sink_side: self.reaching(possible.copied().chain([Network::SINK])) }
    }

    /// Distances from the source in the residual graph; `None` once the sink cannot be reached.
    fn levels(&self) -> Option<Vec<u32>> {
        let mut levels = vec![u32::MAX; self.arcs_of.len()];
        levels[0] = 0;
        let mut queue = VecDeque::from([0u32]);
        while let Some(vertex) = queue.pop_front() {
            for &arc in &self.arcs_of[vertex as usize] {
                let to = self.to[arc as usize];
                if self.residual[arc as usize] > 0 && levels[to as usize] == u32::MAX {
                    levels[to as usize] = levels[vertex as usize] + 1;
                    queue.push_back(to);
                }
            }
        }
        (levels[1] != u32::MAX).then_some(levels)
    }

    /// Pushes flow along one path of the level graph; `next` remembers arcs that lead nowhere.
    fn augment(&mut self, levels: &[u32], next: &mut [u32]) -> Option<u128> {
        let mut path: Vec<u32> = Vec::new();
        let mut vertex = 0u32;
        while vertex != 1 {
            let arcs = &self.arcs_of[vertex as usize];
            let found = arcs[next[vertex as usize] as usize..].iter().position(|&arc| {
                let to = self.to[arc as usize];
                self.residual[arc as usize] > 0 && levels[to as usize] == levels[vertex as usize] + 1
            });
            if let Some(skipped) = found {
                next[vertex as usize] += skipped as u32;
                let arc = self.arcs_of[vertex as usize][next[vertex as usize] as usize];
                path.push(arc);
                vertex = self.to[arc as usize];
            } else {
                next[vertex as usize] = self.arcs_of[vertex as usize].len() as u32;
                let arc = path.pop()?;
                vertex = self.to[(arc ^ 1) as usize];
                next[vertex as usize] += 1;
            }
        }
        let flow = path.iter().map(|&arc| self.residual[arc as usize]).min()?;
        for arc in path {
            self.residual[arc as usize] -= flow;
            self.residual[(arc ^ 1) as usize] += flow;
        }
        Some(flow)
    }

    /// Which vertices the source reaches in the residual graph.
    fn reached_from_source(&self) -> Vec<bool> {
        let mut reached = vec![false; self.arcs_of.len()];
        reached[0] = true;
        let mut work = vec![0u32];
        while let Some(vertex) = work.pop() {
            for &arc in &self.arcs_of[vertex as usize] {
                let to = self.to[arc as usize];
                if self.residual[arc as usize] > 0 && !reached[to as usize] {
                    reached[to as usize] = true;
                    work.push(to);
                }
            }
        }
        reached
    }

    /// Which vertices reach one of `ends` in the residual graph.
    fn reaching(&self, ends: impl Iterator<Item = Vertex>) -> Vec<bool> {
        let mut reaching = vec![false; self.arcs_of.len()];
        let mut work: Vec<u32> = ends.map(|end| end.0).collect();
        work.iter().for_each(|&end| reaching[end as usize] = true);
        while let Some(vertex) = work.pop() {
            for &arc in &self.arcs_of[vertex as usize] {
                let from = self.to[arc as usize];
                if self.residual[(arc ^ 1) as usize] > 0 && !reaching[from as usize] {
                    reaching[from as usize] = true;
                    work.push(from);
                }
            }
        }
        reaching
    }
}

impl Default for Network {
    fn default() -> Network {
        Network::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// xorshift64*, so that the test needs no crate and every run is the same.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
        }
    }

    /// The least value over all 2ⁿ sides, and the smallest sink side that gives it, as a mask.
    fn brute_force(n: usize, arcs: &[(usize, usize, u128)]) -> (u128, u32) {
        let mut best = (u128::MAX, u32::MAX);
        for inner in 0u32..1 << (n - 2) {
            let sink_side = inner << 2 | 2;
            let on_sink_side = |v: usize| sink_side >> v & 1 == 1;
            let value = arcs.iter().filter(|(a, b, _)| !on_sink_side(*a) && on_sink_side(*b)).map(|a| a.2).sum();
            if (value, sink_side.count_ones()) < (best.0, best.1.count_ones()) {
                best = (value, sink_side);
            }
        }
        best
    }

    #[test]
    fn agrees_with_brute_force_on_random_graphs() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..10_000 {
            let n = 2 + random.below(8) as usize;
            let n_arcs = random.below(3 * n as u64) as usize;
            let mut network = Network::new();
            let vertices: Vec<Vertex> =
                (0..n).map(|v| if v < 2 { Vertex(v as u32) } else { network.add_vertex() }).collect();
            let mut arcs = Vec::new();
            for _ in 0..n_arcs {
                let (a, b) = (random.below(n as u64) as usize, random.below(n as u64) as usize);
                let capacity = u128::from(random.below(6));
                if a != b {
                    arcs.push((a, b, capacity));
                    network.add_arc(vertices[a], vertices[b], capacity);
                }
            }
            let (value, sink_side) = brute_force(n, &arcs);
            let cut = network.cut(&[]);
            assert_eq!(cut.value, value, "{arcs:?}");
            for (v, &vertex) in vertices.iter().enumerate() {
                assert_eq!(cut.is_on_sink_side(vertex), sink_side >> v & 1 == 1, "vertex {v} of {arcs:?}");
            }
        }
    }

    #[test]
    fn a_long_chain_is_cut_at_its_weakest_arc() {
        let mut network = Network::new();
        let mut last = Network::SOURCE;
        let mut vertices = Vec::new();
        for i in 0..100_000u128 {
            let vertex = network.add_vertex();
            network.add_arc(last, vertex, if i == 70_000 { 3 } else { 1000 + i });
            vertices.push(vertex);
            last = vertex;
        }
        network.add_arc(last, Network::SINK, UNCUTTABLE);
        let cut = network.cut(&[]);
        assert_eq!(cut.value, 3);
        assert!(!cut.is_on_sink_side(vertices[69_999]) && cut.is_on_sink_side(vertices[70_000]));
    }
}
