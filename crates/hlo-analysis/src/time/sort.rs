//! How long sorts take.
//!
//! Two were measured: on an H100 XLA sorted 4,194,304 numbers in 0.245 ms, by digits of eight bits, and 1,024 rows of 2,048 numbers with their places in
//! 0.125 ms, by a bitonic network in shared memory (27 November 2026). Both move elements many times and wait between, so that arithmetic at best
//! says nothing about them.

use hlo_ir::attrs::{Marks, SortAttrs};
use hlo_ir::{InstId, Module};

/// The frontend attribute of a sort, and its value, that say that both halves of each row are sorted already.
pub const SORTED_HALVES: (&str, &str) = ("hlo_opt.sorted", "halves");

/// Whether a sort says so.
pub fn says_sorted_halves(marks: &Marks) -> bool {
    marks.frontend_attributes.iter().any(|(key, value)| (key.as_str(), value.as_str()) == SORTED_HALVES)
}

/// Operations in the time of which a network compares two elements: 120 would be the measured time of rows.
const OF_EXCHANGE: f64 = 120.0;
/// Operations in the time of which an element goes to its place by one digit: 980 would be the measured time.
const OF_DIGIT: f64 = 980.0;
/// The same for an element of two sorted rows that are merged; assumed.
const OF_MERGED: f64 = 40.0;

/// Operations in the time of which a sort, or the largest elements of rows, is done.
pub(super) fn operations(module: &Module, sort: InstId) -> f64 {
    let node = module.inst(sort);
    let Some(array) = node.operands.first().and_then(|&operand| module.shape(operand).as_array()) else { return 0.0 };
    // `topk` sorts the last dim.
    let dim = match SortAttrs::of(&node.attrs) {
        Some(attrs) => attrs.dimensions.first().and_then(|&dim| usize::try_from(dim).ok()),
        None => array.rank().checked_sub(1),
    };
    let row = dim.and_then(|dim| array.dims.get(dim)).map_or(1, |&n| n.max(1));
    let n_elems = array.n_elems() as f64;
    if node.marks.as_deref().is_some_and(says_sorted_halves) {
        return n_elems * OF_MERGED;
    }
    let steps = (row as f64).log2().ceil();
    let network = n_elems / 2.0 * steps * (steps + 1.0) / 2.0 * OF_EXCHANGE;
    // Digits are those of one key; other orders need comparisons.
    let n_digits = f64::from(array.dtype.bits().div_ceil(8));
    let is_of_one_key = node.operands.len() <= 2;
    if is_of_one_key { network.min(n_elems * n_digits * OF_DIGIT) } else { network }
}
