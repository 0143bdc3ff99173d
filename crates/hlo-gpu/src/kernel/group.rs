//! A group of results that are computed together, and the blocks of the grid that compute it.

use hlo_analysis::fusion::ColumnSum;
use hlo_ir::InstId;

use super::bodies::BLOCK_NUMBER;
use super::emitter::{Argument, Atom, Emitter, FrameId};
use crate::GpuError;

/// Results that are computed together.
#[derive(Clone, Debug)]
pub(super) struct ResultGroup {
    /// Numbers of the results.
    pub results: Vec<usize>,
    /// Where their elements come from.
    pub sources: Vec<(InstId, usize)>,
    /// Whether the elements of all results lie in the same order.
    pub is_one_layout: bool,
    /// Elements of each result.
    pub n_elems: i64,
}

impl ResultGroup {
    /// The group with these of its results alone.
    pub(super) fn only(&self, results: &[usize]) -> ResultGroup {
        let pairs = self.results.iter().zip(&self.sources).filter(|(result, _)| results.contains(result));
        let (results, sources) = pairs.map(|(&result, &source)| (result, source)).unzip();
        ResultGroup { results, sources, is_one_layout: self.is_one_layout, n_elems: self.n_elems }
    }

    /// The group without results that are sums.
    pub(super) fn without(&self, sums: &[ResultSum]) -> ResultGroup {
        let others = self.results.iter().copied().filter(|result| sums.iter().all(|(sum, _, _)| sum != result));
        self.only(&others.collect::<Vec<usize>>())
    }

    /// The values of all results at an index: result, position in its memory and stored value.
    ///
    /// All are read before any is written, as a result may lie where an operand lies.
    pub(super) fn values_at(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[Argument],
        index: &[Atom],
    ) -> Result<Vec<(usize, Atom, String)>, GpuError> {
        let mut stores = Vec::new();
        for (&result, &(inst, leaf)) in self.results.iter().zip(&self.sources) {
            let value = e.value(frame, inst, leaf, index)?;
            let Argument { shape, ctype } = &results[result];
            let at = e.position(index, &shape.dims, &shape.physical_order());
            let stored = match e.unrounded.get(&value.text) {
                Some(whole) => ctype.to_stored(whole),
                None => ctype.exact_stored(&value.text),
            };
            stores.push((result, at, stored));
        }
        Ok(stores)
    }
}

/// A sum of columns among the results: the result's number, the reduction, and what it is.
pub(super) type ResultSum = (usize, InstId, ColumnSum);

/// The blocks of a group.
pub(super) struct BlockRange {
    /// Whether the group has all blocks of the grid.
    pub is_alone: bool,
    pub n_blocks: u32,
    /// Threads of a block.
    pub block: u32,
    /// Elements that a block takes at a time.
    pub per_block: i64,
}

impl BlockRange {
    /// The block's number among the group's.
    pub(super) fn block_number(&self) -> &'static str {
        if self.is_alone { "(idx)blockIdx.x" } else { BLOCK_NUMBER }
    }

    /// The head of a loop over `n` things of which each block takes one at a time.
    pub(super) fn loop_header(&self, variable: Atom, n: i64) -> String {
        let (first, step) = (self.block_number(), self.n_blocks);
        format!("for (idx {variable} = {first}; {variable} < {n}; {variable} += {step})")
    }
}

/// Writes accesses of whole packs, and what is done where these are not aligned.
pub(super) fn either_way(e: &mut Emitter<'_>, is_aligned: &str, lines: &dyn Fn(&str) -> Vec<String>) {
    for (header, how) in [(format!("if ({is_aligned}) {{"), "pack"), ("} else {".to_string(), "elems")] {
        let lines = lines(how);
        if lines.is_empty() {
            return;
        }
        e.line(header);
        lines.iter().for_each(|line| e.line(format!("    {line}")));
    }
    e.line("}");
}
