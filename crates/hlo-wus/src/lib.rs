//! Weight-update sharding: the optimizer's update of replicated weights, done once across the devices instead of once on each.
//!
//! The pass is [`shard_weight_update`]. Its parts, in the order in which they run: a computation of its own for each call site
//! ([`copies`]); [`find`] the gradients among the module's [`values`](hlo_analysis::values); for each [`grouping`] of the devices grow clusters of
//! tensors and choose their [`format`](mod@format), by how runs of dims go through ops ([`relation`]); write down what every
//! placement costs ([`problem`], with the roofline of [`fusions`] and times from [`machine`]); find the cheapest one
//! ([`placement`], a minimum cut: [`min_cut`]); [`rewrite`] the module from [`pieces`], [`batch`] what can go together;
//! [`explain`] it.
//! With a sharded [`interface`], [`pairs`] say which output is the next value of which parameter.

pub mod batch;
pub mod copies;
pub mod explain;
pub mod find;
pub mod format;
pub mod fusions;
pub mod grouping;
pub mod interface;
pub mod machine;
pub mod min_cut;
pub mod pairs;
pub mod pieces;
pub mod placement;
pub mod problem;
pub mod relation;
pub mod rewrite;
pub mod shard_weight_update;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[&shard_weight_update::INFO];
