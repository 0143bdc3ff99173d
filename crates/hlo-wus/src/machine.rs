//! What the collectives and kernels of an update cost, asked of the machine once for each way to cut it.

use hlo_cluster::{Collective, CollectiveCost};
use hlo_ir::DType;
use hlo_mesh::{Machine, Network};
use hlo_spmd::Grouping;

/// The times of collectives of a module on `network` that sums gradients over `sums`, cut by `grouping`.
pub fn times(machine: &Machine, network: &Network, sums: &[Vec<u32>], grouping: &Grouping) -> Times {
    let cost = |kind, groups: &[Vec<u32>]| network.collective(kind, groups);
    Times {
        all_reduce: cost(Collective::AllReduce, sums),
        combine: cost(Collective::AllReduce, &grouping.shard),
        reduce_scatter: cost(Collective::ReduceScatter, &grouping.shard),
        all_gather: cost(Collective::AllGather, &grouping.shard),
        across: (!grouping.across.is_empty()).then(|| cost(Collective::AllReduce, &grouping.across)),
        n_shards: grouping.shard.first().map_or(1, Vec::len),
        machine: machine.clone(),
    }
}

/// A collective that the pass removes or puts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    /// Of a whole gradient, over all devices that sum it.
    AllReduce,
    /// Of partial results, over the devices that hold the shards of one copy.
    Combine,
    /// Of a gradient, with the sum of the shards across copies.
    ReduceScatter,
    AllGather,
    /// The sum of one shard across copies alone.
    Across,
}

/// Predicted times of collectives over one set of groups, and of kernels.
#[derive(Clone, Debug)]
pub struct Times {
    all_reduce: CollectiveCost,
    combine: CollectiveCost,
    reduce_scatter: CollectiveCost,
    all_gather: CollectiveCost,
    across: Option<CollectiveCost>,
    n_shards: usize,
    machine: Machine,
}

impl Times {
    /// Time of a collective in picoseconds; `bytes` is the whole (unscattered, gathered) tensor on one device.
    pub fn collective_ps(&self, kind: Kind, bytes: f64) -> f64 {
        let across = || self.across.as_ref().map_or(0.0, |cost| cost.seconds(bytes / self.n_shards as f64));
        let seconds = match kind {
            Kind::AllReduce => self.all_reduce.seconds(bytes),
            Kind::Combine => self.combine.seconds(bytes),
            Kind::ReduceScatter => self.reduce_scatter.seconds(bytes) + across(),
            Kind::AllGather => self.all_gather.seconds(bytes),
            Kind::Across => across(),
        };
        seconds * 1e12
    }

    /// Time to move `bytes` to or from memory, in picoseconds.
    pub fn memory_ps(&self, bytes: f64) -> f64 {
        self.machine.memory_s(bytes) * 1e12
    }

    /// Time of `flops` elementwise or reducing operations, in picoseconds.
    pub fn arithmetic_ps(&self, flops: f64, dtype: DType) -> f64 {
        self.machine.vector_s(flops, dtype) * 1e12
    }

    /// What every kernel costs beside its work, in picoseconds.
    pub fn launch_ps(&self) -> f64 {
        self.machine.launch_s() * 1e12
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_spmd::groupings;

    #[test]
    fn adam_on_an_h200_saves_less_than_gathering_both_moments_costs() {
        let machine = Machine::parse("h200:switch", 1).expect("a machine");
        let all = vec![(0..8).collect::<Vec<u32>>()];
        let network = machine.network(8).expect("links");
        let times = times(&machine, &network, &all, &groupings(None, &all)[0]);
        // Bytes for each element: gradient, weight, two moments read; three of them written; 7/8 of it saved.
        let saved = times.memory_ps(28.0 * 7.0 / 8.0);
        let latency = times.collective_ps(Kind::AllGather, 0.0);
        let gathered = times.collective_ps(Kind::AllGather, 8e9) - latency;
        assert!((saved - 5.1).abs() < 0.1, "{saved}");
        assert!((gathered / 1e9 - 15.6).abs() < 0.5, "{}", gathered / 1e9);
    }
}
