//! Fusions: which instructions of a computation a backend computes in one kernel.
//!
//! An edge from a producer to a consumer is fusable if the threads that compute the consumer can compute the producer on
//! their way ([`Edges`]). Each instruction has a stage, so that no fusion waits for itself ([`stages`]). The components
//! of fusable edges within a stage are the fusions ([`find_groups`]). A few rewrites go before ([`prepare()`]). The pass `fuse` writes them down
//! ([`build_fusions`]); [`crate::time`] prices a module that is not fused yet as if they were, and [`crate::memory`] counts what they write.
//!
//! **Requires** nothing. Cost: linear but for sorting.

mod build;
mod columns;
mod edges;
mod groups;
mod lift_views;
mod members;
mod neutral;
mod prepare;
mod repeat;
mod role;
mod rows;
mod siblings;
mod split;
mod spreads;
mod stages;
mod sums;

pub use build::build_fusions;
pub use columns::{COLUMNS_OF_BLOCK, ColumnSum, column_sum, may_be_of_rows, n_column_dims};
pub use edges::is_reduce;
pub use groups::{FusionLimits, StagedEdges, find_groups, find_groups_of};
pub use members::Group;
pub use prepare::{Prepared, prepare, prepare_and_stage};
pub use rows::trailing_reduction;
pub use split::{may_split_column_sum, split_column_sum};
