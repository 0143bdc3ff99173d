//! Which sums of columns the kernel of a group computes beside its other results.

use super::columns::{ColumnSum, column_sum, may_be_of_rows, min_blocks, min_parts};
use super::edges::{Edges, is_reduce};
use super::rows::{RowPart, trailing_reduction};
use hlo_ir::view::is_view;
use hlo_ir::{ArrayShape, InstId, Module, Opcode};

/// Sums that the threads of one kernel keep at most.
const MAX_SUMS: usize = 8;

/// The sums of columns among the results of a group.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums {
    /// Those that one kernel computes with all other results.
    pub fit: Vec<InstId>,
    /// The others.
    pub misfits: Vec<InstId>,
}

/// The sums among `outputs`. One kernel computes those that fit and the other outputs element by element of one array, or row by row.
pub(super) fn sums_of(module: &Module, edges: &Edges, members: &[InstId], outputs: &[InstId]) -> Sums {
    let sums: Vec<(InstId, ColumnSum)> =
        outputs.iter().filter_map(|&output| column_sum(module, output).map(|sum| (output, sum))).collect();
    if sums.is_empty() {
        return Sums::default();
    }
    let is_sum = |inst: InstId| sums.iter().any(|&(sum, _)| sum == inst);
    let others: Vec<InstId> = outputs.iter().copied().filter(|&output| !is_sum(output)).collect();
    let reduces: Vec<InstId> = members.iter().copied().filter(|&m| is_reduce(module, m) && !is_sum(m)).collect();
    let host = if reduces.is_empty() {
        Host::of_elements(module, members, &others)
    } else {
        Host::of_rows(module, edges, &reduces, &others)
    };
    let takes = |sum: &ColumnSum| host.as_ref().is_some_and(|host| host.takes(module, sum));
    let candidates: Vec<ColumnSum> = sums.iter().map(|&(_, sum)| sum).filter(takes).collect();
    let n_alike = |sum: &ColumnSum| candidates.iter().filter(|other| other.is_alike(sum)).count();
    // Of several forms the one that most sums have, and of these the first.
    let best = candidates.iter().rev().max_by_key(|&sum| n_alike(sum));
    let mut found = Sums::default();
    for (inst, sum) in &sums {
        let fits = best.is_some_and(|best| sum.is_alike(best)) && takes(sum) && found.fit.len() < MAX_SUMS;
        let of = if fits { &mut found.fit } else { &mut found.misfits };
        of.push(*inst);
    }
    found
}

/// What a kernel computes beside sums.
struct Host<'m> {
    /// The array whose elements its threads have.
    shape: &'m ArrayShape,
    /// Elements of a row, where teams of threads have rows.
    n_columns: Option<i64>,
}

impl<'m> Host<'m> {
    /// Whole arrays, element by element.
    fn of_elements(module: &'m Module, members: &[InstId], others: &[InstId]) -> Option<Host<'m>> {
        let shape = module.shape(*others.first()?).as_array()?;
        // What is read across wants other threads.
        let reads_across = |m: &InstId| module.inst(*m).opcode == Opcode::Transpose && !is_view(module, *m);
        let host = Host { shape, n_columns: None };
        let is_whole = others.iter().all(|&output| host.has_elements_of(module, output));
        (is_whole && !members.iter().any(reads_across)).then_some(host)
    }

    /// Rows, by reductions along them.
    fn of_rows(module: &'m Module, edges: &Edges, reduces: &[InstId], others: &[InstId]) -> Option<Host<'m>> {
        let rows_of = |reduce: InstId| {
            let (rows, n_kept) = trailing_reduction(module, reduce)?;
            let shape = module.shape(rows).as_array()?;
            matches!(edges.rows[reduce], RowPart::Reduce(_)).then(|| (shape, shape.dims[n_kept..].iter().product()))
        };
        let (shape, n_columns): (&ArrayShape, i64) = rows_of(*reduces.first()?)?;
        let is_same = |&reduce: &InstId| rows_of(reduce).is_some_and(|(s, n)| s.dims == shape.dims && n == n_columns);
        let host = Host { shape, n_columns: Some(n_columns) };
        let is_own =
            |&output: &InstId| edges.rows[output].class_of_value().is_some() || host.has_elements_of(module, output);
        (reduces.iter().all(is_same) && others.iter().all(is_own)).then_some(host)
    }

    fn has_elements_of(&self, module: &Module, inst: InstId) -> bool {
        let array = module.shape(inst).as_array();
        array.is_some_and(|array| array.dims == self.shape.dims && array.is_same_order(self.shape))
    }

    /// Whether its threads compute what is summed, in enough blocks.
    fn takes(&self, module: &Module, sum: &ColumnSum) -> bool {
        let has_source = self.has_elements_of(module, sum.source);
        has_source
            && match self.n_columns {
                Some(n) => n == sum.n_columns && may_be_of_rows(module, sum) && sum.n_parts >= min_parts(sum.n_elems()),
                None => sum.n_blocks() >= min_blocks(sum.n_elems()),
            }
    }
}
