//! Collectives put into the form that other passes and machines like best: none twice, few of them, where they are cheapest.
//!
//! One file (or folder) is one pass. [`hlo_spmd`] says what a collective does and how a computation is changed.

mod all_reduce_to_reduce_scatter;
mod collective_matmul;
mod combine_collectives;
pub mod decompose_collectives;
mod flatten_update;
mod fold_all_reduce_of_all_reduce;
mod in_parts;
mod overlap;
mod pipeline_loop_collectives;
mod reassociate_all_reduce;
mod refusal;
mod rematerialize_all_gather;
mod shrink_collectives;
mod sink_all_reduce;
mod split_microbatches;
mod split_tuple_all_reduce;

pub use combine_collectives::combine_as_xla;
use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[
    &all_reduce_to_reduce_scatter::INFO,
    &collective_matmul::INFO,
    &combine_collectives::INFO,
    &decompose_collectives::INFO,
    &flatten_update::INFO,
    &fold_all_reduce_of_all_reduce::INFO,
    &overlap::make_async::INFO,
    &overlap::schedule_collectives::INFO,
    &pipeline_loop_collectives::INFO,
    &reassociate_all_reduce::INFO,
    &rematerialize_all_gather::INFO,
    &shrink_collectives::INFO,
    &sink_all_reduce::INFO,
    &split_microbatches::INFO,
    &split_tuple_all_reduce::INFO,
];
