//! Weight-update sharding: the optimizer's update of replicated weights, done once across the devices instead of once on each.
//!
//! The pass is [`shard_weight_update`]. Its parts, in the order in which they run: [`find`] the gradients, [`cluster`]
//! what is computed from them, [`format`](mod@format) how it is cut, [`rewrite`] it, [`explain`] it with times from [`comm_model`].

pub mod cluster;
pub mod comm_model;
pub mod explain;
pub mod find;
pub mod format;
pub mod rewrite;
pub mod shard_weight_update;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[&shard_weight_update::INFO];
