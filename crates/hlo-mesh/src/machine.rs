//! The machine that a module runs on: links from a cluster model, and one device profile for every device.

use crate::work::{Arithmetic, KernelCost, KernelWork, Unit};
use hlo_cluster::{
    Algo, Cluster, ClusterError, Collective, CollectiveCost, DEFAULT_DEVICE, DeviceProfile, MachineName,
};
use hlo_ir::DType;
use std::fmt;

/// Bandwidth of a device's link where no cluster is given: NVLink 4, 900 GB/s both ways together (H100 data sheet).
pub const DEFAULT_GBYTES_PER_S: f64 = 450.0;
/// Latency of a hop and of a launch where no cluster is given, in microseconds: the order of NCCL's figures for NVLink.
const DEFAULT_LATENCY_US: f64 = 1.0;

/// The machine: its devices, and how they are linked.
///
/// Without a cluster all devices hang at one switch with the links of an NVLink 4 device.
#[derive(Clone, Debug)]
pub struct Machine {
    cluster: Option<Cluster>,
    device: DeviceProfile,
}

/// A module runs on another number of devices than the cluster has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeMismatch {
    /// Devices of the module.
    pub n_devices: usize,
    /// Devices of the cluster.
    pub n_cluster_devices: usize,
    /// The cluster's name.
    pub cluster: String,
}

impl std::error::Error for SizeMismatch {}

impl fmt::Display for SizeMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SizeMismatch { n_devices, n_cluster_devices, cluster } = self;
        write!(
            f,
            "the module runs on {n_devices} devices: expected a cluster of as many, found `{cluster}` with {n_cluster_devices}; \
             a machine by name, such as h200, has as many as the module wants"
        )
    }
}

impl Machine {
    /// The machine of a name, for a module on `n_devices` devices.
    ///
    /// # Errors
    /// The machine cannot have so many devices.
    pub fn named(name: &MachineName, n_devices: usize) -> Result<Machine, ClusterError> {
        let (device, cluster) = name.with_devices(u32::try_from(n_devices).unwrap_or(u32::MAX))?;
        Ok(Machine { cluster, device })
    }

    /// The machine of a name's text, as [`MachineName::parse`] reads it, for a module on `n_devices` devices.
    ///
    /// # Errors
    /// What was expected and what was found.
    pub fn parse(text: &str, n_devices: usize) -> Result<Machine, ClusterError> {
        Machine::named(&MachineName::parse(text)?, n_devices)
    }

    /// The machine where none is named: any number of [`DEFAULT_DEVICE`]s at one switch.
    ///
    /// # Errors
    /// The shipped description cannot be read.
    pub fn unnamed() -> Result<Machine, ClusterError> {
        Ok(Machine { cluster: None, device: DeviceProfile::from_arg(DEFAULT_DEVICE)? })
    }

    /// From a cluster (`None` for one switch) and a device.
    pub fn new(cluster: Option<Cluster>, device: DeviceProfile) -> Machine {
        Machine { cluster, device }
    }

    /// The cluster, if one is given.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// What every device is.
    pub fn device(&self) -> &DeviceProfile {
        &self.device
    }

    /// The links between `n_devices` devices. A device alone exchanges nothing, such as one that is to run a whole global program: it
    /// is one device of any cluster.
    ///
    /// # Errors
    /// The cluster has another number of devices.
    pub fn network(&self, n_devices: usize) -> Result<Network, SizeMismatch> {
        let cluster = match &self.cluster {
            Some(cluster) if cluster.n_devices() as usize == n_devices => cluster.clone(),
            Some(_) if n_devices <= 1 => Cluster::flat(1, DEFAULT_GBYTES_PER_S, DEFAULT_LATENCY_US),
            Some(cluster) => {
                return Err(SizeMismatch {
                    n_devices,
                    n_cluster_devices: cluster.n_devices() as usize,
                    cluster: cluster.name().to_string(),
                });
            }
            None => {
                let n_devices = u32::try_from(n_devices.max(1)).unwrap_or(u32::MAX);
                Cluster::flat(n_devices, DEFAULT_GBYTES_PER_S, DEFAULT_LATENCY_US)
            }
        };
        Ok(Network { cluster })
    }

    /// Seconds of one kernel: its launch and the longer of arithmetic and memory traffic.
    pub fn kernel_s(&self, kernel: KernelWork) -> f64 {
        self.launch_s() + kernel.arithmetic_s.max(self.memory_s(kernel.bytes))
    }

    /// What a kernel's cost takes on this machine; products of f32 are not rounded to TF32.
    pub fn work_of(&self, cost: &KernelCost) -> KernelWork {
        let seconds = |part: &Arithmetic| match part.unit {
            Unit::Vector => self.vector_s(part.flops, part.dtype),
            Unit::Matrix => self.matrix_s(part.flops, part.dtype, false),
        };
        KernelWork {
            bytes: cost.bytes_read + cost.bytes_written,
            arithmetic_s: cost.arithmetic.iter().map(seconds).sum(),
        }
    }

    /// Seconds that every kernel costs beside its work.
    pub fn launch_s(&self) -> f64 {
        self.device.launch_s
    }

    /// Seconds to copy `bytes` from the memory of the host or to it, with the launch.
    pub fn host_copy_s(&self, bytes: f64) -> f64 {
        self.device.host_copy_s(bytes)
    }

    /// Seconds to move `bytes` to and from memory.
    pub fn memory_s(&self, bytes: f64) -> f64 {
        self.device.memory_s(bytes)
    }

    /// Seconds of `flops` elementwise or reducing operations. They do not run on the matrix units, whose peaks the profile gives
    /// for types narrower than f32: those are taken to be as fast as f32.
    pub fn vector_s(&self, flops: f64, dtype: DType) -> f64 {
        flops / self.device.flops_per_s(dtype.name()).min(self.device.flops_per_s("f32"))
    }

    /// Seconds of `flops` operations of matrix products with operands of type `dtype`; f32 may be rounded to TF32.
    pub fn matrix_s(&self, flops: f64, dtype: DType, uses_tf32: bool) -> f64 {
        let name = if uses_tf32 && dtype == DType::F32 { "tf32" } else { dtype.name() };
        flops / self.device.flops_per_s(name)
    }
}

/// The device and how it is linked, e.g. `h200, one switch`.
impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cluster {
            Some(cluster) => write!(f, "{}, {}", self.device.name, cluster.name()),
            None => write!(f, "{}, one switch", self.device.name),
        }
    }
}

/// The links between the devices of a module.
#[derive(Clone, Debug)]
pub struct Network {
    cluster: Cluster,
}

impl Network {
    /// The links.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The cost of a collective that all `groups` of flat device ids run at once, as a function of the whole tensor's bytes on
    /// one device ([`Cluster::collective_s`] says which).
    pub fn collective(&self, kind: Collective, groups: &[Vec<u32>]) -> CollectiveCost {
        self.cluster.collective_cost(kind, groups, Algo::Auto)
    }

    /// The cost of an all-to-all, as a function of the bytes that one device puts in.
    pub fn all_to_all(&self, groups: &[Vec<u32>]) -> CollectiveCost {
        self.cluster.all_to_all_cost(groups)
    }

    /// The cost of sending along pairs of flat device ids, as a function of one message's bytes.
    pub fn permute(&self, pairs: &[(u32, u32)]) -> CollectiveCost {
        self.cluster.permute_cost(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_of_another_size_is_refused() {
        let machine = Machine::parse("[(node,2),(gpu,8)]", 1).expect("a machine");
        assert!(machine.network(16).is_ok());
        let error = machine.network(8).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("8 devices") && error.contains("16"), "{error}");
        assert!(Machine::parse("[(node,", 1).is_err());
        assert!(Machine::parse("abacus", 1).is_err_and(|e| e.to_string().contains(DEFAULT_DEVICE)));
    }

    #[test]
    fn a_kernel_is_bound_by_memory_or_by_arithmetic() {
        let machine = Machine::unnamed().expect("a machine");
        let (few, many) = (machine.vector_s(1e6, DType::F32), machine.vector_s(1e12, DType::BF16));
        let bytes = 1e9;
        assert_eq!(
            machine.kernel_s(KernelWork { bytes, arithmetic_s: few }),
            machine.launch_s() + machine.memory_s(bytes)
        );
        assert_eq!(machine.kernel_s(KernelWork { bytes, arithmetic_s: many }), machine.launch_s() + many);
        // bf16 is no faster than f32 where no matrix unit works, and much faster where one does.
        assert_eq!(many, machine.vector_s(1e12, DType::F32));
        assert!(machine.matrix_s(1e12, DType::BF16, false) < many / 10.0);
        assert!(machine.matrix_s(1e12, DType::F32, true) < machine.matrix_s(1e12, DType::F32, false));
    }
}
