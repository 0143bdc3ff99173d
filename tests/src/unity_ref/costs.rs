//! What a layer takes on its devices, and what an edge moves.
//!
//! A layer is a kernel of the forward pass and two of the backward pass where it has weights, else one, on the same roofline as in `hlo-search`; then the
//! sum of the gradients of each weight over its replicas, and the update. An edge is the parallel operators between two forms of a tensor; each
//! takes twice (there, and the gradient back) its largest message over the bandwidth between the devices, without latency, as in the artifact: a
//! message is what one task before and one task behind it have in common.

use std::cell::RefCell;
use std::collections::HashMap;

use hlo_cluster::{Collective, CollectiveCost, DeviceProfile};
use hlo_mesh::{Machine, Network};

use super::layers::{Degrees, Layer, LayerKind, MOST_DIMS, SUM, WHOLE, WeightCut, n_tasks};
use super::{IMPOSSIBLE, Picoseconds};

/// Bytes of an element: all is f32.
const ELEM_BYTES: f64 = 4.0;

/// A block of devices: GPUs `first_gpu …` of nodes `first_node …`. What a layer runs on, and what branches are given.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Block {
    pub first_node: u16,
    pub n_nodes: u16,
    pub first_gpu: u16,
    pub n_gpus: u16,
}

impl Block {
    /// So many of its devices, from the first one on: a part of one node, or whole nodes.
    pub(crate) fn first(self, n_devices: u32) -> Option<Block> {
        let n_gpus = u32::from(self.n_gpus);
        if n_devices <= n_gpus {
            return Some(Block { n_nodes: 1, n_gpus: n_devices as u16, ..self });
        }
        let n_nodes = n_devices / n_gpus;
        let is_whole = n_devices.is_multiple_of(n_gpus) && n_nodes <= u32::from(self.n_nodes);
        is_whole.then_some(Block { n_nodes: n_nodes as u16, ..self })
    }

    /// Both parts of each way to divide it: by nodes, and by the GPUs of every node.
    pub(crate) fn halves(self) -> impl Iterator<Item = (Block, Block)> {
        let by_nodes = (1..self.n_nodes).map(move |n| {
            let rest = Block { first_node: self.first_node + n, n_nodes: self.n_nodes - n, ..self };
            (Block { n_nodes: n, ..self }, rest)
        });
        let by_gpus = (1..self.n_gpus).map(move |n| {
            let rest = Block { first_gpu: self.first_gpu + n, n_gpus: self.n_gpus - n, ..self };
            (Block { n_gpus: n, ..self }, rest)
        });
        by_nodes.chain(by_gpus)
    }

    fn devices(self, gpus_per_node: u16) -> Vec<u32> {
        let device = |node: u16, gpu: u16| u32::from(node) * u32::from(gpus_per_node) + u32::from(gpu);
        let nodes = self.first_node..self.first_node + self.n_nodes;
        nodes
            .flat_map(|node| (self.first_gpu..self.first_gpu + self.n_gpus).map(move |gpu| device(node, gpu)))
            .collect()
    }
}

type ReductionKey = (Block, Degrees, [bool; 2]);

/// Equal nodes of equal GPUs.
pub struct UnityMachine {
    pub(crate) n_nodes: u16,
    pub(crate) gpus_per_node: u16,
    intra_bytes_per_s: f64,
    inter_bytes_per_s: f64,
    device: DeviceProfile,
    network: Network,
    /// All-reduces by devices, degrees, and what cuts the array.
    reductions: RefCell<HashMap<ReductionKey, CollectiveCost>>,
}

impl UnityMachine {
    /// The machine of a plan of `hlo-search`.
    ///
    /// # Errors
    /// It has another number of devices, or is not nodes of GPUs.
    pub fn new(machine: &Machine, n_devices: usize) -> Result<UnityMachine, String> {
        let network = machine.network(n_devices).map_err(|error| error.to_string())?;
        let cluster = network.cluster();
        let (gpu, node) = match cluster.levels() {
            [gpu] => (gpu, gpu),
            [node, gpu] => (gpu, node),
            levels => return Err(format!("expected nodes of GPUs, found {} levels", levels.len())),
        };
        let (intra_bytes_per_s, inter_bytes_per_s) = (gpu.bytes_per_s, node.bytes_per_s);
        let (n_nodes, gpus_per_node) = match cluster.regular_hierarchy().as_slice() {
            [gpus] => (1, *gpus as u16),
            [nodes, gpus] => (*nodes as u16, *gpus as u16),
            _ => return Err("expected nodes of as many GPUs each".into()),
        };
        let (device, reductions) = (machine.device().clone(), RefCell::default());
        Ok(UnityMachine { n_nodes, gpus_per_node, intra_bytes_per_s, inter_bytes_per_s, device, network, reductions })
    }

    pub(crate) fn n_devices(&self) -> u32 {
        u32::from(self.n_nodes) * u32::from(self.gpus_per_node)
    }

    pub(crate) fn whole(&self) -> Block {
        Block { first_node: 0, n_nodes: self.n_nodes, first_gpu: 0, n_gpus: self.gpus_per_node }
    }

    /// The degrees of substitutions: divisors of the GPUs of a node, and these times divisors of the nodes.
    pub(crate) fn degrees(&self) -> Vec<u16> {
        let divisors = |n: u16| (1..=n).filter(move |d| n.is_multiple_of(*d));
        let mut degrees: Vec<u16> = divisors(self.gpus_per_node).collect();
        degrees.extend(divisors(self.n_nodes).map(|d| d * self.gpus_per_node));
        degrees.sort_unstable();
        degrees.dedup();
        degrees
    }

    /// A layer on its devices.
    pub(crate) fn layer(&self, layer: &Layer, degrees: &Degrees, block: Block) -> Picoseconds {
        if matches!(layer.kind, LayerKind::Input | LayerKind::End) {
            return 0;
        }
        let n_tasks = f64::from(n_tasks(degrees));
        let of_dims: f64 = degrees[..SUM].iter().map(|&degree| f64::from(degree)).product();
        let result_bytes = layer.n_elems() / of_dims * ELEM_BYTES;
        let taken_bytes = match layer.kind {
            LayerKind::Linear { .. } | LayerKind::Conv { .. } => {
                let pixels = layer.n_elems() / layer.dims[layer.dims.len() - 1] as f64;
                pixels * layer.n_summed as f64 * ELEM_BYTES * f64::from(degrees[layer.dims.len() - 1]) / n_tasks
            }
            LayerKind::Embedding
            | LayerKind::Attention { .. }
            | LayerKind::Pool { .. }
            | LayerKind::Elementwise { .. }
            | LayerKind::Norm
            | LayerKind::Concat
            | LayerKind::Softmax
            | LayerKind::Flat
            | LayerKind::Input
            | LayerKind::End => result_bytes,
        };
        // Of a table the rows that are looked up.
        let is_table = layer.kind == LayerKind::Embedding;
        let mut held_bytes = 0.0;
        let mut synchronized = 0.0;
        for weight in &layer.weights {
            let parts = layer.weight_parts(degrees, weight);
            let bytes = weight.n_elems() * ELEM_BYTES / parts.iter().map(|&part| f64::from(part)).product::<f64>();
            held_bytes += if is_table { 0.0 } else { bytes };
            let cuts = |kind: WeightCut| weight.dims.iter().any(|&(_, cut)| cut == kind);
            synchronized +=
                self.all_reduce_s(layer, degrees, [cuts(WeightCut::Result), cuts(WeightCut::Sum)], block, bytes);
            synchronized += self.device.memory_s(3.0 * bytes);
        }
        let bytes = taken_bytes + held_bytes + result_bytes;
        let n_kernels = if layer.weights.is_empty() { 2.0 } else { 3.0 };
        let kernel_s = self.device.op_s(layer.flops / n_tasks, bytes, "f32");
        picoseconds(n_kernels * kernel_s + synchronized)
    }

    /// The sum over those devices that hold the same part of a weight, which is cut as the last dim of the result and as the sum or not.
    fn all_reduce_s(&self, layer: &Layer, degrees: &Degrees, cut_by: [bool; 2], block: Block, bytes: f64) -> f64 {
        let mut of_weight = WHOLE;
        let last = layer.dims.len() - 1;
        if cut_by[0] {
            of_weight[last] = degrees[last];
        }
        if cut_by[1] {
            of_weight[SUM] = degrees[SUM];
        }
        if of_weight == *degrees {
            return 0.0;
        }
        let mut known = self.reductions.borrow_mut();
        let cost = known.entry((block, *degrees, [of_weight[last] > 1, of_weight[SUM] > 1])).or_insert_with(|| {
            let mut groups: HashMap<Degrees, Vec<u32>> = HashMap::new();
            for (task, device) in block.devices(self.gpus_per_node).into_iter().enumerate() {
                let mut part = [0; MOST_DIMS + 1];
                let mut rest = task;
                for k in (0..part.len()).rev() {
                    let degree = usize::from(degrees[k]);
                    part[k] = if of_weight[k] > 1 { (rest % degree) as u16 } else { 0 };
                    rest /= degree;
                }
                groups.entry(part).or_default().push(device);
            }
            let mut groups: Vec<Vec<u32>> = groups.into_values().collect();
            groups.sort();
            self.network.collective(Collective::AllReduce, &groups)
        });
        cost.seconds(bytes)
    }

    /// What an edge moves: a result of these degrees on these devices, to a layer that takes it in these.
    pub(crate) fn edge(&self, from: (&Layer, &Degrees, Block), to: (&Layer, &Degrees, Block)) -> Picoseconds {
        let (given, degrees, source) = from;
        let (taker, taker_degrees, target) = to;
        if given.kind == LayerKind::Input {
            return 0;
        }
        let (wanted, n_replicas) = taker.wants(taker_degrees, given.dims.len());
        let bandwidth = match source.n_nodes == 1 && target.n_nodes == 1 && source.first_node == target.first_node {
            true => self.intra_bytes_per_s,
            false => self.inter_bytes_per_s,
        };
        let bytes = given.n_elems() * ELEM_BYTES;
        let mut n_parts: f64 = degrees[..SUM].iter().map(|&degree| f64::from(degree)).product();
        let mut moved = 0.0;
        let mut is_moved = degrees[SUM] > 1 || n_replicas > 1;
        // Reduce, then Combine and Partition by dim, then Replicate.
        if degrees[SUM] > 1 {
            moved += bytes / n_parts;
        }
        for (&before, &after) in degrees[..SUM].iter().zip(&wanted) {
            let (before, after) = (f64::from(before), f64::from(after));
            if before == after {
                continue;
            }
            is_moved = true;
            let is_refined = after % before == 0.0;
            if before % after != 0.0 && !is_refined {
                moved += bytes / n_parts;
                n_parts = n_parts / before * after;
                moved += bytes / n_parts;
            } else {
                let next = n_parts / before * after;
                moved += bytes / n_parts.max(next);
                n_parts = next;
            }
        }
        if n_replicas > 1 {
            moved += bytes / n_parts;
        }
        if !is_moved && source != target {
            moved += bytes / n_parts;
        }
        picoseconds(2.0 * moved / bandwidth)
    }
}

/// Seconds as integer picoseconds.
fn picoseconds(seconds: f64) -> Picoseconds {
    let rounded = (seconds * 1e12).round();
    if rounded < IMPOSSIBLE as f64 { rounded as Picoseconds } else { IMPOSSIBLE }
}
