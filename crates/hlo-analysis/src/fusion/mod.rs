//! Fusions: which instructions of a computation a backend computes in one kernel.
//!
//! An edge from a producer to a consumer is fusable if the threads that compute the consumer can compute the producer on
//! their way ([`Edges`]). Each instruction has a stage, so that no fusion waits for itself ([`find_stages`]). The components
//! of fusable edges within a stage are the fusions ([`find_groups`]). The pass `fuse` writes them down, and
//! [`crate::time`] prices a module that is not fused yet as if they were.
//!
//! **Requires** nothing. Cost: linear but for sorting.

mod edges;
mod groups;
mod stages;

pub use edges::{Edges, Role, is_reduce};
pub use groups::{FusionLimits, Group, find_groups};
pub use stages::{Stages, find_stages};
