//! Link loads of an instruction by class of groups, walked once and asked often.
//!
//! Programs ask for the same instruction with many shares of the data. The groups of one class always have the same
//! share, so a link's load is a sum over classes; links with the same loads from every class are kept once. What is left
//! is small however many devices there are.

use crate::collective::{Algo, Collective};
use crate::links::Links;
use crate::reduction::fast_hash::FastMap;
use crate::reduction::instruction::Instruction;
use crate::simulate;
use crate::topology::{Cluster, Network};
use crate::tree;

/// Which way the bytes of a collective go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Flow {
    /// Once round a closed ring.
    Around,
    /// Down a chain to the root.
    ToRoot,
    /// Up a chain from the root.
    FromRoot,
    /// Up and down the trees.
    Trees,
}

/// The loads of all instructions for one numbering of one reduction.
pub(crate) struct ClassLoads<'c> {
    cluster: &'c Cluster,
    links: Links<'c>,
    known: FastMap<(Instruction, Flow), Loads>,
}

/// One instruction, one flow.
struct Loads {
    /// By class.
    latency_s: Vec<f64>,
    /// Seconds per byte of a link, and by class its load in tensors; each combination once.
    links: Vec<(f64, Box<[f64]>)>,
}

impl<'c> ClassLoads<'c> {
    /// None where an algorithm is wanted that does not add up link by link.
    pub fn new(cluster: &'c Cluster, algo: Algo) -> Option<ClassLoads<'c>> {
        let has_torus = cluster.levels().iter().any(|l| matches!(l.network, Network::Torus { .. }));
        let adds_up = matches!(algo, Algo::Ring | Algo::Tree) || !has_torus;
        adds_up.then(|| ClassLoads { cluster, links: Links::new(cluster), known: FastMap::default() })
    }

    /// Predicted time of a step; `weights` by class, `groups` gives the device groups with their classes when they are
    /// not known yet.
    pub fn step_s(
        &mut self,
        (instruction, collective, n): (Instruction, Collective, usize),
        weights: &[f64],
        (algo, bytes): (Algo, f64),
        groups: &mut dyn FnMut() -> Vec<(Vec<u32>, usize)>,
    ) -> f64 {
        if weights.iter().all(|w| *w == 0.0) {
            return 0.0;
        }
        let once = (n - 1) as f64 / n as f64;
        let (flow, share, rounds) = match collective {
            Collective::AllReduce => (Flow::Around, 2.0 * once, 2.0),
            Collective::ReduceScatter | Collective::AllGather => (Flow::Around, once, 1.0),
            Collective::Reduce => (Flow::ToRoot, 1.0, 1.0),
            Collective::Broadcast => (Flow::FromRoot, 1.0, 1.0),
        };
        let mut by_flow = |flow: Flow, share: f64, rounds: f64| {
            let (latency_s, s_per_byte) = self.loads(instruction, flow, weights.len(), groups).of(weights);
            self.cluster.launch_s() + rounds * latency_s + bytes * share * s_per_byte
        };
        match (algo, collective) {
            (Algo::Tree, Collective::AllReduce) => by_flow(Flow::Trees, 1.0, 1.0),
            (Algo::Auto, Collective::AllReduce) => by_flow(flow, share, rounds).min(by_flow(Flow::Trees, 1.0, 1.0)),
            _ => by_flow(flow, share, rounds),
        }
    }

    fn loads(
        &mut self,
        instruction: Instruction,
        flow: Flow,
        n_classes: usize,
        groups: &mut dyn FnMut() -> Vec<(Vec<u32>, usize)>,
    ) -> &Loads {
        let (cluster, links) = (self.cluster, &self.links);
        self.known.entry((instruction, flow)).or_insert_with(|| Loads::walk(cluster, links, flow, n_classes, &groups()))
    }
}

impl Loads {
    fn walk(cluster: &Cluster, links: &Links<'_>, flow: Flow, n_classes: usize, groups: &[(Vec<u32>, usize)]) -> Loads {
        let n_links = links.s_per_byte.len();
        let mut loads = vec![0.0; n_links * n_classes];
        let mut latency_s = Vec::with_capacity(n_classes);
        for class in 0..n_classes {
            let of_class: Vec<(&[u32], f64)> =
                groups.iter().filter(|(_, c)| *c == class).map(|(group, _)| (group.as_slice(), 1.0)).collect();
            let mut load = |link: usize, share: f64| loads[link * n_classes + class] += share;
            latency_s.push(match flow {
                Flow::Around => simulate::around(links, &of_class, &mut load),
                Flow::ToRoot => simulate::ring(links, Collective::Reduce, &of_class, &mut load),
                Flow::FromRoot => simulate::ring(links, Collective::Broadcast, &of_class, &mut load),
                Flow::Trees => tree::all_reduce(cluster, links, &of_class, &mut load),
            });
        }
        let mut seen: FastMap<Box<[u64]>, ()> = FastMap::default();
        let mut kept = Vec::new();
        let mut key = Vec::with_capacity(n_classes + 1);
        let mut last: Option<(&f64, &[f64])> = None;
        for (row, s_per_byte) in loads.chunks_exact(n_classes).zip(&links.s_per_byte) {
            // Neighbours mostly have the same loads.
            if last == Some((s_per_byte, row)) || row.iter().all(|load| *load == 0.0) {
                continue;
            }
            last = Some((s_per_byte, row));
            key.clear();
            key.push(s_per_byte.to_bits());
            key.extend(row.iter().map(|load| load.to_bits()));
            if !seen.contains_key(key.as_slice()) {
                seen.insert(key.as_slice().into(), ());
                kept.push((*s_per_byte, row.into()));
            }
        }
        Loads { latency_s, links: kept }
    }

    /// Latency of the slowest class that has data, and seconds per byte of the busiest link.
    fn of(&self, weights: &[f64]) -> (f64, f64) {
        let with_data = self.latency_s.iter().zip(weights).filter(|(_, w)| **w > 0.0);
        let latency_s = with_data.map(|(s, _)| *s).fold(0.0, f64::max);
        let busy = |(s, row): &(f64, Box<[f64]>)| s * row.iter().zip(weights).map(|(load, w)| load * w).sum::<f64>();
        (latency_s, self.links.iter().map(busy).fold(0.0, f64::max))
    }
}
