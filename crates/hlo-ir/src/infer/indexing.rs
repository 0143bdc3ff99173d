//! Shape rules of gather and scatter.
//!
//! Notation: the *index vectors* lie along `index_vector_dim` of the indices (beyond the last dim: the indices are
//! scalars); the other dims of the indices are batch dims. Operand dims are collapsed, batching, or window dims.

use super::shape_text::DimsText;
use super::*;
use crate::attrs::{GatherAttrs, ScatterAttrs};

/// What gather and scatter share: the indices with batch dims and index vectors.
struct Indices<'a> {
    array: &'a ArrayShape,
    vector_dim: usize,
}

impl<'a> Indices<'a> {
    fn of(array: &'a ArrayShape, vector_dim: i64) -> Checked<Indices<'a>> {
        if !array.dtype.is_integer() {
            return fail("gather.indices", "integer indices", array.dtype);
        }
        match usize::try_from(vector_dim) {
            Ok(d) if d <= array.rank() => Ok(Indices { array, vector_dim: d }),
            Ok(_) | Err(_) => {
                fail("gather.index-vector-dim", format_args!("a dim from 0 to {}", array.rank()), vector_dim)
            }
        }
    }

    fn vector_len(&self) -> i64 {
        self.array.dims.get(self.vector_dim).copied().unwrap_or(1)
    }

    /// Sizes of the batch dims, in order.
    fn batch(&self) -> impl Iterator<Item = (usize, i64)> + '_ {
        self.array.dims.iter().copied().enumerate().filter(|&(d, _)| d != self.vector_dim)
    }

    fn n_batch(&self) -> usize {
        self.batch().count()
    }

    /// Checks the map from index components to operand dims and the batching dims of both sides.
    fn check_maps(&self, operand: &ArrayShape, map: &[i64], operand_batching: &[i64], batching: &[i64]) -> Checked<()> {
        if !dim_agrees(map.len() as i64, self.vector_len()) {
            return fail(
                "gather.index-map",
                format_args!("{} dims, one for each index component", self.vector_len()),
                map.len(),
            );
        }
        let mapped = dim_set("gather.index-map", map, operand.rank())?;
        let batched = dim_set("gather.batching-dims", operand_batching, operand.rank())?;
        if mapped & batched != 0 {
            return fail(
                "gather.batching-dims",
                "batching dims without an index component",
                DimsText(operand_batching),
            );
        }
        dim_set("gather.batching-dims", batching, self.array.rank())?;
        if operand_batching.len() != batching.len() || batching.contains(&(self.vector_dim as i64)) {
            let expected = format!("{} batch dims of the indices", operand_batching.len());
            return fail("gather.batching-dims", expected, DimsText(batching));
        }
        for (&o, &i) in operand_batching.iter().zip(batching) {
            let (n, m) = (operand.dims[o as usize], self.array.dims[i as usize]);
            if !dim_agrees(n, m) {
                return fail("gather.batching-sizes", format_args!("size {n} in dim {i} of the indices"), m);
            }
        }
        Ok(())
    }
}

fn check_sorted(constraint: &'static str, dims: &[i64], rank: usize) -> Checked<u64> {
    if !dims.is_sorted() {
        return fail(constraint, "dims in ascending order", DimsText(dims));
    }
    dim_set(constraint, dims, rank)
}

pub(super) fn gather(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Gather(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (operand, indices) = (cx.array(0)?, Indices::of(cx.array(1)?, attrs.index_vector_dim)?);
    indices.check_maps(
        operand,
        &attrs.start_index_map,
        &attrs.operand_batching_dims,
        &attrs.start_indices_batching_dims,
    )?;
    let gone = check_gather_slices(attrs, operand)?;
    let result_rank = attrs.offset_dims.len() + indices.n_batch();
    let offsets = check_sorted("gather.offset-dims", &attrs.offset_dims, result_rank)?;
    let mut window =
        attrs.slice_sizes.iter().enumerate().filter(|&(d, _)| d >= 64 || gone >> d & 1 == 0).map(|(_, &s)| s);
    let mut batch = indices.batch();
    let (mut dims, mut dynamic) = (Dims::new(), 0u64);
    for d in 0..result_rank {
        if d < 64 && offsets >> d & 1 == 1 {
            dims.extend(window.next());
        } else if let Some((from, size)) = batch.next() {
            dynamic |= dynamic_bit(indices.array, from, d);
            dims.push(size);
        }
    }
    Ok(array_of(operand.dtype, dims, dynamic))
}

/// Checks the slice sizes; returns the operand dims that the result drops.
fn check_gather_slices(attrs: &GatherAttrs, operand: &ArrayShape) -> Checked<u64> {
    let collapsed = check_sorted("gather.collapsed-dims", &attrs.collapsed_slice_dims, operand.rank())?;
    let batched = dim_set("gather.batching-dims", &attrs.operand_batching_dims, operand.rank())?;
    if collapsed & batched != 0 {
        return fail(
            "gather.batching-dims",
            "batching dims that are not collapsed",
            DimsText(&attrs.operand_batching_dims),
        );
    }
    if attrs.slice_sizes.len() != operand.rank() {
        return fail("gather.slice-sizes", format_args!("{} slice sizes", operand.rank()), attrs.slice_sizes.len());
    }
    let gone = collapsed | batched;
    for (d, (&slice, &size)) in attrs.slice_sizes.iter().zip(&operand.dims).enumerate() {
        let limit = if d < 64 && gone >> d & 1 == 1 { 1 } else { size };
        if slice < 0 || (limit != UNBOUNDED_DIM && slice > limit) || (size != UNBOUNDED_DIM && slice > size) {
            return fail("gather.slice-sizes", format_args!("a slice size of at most {limit} in dim {d}"), slice);
        }
    }
    let n_window = operand.rank() - gone.count_ones() as usize;
    if n_window != attrs.offset_dims.len() {
        return fail("gather.offset-dims", format_args!("{n_window} offset dims"), attrs.offset_dims.len());
    }
    Ok(gone)
}

pub(super) fn scatter(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Scatter(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let n = cx.n_operands() / 2;
    if cx.n_operands() != 2 * n + 1 {
        return fail("scatter.operands", "arrays, indices, and one update for each array", cx.n_operands());
    }
    let (first, first_update) = (cx.array(0)?, cx.array(n + 1)?);
    let indices = Indices::of(cx.array(n)?, attrs.index_vector_dim)?;
    indices.check_maps(
        first,
        &attrs.scatter_dims_to_operand_dims,
        &attrs.input_batching_dims,
        &attrs.scatter_indices_batching_dims,
    )?;
    for i in 0..n {
        let (operand, update) = (cx.array(i)?, cx.array(n + 1 + i)?);
        if operand.dtype != update.dtype {
            return fail("scatter.element-type", operand.dtype, format_args!("{} as update {i}", update.dtype));
        }
        if !dims_agree(&first.dims, &operand.dims) || !dims_agree(&first_update.dims, &update.dims) {
            return fail("scatter.equal-dims", "equal dims of all arrays and of all updates", DimsText(&operand.dims));
        }
    }
    check_updates(attrs, first, &indices, first_update)?;
    if n == 1 {
        return Ok(Inferred::Operand(0));
    }
    Ok(Inferred::Shape(Shape::Tuple(cx.op.operands[..n].iter().map(|s| (*s).clone()).collect())))
}

fn check_updates(
    attrs: &ScatterAttrs,
    operand: &ArrayShape,
    indices: &Indices<'_>,
    update: &ArrayShape,
) -> Checked<()> {
    let inserted = check_sorted("scatter.inserted-dims", &attrs.inserted_window_dims, operand.rank())?;
    let batched = dim_set("gather.batching-dims", &attrs.input_batching_dims, operand.rank())?;
    if inserted & batched != 0 {
        return fail(
            "gather.batching-dims",
            "batching dims that are not inserted",
            DimsText(&attrs.input_batching_dims),
        );
    }
    let gone = inserted | batched;
    let n_window = operand.rank() - gone.count_ones() as usize;
    if n_window != attrs.update_window_dims.len() {
        return fail("scatter.window-dims", format_args!("{n_window} window dims"), attrs.update_window_dims.len());
    }
    if update.rank() != n_window + indices.n_batch() {
        let expected = format!("updates of rank {}", n_window + indices.n_batch());
        return fail("scatter.update-rank", expected, update.rank());
    }
    let windows = check_sorted("scatter.window-dims", &attrs.update_window_dims, update.rank())?;
    let mut limits =
        operand.dims.iter().enumerate().filter(|&(d, _)| d >= 64 || gone >> d & 1 == 0).map(|(_, &size)| size);
    let mut batch = indices.batch();
    for (d, &size) in update.dims.iter().enumerate() {
        if d < 64 && windows >> d & 1 == 1 {
            let limit = limits.next().unwrap_or(UNBOUNDED_DIM);
            if size > limit && limit != UNBOUNDED_DIM {
                return fail("scatter.window-size", format_args!("at most {limit} in update dim {d}"), size);
            }
        } else if let Some((_, expected)) = batch.next()
            && !dim_agrees(expected, size)
        {
            return fail("scatter.batch-size", format_args!("{expected} in update dim {d}"), size);
        }
    }
    Ok(())
}
