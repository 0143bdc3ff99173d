//! The machine: how a cluster is wired, what collectives and operators cost on it.
//!
//! ```
//! use hlo_cluster::{Algo, Cluster, Collective};
//!
//! let cluster = Cluster::from_arg("[(node,2),(gpu,8)]")?;
//! assert_eq!(cluster.n_devices(), 16);
//! // One all-reduce of 100 MB over everything, and the same within each node.
//! let all: Vec<Vec<u32>> = vec![(0..16).collect()];
//! let nodes: Vec<Vec<u32>> = vec![(0..8).collect(), (8..16).collect()];
//! let across = cluster.collective_s(Collective::AllReduce, 100e6, &all, Algo::Auto);
//! let within = cluster.collective_s(Collective::AllReduce, 100e6, &nodes, Algo::Auto);
//! assert!(within < across);
//! // Many tensors, the same groups: the cost as a function of the size.
//! let cost = cluster.collective_cost(Collective::ReduceScatter, &nodes, Algo::Ring);
//! assert!(cost.seconds(1e3) < cost.seconds(1e9));
//! # Ok::<(), hlo_cluster::ClusterError>(())
//! ```
//!
//! `bytes` is always the whole tensor on one device: all-reduce, reduce, broadcast: its size; reduce-scatter: the size
//! *before*; all-gather: the size *after*.
//!
//! One device has a [`DeviceProfile`]: `DeviceProfile::from_arg("h200")?.op_s(flops, bytes, "bf16")` is its roofline.
//!
//! A cluster comes from [`Cluster::from_arg`] (an inline hierarchy or the name of a shipped description),
//! [`Cluster::from_toml`] (the text of a file; this crate reads none itself) or [`Cluster::flat`].

mod collective;
mod describe;
mod device;
mod error;
mod exchange;
mod links;
mod machines;
pub mod reduction;
mod simulate;
mod toml_error;
mod topology;
mod torus;
mod tree;

pub use collective::{Algo, Collective, CollectiveCost, CostLine};
pub use device::{DeviceProfile, XlaCombiner};
pub use error::ClusterError;
pub use machines::{DEFAULT_DEVICE, MachineName};
pub use topology::{Cluster, Level, LevelNetwork};
