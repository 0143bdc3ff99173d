//! Machines, the exchanges between their devices, and what work and exchanges take.
//!
//! A [`Machine`] is a cluster of links and a profile of each device. It says how many seconds a kernel takes. Its [`Network`]
//! says how many seconds an [`Exchange`] takes. `hlo-analysis` predicts a module's time from these, and passes price their
//! choices with them:
//!
//! ```
//! use hlo_mesh::{Exchange, Machine};
//!
//! let network = Machine::parse("h200:switch", 8)?.network(8)?;
//! let all: Vec<u32> = (0..8).collect();
//! let cost = network.exchange(Exchange::AllReduce, &[all], &[]);
//! assert!(cost.seconds(2e6) > cost.seconds(1e6));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The crate knows shapes and opcodes. It holds no module, makes no instructions and knows no pass.

/// Why a machine cannot be made of what the user says.
pub use hlo_cluster::ClusterError as MachineError;

mod exchange;
mod machine;
mod work;

pub use exchange::Exchange;
pub use hlo_cluster::{DEFAULT_DEVICE, MachineName};
pub use machine::{DEFAULT_GBYTES_PER_S, Machine, Network, SizeMismatch};
pub use work::{Arithmetic, KernelCost, KernelWork, Unit};
