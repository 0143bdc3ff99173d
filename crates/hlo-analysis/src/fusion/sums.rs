//! Which sums of columns the kernel of a group computes beside its other results.

use super::columns::{ColumnSum, MIN_PARTS, column_sum, may_be_of_rows};
use super::edges::{Edges, is_reduce};
use super::rows::{RowPart, trailing_reduction};
use hlo_ir::view::is_view;
use hlo_ir::{InstId, Module, Opcode};

/// Sums that the threads of one kernel keep at most.
const MAX_SUMS: usize = 8;

/// The sums among `outputs` if one kernel computes these and the other outputs: element by element of one array, or row by row.
pub(super) fn sums_of(module: &Module, edges: &Edges, members: &[InstId], outputs: &[InstId]) -> Option<Vec<InstId>> {
    let sums: Vec<(InstId, ColumnSum)> =
        outputs.iter().filter_map(|&output| column_sum(module, output).map(|sum| (output, sum))).collect();
    let &(_, first) = sums.first()?;
    let shape = module.shape(first.source).as_array()?;
    let is_like_source = |inst: InstId| {
        module.shape(inst).as_array().is_some_and(|array| array.dims == shape.dims && array.is_same_order(shape))
    };
    let is_sum = |inst: InstId| sums.iter().any(|&(sum, _)| sum == inst);
    let has_one_form =
        sums.len() <= MAX_SUMS && sums.iter().all(|(_, sum)| sum.is_alike(&first) && is_like_source(sum.source));
    let mut others = outputs.iter().copied().filter(|&output| !is_sum(output)).peekable();
    let mut reduces = members.iter().copied().filter(|&m| is_reduce(module, m) && !is_sum(m)).peekable();
    let fits = if reduces.peek().is_some() {
        let is_of_rows = |reduce: InstId| {
            let rows = trailing_reduction(module, reduce).and_then(|(rows, n_kept)| {
                let dims = &module.shape(rows).as_array()?.dims;
                Some(*dims == shape.dims && dims[n_kept..].iter().product::<i64>() == first.n_columns)
            });
            matches!(edges.rows[reduce], RowPart::Reduce(_)) && rows == Some(true)
        };
        let is_own = |output: InstId| edges.rows[output].class_of_value().is_some() || is_like_source(output);
        may_be_of_rows(module, &first) && first.n_parts >= MIN_PARTS && reduces.all(is_of_rows) && others.all(is_own)
    } else {
        // What is read across wants other threads.
        let reads_across = |m: &InstId| module.inst(*m).opcode == Opcode::Transpose && !is_view(module, *m);
        let is_whole = others.peek().is_some() && others.all(is_like_source);
        is_whole && first.n_blocks() >= MIN_PARTS && !members.iter().any(reads_across)
    };
    (has_one_form && fits).then(|| sums.into_iter().map(|(sum, _)| sum).collect())
}
