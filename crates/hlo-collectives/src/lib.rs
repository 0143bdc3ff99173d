//! Collectives put into the form that other passes and machines like best: none twice, few of them, where they are cheapest.
//!
//! One file (or folder) is one pass. [`reading`] says what a collective does, whatever its spelling, and [`device_values`] what a
//! number is on each device; [`rewrite`] is how a computation is changed; [`explain`] puts decisions into the report.

pub mod all_reduce_to_reduce_scatter;
pub mod combine_collectives;
pub mod decompose_collectives;
pub mod device_values;
pub mod explain;
pub mod fold_all_reduce_of_all_reduce;
pub mod reading;
pub mod reassociate_all_reduce;
pub mod rewrite;
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
