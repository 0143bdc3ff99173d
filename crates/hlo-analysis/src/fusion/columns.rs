//! Columns: reductions along slow dims by the threads that compute what is reduced.
//!
//! ```text
//! g = select(mask, dy, zero)        the gradient before a bias, which a product reads
//! b = reduce(g), dimensions={0}     the gradient of the bias
//! ```
//! A block takes some columns of some rows, computes `g`, writes it, and adds it up on the way, so that `g` is not read once more. What it
//! has at its end is a part of the sum: long reductions go in two steps ([`super::prepare()`]).

use super::neutral::has_neutral_init;
use hlo_ir::attrs::Attrs;
use hlo_ir::view::is_view;
use hlo_ir::{ArrayShape, InstId, Module, Opcode};
use smallvec::SmallVec;

/// Columns that a block takes at a time.
pub const COLUMNS_OF_BLOCK: i64 = 32;
/// Columns that the threads of a row can keep sums of, and what their number must be a multiple of: packs of 16 bytes.
const COLUMNS_OF_ROW: std::ops::RangeInclusive<i64> = 32..=1 << 14;
/// See [`COLUMNS_OF_ROW`].
const COLUMNS_OF_PACK: i64 = 16;

/// A reduction of rows of columns to one row for each part: in memory, `[n_parts, n_rows, n_columns]` to `[n_parts, n_columns]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColumnSum {
    /// What is reduced, views seen through.
    pub source: InstId,
    /// What reads the source: the reduction, or a view for it.
    pub reader: InstId,
    /// Results for each column.
    pub n_parts: i64,
    /// Rows of a part.
    pub n_rows: i64,
    /// Elements of a row.
    pub n_columns: i64,
}

impl ColumnSum {
    /// Whether both have the same parts of the same rows.
    pub fn is_alike(&self, other: &ColumnSum) -> bool {
        (self.n_parts, self.n_rows, self.n_columns) == (other.n_parts, other.n_rows, other.n_columns)
    }

    /// Elements that are summed.
    pub fn n_elems(&self) -> i64 {
        self.n_parts * self.n_rows * self.n_columns
    }

    /// Blocks that have 32 columns of a part each.
    pub(super) fn n_blocks(&self) -> i64 {
        self.n_parts * (self.n_columns / COLUMNS_OF_BLOCK)
    }
}

/// What a `reduce` is as a sum of columns: of one array, by an operation with its neutral value, along dims that lie between kept ones in
/// memory or are the slowest. Columns are whole dims of the source too.
pub fn column_sum(module: &Module, reduce: InstId) -> Option<ColumnSum> {
    let instruction = module.inst(reduce);
    let (Opcode::Reduce, Attrs::Reduce(attrs)) = (instruction.opcode, &instruction.attrs) else { return None };
    let &[operand, init] = instruction.operands.as_slice() else { return None };
    let (from, to) = (module.shape(operand).as_array()?, module.shape(reduce).as_array()?);
    let is_reduced = |dim: usize| attrs.dimensions.contains(&(dim as i64));
    let long = from.long_dims_major_to_minor();
    let first = long.iter().position(|&dim| is_reduced(dim))?;
    let end = long.iter().rposition(|&dim| is_reduced(dim))? + 1;
    let size = |dims: &[usize]| dims.iter().map(|&dim| from.dims[dim]).product::<i64>();
    let (n_parts, n_rows, n_columns) = (size(&long[..first]), size(&long[first..end]), size(&long[end..]));
    let kept_dims: SmallVec<[usize; 4]> = (0..from.rank()).filter(|&dim| !is_reduced(dim)).collect();
    let kept_in_memory = long.iter().copied().filter(|&dim| !is_reduced(dim));
    let is_same_order = to.long_dims_major_to_minor().into_iter().map(|dim| kept_dims[dim]).eq(kept_in_memory);
    let is_whole = long[first..end].iter().all(|&dim| is_reduced(dim));
    if !is_whole || end == long.len() || !is_same_order || !has_neutral_init(module, attrs, init, from.dtype) {
        return None;
    }
    let (mut reader, mut source) = (reduce, operand);
    while is_view(module, source)
        && let Some(&of) = module.inst(source).operands.first()
        && module.shape(of).as_array().is_some_and(|array| array.dtype == from.dtype)
    {
        (reader, source) = (source, of);
    }
    let sum = ColumnSum { source, reader, n_parts, n_rows, n_columns };
    n_column_dims(module.shape(source).as_array()?, n_columns).map(|_| sum)
}

/// How many of the fastest dims have so many elements together, if some have.
pub fn n_column_dims(shape: &ArrayShape, n_columns: i64) -> Option<usize> {
    let mut n = 1;
    let counts = shape.physical_order().into_iter().map(|dim| {
        n *= shape.dims[dim];
        n
    });
    counts.enumerate().find(|&(_, n)| n == n_columns).map(|(i, _)| i + 1)
}

/// Whether teams of threads that have a row of the source each can keep such a sum.
pub fn may_be_of_rows(module: &Module, sum: &ColumnSum) -> bool {
    let is_row_major = module.shape(sum.source).as_array().is_some_and(ArrayShape::is_row_major);
    is_row_major && COLUMNS_OF_ROW.contains(&sum.n_columns) && sum.n_columns % COLUMNS_OF_PACK == 0
}

/// Blocks of columns below which so many elements are computed faster by a kernel of their own: all processors have one, and the more
/// elements there are, the more loads must be under way.
pub(super) fn min_blocks(n_elems: i64) -> i64 {
    (n_elems >> 13).clamp(MIN_BLOCKS, 1024)
}

/// The same for blocks of rows, whose threads load more at a time.
pub(super) fn min_parts(n_elems: i64) -> i64 {
    (n_elems >> 14).clamp(MIN_BLOCKS, 512)
}

/// Parts of sums by teams of rows at most: their results together are small beside what is summed.
pub(super) fn max_parts(n_columns: i64) -> i64 {
    ((1 << 18) / n_columns.max(1)).clamp(512, 4096)
}

/// Blocks of a launch at least: processors that a device has.
const MIN_BLOCKS: i64 = 100;

/// Rows of a part at least, where teams of threads have a row each: one for each warp, or some for all threads of a block.
pub(super) fn rows_at_least(n_columns: i64) -> i64 {
    if n_columns <= 512 { 8 } else { 4 }
}
