//! Collectives put into the form that other passes and machines like best: none twice, few of them, where they are cheapest.
//!
//! One file (or folder) is one pass. [`hlo_spmd`] says what a collective does and how a computation is changed.

pub mod all_reduce_to_reduce_scatter;
pub mod combine_collectives;
pub mod decompose_collectives;
pub mod fold_all_reduce_of_all_reduce;
pub mod reassociate_all_reduce;
pub mod sink_all_reduce;
pub mod split_tuple_all_reduce;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[
    &all_reduce_to_reduce_scatter::INFO,
    &combine_collectives::INFO,
    &decompose_collectives::INFO,
    &fold_all_reduce_of_all_reduce::INFO,
    &reassociate_all_reduce::INFO,
    &sink_all_reduce::INFO,
    &split_tuple_all_reduce::INFO,
];
