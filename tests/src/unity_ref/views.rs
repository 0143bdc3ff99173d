//! The devices of each layer, and with them the cost of a graph: the lowest level of the search (§5.2).
//!
//! A graph is divided where all paths meet, and the parts are independent once the devices of that layer are chosen. Where nothing
//! separates it so, its branches run in turn on all devices, or one of them beside the others on a part of the machine; every division into
//! nodes, and into GPUs of each node, is tried. Branches that are joined elsewhere than at the ends (graphs that are not series-parallel) run in
//! turn. Costs of subgraphs are kept, by what is in them and where it runs.

use std::collections::HashMap;

use super::costs::{Block, UnityMachine};
use super::layers::{Degrees, Layer, n_tasks};
use super::{Counts, Faults, IMPOSSIBLE, Picoseconds};

/// A graph with the degrees of each layer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct ParallelGraph {
    pub layers: Vec<Layer>,
    pub degrees: Vec<Degrees>,
}

/// A layer on its devices.
type Placed = (usize, Block);

/// The most subgraphs that are kept: some gigabytes.
const MOST_KNOWN: usize = 8_000_000;

/// What is in a subgraph, and where it runs.
type Key = (Vec<(u32, Degrees)>, Option<Block>, Option<Block>, Block);

/// Costs of graphs, and what is known of subgraphs.
pub(crate) struct Views<'m> {
    pub machine: &'m UnityMachine,
    faults: Faults,
    /// Cost, and how many branches run beside others.
    known: HashMap<Key, (Picoseconds, u32)>,
    pub counts: Counts,
}

impl<'m> Views<'m> {
    pub(crate) fn new(machine: &'m UnityMachine, faults: Faults) -> Views<'m> {
        Views { machine, faults, known: HashMap::new(), counts: Counts::default() }
    }

    /// The least time of a graph, and how many branches run beside others on a part of the machine.
    pub(crate) fn cost(&mut self, graph: &ParallelGraph) -> (Picoseconds, u32) {
        let operands = operands(graph, self.faults.drops_skip_edges);
        let last = graph.layers.len() - 1;
        let whole = self.machine.whole();
        let Some(block) = whole.first(n_tasks(&graph.degrees[last])) else { return (IMPOSSIBLE, 0) };
        let before: Vec<usize> = (0..last).collect();
        let place = Subgraph { graph, operands: &operands };
        let (time, n_beside) = self.between(place, &before, None, Some((last, block)), whole);
        (add(time, self.machine.layer(&graph.layers[last], &graph.degrees[last], block)), n_beside)
    }

    /// Layers between two others, and the edges that begin or end at one of them.
    fn between(
        &mut self,
        place: Subgraph<'_>,
        inner: &[usize],
        source: Option<Placed>,
        sink: Option<Placed>,
        resources: Block,
    ) -> (Picoseconds, u32) {
        if inner.is_empty() {
            return (0, 0);
        }
        self.counts.n_lookups += 1;
        let key = self.key(place, inner, source, sink, resources);
        if let Some(&known) = self.known.get(&key) {
            self.counts.n_cache_hits += 1;
            return known;
        }
        let found = match place.meeting(inner, source, sink) {
            Some(at) => {
                let middle = inner[at];
                match resources.first(n_tasks(&place.graph.degrees[middle])) {
                    None => (IMPOSSIBLE, 0),
                    Some(block) => {
                        let middle = (middle, block);
                        let (before, n_before) = self.between(place, &inner[..at], source, Some(middle), resources);
                        let (after, n_after) = self.between(place, &inner[at + 1..], Some(middle), sink, resources);
                        let mut time = add(before, after);
                        time = add(time, self.layer(place, middle));
                        time = add(time, self.edges(place, source, middle));
                        time = add(time, sink.map_or(0, |sink| self.edges(place, Some(middle), sink)));
                        (time, n_before + n_after)
                    }
                }
            }
            None => self.branches(place, inner, source, sink, resources),
        };
        // All is forgotten where memory would run out.
        if self.known.len() >= MOST_KNOWN {
            self.known.clear();
        }
        self.known.insert(key, found);
        found
    }

    fn branches(
        &mut self,
        place: Subgraph<'_>,
        inner: &[usize],
        source: Option<Placed>,
        sink: Option<Placed>,
        resources: Block,
    ) -> (Picoseconds, u32) {
        let (branch, others) = place.branch(inner);
        if others.is_empty() {
            return (self.in_turn(place, inner, source, sink, resources), 0);
        }
        let (first, n_first) = self.between(place, &branch, source, sink, resources);
        let (second, n_second) = self.between(place, &others, source, sink, resources);
        let mut least = (add(first, second), n_first + n_second);
        for (here, there) in resources.halves() {
            for (here, there) in [(here, there), (there, here)] {
                let (first, n_first) = self.between(place, &branch, source, sink, here);
                if first >= least.0 {
                    continue;
                }
                let (second, n_second) = self.between(place, &others, source, sink, there);
                if first.max(second) < least.0 {
                    least = (first.max(second), n_first + n_second + 1);
                }
            }
        }
        least
    }

    /// Each layer on the first devices.
    fn in_turn(
        &self,
        place: Subgraph<'_>,
        inner: &[usize],
        source: Option<Placed>,
        sink: Option<Placed>,
        resources: Block,
    ) -> Picoseconds {
        let block = |&layer: &usize| Some((layer, resources.first(n_tasks(&place.graph.degrees[layer]))?));
        let Some(placed) = inner.iter().map(block).collect::<Option<Vec<Placed>>>() else { return IMPOSSIBLE };
        let mut time = 0;
        for (number, &layer) in placed.iter().enumerate() {
            time = add(time, self.layer(place, layer));
            time = add(time, self.edges(place, source, layer));
            time = add(time, sink.map_or(0, |sink| self.edges(place, Some(layer), sink)));
            for &before in &placed[..number] {
                time = add(time, self.edges(place, Some(before), layer));
            }
        }
        time
    }

    fn layer(&self, place: Subgraph<'_>, (layer, block): Placed) -> Picoseconds {
        self.machine.layer(&place.graph.layers[layer], &place.graph.degrees[layer], block)
    }

    /// All edges from one layer to another.
    fn edges(&self, place: Subgraph<'_>, from: Option<Placed>, to: Placed) -> Picoseconds {
        let Some((from, source)) = from else { return 0 };
        let (to, target) = to;
        let n_edges = place.operands[to].iter().filter(|&&operand| operand == from).count();
        if n_edges == 0 {
            return 0;
        }
        let graph = place.graph;
        let given = (&graph.layers[from], &graph.degrees[from], source);
        let taken = (&graph.layers[to], &graph.degrees[to], target);
        n_edges as Picoseconds * self.machine.edge(given, taken)
    }

    fn key(
        &self,
        place: Subgraph<'_>,
        inner: &[usize],
        source: Option<Placed>,
        sink: Option<Placed>,
        resources: Block,
    ) -> Key {
        let ends = source.into_iter().chain(sink).map(|(layer, _)| layer);
        let layers = ends.chain(inner.iter().copied());
        let what = layers.map(|layer| (place.graph.layers[layer].uid, place.graph.degrees[layer])).collect();
        let of_source = source.map(|(_, block)| block).filter(|_| !self.faults.cache_key_lacks_source);
        (what, of_source, sink.map(|(_, block)| block), resources)
    }
}

/// A sum that stays [`IMPOSSIBLE`].
pub(crate) fn add(one: Picoseconds, other: Picoseconds) -> Picoseconds {
    (one + other).min(IMPOSSIBLE)
}

/// The operands of each layer; without those from which a longer path comes, if they are dropped.
fn operands(graph: &ParallelGraph, drops_skip_edges: bool) -> Vec<Vec<usize>> {
    let all: Vec<Vec<usize>> = graph.layers.iter().map(|layer| layer.operands.clone()).collect();
    if !drops_skip_edges {
        return all;
    }
    let mut reached: Vec<Vec<bool>> = Vec::new();
    for of_layer in &all {
        let mut from = vec![false; all.len()];
        for &operand in of_layer {
            from[operand] = true;
            for (is_reached, &through) in from.iter_mut().zip(&reached[operand]) {
                *is_reached |= through;
            }
        }
        reached.push(from);
    }
    let is_direct = |of_layer: &[usize], from: usize| !of_layer.iter().any(|&other| reached[other][from]);
    all.iter().map(|layers| layers.iter().copied().filter(|&from| is_direct(layers, from)).collect()).collect()
}

/// Part of a graph.
#[derive(Clone, Copy)]
struct Subgraph<'g> {
    graph: &'g ParallelGraph,
    operands: &'g [Vec<usize>],
}

impl Subgraph<'_> {
    /// The first one of some layers through which all paths lead, as its place among them. Edges from source to sink do not count.
    fn meeting(&self, inner: &[usize], source: Option<Placed>, sink: Option<Placed>) -> Option<usize> {
        let position = |layer: usize| inner.binary_search(&layer).ok();
        let source = source.map(|(layer, _)| layer);
        let sink_operands = sink.map_or(&[][..], |(sink, _)| &self.operands[sink]);
        // The last one that takes what lies before.
        let mut reach_of = vec![0; inner.len()];
        let mut reach_of_source = 0;
        let mut starts_late = 0;
        for (at, &layer) in inner.iter().enumerate() {
            for &operand in &self.operands[layer] {
                if let Some(from) = position(operand) {
                    reach_of[from] = at;
                } else if Some(operand) == source {
                    reach_of_source = at;
                }
            }
            if self.operands[layer].is_empty() {
                starts_late = at;
            }
        }
        for &operand in sink_operands {
            if let Some(from) = position(operand) {
                reach_of[from] = inner.len();
            }
        }
        let mut reach = reach_of_source;
        for (at, &reached) in reach_of.iter().enumerate() {
            if reach <= at && starts_late <= at {
                return Some(at);
            }
            // What nobody takes ends beside the path.
            reach = reach.max(if reached == 0 { inner.len() } else { reached });
        }
        None
    }

    /// The layers that hang together with the first one, and the others.
    fn branch(&self, inner: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut of: HashMap<usize, usize> = inner.iter().map(|&layer| (layer, layer)).collect();
        for &layer in inner {
            for operand in &self.operands[layer] {
                if let (Some(&one), Some(&other)) = (of.get(&layer), of.get(operand)) {
                    let joined = one.min(other);
                    of.values_mut().filter(|of| **of == one || **of == other).for_each(|of| *of = joined);
                }
            }
        }
        inner.iter().partition(|layer| of[layer] == of[&inner[0]])
    }
}
