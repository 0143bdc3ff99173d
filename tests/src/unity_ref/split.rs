//! Graphs of more than ten layers (§5.3): they are split where all paths meet, and where no substitution lies across. Each way to cut the tensor
//! there, without replicas, is tried: what comes before has to give it so, and what comes behind takes it so.

use std::collections::HashMap;

use super::costs::UnityMachine;
use super::layers::{Degrees, Layer, LayerGraph, LayerKind, MOST_DIMS, WHOLE, n_tasks};
use super::queue::{Budget, Priced, best};
use super::substitutions::{Substitutions, takers};
use super::views::{ParallelGraph, Views, add};
use super::{Counts, Faults, IMPOSSIBLE, Picoseconds};

/// Layers of a graph that is not split.
const MOST_BASE_LAYERS: usize = 10;

/// How a tensor may be cut where a graph is split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SplitShapes {
    /// Into powers of two, as in the artifact: with six GPUs a node these are 1 and 2.
    PowersOfTwo,
    /// Into what substitutions cut it.
    AsSubstitutions,
}

/// The best graph of a piece for each form in which it gives its result, with the form in which it takes its own.
type OfPiece = HashMap<Option<Degrees>, (Option<Degrees>, Priced)>;

/// What was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What a step takes, by Unity's own costs.
    pub time: Picoseconds,
    /// Branches that run beside others on a part of the machine.
    pub n_beside: u32,
    /// Products of concatenations that are sums of products.
    pub n_split_concats: usize,
    /// Each weight, and into how many parts each of its dims is cut.
    pub weights: Vec<(String, Vec<u16>)>,
    /// For products, convolutions and embeddings by the name of their weight, into how many parts each dim of the result is cut; without
    /// those that a ReLU takes in another way.
    pub results: Vec<(String, Vec<u16>)>,
    /// What the search did.
    pub counts: Counts,
}

/// How a search goes on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct UnityOptions {
    /// Of the queue.
    pub budget: Budget,
    /// How tensors are cut where a graph is split.
    pub shapes: SplitShapes,
    /// Whether a product of a concatenation may become a sum of products.
    pub splits_concats: bool,
    /// Faults of the artifact that are kept.
    pub faults: Faults,
}

impl Default for UnityOptions {
    /// The paper's budget, all rules, no faults.
    fn default() -> UnityOptions {
        UnityOptions {
            budget: Budget::default(),
            shapes: SplitShapes::AsSubstitutions,
            splits_concats: true,
            faults: Faults::default(),
        }
    }
}

/// Searches a graph.
pub fn search(graph: &LayerGraph, machine: &UnityMachine, options: UnityOptions) -> Found {
    let UnityOptions { budget, shapes, splits_concats, faults } = options;
    let n_layers = graph.layers.len() as u32;
    // Two ends at each split have numbers of their own.
    let mut rules = Substitutions::new(machine.degrees(), 3 * n_layers, splits_concats);
    let mut views = Views::new(machine, faults);
    let serial = ParallelGraph { layers: graph.layers.clone(), degrees: vec![WHOLE; graph.layers.len()] };
    let pieces = pieces(&serial);
    let mut before: Vec<(Option<Degrees>, Picoseconds)> = vec![(None, 0)];
    let mut chosen: Vec<OfPiece> = Vec::new();
    let mut start = 0;
    for (number, &end) in pieces.iter().enumerate() {
        let is_last = number + 1 == pieces.len();
        let after = match is_last {
            true => vec![None],
            false => shapes.of(&serial.layers[end], machine).into_iter().map(Some).collect(),
        };
        let mut of_piece = OfPiece::new();
        let mut reached = Vec::new();
        for shape in after {
            let mut least = IMPOSSIBLE;
            for &(taken, time) in &before {
                let piece = piece(&serial, start, end, taken, shape);
                let found = best(&mut views, &mut rules, piece, budget);
                let total = add(time, found.0);
                if total < least {
                    least = total;
                    of_piece.insert(shape, (taken, found));
                }
            }
            if least < IMPOSSIBLE {
                reached.push((shape, least));
            }
        }
        before = reached;
        chosen.push(of_piece);
        start = end + 1;
    }
    collect(before.first().map_or(IMPOSSIBLE, |&(_, time)| time), &chosen, views.counts)
}

/// The plan of all pieces, from the last one back.
fn collect(time: Picoseconds, chosen: &[OfPiece], counts: Counts) -> Found {
    let mut found = Found { time, n_beside: 0, n_split_concats: 0, weights: Vec::new(), results: Vec::new(), counts };
    let mut shape = None;
    for of_piece in chosen.iter().rev() {
        let Some((taken, (_, n_beside, graph))) = of_piece.get(&shape) else { break };
        found.n_beside += n_beside;
        for (layer, degrees) in graph.layers.iter().zip(&graph.degrees) {
            let named = layer.weights.iter().map(|weight| (weight.name.clone(), layer.weight_parts(degrees, weight)));
            found.n_split_concats += layer.weights.iter().filter(|weight| weight.name.ends_with("[0]")).count();
            found.weights.extend(named);
        }
        found.results.extend(results(graph));
        shape = *taken;
    }
    found
}

fn results(graph: &ParallelGraph) -> Vec<(String, Vec<u16>)> {
    let takers = takers(graph);
    let mut out = Vec::new();
    for (number, (layer, degrees)) in graph.layers.iter().zip(&graph.degrees).enumerate() {
        let is_told = matches!(layer.kind, LayerKind::Linear { .. } | LayerKind::Conv { .. } | LayerKind::Embedding);
        let is_relu = |taker: usize| matches!(graph.layers[taker].kind, LayerKind::Elementwise { is_relu: true });
        let n_dims = layer.dims.len();
        let differs = |&taker: &usize| is_relu(taker) && graph.degrees[taker][..n_dims] != degrees[..n_dims];
        if is_told && !takers[number].iter().any(differs) {
            out.push((layer.weights[0].name.clone(), degrees[..n_dims].to_vec()));
        }
    }
    out
}

impl SplitShapes {
    fn of(self, layer: &Layer, machine: &UnityMachine) -> Vec<Degrees> {
        let degrees: Vec<u16> = match self {
            SplitShapes::PowersOfTwo => {
                (0..16).map(|k| 1 << k).filter(|&n| u32::from(n) <= machine.n_devices()).collect()
            }
            SplitShapes::AsSubstitutions => machine.degrees(),
        };
        let valid = machine.degrees();
        let mut shapes = vec![WHOLE];
        for dim in 0..layer.dims.len().min(MOST_DIMS) {
            let mut next = Vec::new();
            for shape in &shapes {
                for &degree in degrees.iter().filter(|&&degree| layer.dims[dim] % i64::from(degree) == 0) {
                    let mut cut = *shape;
                    cut[dim] = degree;
                    next.push(cut);
                }
            }
            shapes = next;
        }
        shapes.retain(|shape| valid.iter().any(|&n| u32::from(n) == n_tasks(shape)));
        shapes
    }
}

/// The last layer of each piece.
fn pieces(graph: &ParallelGraph) -> Vec<usize> {
    let takers = takers(graph);
    let n_layers = graph.layers.len();
    let mut splits = Vec::new();
    let (mut reach, mut last_input) = (0, 0);
    for (number, layer) in graph.layers.iter().enumerate() {
        if layer.operands.is_empty() {
            last_input = number;
        }
    }
    for (number, of_layer) in takers[..n_layers - 1].iter().enumerate() {
        let is_meeting = reach <= number && last_input <= number;
        let is_matched = |&taker: &usize| match (graph.layers[number].kind, graph.layers[taker].kind) {
            (LayerKind::Linear { .. } | LayerKind::Conv { .. }, LayerKind::Elementwise { is_relu }) => is_relu,
            (before, after) => before == LayerKind::Concat && matches!(after, LayerKind::Linear { .. }),
        };
        if is_meeting && graph.layers[number].kind != LayerKind::Input && !of_layer.iter().any(is_matched) {
            splits.push(number);
        }
        reach = reach.max(of_layer.last().copied().unwrap_or(n_layers));
    }
    let mut ends = Vec::new();
    let mut start = 0;
    let mut furthest = None;
    for split in splits {
        if n_layers - start <= MOST_BASE_LAYERS {
            break;
        }
        if split + 1 - start > MOST_BASE_LAYERS
            && let Some(end) = furthest.take()
        {
            ends.push(end);
            start = end + 1;
        }
        if split + 1 - start > MOST_BASE_LAYERS {
            ends.push(split);
            start = split + 1;
        } else {
            furthest = Some(split);
        }
    }
    if n_layers - start > MOST_BASE_LAYERS {
        ends.extend(furthest);
    }
    ends.push(n_layers - 1);
    ends
}

/// Layers `start ..= end`, with the ends that they take and give in these degrees.
fn piece(
    graph: &ParallelGraph,
    start: usize,
    end: usize,
    taken: Option<Degrees>,
    given: Option<Degrees>,
) -> ParallelGraph {
    let n_layers = graph.layers.len() as u32;
    let mut out = ParallelGraph { layers: Vec::new(), degrees: Vec::new() };
    let end_of = |number: usize, operands: Vec<usize>, uid: u32| Layer {
        uid,
        kind: LayerKind::End,
        operands,
        dims: graph.layers[number].dims.clone(),
        n_summed: 1,
        weights: Vec::new(),
        flops: 0.0,
    };
    let offset = usize::from(taken.is_some());
    if let Some(degrees) = taken {
        out.layers.push(end_of(start - 1, Vec::new(), n_layers + (start - 1) as u32));
        out.degrees.push(degrees);
    }
    for number in start..=end {
        let mut layer = graph.layers[number].clone();
        // What lies before the piece is its first end.
        layer.operands.iter_mut().for_each(|operand| *operand = (*operand + offset).saturating_sub(start));
        out.layers.push(layer);
        out.degrees.push(graph.degrees[number]);
    }
    if let Some(degrees) = given {
        let last = out.layers.len() - 1;
        out.layers.push(end_of(end, vec![last], 2 * n_layers + end as u32));
        out.degrees.push(degrees);
    }
    out
}
