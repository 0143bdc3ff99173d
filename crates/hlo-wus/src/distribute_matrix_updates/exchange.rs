//! Stacks of matrices that are in shards: from the shards of all matrices to all of some matrices, and back.
//!
//! A matrix `[a, b]` in shards of `a/n` rows on `n` devices, `k` such: `[k, a/n, b]` on each device. An all-to-all along the stack
//! gives each device `r = ⌈k/n⌉` matrices, `[r, a, b]`. It moves `1/n` of what an all-gather moves.

use super::stacked::stack_shape;
use hlo_ir::attrs::{DimsAttrs, ReshapeAttrs};
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};
use hlo_spmd::{Appender, ShardBuilder, SpmdError, array, find_device_values};

/// Matrices in shards along one of their dims.
pub(super) struct InShards {
    pub(super) dim: usize,
    /// This device's shard of each matrix; or, of each matrix, those that take it.
    pub(super) shards: Vec<Vec<InstId>>,
}

/// The shards of arrays that are all-gathers within `groups` along one dim.
pub(super) fn find_gathered(module: &Module, arrays: &[InstId], groups: &[Vec<u32>]) -> Option<InShards> {
    let mut dim = None;
    let mut shards = Vec::with_capacity(arrays.len());
    for &whole in arrays {
        let instruction = module.inst(whole);
        let [shard] = instruction.operands.as_slice() else { return None };
        let is_gather = instruction.opcode == Opcode::AllGather && module.device_groups(whole).ok()?.groups == groups;
        let found = cut_dim(array(module, whole)?, array(module, *shard)?, groups).filter(|_| is_gather)?;
        if *dim.get_or_insert(found) != found {
            return None;
        }
        shards.push(vec![*shard]);
    }
    Some(InShards { dim: dim?, shards })
}

/// The slices of arrays of which each device of `groups` takes its own alone, along one dim: all `readers` of each array.
pub(super) fn find_sliced(
    module: &Module,
    comp: CompId,
    arrays: &[InstId],
    readers: impl Fn(InstId) -> Vec<InstId>,
    groups: &[Vec<u32>],
) -> Option<InShards> {
    let mut dim = None;
    let mut shards = Vec::with_capacity(arrays.len());
    for &whole in arrays {
        let slices = readers(whole);
        if module.comp(comp).root.expand() == Some(whole) || slices.is_empty() {
            return None;
        }
        for &slice in &slices {
            let is_slice = module.inst(slice).opcode == Opcode::DynamicSlice
                && module.inst(slice).operands.iter().position(|&operand| operand == whole) == Some(0);
            if !is_slice {
                return None;
            }
            let found = cut_dim(array(module, whole)?, array(module, slice)?, groups)?;
            let size = array(module, slice)?.dims[found];
            let starts = find_device_values(module, *module.inst(slice).operands.get(found + 1)?)?;
            let is_own = |(place, &device): (i64, &u32)| starts.get(device as usize) == Some(&(place * size));
            if *dim.get_or_insert(found) != found || !groups.iter().all(|group| (0..).zip(group).all(is_own)) {
                return None;
            }
        }
        shards.push(slices);
    }
    Some(InShards { dim: dim?, shards })
}

/// The one dim of `whole` of which `shard` has an even part.
fn cut_dim(whole: &ArrayShape, shard: &ArrayShape, groups: &[Vec<u32>]) -> Option<usize> {
    let n = groups.first()?.len() as i64;
    let mut cut = (0..whole.rank().min(shard.rank())).filter(|&dim| whole.dims[dim] != shard.dims[dim]);
    let dim = cut.next().filter(|_| whole.rank() == shard.rank())?;
    (cut.next().is_none() && shard.dims[dim] * n == whole.dims[dim]).then_some(dim)
}

/// Builds exchanges in one computation.
pub(super) struct Exchange<'b> {
    pub(super) comp: CompId,
    pub(super) n_devices: i64,
    pub(super) builder: &'b mut ShardBuilder,
}

impl Exchange<'_> {
    /// From `[k, dims…]` with shards along `dim` to this device's part of the stack, `[r, dims…]` whole. `None` where it cannot
    /// be built.
    ///
    /// # Errors
    /// `stack` is no array.
    pub(super) fn gather_matrices(
        &mut self,
        module: &mut Module,
        stack: InstId,
        dim: usize,
    ) -> Result<Option<(InstId, InstId)>, SpmdError> {
        let (n, at) = (self.n_devices, Appender::new(self.comp));
        let Some(shape) = array(module, stack).cloned() else { return Err(SpmdError::not_an_array(module, stack)) };
        let n_own = shape.dims[0].div_euclid(n) + i64::from(shape.dims[0] % n > 0);
        let rows = self.padded(module, stack, &shape, n_own * n);
        let Some(exchanged) = self.builder.exchange_rows(module, rows)? else { return Ok(None) };
        // [n, r, a.., cut, ..b] -> [r, a.., n, cut, ..b] -> [r, a.., n × cut, ..b]
        let of_shard: Vec<i64> = shape.dims[1..].to_vec();
        let apart = [&[n, n_own], of_shard.as_slice()].concat();
        let apart =
            at.add(module, "by-device", Opcode::Reshape, plain(&shape, apart), &[exchanged], ReshapeAttrs::default());
        let order: Vec<i64> = (1..2 + dim as i64).chain([0]).chain(2 + dim as i64..shape.rank() as i64 + 1).collect();
        let together = transposed(module, at, apart, &order);
        let mut whole = [&[n_own], of_shard.as_slice()].concat();
        whole[dim + 1] *= n;
        let shape = plain(&shape, whole);
        let matrices = at.add(module, "matrices", Opcode::Reshape, shape, &[together], ReshapeAttrs::default());
        Ok(Some((matrices, exchanged)))
    }

    /// From this device's part of a stack of `k` matrices, `[r, dims…]`, to its shards of all of them along `dim`, `[k, dims…]`.
    /// `None` where it cannot be built.
    ///
    /// # Errors
    /// `own` is no array.
    pub(super) fn scatter_matrices(
        &mut self,
        module: &mut Module,
        own: InstId,
        (dim, k): (usize, i64),
    ) -> Result<Option<(InstId, InstId)>, SpmdError> {
        let (n, at) = (self.n_devices, Appender::new(self.comp));
        let Some(shape) = array(module, own).cloned() else { return Err(SpmdError::not_an_array(module, own)) };
        let n_own = shape.dims[0];
        // [r, a.., n × cut, ..b] -> [r, a.., n, cut, ..b] -> [n, r, a.., cut, ..b]
        let mut apart = shape.dims.to_vec();
        apart[dim + 1] = n;
        apart.insert(dim + 2, shape.dims[dim + 1] / n);
        let apart = at.add(module, "by-device", Opcode::Reshape, plain(&shape, apart), &[own], ReshapeAttrs::default());
        let first = dim as i64 + 1;
        let order: Vec<i64> = std::iter::once(first).chain((0..=shape.rank() as i64).filter(|&d| d != first)).collect();
        let by_device = transposed(module, at, apart, &order);
        let mut rows = shape.dims.to_vec();
        rows[0] = n * n_own;
        rows[dim + 1] /= n;
        let shape = plain(&shape, rows);
        let rows = at.add(module, "shards", Opcode::Reshape, shape.clone(), &[by_device], ReshapeAttrs::default());
        let Some(exchanged) = self.builder.exchange_rows(module, rows)? else { return Ok(None) };
        let mut all = shape;
        all.dims[0] = k;
        let shards = match n * n_own == k {
            true => exchanged,
            false => at.slice(module, "unpadded", exchanged, all, (0, 0)),
        };
        Ok(Some((shards, exchanged)))
    }

    fn padded(&self, module: &mut Module, stack: InstId, shape: &ArrayShape, n_rows: i64) -> InstId {
        let padding = n_rows - shape.dims[0];
        if padding == 0 {
            return stack;
        }
        let at = Appender::new(self.comp);
        let zero = at.zero(module, shape.dtype);
        let mut padded = shape.clone();
        padded.dims[0] = n_rows;
        at.pad_end(module, "padded", [stack, zero], padded, (0, padding))
    }
}

/// An array of these dims, row-major where `like` has a layout.
fn plain(like: &ArrayShape, dims: Vec<i64>) -> ArrayShape {
    let shape = ArrayShape::new(like.dtype, dims);
    if like.layout.is_some() { shape.with_row_major() } else { shape }
}

fn transposed(module: &mut Module, at: Appender, value: InstId, order: &[i64]) -> InstId {
    let Some(shape) = array(module, value).cloned() else { return value };
    let dims = order.iter().map(|&d| shape.dims[d as usize]).collect();
    let attrs = DimsAttrs { dimensions: order.iter().copied().collect() };
    at.add(module, "transpose", Opcode::Transpose, plain(&shape, dims), &[value], attrs)
}

/// The shard of matrix `idx` in `[k, dims…]`.
pub(super) fn shard_of(module: &mut Module, comp: CompId, stack: InstId, (idx, like): (i64, &ArrayShape)) -> InstId {
    let at = Appender::new(comp);
    let row = at.slice(module, "row", stack, stack_shape(like, 1), (0, idx));
    at.add(module, "update", Opcode::Reshape, like.clone(), &[row], ReshapeAttrs::default())
}
