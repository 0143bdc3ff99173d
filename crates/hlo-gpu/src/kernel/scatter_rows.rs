//! `scatter` of whole rows without atomics: each thread owns the same columns of some rows, copies them, and then goes
//! through all index vectors in order and takes the updates of its own rows. Every order of additions is fixed.

use hlo_ir::{InstId, Module, Opcode};
use smallvec::SmallVec;

use super::Signature;
use super::emitter::{Argument, Atom, Emitter, FrameId, Index, ScopeKind, Value};
use super::group::{BlockRange, ResultGroup};
use super::indexing::ScatterParts;
use super::reduction::Combiner;
use crate::GpuError;

/// How rows and columns are dealt out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rows {
    scatter: InstId,
    /// Operand dims that index vectors name, the fastest first.
    row_dims: SmallVec<[usize; 4]>,
    /// The others.
    column_dims: SmallVec<[usize; 4]>,
    n_rows: i64,
    n_columns: i64,
    /// Threads along a row; the block's other threads take other rows.
    lanes: i64,
}

/// A group that is a scatter whose windows are whole rows.
pub(super) fn choose(module: &Module, signature: &Signature, group: &ResultGroup) -> Option<Rows> {
    let (inst, _) = *group.sources.first()?;
    let is_scatter = module.inst(inst).opcode == Opcode::Scatter && !signature.bindings.contains_key(&inst);
    if !is_scatter || !group.is_one_layout || !group.sources.iter().enumerate().all(|(i, s)| *s == (inst, i)) {
        return None;
    }
    let hlo_ir::attrs::Attrs::Scatter(attrs) = &module.inst(inst).attrs else { return None };
    let n = module.inst(inst).operands.len() / 2;
    let shape = module.shape(*module.inst(inst).operands.first()?).as_array()?;
    let updates = module.shape(*module.inst(inst).operands.get(n + 1)?).as_array()?;
    let is_row = |dim: usize| attrs.scatter_dims_to_operand_dims.contains(&(dim as i64));
    let rows_are_points =
        (0..shape.rank()).all(|dim| is_row(dim) == attrs.inserted_window_dims.contains(&(dim as i64)));
    let column_dims = (0..shape.rank()).filter(|&dim| !is_row(dim));
    let windows_are_whole =
        column_dims.zip(&attrs.update_window_dims).all(|(dim, &d)| shape.dims[dim] == updates.dims[d as usize]);
    if !rows_are_points || !windows_are_whole || !attrs.input_batching_dims.is_empty() || group.sources.len() != n {
        return None;
    }
    let order = signature.results[group.results[0]].shape.physical_order();
    let row_dims: SmallVec<[usize; 4]> = order.iter().copied().filter(|&dim| is_row(dim)).collect();
    let column_dims: SmallVec<[usize; 4]> = order.into_iter().filter(|&dim| !is_row(dim)).collect();
    let n_rows = row_dims.iter().map(|&dim| shape.dims[dim]).product();
    let n_columns: i64 = column_dims.iter().map(|&dim| shape.dims[dim]).product();
    let lanes = (n_columns.max(1) as u64).next_power_of_two().min(256) as i64;
    Some(Rows { scatter: inst, row_dims, column_dims, n_rows, n_columns, lanes })
}

impl Rows {
    /// Blocks in which every row has a thread.
    pub(super) fn n_blocks(&self, block: u32) -> u64 {
        let rows_of_block = (i64::from(block) / self.lanes).max(1) as u64;
        (self.n_rows.max(0) as u64).div_ceil(rows_of_block).clamp(1, 512)
    }

    /// Writes the copy and the loop over the updates.
    pub(super) fn write(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        results: &[(usize, &Argument)],
        blocks: &BlockRange,
    ) -> Result<(), GpuError> {
        let parts = ScatterParts::new(e, self.scatter)?;
        let comp = parts.attrs.to_apply;
        let comp = comp.ok_or_else(|| e.unsupported(self.scatter, "expected a computation to combine by"))?;
        let dtypes: Vec<_> = results.iter().map(|(_, argument)| argument.shape.dtype).collect();
        let combiner = Combiner::new(e, self.scatter, comp, &dtypes)?;
        let depth = e.depth();
        let rows_of_block = (i64::from(blocks.block) / self.lanes).max(1);
        let n_owners = rows_of_block * i64::from(blocks.n_blocks);
        let lane = e.bind(format!("(idx)threadIdx.x % {}", self.lanes), depth);
        let owner =
            e.bind(format!("{} * {rows_of_block} + (idx)threadIdx.x / {}", blocks.block_number(), self.lanes), depth);
        let row = e.loop_variable();
        let header = format!("for (idx {row} = {owner}; {row} < {}; {row} += {n_owners})", self.n_rows);
        e.scope(ScopeKind::Loop, header, |e| {
            self.columns(e, lane, &mut |e, column| {
                let index = self.index(e, row, column, &parts.shape.dims);
                for (&operand, &(result, argument)) in parts.operands.iter().zip(results) {
                    let value = e.value(frame, operand, 0, &index)?;
                    let at = e.position(&index, &argument.shape.dims, &argument.shape.physical_order());
                    e.line(format!("r{result}[{at}] = {};", argument.ctype.to_stored(&value.text)));
                }
                Ok(())
            })
        })?;
        let sizes: SmallVec<[i64; 4]> = parts.batch_dims.iter().map(|&dim| parts.update_shape.dims[dim]).collect();
        e.count_all(&sizes, &mut |e, batch| {
            let row = self.target(e, frame, &parts, batch)?;
            let condition = format!("{row} >= 0 && {row} % {n_owners} == {owner}");
            e.branch(&condition, |e| {
                self.columns(e, lane, &mut |e, column| {
                    let index = self.index(e, row, column, &parts.shape.dims);
                    let mut update: Index = SmallVec::from_elem(Atom::Const(0), parts.update_shape.rank());
                    for (&dim, &atom) in parts.batch_dims.iter().zip(batch) {
                        update[dim] = atom;
                    }
                    for (&dim, &update_dim) in parts.window_dims.iter().zip(&parts.attrs.update_window_dims) {
                        update[update_dim as usize] = index[dim];
                    }
                    let (mut accumulators, mut slots) = (Vec::new(), Vec::new());
                    for &(result, argument) in results {
                        let at = e.position(&index, &argument.shape.dims, &argument.shape.physical_order());
                        let slot = format!("r{result}[{at}]");
                        accumulators.push(e.variable(argument.ctype.held, &argument.ctype.loaded(&slot)));
                        slots.push(slot);
                    }
                    let values = parts.updates.iter().map(|&x| e.value(frame, x, 0, &update));
                    let values = values.collect::<Result<Vec<Value>, GpuError>>()?;
                    combiner.combine_rounded(e, &accumulators, &values)?;
                    for ((accumulator, slot), (_, argument)) in accumulators.iter().zip(slots).zip(results) {
                        e.line(format!("{slot} = {};", argument.ctype.to_stored(&accumulator.text)));
                    }
                    Ok(())
                })
            })
        })
    }

    /// The row that the index vector at `batch` names, or -1.
    fn target(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        parts: &ScatterParts<'_>,
        batch: &[Atom],
    ) -> Result<Atom, GpuError> {
        let (mut conditions, mut terms, mut depth) = (Vec::new(), Vec::new(), 0);
        let mut stride = 1i64;
        for &dim in &self.row_dims {
            let n = parts.shape.dims[dim];
            let k = parts.attrs.scatter_dims_to_operand_dims.iter().position(|&d| d as usize == dim);
            let k = k.ok_or_else(|| e.unsupported(self.scatter, "expected a component for each row dim"))?;
            let start = parts.start(e, frame, batch, k)?;
            conditions.push(format!("{0} >= 0 && {0} < {n}", start.text));
            terms.push(format!("{} * {stride}", start.text));
            depth = depth.max(start.depth);
            stride = stride.saturating_mul(n);
        }
        if terms.is_empty() {
            return Ok(Atom::Const(0));
        }
        Ok(e.bind(format!("({}) ? (idx)({}) : -1", conditions.join(" && "), terms.join(" + ")), depth))
    }

    fn index(&self, e: &mut Emitter<'_>, row: Atom, column: Atom, dims: &[i64]) -> Index {
        let mut index: Index = SmallVec::from_elem(Atom::Const(0), dims.len());
        for (linear, list) in [(row, &self.row_dims), (column, &self.column_dims)] {
            let sizes: SmallVec<[i64; 4]> = list.iter().map(|&dim| dims[dim]).collect();
            let order: SmallVec<[usize; 4]> = (0..sizes.len()).collect();
            let found = e.index_at(linear, &sizes, &order);
            for (&dim, &atom) in list.iter().zip(&found) {
                index[dim] = atom;
            }
        }
        index
    }

    fn columns(
        &self,
        e: &mut Emitter<'_>,
        lane: Atom,
        body: &mut dyn FnMut(&mut Emitter<'_>, Atom) -> Result<(), GpuError>,
    ) -> Result<(), GpuError> {
        let column = e.loop_variable();
        let header = format!("for (idx {column} = {lane}; {column} < {}; {column} += {})", self.n_columns, self.lanes);
        e.scope(ScopeKind::Loop, header, |e| body(e, column))
    }
}
