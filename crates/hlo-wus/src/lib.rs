//! Weight-update sharding: devices that hold the same weights share the work of updating them.
//!
//! The pass is [`shard-weight-update`](PASSES). These are its parts, in the order in which they run:
//!
//! 1. Each call site gets a computation of its own ([`hlo_spmd::CallSiteCopies`]).
//! 2. `find` lists the all-reduces of gradients.
//! 3. For each way to group the devices ([`hlo_spmd::groupings`]), `region` collects the values round each gradient and chooses their
//!    `format`; `state` says which of them are weights and optimizer state, and `unsummed` finds the gradients of state that no all-reduce leads to. [`hlo_spmd::DimRelation`] says how dims go through an op; `context` holds what all of this is about.
//! 4. `problem` writes down what every placement costs, with the roofline of `fusions` and the times of `machine`.
//! 5. `placement` finds the cheapest placement, as a minimum cut (`min_cut`).
//! 6. `rewrite` writes the module, and `batch` packs all-reduces of partial results.
//! 7. `explain` reports what was done.
//!
//! Under a memory limit, `zero` prices the bytes of parameters and solves the cut anew until the module that it makes fits (`memory_limit`).
//!
//! With state in shards outside of the module, `pairs` finds out which output is the next value of which parameter,
//! `own_slices` cuts state that the script updates in shards by hand, and `carried` state that comes back as it came.

mod batch;
mod carried;
mod context;
mod distribute_matrix_updates;
mod error;
mod explain;
mod find;
mod format;
mod fusions;
mod interface;
mod machine;
mod memory_limit;
mod offload_state;
mod own_slices;
mod pairs;
mod partials;
mod placement;
mod problem;
mod region;
mod rewrite;
mod shard_weight_update;
mod state;
mod tables;
mod unsummed;
mod zero;

pub use context::{ShardingContext, StateCuts};
pub use error::{GradientRefusal, WusError};
pub use find::{Gradient, LeftGradient, find_gradients};
pub use format::candidates;
pub use hlo_analysis::min_cut::UNCUTTABLE;
pub use interface::{Interface, Leaf, LeafShards, RepeatedWork};
pub use machine::{Kind, Times, times};
pub use problem::{Problem, Rate, Terms};
pub use region::UpdateRegion;
pub use rewrite::{Emitted, Rewriter};
pub use tables::{IndexMap, IndexSet};
pub use zero::{StateChoice, StateForm, StateUnit, UnitForm};

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[&distribute_matrix_updates::INFO, &offload_state::INFO, &shard_weight_update::INFO];
