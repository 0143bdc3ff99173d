//! Stacks of matrices that are in shards: from the shards of all matrices to all of some matrices, and back.
//!
//! A matrix `[a, b]` in shards of `a/n` rows on `n` devices, `k` such: `[k, a/n, b]` on each device. An all-to-all along the stack
//! gives each device `r = ⌈k/n⌉` matrices, `[r, a, b]`. It moves `1/n` of what an all-gather moves.
//!
//! A shard has `e = ab/n` elements whichever dim is cut, but for padding. Where some matrices are cut along one dim and some along
//! another, the all-to-all takes `[k, e]`. Each dim gives one way to read the shards; a select takes the right one for each matrix.

use super::in_shards::InShards;
use super::stacked::{concatenated, shape_of, stack_of, stack_shape};
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Opcode};
use hlo_spmd::{Appender, DimRun, ShardBuilder, ShardFormat, SpmdError};

/// Exchanges the shards of matrices in one computation.
pub(super) struct Exchange<'b> {
    pub(super) comp: CompId,
    pub(super) n_devices: i64,
    pub(super) builder: &'b mut ShardBuilder,
    pub(super) found: &'b InShards,
}

/// Matrices put together from shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gathered {
    pub(super) all_to_all: InstId,
    /// This device's part of the stack of matrices.
    pub(super) stack: InstId,
}

impl Exchange<'_> {
    /// From this device's shards of `k` matrices of shape `whole` to its part of their stack, `[r, dims…]`. `None` where it
    /// cannot be built.
    ///
    /// # Errors
    /// A shard is no array, or a group names a device that is none.
    pub(super) fn gather_matrices(
        &mut self,
        module: &mut Module,
        whole: &ArrayShape,
    ) -> Result<Option<Gathered>, SpmdError> {
        let shards = self.found.shards.concat();
        let Some(&first) = shards.first() else { return Ok(None) };
        let stack = if self.found.cuts.len() == 1 {
            let row = stack_shape(&shape_of(module, first)?, 1);
            stack_of(module, self.comp, &shards, &row)?
        } else {
            let rows: Result<Vec<InstId>, SpmdError> =
                shards.iter().map(|&shard| self.flattened(module, shard, &[1])).collect();
            concatenated(module, self.comp, &rows?)?
        };
        let padded = self.resized(module, stack, (0, self.n_own() * self.n_devices))?;
        let Some(all_to_all) = self.builder.exchange_rows(module, padded)? else { return Ok(None) };
        let mut forms = Vec::with_capacity(self.found.cuts.len());
        for &dim in self.found.cuts.keys() {
            forms.push((dim, self.joined(module, all_to_all, whole, dim)?));
        }
        let stack = self.chosen(module, &forms, 0)?;
        Ok(stack.map(|stack| Gathered { all_to_all, stack }))
    }

    /// From this device's part of the stack of `k` matrices, `[r, dims…]`, to its shards of all of them by an
    /// all-to-all, `[n × r, …]`: `k` rows, then padding. `None` where it cannot be built.
    ///
    /// # Errors
    /// `own` is no array, or a group names a device that is none.
    pub(super) fn scatter_matrices(&mut self, module: &mut Module, own: InstId) -> Result<Option<InstId>, SpmdError> {
        let (n, n_own, at) = (self.n_devices, self.n_own(), Appender::new(self.comp));
        let mut forms = Vec::with_capacity(self.found.cuts.len());
        for &dim in self.found.cuts.keys() {
            let shards = self.taken_apart(module, own, dim)?;
            let is_only = self.found.cuts.len() == 1;
            forms.push((dim, if is_only { shards } else { self.flattened(module, shards, &[n, n_own])? }));
        }
        let Some(by_device) = self.chosen(module, &forms, 1)? else { return Ok(None) };
        let shape = shape_of(module, by_device)?;
        let rows = plain(&shape, [&[n * n_own], &shape.dims[2..]].concat());
        let rows = at.add(module, "shards", Opcode::Reshape, rows, &[by_device], ReshapeAttrs::default());
        self.builder.exchange_rows(module, rows)
    }

    /// How many matrices a device has.
    fn n_own(&self) -> i64 {
        self.found.shards.len().div_ceil(self.n_devices as usize) as i64
    }

    /// Matrices `[r, dims…]` from rows of shards of all devices, `[n × r, …]`, taken as shards along `dim`.
    fn joined(&self, module: &mut Module, rows: InstId, whole: &ArrayShape, dim: usize) -> Result<InstId, SpmdError> {
        let (n, n_own, at) = (self.n_devices, self.n_own(), Appender::new(self.comp));
        let shard = &self.found.cuts[&dim];
        let is_only = self.found.cuts.len() == 1;
        let rows = if is_only { rows } else { self.resized(module, rows, (1, shard.iter().product()))? };
        // [n, r, a.., cut, ..b] -> [r, a.., n, cut, ..b] -> [r, a.., n × cut, ..b]
        let apart = plain(whole, [&[n, n_own], &**shard].concat());
        let apart = at.add(module, "by-device", Opcode::Reshape, apart, &[rows], ReshapeAttrs::default());
        let (cut, rank) = (dim as i64 + 2, whole.rank() as i64 + 2);
        let order: Vec<i64> = (1..cut).chain([0]).chain(cut..rank).collect();
        let together = transposed(module, at, apart, &order)?;
        let mut matrices = plain(whole, [&[n_own], &**shard].concat());
        matrices.dims[dim + 1] *= n;
        let matrices = at.add(module, "matrices", Opcode::Reshape, matrices, &[together], ReshapeAttrs::default());
        self.resized(module, matrices, (dim + 1, whole.dims[dim]))
    }

    /// Shards along `dim` for each device, `[n, r, …]`, of matrices `[r, dims…]`.
    fn taken_apart(&self, module: &mut Module, own: InstId, dim: usize) -> Result<InstId, SpmdError> {
        let (n, at, cut) = (self.n_devices, Appender::new(self.comp), self.found.cuts[&dim][dim]);
        let own = self.resized(module, own, (dim + 1, n * cut))?;
        let shape = shape_of(module, own)?;
        // [r, a.., n × cut, ..b] -> [r, a.., n, cut, ..b] -> [n, r, a.., cut, ..b]
        let mut apart = shape.dims.to_vec();
        apart.splice(dim + 1..dim + 2, [n, cut]);
        let apart = at.add(module, "by-device", Opcode::Reshape, plain(&shape, apart), &[own], ReshapeAttrs::default());
        let (first, rank) = (dim as i64 + 1, shape.rank() as i64 + 1);
        let order: Vec<i64> = std::iter::once(first).chain((0..rank).filter(|&d| d != first)).collect();
        transposed(module, at, apart, &order)
    }

    /// Shards as `[first…, e]`, `e` being the most elements of a shard.
    fn flattened(&self, module: &mut Module, shards: InstId, first: &[i64]) -> Result<InstId, SpmdError> {
        let shape = shape_of(module, shards)?;
        let n_elems = shape.dims.iter().product::<i64>() / first.iter().product::<i64>().max(1);
        let flat = plain(&shape, [first, &[n_elems]].concat());
        let at = Appender::new(self.comp);
        let flat = at.add(module, "flat", Opcode::Reshape, flat, &[shards], ReshapeAttrs::default());
        let most = self.found.cuts.values().map(|shard| shard.iter().product()).max();
        self.resized(module, flat, (first.len(), most.unwrap_or(n_elems)))
    }

    /// A value with `size` elements along `dim`: zeros put behind them, or the last ones left out.
    fn resized(&self, module: &mut Module, value: InstId, (dim, size): (usize, i64)) -> Result<InstId, SpmdError> {
        let mut shape = shape_of(module, value)?;
        let padding = size - shape.dims[dim];
        let at = Appender::new(self.comp);
        shape.dims[dim] = size;
        if padding < 0 {
            return Ok(at.slice(module, "unpadded", value, shape, (dim, 0)));
        }
        if padding == 0 {
            return Ok(value);
        }
        let zero = at.zero(module, shape.dtype);
        Ok(at.pad_end(module, "padded", [value, zero], shape, (dim, padding)))
    }

    /// Of each of this device's matrices the form for the dim along which it is cut; `stacked` counts the matrices in all forms.
    fn chosen(
        &mut self,
        module: &mut Module,
        forms: &[(usize, InstId)],
        stacked: i64,
    ) -> Result<Option<InstId>, SpmdError> {
        let at = Appender::new(self.comp);
        let Some((&(_, first), others)) = forms.split_first() else { return Ok(None) };
        let mut chosen = first;
        for &(dim, form) in others {
            let shape = shape_of(module, form)?;
            let is_cut = self.is_cut_along(module, dim)?;
            let attrs = DimsAttrs { dimensions: std::iter::once(stacked).collect() };
            let preds = ArrayShape { dtype: DType::Pred, ..shape.clone() };
            let is_cut = at.add(module, "is_cut", Opcode::Broadcast, preds, &[is_cut], attrs);
            chosen = at.add(module, "chosen", Opcode::Select, shape, &[is_cut, form, chosen], Attrs::Plain);
        }
        Ok(Some(chosen))
    }

    /// `pred[r]`: which of this device's matrices are cut along `dim`.
    fn is_cut_along(&mut self, module: &mut Module, dim: usize) -> Result<InstId, SpmdError> {
        let n_rows = self.n_own() * self.n_devices;
        let mut is_cut: Vec<bool> = self.found.dims.iter().map(|&cut| cut == dim).collect();
        is_cut.resize(n_rows as usize, false);
        let table = Literal::from_elems(&[n_rows], is_cut).map_err(|_| SpmdError::PositionTable)?;
        let table = Builder::new(module, self.comp).constant("cut_dims", table);
        let shape = shape_of(module, table)?;
        self.builder.cut(module, table, &ShardFormat::new(&shape, DimRun::dim(0), self.n_devices as usize))
    }
}

/// An array of these dims, row-major where `like` has a layout.
fn plain(like: &ArrayShape, dims: Vec<i64>) -> ArrayShape {
    let shape = ArrayShape::new(like.dtype, dims);
    if like.layout.is_some() { shape.with_row_major() } else { shape }
}

fn transposed(module: &mut Module, at: Appender, value: InstId, order: &[i64]) -> Result<InstId, SpmdError> {
    let shape = shape_of(module, value)?;
    let dims = order.iter().map(|&d| shape.dims[d as usize]).collect();
    let attrs = DimsAttrs { dimensions: order.iter().copied().collect() };
    Ok(at.add(module, "transpose", Opcode::Transpose, plain(&shape, dims), &[value], attrs))
}
