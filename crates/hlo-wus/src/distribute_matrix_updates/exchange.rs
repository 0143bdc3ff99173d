//! Stacks of matrices that are in shards: from the shards of all matrices to all of some matrices, and back.
//!
//! A matrix `[a, b]` in shards of `a/n` rows on `n` devices, `k` such: `[k, a/n, b]` on each device. An all-to-all along the stack
//! gives each device `r = ⌈k/n⌉` matrices, `[r, a, b]`. It moves `1/n` of what an all-gather moves.
//!
//! A shard has `e = ab/n` elements whichever dim is cut. Where some matrices are cut along one dim and some along another, the
//! all-to-all takes `[k, e]`. Each dim gives one way to read the shards; a select takes the right one for each matrix.

use super::in_shards::InShards;
use super::stacked::{shape_of, stack_of, stack_shape};
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
        let (cut_dims, shards) = (self.found.cut_dims(), self.found.shards.concat());
        let Some(&first) = shards.first() else { return Ok(None) };
        let shard = shape_of(module, first)?;
        let row = if cut_dims.len() == 1 { stack_shape(&shard, 1) } else { flat(&shard, &[1]) };
        let stack = stack_of(module, self.comp, &shards, &row);
        let padded = self.padded(module, stack)?;
        let Some(all_to_all) = self.builder.exchange_rows(module, padded)? else { return Ok(None) };
        let mut forms = Vec::with_capacity(cut_dims.len());
        for dim in cut_dims {
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
        let (cut_dims, n, at) = (self.found.cut_dims(), self.n_devices, Appender::new(self.comp));
        let n_own = self.n_own();
        let mut forms = Vec::with_capacity(cut_dims.len());
        for &dim in &cut_dims {
            let mut shards = self.taken_apart(module, own, dim)?;
            if cut_dims.len() > 1 {
                let shape = flat(&shape_of(module, shards)?, &[n, n_own]);
                shards = at.add(module, "flat", Opcode::Reshape, shape, &[shards], ReshapeAttrs::default());
            }
            forms.push((dim, shards));
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
        let (n, at, shape) = (self.n_devices, Appender::new(self.comp), shape_of(module, rows)?);
        // [n, r, a.., cut, ..b] -> [r, a.., n, cut, ..b] -> [r, a.., n × cut, ..b]
        let mut apart = [&[n, self.n_own()], &*whole.dims].concat();
        apart[dim + 2] /= n;
        let apart = plain(&shape, apart);
        let apart = at.add(module, "by-device", Opcode::Reshape, apart, &[rows], ReshapeAttrs::default());
        let (cut, rank) = (dim as i64 + 2, whole.rank() as i64 + 2);
        let order: Vec<i64> = (1..cut).chain([0]).chain(cut..rank).collect();
        let together = transposed(module, at, apart, &order)?;
        let matrices = plain(&shape, [&[self.n_own()], &*whole.dims].concat());
        Ok(at.add(module, "matrices", Opcode::Reshape, matrices, &[together], ReshapeAttrs::default()))
    }

    /// Shards along `dim` for each device, `[n, r, …]`, of matrices `[r, dims…]`.
    fn taken_apart(&self, module: &mut Module, own: InstId, dim: usize) -> Result<InstId, SpmdError> {
        let (n, at, shape) = (self.n_devices, Appender::new(self.comp), shape_of(module, own)?);
        // [r, a.., n × cut, ..b] -> [r, a.., n, cut, ..b] -> [n, r, a.., cut, ..b]
        let mut apart = shape.dims.to_vec();
        apart[dim + 1] /= n;
        apart.insert(dim + 1, n);
        let apart = at.add(module, "by-device", Opcode::Reshape, plain(&shape, apart), &[own], ReshapeAttrs::default());
        let (first, rank) = (dim as i64 + 1, shape.rank() as i64 + 1);
        let order: Vec<i64> = std::iter::once(first).chain((0..rank).filter(|&d| d != first)).collect();
        transposed(module, at, apart, &order)
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

    fn padded(&self, module: &mut Module, stack: InstId) -> Result<InstId, SpmdError> {
        let mut shape = shape_of(module, stack)?;
        let padding = self.n_own() * self.n_devices - shape.dims[0];
        if padding == 0 {
            return Ok(stack);
        }
        let at = Appender::new(self.comp);
        let zero = at.zero(module, shape.dtype);
        shape.dims[0] += padding;
        Ok(at.pad_end(module, "padded", [stack, zero], shape, (0, padding)))
    }
}

/// An array of these dims, row-major where `like` has a layout.
fn plain(like: &ArrayShape, dims: Vec<i64>) -> ArrayShape {
    let shape = ArrayShape::new(like.dtype, dims);
    if like.layout.is_some() { shape.with_row_major() } else { shape }
}

/// The elements of `like` in dims `[first…, e]`.
fn flat(like: &ArrayShape, first: &[i64]) -> ArrayShape {
    let (n_elems, n_first) = (like.dims.iter().product::<i64>(), first.iter().product::<i64>());
    plain(like, [first, &[n_elems / n_first.max(1)]].concat())
}

fn transposed(module: &mut Module, at: Appender, value: InstId, order: &[i64]) -> Result<InstId, SpmdError> {
    let shape = shape_of(module, value)?;
    let dims = order.iter().map(|&d| shape.dims[d as usize]).collect();
    let attrs = DimsAttrs { dimensions: order.iter().copied().collect() };
    Ok(at.add(module, "transpose", Opcode::Transpose, plain(&shape, dims), &[value], attrs))
}
