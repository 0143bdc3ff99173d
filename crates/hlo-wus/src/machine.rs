//! What collectives, memory traffic and arithmetic cost: a cluster model for links, a device profile for the rest.
//!
//! Without a cluster all devices hang at one switch with the links of an NVLink 4 device. Predicted times say which of two
//! plans is cheaper; they are no measurements.

use crate::grouping::Grouping;
use hlo_cluster::{Algo, Cluster, Collective, CollectiveCost, DeviceProfile};
use hlo_ir::DType;

/// Bandwidth of a device's link where no cluster is given: NVLink 4, 900 GB/s both ways together (H100 data sheet).
const DEFAULT_GBYTES_PER_S: f64 = 450.0;
/// Latency of a hop and of a launch where no cluster is given, in microseconds: the order of NCCL's figures for NVLink.
const DEFAULT_LATENCY_US: f64 = 1.0;

/// The machine that the module runs on.
#[derive(Clone, Debug)]
pub struct Machine {
    cluster: Option<Cluster>,
    device: DeviceProfile,
}

impl Machine {
    /// From option texts: an inline hierarchy or the name of a shipped cluster (empty for one switch), the name of a device.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn from_args(cluster: &str, device: &str) -> Result<Machine, String> {
        let cluster = match cluster.is_empty() {
            true => None,
            false => Some(Cluster::from_arg(cluster).map_err(|e| e.to_string())?),
        };
        Ok(Machine { cluster, device: DeviceProfile::from_arg(device).map_err(|e| e.to_string())? })
    }

    /// From a cluster (`None` for one switch) and a device.
    pub fn new(cluster: Option<Cluster>, device: DeviceProfile) -> Machine {
        Machine { cluster, device }
    }

    /// The cluster, if one is given.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The times of collectives of a module that runs on `n_devices` and sums gradients over `sums`, cut by `grouping`.
    ///
    /// # Errors
    /// The cluster has another number of devices.
    pub fn times(&self, n_devices: usize, sums: &[Vec<u32>], grouping: &Grouping) -> Result<Times, String> {
        let flat;
        let cluster = match &self.cluster {
            Some(cluster) if cluster.n_devices() as usize == n_devices => cluster,
            Some(cluster) => {
                return Err(format!(
                    "the module runs on {n_devices} devices: expected a cluster of as many, found `{}` with {}",
                    cluster.name(),
                    cluster.n_devices()
                ));
            }
            None => {
                flat = Cluster::flat(n_devices as u32, DEFAULT_GBYTES_PER_S, DEFAULT_LATENCY_US);
                &flat
            }
        };
        let cost = |kind, groups: &[Vec<u32>]| cluster.collective_cost(kind, groups, Algo::Auto);
        Ok(Times {
            all_reduce: cost(Collective::AllReduce, sums),
            combine: cost(Collective::AllReduce, &grouping.shard),
            reduce_scatter: cost(Collective::ReduceScatter, &grouping.shard),
            all_gather: cost(Collective::AllGather, &grouping.shard),
            across: (!grouping.across.is_empty()).then(|| cost(Collective::AllReduce, &grouping.across)),
            n_shards: grouping.shard.first().map_or(1, Vec::len),
            device: self.device.clone(),
        })
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
    device: DeviceProfile,
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
        self.device.memory_s(bytes) * 1e12
    }

    /// Time of `flops` elementwise or reducing operations, in picoseconds. They do not run on the matrix units, whose
    /// peaks the profile gives for types narrower than f32: those are taken to be as fast as f32.
    pub fn arithmetic_ps(&self, flops: f64, dtype: DType) -> f64 {
        let rate = self.device.flops_per_s(dtype.name()).min(self.device.flops_per_s("f32"));
        flops / rate * 1e12
    }

    /// What every kernel costs beside its work, in picoseconds.
    pub fn launch_ps(&self) -> f64 {
        self.device.launch_s * 1e12
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grouping::groupings;

    #[test]
    fn adam_on_an_h200_saves_less_than_gathering_both_moments_costs() {
        let machine = Machine::from_args("", "h200").expect("a machine");
        let all = vec![(0..8).collect::<Vec<u32>>()];
        let times = machine.times(8, &all, &groupings(None, &all)[0]).expect("times");
        // Bytes for each element: gradient, weight, two moments read; three of them written; 7/8 of it saved.
        let saved = times.memory_ps(28.0 * 7.0 / 8.0);
        let latency = times.collective_ps(Kind::AllGather, 0.0);
        let gathered = times.collective_ps(Kind::AllGather, 8e9) - latency;
        assert!((saved - 5.1).abs() < 0.1, "{saved}");
        assert!((gathered / 1e9 - 15.6).abs() < 0.5, "{}", gathered / 1e9);
    }

    #[test]
    fn a_cluster_of_another_size_is_refused() {
        let machine = Machine::from_args("[(node,2),(gpu,8)]", "h200").expect("a machine");
        let all = |n: u32| vec![(0..n).collect::<Vec<u32>>()];
        let times = |n: u32| machine.times(n as usize, &all(n), &groupings(None, &all(n))[0]);
        assert!(times(16).is_ok());
        assert!(times(8).is_err_and(|e| e.contains("8 devices") && e.contains("16")));
        assert!(Machine::from_args("[(node,", "h200").is_err());
        assert!(Machine::from_args("", "abacus").is_err_and(|e| e.contains("h200")));
    }
}
