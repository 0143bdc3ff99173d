//! Sums of columns by teams of threads that have a row each.
//!
//! A thread has the same columns of each row, and a variable for the sum of each. A block has the rows of one part. Where each of its warps
//! has a row, these add up their sums in shared memory, in the order of their numbers.

use hlo_analysis::fusion::{ColumnSum, may_be_of_rows};
use hlo_ir::Module;

use super::emitter::{Argument, Atom, Emitter, FrameId};
use super::group::ResultSum;
use super::kept_sum::{KeptSum, Parts, SumPlace};
use super::row_walk::{RowWalk, has_rows};
use super::team::Team;
use crate::GpuError;

/// Warps of a block, where each has a row.
const N_WARPS: i64 = 8;

/// The sums of columns of a kernel of rows: results, reductions, and what these are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RowSums {
    sums: Vec<ResultSum>,
}

impl RowSums {
    /// Sums of rows of `dims` with so many columns; `None` if they are of other rows or parts.
    pub(super) fn new(module: &Module, sums: Vec<ResultSum>, dims: &[i64], n_columns: i64) -> Option<RowSums> {
        let &(_, _, first) = sums.first()?;
        let fits = |(_, _, sum): &ResultSum| {
            let is_row = module.shape(sum.source).as_array().is_some_and(|source| has_rows(source, dims));
            is_row && may_be_of_rows(module, sum) && sum.is_alike(&first) && sum.n_columns == n_columns
        };
        sums.iter().all(fits).then_some(RowSums { sums })
    }

    /// Parts that there are results for.
    pub(super) fn n_parts(&self) -> i64 {
        self.sums[0].2.n_parts
    }

    /// Rows of a part.
    pub(super) fn n_rows(&self) -> i64 {
        self.sums[0].2.n_rows
    }

    /// Sums that there are.
    pub(super) fn n_sums(&self) -> i64 {
        self.sums.len() as i64
    }

    /// Declares the variables of a part's sums.
    pub(super) fn start(&self, e: &mut Emitter<'_>, frame: FrameId, walk: &RowWalk) -> Result<Vec<KeptSum>, GpuError> {
        let n = walk.packs_of_thread() * walk.n_elems();
        self.sums.iter().map(|&sum| KeptSum::start(e, frame, sum, n)).collect()
    }

    /// Writes a part's sums.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[Argument],
        (walk, team, part): (&RowWalk, Team, Atom),
        kept: &[KeptSum],
    ) -> Result<(), GpuError> {
        let ColumnSum { n_columns, .. } = self.sums[0].2;
        let start = e.affine(part, n_columns, 0);
        // One table for all sums, one after the other: together they may be more than a block has.
        let table = (team == Team::Warp).then(|| KeptSum::declare_table(e, kept, results, (N_WARPS, n_columns)));
        for sum in kept {
            let ctype = results[sum.result].ctype;
            let Some(table) = &table else {
                walk.each_pack_place(e, &mut |e, element, column| {
                    let value = ctype.to_stored(&ctype.rounded(&format!("{}[{element}]", sum.array)));
                    e.line(format!("r{}[{start} + {column}] = {value};", sum.result));
                })?;
                continue;
            };
            let parts = Parts { table, n_rows: N_WARPS, n_columns };
            let mut enter = |e: &mut Emitter<'_>, parts: &str| {
                walk.each_pack_place(e, &mut |e, element, column| {
                    let at = format!("{} * {n_columns} + {column}", Team::Warp.element());
                    e.line(format!("{parts}[{at}] = {}[{element}];", sum.array));
                })
            };
            let place =
                |_: &mut Emitter<'_>, column: Atom| SumPlace { at: format!("{start} + {column}"), condition: None };
            sum.write(e, frame, (ctype, Team::Warp.block()), parts, &mut enter, &place)?;
        }
        Ok(())
    }
}
