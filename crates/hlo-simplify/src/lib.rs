//! Local clean-ups: passes that look at one instruction or one computation at a time and change no value by a single bit.
//!
//! One file is one pass. [`forward`] is the walk that three of them share, [`hlo_analysis::code`] says which computations they visit.

mod cse;
mod dce;
mod forward;
mod hoist_conversions;
mod hoist_invariants;
mod inline_calls;
mod merge_slices;
mod scatter_to_select;
mod simplify_algebra;
mod simplify_tuples;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[
    &cse::INFO,
    &dce::INFO,
    &hoist_conversions::INFO,
    &hoist_invariants::INFO,
    &inline_calls::INFO,
    &merge_slices::INFO,
    &scatter_to_select::INFO,
    &simplify_algebra::INFO,
    &simplify_tuples::INFO,
];
