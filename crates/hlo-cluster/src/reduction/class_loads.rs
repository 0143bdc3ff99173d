//! Link loads of an instruction by class of groups, walked once and asked often.
//!
//! Programs ask for the same instruction with many shares of the data. The groups of one class always have the same
//! share, so a link's load is a sum over classes; links with the same loads from every class are kept once. What is left
//! is small however many devices there are.

use crate::collective::{Algo, Collective};
use crate::links::Links;
use crate::reduction::device_groups::Groups;
use crate::reduction::fast_hash::FastMap;
use crate::reduction::instruction::ReductionInstruction;
use crate::reduction::placed::{PlacedReduction, factors_above_one};
use crate::reduction::plain_loads::{self, Counted, TreeBound};
use crate::simulate;
use crate::topology::{Cluster, LevelNetwork};
use crate::tree;

/// Which way the bytes of a collective go.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Traffic {
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
    /// None on a machine whose loads can be counted ([`plain_loads`]).
    links: Option<Links<'c>>,
    /// By combination of the other axes, by position: devices.
    numbering: Vec<Vec<u32>>,
    /// The reduction's factors above one, outermost first.
    factors: Vec<usize>,
    known: FastMap<(ReductionInstruction, Traffic), Loads>,
    bounds: FastMap<ReductionInstruction, TreeBound>,
    /// By instruction, flow and share: latency and seconds per byte of the busiest link.
    busiest: FastMap<(ReductionInstruction, Traffic, u32), (f64, f64)>,
}

/// One instruction, one flow.
struct Loads {
    /// By class.
    latency_s: Vec<f64>,
    /// Seconds per byte of a link, and by class its load in tensors; each combination once.
    links: Vec<(f64, Box<[f64]>)>,
}

/// A step: what does it, which collective, and the share of the data.
pub(crate) type WeightedStep<'w> = (ReductionInstruction, Collective, &'w Share);

/// The share of the data that groups have.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Its number; equal shares have one.
    pub number: u32,
    /// By class.
    pub weights: Vec<f64>,
}

impl<'c> ClassLoads<'c> {
    /// None where an algorithm is wanted that does not add up link by link.
    pub(super) fn new(reduction: &PlacedReduction<'c>) -> Option<ClassLoads<'c>> {
        let (cluster, algo) = (reduction.cluster, reduction.algo);
        let has_torus = cluster.levels().iter().any(|l| matches!(l.network, LevelNetwork::Torus { .. }));
        let adds_up = matches!(algo, Algo::Ring | Algo::Tree) || !has_torus;
        adds_up.then(|| ClassLoads {
            cluster,
            links: (!plain_loads::is_plain(cluster)).then(|| Links::new(cluster)),
            numbering: reduction.matrix.reduction_groups(reduction.reduce, reduction.lowering),
            factors: factors_above_one(reduction.matrix, reduction.reduce),
            known: FastMap::default(),
            bounds: FastMap::default(),
            busiest: FastMap::default(),
        })
    }

    /// Predicted time of a step.
    pub(super) fn step_s(&mut self, step: WeightedStep<'_>, algo: Algo, bytes: f64) -> f64 {
        let (instruction, collective, share) = step;
        if share.weights.iter().all(|w| *w == 0.0) {
            return 0.0;
        }
        match (algo, collective) {
            (Algo::Tree, Collective::AllReduce) => self.trees_s(instruction, share, bytes),
            (Algo::Auto, Collective::AllReduce) => {
                self.ring_s(step, bytes).min(self.trees_s(instruction, share, bytes))
            }
            (Algo::Ring | Algo::Tree | Algo::Auto | Algo::Torus, _) => self.ring_s(step, bytes),
        }
    }

    /// At most the time of a step, and whether it is the time: trees are not walked for it.
    pub(super) fn bound_s(&mut self, step: WeightedStep<'_>, algo: Algo, bytes: f64) -> (f64, bool) {
        let (instruction, collective, share) = step;
        let has_trees = collective == Collective::AllReduce && matches!(algo, Algo::Tree | Algo::Auto);
        let is_known = !has_trees || self.links.is_some() || self.known.contains_key(&(instruction, Traffic::Trees));
        if is_known || share.weights.iter().all(|w| *w == 0.0) {
            return (self.step_s(step, algo, bytes), true);
        }
        let around_s_per_byte = self.busiest(instruction, Traffic::Around, share).1;
        let Some(bound) = self.bounds.get(&instruction) else { return (0.0, false) };
        let latency_s = latency_of(&bound.latency_s, &share.weights);
        let mean = bound.mean.iter().zip(self.cluster.levels());
        let mean = mean.map(|(load, level)| weighted(load, &share.weights) / level.bytes_per_s);
        let trees_s = self.cluster.launch_s() + latency_s + bytes * mean.fold(around_s_per_byte, f64::max);
        match algo {
            Algo::Auto => {
                let ring_s = self.ring_s(step, bytes);
                if ring_s <= trees_s { (ring_s, true) } else { (trees_s, false) }
            }
            Algo::Tree | Algo::Ring | Algo::Torus => (trees_s, false),
        }
    }

    fn ring_s(&mut self, (instruction, collective, share): WeightedStep<'_>, bytes: f64) -> f64 {
        let part = instruction.taking_part(self.factors.len());
        let n = self.factors[part].iter().product::<usize>() as f64;
        let once = (n - 1.0) / n;
        let (flow, load, rounds) = match collective {
            Collective::AllReduce => (Traffic::Around, 2.0 * once, 2.0),
            Collective::ReduceScatter | Collective::AllGather => (Traffic::Around, once, 1.0),
            Collective::Reduce => (Traffic::ToRoot, 1.0, 1.0),
            Collective::Broadcast => (Traffic::FromRoot, 1.0, 1.0),
        };
        let (latency_s, s_per_byte) = self.busiest(instruction, flow, share);
        self.cluster.launch_s() + rounds * latency_s + bytes * load * s_per_byte
    }

    fn trees_s(&mut self, instruction: ReductionInstruction, share: &Share, bytes: f64) -> f64 {
        let (latency_s, s_per_byte) = self.busiest(instruction, Traffic::Trees, share);
        self.cluster.launch_s() + latency_s + bytes * s_per_byte
    }

    fn busiest(&mut self, instruction: ReductionInstruction, flow: Traffic, share: &Share) -> (f64, f64) {
        // On a plain machine a chain up is a chain down with the two directions of every link exchanged.
        let flow = if self.links.is_none() && flow == Traffic::ToRoot { Traffic::FromRoot } else { flow };
        let key = (instruction, flow, share.number);
        if let Some(found) = self.busiest.get(&key) {
            return *found;
        }
        if !self.known.contains_key(&(instruction, flow)) {
            self.walk(instruction, flow);
        }
        let found = self.known.get(&(instruction, flow)).map_or((0.0, 0.0), |loads| loads.of(&share.weights));
        self.busiest.insert(key, found);
        found
    }

    fn walk(&mut self, instruction: ReductionInstruction, flow: Traffic) {
        let (cluster, numbering, factors) = (self.cluster, &self.numbering, &self.factors);
        let groups = Groups { cluster, numbering, factors, instruction };
        if let Some(links) = &self.links {
            self.known.insert((instruction, flow), Loads::walk(cluster, links, flow, groups));
            return;
        }
        match flow {
            Traffic::Trees => {
                let counted = groups.trees();
                let loads = Distinct::counted(cluster, &counted).loads(counted.latency_s);
                self.known.insert((instruction, flow), loads);
            }
            Traffic::Around | Traffic::ToRoot | Traffic::FromRoot => {
                let mut rings = groups.rings();
                let around = Distinct::counted(cluster, &rings.around).loads(rings.around.latency_s.clone());
                self.known.insert((instruction, Traffic::Around), around);
                let mut chain = Distinct::default();
                for is_out in [true, false] {
                    rings.around.add_closing(cluster, &rings.closing, is_out, -1.0);
                    chain.add_counted(cluster, &rings.around);
                    rings.around.add_closing(cluster, &rings.closing, is_out, 1.0);
                }
                self.known.insert((instruction, Traffic::FromRoot), chain.loads(rings.chain_s));
                self.bounds.insert(instruction, rings.bound);
            }
        }
    }
}

impl Loads {
    fn walk(cluster: &Cluster, links: &Links<'_>, flow: Traffic, groups: Groups<'_>) -> Loads {
        let (n_links, n_classes) = (links.s_per_byte.len(), groups.n_classes());
        let mut loads = vec![0.0; n_links * n_classes];
        let mut latency_s = Vec::with_capacity(n_classes);
        let groups = groups.list();
        for class in 0..n_classes {
            let of_class: Vec<(&[u32], f64)> =
                groups.iter().filter(|(_, c)| *c == class).map(|(group, _)| (group.as_slice(), 1.0)).collect();
            let mut load = |link: usize, share: f64| loads[link * n_classes + class] += share;
            latency_s.push(match flow {
                Traffic::Around => simulate::around(links, &of_class, &mut load),
                Traffic::ToRoot => simulate::ring(links, Collective::Reduce, &of_class, &mut load),
                Traffic::FromRoot => simulate::ring(links, Collective::Broadcast, &of_class, &mut load),
                Traffic::Trees => tree::all_reduce(cluster, links, &of_class, &mut load),
            });
        }
        let mut distinct = Distinct::default();
        for (row, s_per_byte) in loads.chunks_exact(n_classes).zip(&links.s_per_byte) {
            distinct.add(*s_per_byte, row);
        }
        distinct.loads(latency_s)
    }

    /// Latency of the slowest class that has data, and seconds per byte of the busiest link.
    fn of(&self, weights: &[f64]) -> (f64, f64) {
        let busy = |(s, row): &(f64, Box<[f64]>)| s * weighted(row, weights);
        (latency_of(&self.latency_s, weights), self.links.iter().map(busy).fold(0.0, f64::max))
    }
}

/// Links with different loads.
#[derive(Default)]
struct Distinct {
    seen: FastMap<Box<[u64]>, ()>,
    key: Vec<u64>,
    kept: Vec<(f64, Box<[f64]>)>,
}

impl Distinct {
    fn counted(cluster: &Cluster, counted: &Counted) -> Distinct {
        let mut distinct = Distinct::default();
        distinct.add_counted(cluster, counted);
        distinct
    }

    fn loads(self, latency_s: Vec<f64>) -> Loads {
        Loads { latency_s, links: self.kept }
    }

    fn add_counted(&mut self, cluster: &Cluster, counted: &Counted) {
        let n_classes = counted.innermost.len();
        for (loads, level) in counted.outer.iter().zip(cluster.levels()) {
            for row in loads.chunks_exact(n_classes) {
                self.add(1.0 / level.bytes_per_s, row);
            }
        }
        let innermost = cluster.levels().last().map_or(0.0, |level| 1.0 / level.bytes_per_s);
        let mut row = vec![0.0; n_classes];
        for (class, load) in counted.innermost.iter().enumerate() {
            row[class] = *load;
            self.add(innermost, &row);
            row[class] = 0.0;
        }
    }

    fn add(&mut self, s_per_byte: f64, row: &[f64]) {
        // Neighbours mostly have the same loads.
        let is_last = self.kept.last().is_some_and(|(s, last)| *s == s_per_byte && **last == *row);
        if is_last || row.iter().all(|load| *load == 0.0) {
            return;
        }
        self.key.clear();
        self.key.push(s_per_byte.to_bits());
        self.key.extend(row.iter().map(|load| load.to_bits()));
        if !self.seen.contains_key(self.key.as_slice()) {
            self.seen.insert(self.key.as_slice().into(), ());
            self.kept.push((s_per_byte, row.into()));
        }
    }
}

fn weighted(row: &[f64], weights: &[f64]) -> f64 {
    row.iter().zip(weights).map(|(load, w)| load * w).sum()
}

fn latency_of(latency_s: &[f64], weights: &[f64]) -> f64 {
    latency_s.iter().zip(weights).filter(|(_, w)| **w > 0.0).map(|(s, _)| *s).fold(0.0, f64::max)
}
