//! Collectives put into the form that other passes and machines like best: none twice, few of them, where they are cheapest.
//!
//! One file (or folder) is one pass. [`reading`] says what a collective does, whatever its spelling; [`rewrite`] is how a computation is
//! changed; [`explain`] puts decisions into the report.

pub mod combine_collectives;
pub mod decompose_collectives;
pub mod explain;
pub mod fold_all_reduce_of_all_reduce;
pub mod merge_all_reduce_add;
pub mod reading;
pub mod rewrite;
pub mod sink_all_reduce;
pub mod split_tuple_all_reduce;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[
    &combine_collectives::INFO,
    &decompose_collectives::INFO,
    &fold_all_reduce_of_all_reduce::INFO,
    &merge_all_reduce_add::INFO,
    &sink_all_reduce::INFO,
    &split_tuple_all_reduce::INFO,
];
