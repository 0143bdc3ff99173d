//! Rows for each team: a team computes the reductions of a row and then, with these, the row's elements.
//!
//! Sums of columns (the gradients of a norm's scale and bias) are added up on the way: a block has the rows of one part, and each
//! thread keeps the sums of its elements ([`super::row_sums`]).
//!
//! The emitter puts the code of a value where all that it depends on is known, so a reduction of the row goes before the
//! loop over the row's elements. The row is read once from memory, and again from the cache.

use hlo_analysis::fusion::{column_sum, trailing_reduction};
use hlo_ir::{InstId, Module, Opcode};
use smallvec::SmallVec;

use super::Signature;
use super::dtype::CType;
use super::emitter::{Argument, Atom, Emitter, FrameId, Index, ScopeKind};
use super::group::{BlockRange, ResultGroup};
use super::kept_sum::KeptSum;
use super::reach::Reach;
use super::row_sums::RowSums;
use super::row_walk::{PackAt, RowWalk, has_rows};
use super::team::Team;
use crate::GpuError;

/// Elements of a row that one thread takes; longer rows get more threads.
const ELEMS_OF_THREAD: i64 = 16;
/// Threads of a block that has one row.
const BLOCKS: [u32; 3] = [128, 256, 512];

/// How rows are dealt out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RowTeam {
    pub team: Team,
    /// Dims of the arrays that have the rows; the first `n_kept` number the rows.
    dims: SmallVec<[i64; 4]>,
    n_kept: usize,
    /// The fusion's results: whole rows, and one element for each row.
    whole: Vec<usize>,
    of_row: Vec<usize>,
    /// Sums of columns.
    sums: Option<RowSums>,
}

/// Shorter rows of which nothing but the reduction is wanted are read element by element.
const MIN_REDUCED: i64 = 256;

/// The rows of a kernel whose results are all whole rows, or one element for each, and that reduces these rows. None where a team
/// for each element does: no result is of whole rows, nothing is carried back to them, and there is nothing to load in packs.
pub(super) fn choose(module: &Module, reach: &Reach, signature: &Signature) -> Option<RowTeam> {
    let inside = |inst: &InstId| !signature.bindings.contains_key(inst);
    let all = || reach.roots.iter().flat_map(|root| root.all.iter().copied()).filter(inside);
    // What keeps the fastest dim is a sum of columns, unless there are no other rows.
    let is_row = |inst: &InstId| column_sum(module, *inst).is_none();
    let of_rows = all().filter(is_row).find_map(|inst| rows_of(module, inst));
    let is_strided = of_rows.is_none();
    let (dims, n_kept) = of_rows.or_else(|| all().find_map(|inst| rows_of(module, inst)))?;
    let long = |dims: &[i64]| dims.iter().copied().filter(|&n| n != 1).collect::<SmallVec<[i64; 4]>>();
    let (mut whole, mut of_row, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for (i, result) in signature.results.iter().enumerate() {
        let inst = reach.roots[i].inst;
        if let Some(sum) = column_sum(module, inst).filter(|_| !is_strided && inside(&inst)) {
            sums.push((i, inst, sum));
        } else if result.shape.dims[..] == dims[..] {
            whole.push(i);
        } else if long(&result.shape.dims) == long(&dims[..n_kept]) {
            of_row.push(i);
        } else {
            return None;
        }
    }
    let is_carried_back = |inst: InstId| {
        let is_whole = module.shape(inst).as_array().is_some_and(|array| array.dims[..] == dims[..]);
        let operand = module.inst(inst).operands.first().filter(|operand| inside(operand));
        let from = operand.and_then(|&operand| module.shape(operand).as_array());
        module.inst(inst).opcode == Opcode::Broadcast && is_whole && from.is_some_and(|array| array.n_elems() > 1)
    };
    let n_columns: i64 = dims[n_kept..].iter().product();
    let has_packs =
        n_columns >= MIN_REDUCED && signature.operands.iter().any(|operand| has_rows(&operand.shape, &dims));
    let needs_no_team = is_strided || whole.is_empty() && !has_packs;
    if needs_no_team && !all().any(is_carried_back) {
        return None;
    }
    let fits = |n_threads: i64| n_columns <= n_threads * ELEMS_OF_THREAD;
    let block = BLOCKS.into_iter().find(|&n| fits(i64::from(n))).unwrap_or(1024);
    let team = match n_columns {
        ..32 => Team::Thread,
        _ if fits(32) => Team::Warp,
        _ => Team::Block(block),
    };
    let sums = match sums.is_empty() {
        true => None,
        false => Some(RowSums::new(module, sums, &dims, n_columns)?),
    };
    Some(RowTeam { team, dims, n_kept, whole, of_row, sums })
}

/// The operand's dims and how many of them a reduction of rows keeps.
fn rows_of(module: &Module, inst: InstId) -> Option<(SmallVec<[i64; 4]>, usize)> {
    let (operand, n_kept) = trailing_reduction(module, inst)?;
    let dims = &module.shape(operand).as_array()?.dims;
    (dims[n_kept..].iter().product::<i64>() > 1).then(|| (SmallVec::from_slice(dims), n_kept))
}

/// Which rows a block goes over: from the first one on, before the end, so many at a time.
struct Rows {
    first: String,
    end: String,
    step: i64,
}

impl RowTeam {
    /// Blocks that take part: one for each part of a sum of columns, or enough for all rows.
    pub(super) fn n_blocks(&self, per_block: u64) -> u64 {
        match &self.sums {
            Some(sums) => sums.n_parts() as u64,
            None => (self.n_rows().max(0) as u64).div_ceil(per_block),
        }
    }

    /// Rows that there are.
    pub(super) fn n_rows(&self) -> i64 {
        self.dims[..self.n_kept].iter().product()
    }

    /// Writes the loop over rows and in it the loop over the elements of a row.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let (team, n_rows) = (self.team, self.n_rows());
        let in_packs = self.whole.iter().filter(|&&result| results[result].shape.is_row_major());
        let written: Vec<(usize, CType)> = in_packs.map(|&result| (result, results[result].ctype)).collect();
        let n_sums = self.sums.as_ref().map_or(0, RowSums::n_sums);
        let walk = RowWalk::new(e, team, (&self.dims, self.n_kept), &written, n_sums);
        e.rows_read.in_packs.extend(walk.operands());
        e.rows_read.written.extend(written.iter().map(|&(result, _)| result));
        let Some(sums) = &self.sums else {
            let (start, step) = (blocks.block_number(), i64::from(blocks.n_blocks) * blocks.per_block);
            let rows = Rows { first: format!("{start} * {}", blocks.per_block), end: n_rows.to_string(), step };
            return self.write_rows(e, frame, group, results, (&walk, rows, &[]));
        };
        let part = e.loop_variable();
        let header = blocks.loop_header(part, sums.n_parts());
        e.scope(ScopeKind::Loop, header, |e| {
            let kept = sums.start(e, frame, &walk)?;
            let first = e.affine(part, sums.n_rows(), 0);
            let end = e.affine(first, 1, sums.n_rows());
            let rows = Rows { first: first.to_string(), end: end.to_string(), step: blocks.per_block };
            self.write_rows(e, frame, group, results, (&walk, rows, &kept))?;
            sums.write(e, frame, results, (&walk, team, part), &kept)
        })
    }

    /// The loop over some rows; `kept` are the sums of columns.
    fn write_rows(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        (walk, rows, kept): (&RowWalk, Rows, &[KeptSum]),
    ) -> Result<(), GpuError> {
        let Rows { first, end, step } = rows;
        let team = self.team;
        let base = e.loop_variable();
        let header = format!("for (idx {base} = {first}; {base} < {end}; {base} += {step})");
        e.team = Some(team);
        e.team_depth = e.depth() + 1;
        let result = e.scope(ScopeKind::Loop, header, |e| {
            let depth = e.depth();
            let mine = e.bind(format!("{base} + (idx){}", team.element()), depth);
            // Threads beyond the end go along, for those that wait for them.
            let row = e.bind(format!("{mine} < {end} ? {mine} : {end} - 1"), depth);
            let walk = walk.over(e, row);
            e.row = Some(walk.clone());
            walk.load(e)?;
            let is_own = (team.elems_of_block() > 1).then(|| format!("{mine} < {end}"));
            // All reductions of the row come before any element is written, which may lie where one is read.
            self.write_values(e, frame, group, results, (&walk, mine, &end))?;
            self.write_elements(e, frame, group, results, (&walk, is_own, kept))
        });
        (e.team, e.row) = (None, None);
        result
    }

    /// The results that are whole rows, and what is summed.
    fn write_elements(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        (walk, is_own, kept): (&RowWalk, Option<String>, &[KeptSum]),
    ) -> Result<(), GpuError> {
        let whole = group.only(&self.whole);
        let each: &mut dyn FnMut(&mut Emitter<'_>, &PackAt<'_>) -> Result<(), GpuError> = &mut |e, pack| {
            let mut packs: Vec<(usize, String)> = Vec::new();
            for &result in self.whole.iter().filter(|&&result| results[result].shape.is_row_major()) {
                let name = e.fresh("w");
                e.line(format!("hlo::Pack<{}, {}> {name};", results[result].ctype.stored, walk.n_elems()));
                packs.push((result, name));
            }
            pack.each_element(e, &mut |e, k, index| {
                let stores = whole.values_at(e, frame, results, index)?;
                for sum in kept {
                    sum.add(e, frame, (pack.element_of_thread(k), index), is_own.as_deref())?;
                }
                let guard = is_own.as_ref().map_or(String::new(), |condition| format!("if ({condition}) "));
                for (result, at, value) in &stores {
                    match packs.iter().find(|(packed, _)| packed == result) {
                        Some((_, name)) => e.line(format!("{name}.elems[{k}] = {value};")),
                        None => e.line(format!("{guard}r{result}[{at}] = {value};")),
                    }
                }
                Ok(())
            })?;
            pack.store(e, &packs, is_own.as_deref());
            Ok(())
        };
        match (kept, self.whole.as_slice()) {
            ([], []) => Ok(()),
            ([], _) => walk.each_pack(e, each),
            _ => walk.each_pack_unrolled(e, each),
        }
    }

    /// The results of which a row has one element.
    fn write_values(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        group: &ResultGroup,
        results: &[Argument],
        (walk, mine, end): (&RowWalk, Atom, &str),
    ) -> Result<(), GpuError> {
        let mut stores = Vec::new();
        for &result in &self.of_row {
            // Dims of one element may stand anywhere between the others.
            let mut long = walk.kept.iter().zip(&self.dims).filter(|(_, n)| **n != 1).map(|(atom, _)| *atom);
            let dims = results[result].shape.dims.iter();
            let index: Index =
                dims.map(|&n| if n == 1 { Atom::Const(0) } else { long.next().unwrap_or(mine) }).collect();
            stores.extend(group.only(&[result]).values_at(e, frame, results, &index)?);
        }
        if stores.is_empty() {
            return Ok(());
        }
        let header = format!("if ({} == 0 && {mine} < {end})", self.team.part());
        e.scope(ScopeKind::Branch, header, |e| {
            stores.iter().for_each(|(result, at, value)| e.line(format!("r{result}[{at}] = {value};")));
            Ok(())
        })
    }
}
