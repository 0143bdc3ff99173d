//! Minimum cut of a directed graph, by Dinic's algorithm.
//!
//! E. A. Dinic 1970, *Algorithm for solution of a problem of maximum flow in networks with power estimation*: shortest augmenting
//! paths in phases, here `O(V²·E)` in the worst case and near-linear on the many small, shallow components that
//! weight updates make. Capacities are whole numbers, so the cut is exact.

use std::collections::VecDeque;

/// A vertex of the graph.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Vertex(u32);

/// More than any sum of finite capacities: an arc of this capacity is never cut.
pub const UNCUTTABLE: u128 = 1 << 124;

/// Paths between two questions whether to go on: a path takes microseconds where the graph is large.
const PATHS_BETWEEN_QUESTIONS: u64 = 256;

/// A flow network under construction.
#[derive(Clone, Debug)]
pub struct Network {
    n_vertices: u32,
    /// In order of insertion, each with its capacity.
    arcs: Vec<(Vertex, Vertex, u128)>,
}

/// One direction of an arc in the residual graph.
#[derive(Clone, Copy, Debug, Default)]
struct Arc {
    residual: u128,
    to: u32,
    /// Where the other direction stands.
    reverse: u32,
}

/// The residual graph: arcs by the vertex that they leave, in order of insertion, all in one list.
struct Residual {
    arcs: Vec<Arc>,
    /// Where the arcs of each vertex begin, and of the last one end.
    first: Vec<u32>,
}

/// A minimum cut.
#[derive(Clone, Debug)]
pub struct MinCut {
    /// Sum of the capacities cut; at least [`UNCUTTABLE`] if every cut has to take such an arc.
    pub value: u128,
    on_sink_side: Vec<bool>,
}

impl MinCut {
    /// Whether a vertex is on the sink's side.
    pub fn is_on_sink_side(&self, vertex: Vertex) -> bool {
        self.on_sink_side.get(vertex.0 as usize).copied().unwrap_or(false)
    }
}

impl Network {
    /// The source.
    pub const SOURCE: Vertex = Vertex(0);
    /// The sink.
    pub const SINK: Vertex = Vertex(1);

    /// A network with only a source and a sink.
    pub fn new() -> Network {
        Network { n_vertices: 2, arcs: Vec::new() }
    }

    /// A new vertex.
    pub fn add_vertex(&mut self) -> Vertex {
        self.n_vertices += 1;
        Vertex(self.n_vertices - 1)
    }

    /// `capacity` is paid if `from` ends on the source's side and `to` on the sink's.
    pub fn add_arc(&mut self, from: Vertex, to: Vertex, capacity: u128) {
        if capacity != 0 && from != to {
            self.arcs.push((from, to, capacity));
        }
    }

    /// Finds the minimum cut with the smallest sink side, of those that have as many of `wanted` on it as any minimum cut has. `check` is
    /// asked now and then whether to go on.
    ///
    /// # Errors
    /// Those of `check`.
    pub fn cut<E>(self, wanted: &[Vertex], mut check: impl FnMut() -> Result<(), E>) -> Result<MinCut, E> {
        let mut graph = Residual::of(&self);
        let mut value = 0u128;
        let n_vertices = self.n_vertices as usize;
        let (mut levels, mut next, mut path) = (vec![0u32; n_vertices], vec![0u32; n_vertices], Vec::new());
        let mut n_paths = 0u64;
        while graph.find_levels(&mut levels) {
            check()?;
            next.copy_from_slice(&graph.first[..n_vertices]);
            while let Some(flow) = graph.augment(&levels, &mut next, &mut path) {
                value = value.saturating_add(flow);
                n_paths += 1;
                if n_paths.is_multiple_of(PATHS_BETWEEN_QUESTIONS) {
                    check()?;
                }
            }
            if value >= UNCUTTABLE {
                break;
            }
        }
        // Any set that the source does not reach, together with all that reaches the set, can be on the sink's side.
        let from_source = graph.reached_from_source();
        let possible = wanted.iter().filter(|vertex| !from_source[vertex.0 as usize]);
        Ok(MinCut { value, on_sink_side: graph.reaching(possible.copied().chain([Network::SINK])) })
    }
}

impl Residual {
    /// The graph of a network without any flow.
    fn of(network: &Network) -> Residual {
        let mut first = vec![0u32; network.n_vertices as usize + 1];
        for (from, to, _) in &network.arcs {
            first[from.0 as usize + 1] += 1;
            first[to.0 as usize + 1] += 1;
        }
        for vertex in 1..first.len() {
            first[vertex] += first[vertex - 1];
        }
        let mut arcs = vec![Arc::default(); 2 * network.arcs.len()];
        let mut next = first.clone();
        let mut place = |vertex: Vertex| {
            next[vertex.0 as usize] += 1;
            next[vertex.0 as usize] - 1
        };
        for &(from, to, residual) in &network.arcs {
            let (there, back) = (place(from), place(to));
            arcs[there as usize] = Arc { residual, to: to.0, reverse: back };
            arcs[back as usize] = Arc { residual: 0, to: from.0, reverse: there };
        }
        Residual { arcs, first }
    }

    /// The arcs that leave a vertex.
    fn arcs_of(&self, vertex: u32) -> &[Arc] {
        &self.arcs[self.first[vertex as usize] as usize..self.first[vertex as usize + 1] as usize]
    }

    /// Finds distances from the source in the residual graph, of what is nearer than the sink; false once the sink cannot be reached.
    fn find_levels(&self, levels: &mut [u32]) -> bool {
        levels.fill(u32::MAX);
        levels[0] = 0;
        let mut queue = VecDeque::from([0u32]);
        while let Some(vertex) = queue.pop_front() {
            let level = levels[vertex as usize] + 1;
            for arc in self.arcs_of(vertex) {
                if arc.residual > 0 && levels[arc.to as usize] == u32::MAX {
                    levels[arc.to as usize] = level;
                    if arc.to == Network::SINK.0 {
                        return true;
                    }
                    queue.push_back(arc.to);
                }
            }
        }
        false
    }

    /// Pushes flow along one path of the level graph; `next` remembers arcs that lead nowhere. `path` is room for the path.
    fn augment(&mut self, levels: &[u32], next: &mut [u32], path: &mut Vec<u32>) -> Option<u128> {
        path.clear();
        let mut vertex = Network::SOURCE.0;
        while vertex != Network::SINK.0 {
            let (at, end) = (next[vertex as usize], self.first[vertex as usize + 1]);
            let level = levels[vertex as usize].wrapping_add(1);
            let is_on_way = |arc: &Arc| arc.residual > 0 && levels[arc.to as usize] == level;
            if let Some(skipped) = self.arcs[at as usize..end as usize].iter().position(is_on_way) {
                let arc = at + skipped as u32;
                next[vertex as usize] = arc;
                path.push(arc);
                vertex = self.arcs[arc as usize].to;
            } else {
                next[vertex as usize] = end;
                let Arc { reverse, .. } = self.arcs[path.pop()? as usize];
                vertex = self.arcs[reverse as usize].to;
                next[vertex as usize] += 1;
            }
        }
        let flow = path.iter().map(|&arc| self.arcs[arc as usize].residual).min()?;
        for &arc in path.iter() {
            let Arc { reverse, .. } = self.arcs[arc as usize];
            self.arcs[arc as usize].residual -= flow;
            self.arcs[reverse as usize].residual += flow;
        }
        Some(flow)
    }

    /// Which vertices the source reaches in the residual graph.
    fn reached_from_source(&self) -> Vec<bool> {
        let mut reached = vec![false; self.first.len() - 1];
        reached[0] = true;
        let mut work = vec![0u32];
        while let Some(vertex) = work.pop() {
            for arc in self.arcs_of(vertex) {
                if arc.residual > 0 && !reached[arc.to as usize] {
                    reached[arc.to as usize] = true;
                    work.push(arc.to);
                }
            }
        }
        reached
    }

    /// Which vertices reach one of `ends` in the residual graph.
    fn reaching(&self, ends: impl Iterator<Item = Vertex>) -> Vec<bool> {
        let mut reaching = vec![false; self.first.len() - 1];
        let mut work: Vec<u32> = ends.map(|end| end.0).collect();
        work.iter().for_each(|&end| reaching[end as usize] = true);
        while let Some(vertex) = work.pop() {
            for arc in self.arcs_of(vertex) {
                if !reaching[arc.to as usize] && self.arcs[arc.reverse as usize].residual > 0 {
                    reaching[arc.to as usize] = true;
                    work.push(arc.to);
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
    use std::convert::Infallible;

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

    fn never() -> Result<(), Infallible> {
        Ok(())
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
            let cut = network.cut(&[], never).expect("goes on");
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
        let cut = network.cut(&[], never).expect("goes on");
        assert_eq!(cut.value, 3);
        assert!(!cut.is_on_sink_side(vertices[69_999]) && cut.is_on_sink_side(vertices[70_000]));
    }

    #[test]
    fn a_cut_stops_on_its_way_where_the_time_is_over() {
        let mut network = Network::new();
        // Every path is of its own length, so that each phase finds one.
        for length in 1..300 {
            let mut last = Network::SOURCE;
            for _ in 0..length {
                let vertex = network.add_vertex();
                network.add_arc(last, vertex, 1);
                last = vertex;
            }
            network.add_arc(last, Network::SINK, 1);
        }
        let whole = std::time::Instant::now();
        let cut = network.clone().cut(&[], never).expect("goes on");
        assert_eq!(cut.value, 299);
        let limit = whole.elapsed() / 4;
        let begun = std::time::Instant::now();
        let check = || if begun.elapsed() < limit { Ok(()) } else { Err(()) };
        assert!(network.cut(&[], check).is_err(), "limit {limit:?}");
        assert!(begun.elapsed() < 3 * limit, "limit {limit:?}, stopped after {:?}", begun.elapsed());
    }
}
