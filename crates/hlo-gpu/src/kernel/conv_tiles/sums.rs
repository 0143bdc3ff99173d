//! Sums of the columns of a convolution's tiles: the gradient of a bias, beside the gradient that it sums.
//!
//! ```text
//! g = select(mask, convolution(dy, w), zero)     f32[64,32,32,64], which the next layer reads
//! b = reduce(g), dimensions={1} of f32[512,128,64]
//! ```
//! A tile has as many rows as a part of the sum. Each thread adds up its rows of a column; these sums are added up in shared memory, in
//! the order of the rows' threads.

use hlo_ir::{InstId, Module};
use smallvec::SmallVec;

use super::super::Signature;
use super::super::contraction::Convolution;
use super::super::dtype::CType;
use super::super::emitter::{Argument, Atom, Emitter, FrameId};
use super::super::group::ResultSum;
use super::super::kept_sum::{KeptSum, Parts, SumPlace};
use super::super::reach::Reach;
use super::size::{self, Size, THREADS};
use super::{Product, row_dims};
use crate::GpuError;

/// Sums that the threads of one kernel keep at most.
pub(crate) const MAX_SUMS: usize = 4;

/// The sums of columns among a kernel's results; all have the same parts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct TileSums {
    sums: Vec<ResultSum>,
    /// The numbers of the other results.
    whole: Vec<usize>,
}

/// Where the sums of a tile go.
pub(super) struct SumsPlace {
    /// The part of the sum that the tile is, and its first column.
    pub part: Atom,
    pub first: Atom,
    /// The group of features, and how many features it has and all have.
    pub of_group: Atom,
    pub n: i64,
    pub n_features: i64,
}

/// Whether a tile's rows are rows of the output in memory, whose elements are the features.
fn has_rows_of_memory(conv: &Convolution<'_>, row_dims: &[usize]) -> bool {
    let feature = conv.attrs.dim_labels.output_feature as usize;
    let is_long = |dim: &usize| conv.output.dims[*dim] != 1;
    let in_memory = conv.output.physical_order();
    in_memory.into_iter().filter(is_long).eq(std::iter::once(feature).chain(row_dims.iter().copied()).filter(is_long))
}

/// Rows that tiles of the kernel of a convolution may have if it gives sums of their columns too, those of the fastest tiles first, and features
/// of the output: tiles are whole then, and have rows of the output in memory.
pub(crate) fn rows_of_tiles(module: &Module, conv: InstId, uses_tf32: bool) -> Option<(SmallVec<[i64; 4]>, i64)> {
    let conv = Convolution::of(module, conv)?;
    let Product { units, m, n, .. } = Product::of(&conv, uses_tf32)?;
    let mut rows = size::rows_of_fast(units, (m, n), conv.n_groups);
    rows.retain(|&mut n_rows| m % n_rows == 0);
    has_rows_of_memory(&conv, &row_dims(&conv)).then_some((rows, conv.n_features()))
}

impl TileSums {
    /// The sums among the results; `None` if there are none, or not all alike.
    pub(super) fn of(module: &Module, reach: &Reach, signature: &Signature) -> Option<TileSums> {
        let (whole, sums) = reach.whole_and_sums(module, &signature.bindings);
        let (_, _, first) = sums.first()?;
        let are_alike = sums.iter().all(|(_, _, sum)| sum.is_alike(first));
        (are_alike && sums.len() <= MAX_SUMS).then_some(TileSums { sums, whole })
    }

    pub(super) fn all(&self) -> &[ResultSum] {
        &self.sums
    }

    pub(super) fn whole(&self) -> &[usize] {
        &self.whole
    }

    /// Rows of a part, which are those of a tile.
    pub(super) fn n_rows(&self) -> Option<i64> {
        self.sums.first().map(|(_, _, sum)| sum.n_rows)
    }

    /// Whether the kernel of a convolution computes them.
    pub(super) fn fit(&self, conv: &Convolution<'_>, row_dims: &[usize]) -> bool {
        let is_of_features = |(_, _, sum): &ResultSum| sum.n_columns == conv.n_features();
        self.sums.is_empty() || has_rows_of_memory(conv, row_dims) && self.sums.iter().all(is_of_features)
    }

    /// Declares a thread's sums.
    pub(super) fn start(&self, e: &mut Emitter<'_>, frame: FrameId, size: Size) -> Result<Vec<KeptSum>, GpuError> {
        let [_, n_columns] = size.own();
        self.sums.iter().map(|&sum| KeptSum::start(e, frame, sum, n_columns)).collect()
    }

    /// Writes the sums of a tile.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[Argument],
        (size, tile): (Size, &SumsPlace),
        kept: &[KeptSum],
    ) -> Result<(), GpuError> {
        if kept.is_empty() {
            return Ok(());
        }
        let ([_, n_own], [_, n_columns], n_rows) = (size.own(), size.tile, size.threads_of_column());
        let table = KeptSum::declare_table(e, kept, results, (n_rows, n_columns));
        for sum in kept {
            let ctype: CType = results[sum.result].ctype;
            let parts = Parts { table: &table, n_rows, n_columns };
            let mut enter = |e: &mut Emitter<'_>, parts: &str| {
                let at = format!("{parts}[({}) * {n_columns} + {}]", size.thread_of_column(), size.column("j"));
                e.line(format!("#pragma unroll\nfor (int j = 0; j < {n_own}; ++j) {at} = {}[j];", sum.array));
                Ok(())
            };
            let place = |e: &mut Emitter<'_>, column: Atom| {
                let of_group = e.sum(tile.first, column);
                let condition = (tile.n % n_columns != 0).then(|| format!("{of_group} < {}", tile.n));
                let first = e.affine(tile.of_group, tile.n, 0);
                SumPlace { at: format!("{} * {} + {first} + {of_group}", tile.part, tile.n_features), condition }
            };
            sum.write(e, frame, (ctype, THREADS as u32), parts, &mut enter, &place)?;
        }
        Ok(())
    }
}
