//! Predicted times: the one place that says how long work takes on a machine.
//!
//! A kernel takes its launch and the longer of its memory traffic and its arithmetic (the roofline; Williams, Waterman and
//! Patterson 2009). A collective takes what the cluster model says for its groups. A module takes the critical path over
//! lanes, one for kernels, one for collectives and one for asynchronous copies ([`predict`]). The figures tell which of two programs is faster; they are no
//! measurements.

/// Why a machine cannot be made of what the user says.
pub use hlo_cluster::ClusterError as MachineError;

mod clock;
mod exchange;
mod kernel;
mod lanes;
mod machine;
mod sort;
mod timeline;
mod units;

pub use clock::{ModuleTime, predict, predict_as_ordered, predict_starts, predict_timeline};
pub use exchange::{Exchange, Members, exchange_of, exchanged_bytes, members_of};
pub use kernel::{
    Arithmetic, KernelCost, Unit, Updates, arithmetic_dtype, instruction_cost, product_slowdown, region_cost, unit,
};
pub use lanes::{Lane, TaskSpan, Tasks};
pub use machine::{DEFAULT_DEVICE, DEFAULT_GBYTES_PER_S, KernelWork, Machine, Network, SizeMismatch};
pub use sort::{SORTED_HALVES, says_sorted_halves};
pub use timeline::Span;
