//! Substitutions: every rule at every place where it matches.
//!
//! - *Cut, run, combine*: a layer is cut further along one dim or along its sum. Partition or Replicate stand before it then, Combine or
//!   Reduce behind it.
//! - A product or a convolution and the ReLU behind it are one layer, or two. One with a ReLU has no partial sum.
//! - A product of a concatenation is the sum of the products of its parts.

use std::collections::HashMap;

use super::layers::{Degrees, Layer, LayerKind, MOST_DIMS, SUM, Weight, WeightCut, n_tasks};
use super::views::ParallelGraph;

/// A rule that changes layers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Rule {
    Fuse,
    Unfuse,
    SplitConcat,
}

/// What a layer of a rule's result takes.
#[derive(Clone, Copy)]
enum Taken {
    /// A layer of the graph.
    Old(usize),
    /// One of the result.
    New(usize),
}

/// The rules, for a machine's degrees.
pub(crate) struct Substitutions {
    degrees: Vec<u16>,
    n_uids: u32,
    splits_concats: bool,
    /// The numbers of layers that a rule makes of others, so that they are the same in every graph.
    made: HashMap<(Rule, Vec<u32>), u32>,
}

impl Substitutions {
    /// For layers whose numbers are below `n_uids`.
    pub(crate) fn new(degrees: Vec<u16>, n_uids: u32, splits_concats: bool) -> Substitutions {
        Substitutions { degrees, n_uids, splits_concats, made: HashMap::new() }
    }

    /// All graphs that one substitution makes of a graph.
    pub(crate) fn candidates(&mut self, graph: &ParallelGraph) -> Vec<ParallelGraph> {
        let mut out = Vec::new();
        for (number, layer) in graph.layers.iter().enumerate() {
            for dim in (0..=MOST_DIMS).filter(|&dim| layer.can_cut(dim)) {
                for &by in &self.degrees {
                    let mut degrees = graph.degrees[number];
                    degrees[dim] = degrees[dim].saturating_mul(by);
                    if by > 1 && layer.takes(&degrees) && self.has_devices(&degrees) {
                        let mut candidate = graph.clone();
                        candidate.degrees[number] = degrees;
                        out.push(candidate);
                    }
                }
            }
        }
        let takers = takers(graph);
        for number in 0..graph.layers.len() {
            out.extend(self.fused(graph, &takers, number));
            out.extend(self.unfused(graph, number));
            if self.splits_concats {
                out.extend(self.split_concat(graph, &takers, number));
            }
        }
        out
    }

    /// Whether so many tasks are a block of devices.
    fn has_devices(&self, degrees: &Degrees) -> bool {
        let n = n_tasks(degrees);
        self.degrees.iter().any(|&degree| u32::from(degree) == n)
    }

    /// A ReLU behind a product or a convolution that nothing else takes, in the same degrees.
    fn fused(&mut self, graph: &ParallelGraph, takers: &[Vec<usize>], relu: usize) -> Option<ParallelGraph> {
        let LayerKind::Elementwise { is_relu: true } = graph.layers[relu].kind else { return None };
        let before = graph.layers[relu].operands[0];
        let degrees = graph.degrees[before];
        if takers[before].len() != 1 || degrees[SUM] > 1 || degrees != graph.degrees[relu] {
            return None;
        }
        let mut layer = graph.layers[before].clone();
        layer.kind = layer.kind.with_relu(true)?;
        layer.uid = self.uid(Rule::Fuse, &[layer.uid, graph.layers[relu].uid]);
        let taken = layer.operands.iter().map(|&operand| Taken::Old(operand)).collect();
        Some(rewritten(graph, &[before], relu, vec![(layer, degrees, taken)]))
    }

    fn unfused(&mut self, graph: &ParallelGraph, number: usize) -> Option<ParallelGraph> {
        let mut layer = graph.layers[number].clone();
        layer.kind = layer.kind.with_relu(false)?;
        let degrees = graph.degrees[number];
        // What fusion made of two is made two again.
        let fused = layer.uid;
        let of_fusion = self.made.iter().find(|(key, made)| key.0 == Rule::Fuse && **made == fused);
        let uids = of_fusion.map(|(key, _)| (key.1[0], key.1[1]));
        let (product, after) =
            uids.unwrap_or_else(|| (self.uid(Rule::Unfuse, &[fused, 0]), self.uid(Rule::Unfuse, &[fused, 1])));
        layer.uid = product;
        let taken = layer.operands.iter().map(|&operand| Taken::Old(operand)).collect();
        let flops = layer.n_elems();
        let relu = Layer {
            uid: after,
            kind: LayerKind::Elementwise { is_relu: true },
            operands: Vec::new(),
            dims: layer.dims.clone(),
            n_summed: 1,
            weights: Vec::new(),
            flops,
        };
        Some(rewritten(graph, &[], number, vec![(layer, degrees, taken), (relu, degrees, vec![Taken::New(0)])]))
    }

    /// `[a; b] w = a w[..k] + b w[k..]`, where nothing else takes the concatenation.
    fn split_concat(&mut self, graph: &ParallelGraph, takers: &[Vec<usize>], number: usize) -> Option<ParallelGraph> {
        let layer = &graph.layers[number];
        let LayerKind::Linear { has_relu: false } = layer.kind else { return None };
        let concat = layer.operands[0];
        let degrees = graph.degrees[number];
        let is_alone = graph.layers[concat].kind == LayerKind::Concat && takers[concat].len() == 1;
        let (wanted, _) = layer.wants(&degrees, graph.layers[concat].dims.len());
        if !is_alone || degrees[SUM] > 1 || layer.weights.len() != 1 || graph.degrees[concat][..MOST_DIMS] != wanted {
            return None;
        }
        let last = layer.dims.len() - 1;
        let width = layer.dims[last];
        let mut new = Vec::new();
        for (k, &part) in graph.layers[concat].operands.iter().enumerate() {
            let n_summed = *graph.layers[part].dims.last()?;
            let mut product = layer.clone();
            product.uid = self.uid(Rule::SplitConcat, &[layer.uid, graph.layers[concat].uid, k as u32]);
            product.n_summed = n_summed;
            product.flops = 2.0 * layer.n_elems() * n_summed as f64;
            let name = format!("{}[{k}]", layer.weights[0].name);
            product.weights = vec![Weight { name, dims: vec![(n_summed, WeightCut::Sum), (width, WeightCut::Result)] }];
            new.push((product, degrees, vec![Taken::Old(part)]));
        }
        let n_parts = new.len();
        let mut sum = layer.clone();
        sum.uid = self.uid(Rule::SplitConcat, &[layer.uid, graph.layers[concat].uid, n_parts as u32]);
        sum.kind = LayerKind::Elementwise { is_relu: false };
        sum.n_summed = 1;
        sum.weights.clear();
        sum.flops = layer.n_elems() * n_parts as f64;
        new.push((sum, degrees, (0..n_parts).map(Taken::New).collect()));
        Some(rewritten(graph, &[concat], number, new))
    }

    fn uid(&mut self, rule: Rule, of: &[u32]) -> u32 {
        let n_uids = &mut self.n_uids;
        *self.made.entry((rule, of.to_vec())).or_insert_with(|| {
            *n_uids += 1;
            *n_uids - 1
        })
    }
}

/// For each layer those that take its result.
pub(crate) fn takers(graph: &ParallelGraph) -> Vec<Vec<usize>> {
    let mut takers = vec![Vec::new(); graph.layers.len()];
    for (number, layer) in graph.layers.iter().enumerate() {
        for &operand in &layer.operands {
            takers[operand].push(number);
        }
    }
    takers
}

/// The graph with new layers in the place of `root`, the last one for what took it, and without `dropped`.
fn rewritten(
    graph: &ParallelGraph,
    dropped: &[usize],
    root: usize,
    new: Vec<(Layer, Degrees, Vec<Taken>)>,
) -> ParallelGraph {
    let mut out = ParallelGraph { layers: Vec::new(), degrees: Vec::new() };
    let mut number_of = vec![usize::MAX; graph.layers.len()];
    for (number, layer) in graph.layers.iter().enumerate() {
        if dropped.contains(&number) {
            continue;
        }
        if number == root {
            let first = out.layers.len();
            for (mut layer, degrees, taken) in new.iter().cloned() {
                let number_in = |taken: &Taken| match *taken {
                    Taken::Old(old) => number_of[old],
                    Taken::New(new) => first + new,
                };
                layer.operands = taken.iter().map(number_in).collect();
                out.layers.push(layer);
                out.degrees.push(degrees);
            }
        } else {
            let mut layer = layer.clone();
            layer.operands.iter_mut().for_each(|operand| *operand = number_of[*operand]);
            out.layers.push(layer);
            out.degrees.push(graph.degrees[number]);
        }
        number_of[number] = out.layers.len() - 1;
    }
    out
}
