//! Cost of a step without walking over its devices, on machines of switches whose levels are all alike inside.
//!
//! Positions are numbered level by level, so a group in the order of its ids meets the members inside an entity one after
//! the other: a closed ring leaves and enters every entity that does not hold the whole group exactly once, and so does a
//! chain but for its ends. All groups of an instruction load the entities that they cross alike. So the load of a link is
//! the load by one group times the number of groups through it, each weighted with its share of the data.

use crate::collective::{Algo, Collective};
use crate::reduction::instruction::ReductionInstruction;
use crate::reduction::matrix::Lowering;
use crate::reduction::placed::PlacedReduction;
use crate::topology::LevelNetwork;
use crate::tree;

/// A reduction on such a machine.
pub(crate) struct Symmetric {
    launch_s: f64,
    levels: Vec<LevelCost>,
    /// The reduction's factors above one, with their levels.
    factors: Vec<(usize, usize)>,
}

struct LevelCost {
    bytes_per_s: f64,
    latency_s: f64,
    /// How many devices of an entity of this level have the same place in the reduction: they belong to others.
    n_others: f64,
}

impl Symmetric {
    /// None if the machine or the lowering is not of this kind.
    pub(super) fn new(reduction: &PlacedReduction<'_>) -> Option<Symmetric> {
        let cluster = reduction.cluster;
        let is_plain = |l: &crate::Level| l.network == LevelNetwork::Switched && l.shared_by == 1;
        let counts = cluster.hierarchy()?;
        let rows = reduction.matrix.rows();
        let n_axes = reduction.reduce.iter().filter(|&&i| rows.get(i).is_some_and(|row| row.iter().any(|x| *x > 1)));
        let is_by_level = reduction.lowering == Lowering::LevelMajor || n_axes.count() < 2;
        if !is_by_level || !cluster.levels().iter().all(is_plain) || counts.len() != reduction.matrix.n_levels() {
            return None;
        }
        let reduced = reduction.matrix.reduction_factors(reduction.reduce);
        let others = |l: usize| -> f64 {
            counts[l + 1..].iter().zip(&reduced[l + 1..]).map(|(n, f)| f64::from(*n) / f64::from(*f)).product()
        };
        let cost = |(l, level): (usize, &crate::Level)| LevelCost {
            bytes_per_s: level.bytes_per_s,
            latency_s: level.latency_s,
            n_others: others(l),
        };
        Some(Symmetric {
            launch_s: cluster.launch_s(),
            levels: cluster.levels().iter().enumerate().map(cost).collect(),
            factors: reduced.iter().enumerate().filter(|(_, f)| **f > 1).map(|(l, f)| (*f as usize, l)).collect(),
        })
    }

    /// Predicted time of a step; `weights` by group on factors of two (see [`crate::reduction::graph::Graph::shares`]).
    pub(super) fn step_s(
        &self,
        instruction: ReductionInstruction,
        collective: Collective,
        weights: &[f64],
        algo: Algo,
        bytes: f64,
    ) -> f64 {
        if weights.iter().all(|w| *w == 0.0) {
            return 0.0;
        }
        let through = self.weight_through(instruction, weights);
        let seconds = |(latency_s, loads): (f64, Vec<f64>)| {
            let levels = loads.iter().zip(&through).zip(&self.levels);
            let s_per_byte =
                levels.map(|((load, weight), level)| load * weight / level.bytes_per_s).fold(0.0, f64::max);
            self.launch_s + latency_s + bytes * s_per_byte
        };
        let ring = || seconds(self.ring(instruction, collective));
        let tree = || seconds(self.tree(instruction));
        match (algo, collective) {
            (Algo::Tree, Collective::AllReduce) => tree(),
            (Algo::Auto, Collective::AllReduce) => ring().min(tree()),
            _ => ring(),
        }
    }

    /// The factors that take part, with their levels.
    fn taking_part(&self, instruction: ReductionInstruction) -> &[(usize, usize)] {
        &self.factors[instruction.taking_part(self.factors.len())]
    }

    /// By level: members of one group inside one of its entities.
    fn inside(&self, part: &[(usize, usize)]) -> Vec<usize> {
        let product = |l: usize| part.iter().filter(|(_, at)| *at > l).map(|(f, _)| f).product();
        (0..self.levels.len()).map(product).collect()
    }

    /// Latency, and by level the load of the busiest link by one group, per byte of its tensor.
    fn ring(&self, instruction: ReductionInstruction, collective: Collective) -> (f64, Vec<f64>) {
        let part = self.taking_part(instruction);
        let n: usize = part.iter().map(|(f, _)| f).product();
        let slowest = part.iter().map(|(_, l)| self.levels[*l].latency_s).fold(0.0, f64::max);
        let once = (n - 1) as f64 / n as f64;
        let (share, latency_s) = match collective {
            Collective::AllReduce => (2.0 * once, 2.0 * (n - 1) as f64 * slowest),
            Collective::ReduceScatter | Collective::AllGather => (once, (n - 1) as f64 * slowest),
            Collective::Reduce | Collective::Broadcast => (1.0, self.chain_s(part)),
        };
        (latency_s, self.inside(part).iter().map(|m| if *m < n { share } else { 0.0 }).collect())
    }

    /// Each hop of the chain once: so many change the entity of a level, and no level outside it.
    fn chain_s(&self, part: &[(usize, usize)]) -> f64 {
        let (mut before, mut sum) = (1usize, 0.0);
        for (f, l) in part {
            sum += (before * f - before) as f64 * self.levels[*l].latency_s;
            before *= f;
        }
        sum
    }

    fn tree(&self, instruction: ReductionInstruction) -> (f64, Vec<f64>) {
        let part = self.taking_part(instruction);
        let inside = self.inside(part);
        let n: usize = part.iter().map(|(f, _)| f).product();
        let innermost = self.levels.len() - 1;
        // On one level every device is a node.
        let chain_len = innermost.checked_sub(1).map_or(1, |node| inside[node]);
        let n_nodes = n / chain_len;
        let mut loads: Vec<(Vec<f64>, usize)> =
            inside.iter().map(|m| (vec![0.0; n / m.max(&1)], (m / chain_len).max(1))).collect();
        // Level by level the loads of the entities that hold heads; at the innermost level by head.
        loads[innermost] = (vec![if chain_len > 1 { 1.0 } else { 0.0 }; n_nodes], 1);
        let mut trees_s = 0.0f64;
        for is_second in [false, true] {
            let mut depth_s = vec![0.0f64; n_nodes];
            for (child, parent) in tree::tree(n_nodes as u32, is_second) {
                let (child, parent) = (child as usize, parent as usize);
                let mut hop_s = None;
                for (l, (load, heads_inside)) in loads.iter_mut().enumerate() {
                    let (a, b) = (child / *heads_inside, parent / *heads_inside);
                    if a != b {
                        load[a] += 0.5;
                        load[b] += 0.5;
                        hop_s.get_or_insert(self.levels[l].latency_s);
                    }
                }
                depth_s[child] = depth_s[parent] + 2.0 * hop_s.unwrap_or(0.0);
            }
            trees_s = depth_s.into_iter().fold(trees_s, f64::max);
        }
        let mut busiest: Vec<f64> = loads.into_iter().map(|(load, _)| load.into_iter().fold(0.0, f64::max)).collect();
        if chain_len > 2 {
            busiest[innermost] = busiest[innermost].max(2.0);
        }
        let chains_s = 2.0 * (chain_len - 1) as f64 * self.levels[innermost].latency_s;
        (chains_s + trees_s, busiest)
    }

    /// By level: the weights of all groups through the entity of that level that has the most.
    fn weight_through(&self, instruction: ReductionInstruction, weights: &[f64]) -> Vec<f64> {
        let range = instruction.taking_part(self.factors.len());
        let fixed: Vec<(usize, usize)> =
            self.factors.iter().enumerate().filter(|(i, _)| !range.contains(i)).map(|(_, f)| *f).collect();
        let of_level = |l: usize| {
            if instruction.is_master() {
                return weights.first().copied().unwrap_or(0.0);
            }
            let n_prefix = fixed.iter().filter(|(_, at)| *at <= l).count();
            let suffix = &fixed[n_prefix..];
            // How many places of the suffix are the first (bit 0) or another (bit 1) in each factor.
            let n_places = |class: usize| -> f64 {
                let bits = suffix.iter().rev().enumerate();
                bits.map(|(bit, (f, _))| if class >> bit & 1 == 1 { (f - 1) as f64 } else { 1.0 }).product()
            };
            let n_classes = 1usize << suffix.len();
            let sum = |prefix: usize| -> f64 {
                (0..n_classes).map(|class| n_places(class) * weights[prefix * n_classes + class]).sum()
            };
            (0..1usize << n_prefix).map(sum).fold(0.0, f64::max)
        };
        self.levels.iter().enumerate().map(|(l, level)| of_level(l) * level.n_others).collect()
    }
}
