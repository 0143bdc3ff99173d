//! Operations that only move elements: broadcast, transpose, slices, pad, concatenate, reverse, bitcast, iota.

use super::strided::{Extents, View, read, row_major_strides, write};
use super::typed::{map_elems, zip_elems};
use crate::error::EvalError;
use hlo_ir::attrs::{PadDim, SliceDim};
use hlo_ir::literal::Buffer;
use hlo_ir::{ArrayShape, DType, Literal};
use std::sync::Arc;

/// The elements of `x` at the places of `view`, as an array of `dims`.
fn read_view(x: &Literal, view: &View, dims: &[i64]) -> Result<Literal, EvalError> {
    let data = map_elems!(x.data(), v => read(v, view)?);
    Ok(Literal::new(x.dtype(), dims, data)?)
}

/// `dim` as an index into `rank` dims.
pub(crate) fn dim_index(dim: i64, rank: usize) -> Result<usize, EvalError> {
    usize::try_from(dim)
        .ok()
        .filter(|&d| d < rank)
        .ok_or_else(|| EvalError::invalid(format!("expected a dim below {rank}, found {dim}")))
}

pub(crate) fn check_rank(what: &str, expected: usize, found: usize) -> Result<(), EvalError> {
    if expected == found {
        return Ok(());
    }
    Err(EvalError::invalid(format!("expected {expected} {what}, found {found}")))
}

/// `broadcast`: dim `i` of `x` becomes dim `dimensions[i]` of the result.
pub(crate) fn broadcast(x: &Literal, dimensions: &[i64], result: &ArrayShape) -> Result<Literal, EvalError> {
    check_rank("broadcast dimensions", x.dims().len(), dimensions.len())?;
    let strides = row_major_strides(x.dims());
    let mut view = View::whole(&result.dims);
    view.strides.iter_mut().for_each(|s| *s = 0);
    for (i, &dim) in dimensions.iter().enumerate() {
        let dim = dim_index(dim, result.rank())?;
        let (from, to) = (x.dims()[i], result.dims[dim]);
        if from != to && from != 1 {
            return Err(EvalError::invalid(format!("expected dim {i} of size {to} or 1, found {from}")));
        }
        view.strides[dim] = if from == to { strides[i] } else { 0 };
    }
    read_view(x, &view, &result.dims)
}

/// `transpose`: dim `i` of the result is dim `dimensions[i]` of `x`.
pub(crate) fn transpose(x: &Literal, dimensions: &[i64]) -> Result<Literal, EvalError> {
    let rank = x.dims().len();
    check_rank("transpose dimensions", rank, dimensions.len())?;
    let strides = row_major_strides(x.dims());
    let mut view = View::default();
    let mut dims = Extents::<i64>::new();
    for &dim in dimensions {
        let dim = dim_index(dim, rank)?;
        dims.push(x.dims()[dim]);
        view.dims.push(x.dims()[dim] as usize);
        view.strides.push(strides[dim]);
    }
    read_view(x, &view, &dims)
}

/// `reverse` along `dimensions`.
pub(crate) fn reverse(x: &Literal, dimensions: &[i64]) -> Result<Literal, EvalError> {
    let mut view = View::whole(x.dims());
    for &dim in dimensions {
        let dim = dim_index(dim, x.dims().len())?;
        view.offset += (x.dims()[dim] - 1).max(0) * view.strides[dim];
        view.strides[dim] = -view.strides[dim];
    }
    read_view(x, &view, x.dims())
}

/// `slice`.
pub(crate) fn slice(x: &Literal, ranges: &[SliceDim], result: &ArrayShape) -> Result<Literal, EvalError> {
    check_rank("slice ranges", x.dims().len(), ranges.len())?;
    check_rank("result dims", ranges.len(), result.rank())?;
    let mut view = View::whole(&result.dims);
    view.strides = row_major_strides(x.dims());
    for (i, range) in ranges.iter().enumerate() {
        view.offset = view.offset.saturating_add(range.start.saturating_mul(view.strides[i]));
        view.strides[i] = view.strides[i].saturating_mul(range.stride.max(1));
    }
    read_view(x, &view, &result.dims)
}

/// Start indices of a dynamic slice, clamped so that `sizes` fit. An unsigned index above the range of its signed
/// counterpart is a large one, as when XLA runs it; only where XLA folds a constant index of a dynamic-slice while it
/// compiles does it take it for a negative one.
fn clamped_starts(dims: &[i64], sizes: &[i64], starts: &[Arc<Literal>]) -> Result<Extents<i64>, EvalError> {
    check_rank("slice sizes", dims.len(), sizes.len())?;
    // The old form passes all start indices in one rank-1 operand.
    let scalars: Vec<Option<i64>> = match starts {
        [all] if all.dims().len() == 1 => (0..all.n_elems()).map(|i| index_of(all, i)).collect(),
        _ => starts.iter().map(|s| index_of(s, 0)).collect(),
    };
    check_rank("start indices", dims.len(), scalars.len())?;
    let mut out = Extents::new();
    for (i, start) in scalars.into_iter().enumerate() {
        let start = start.ok_or_else(|| EvalError::invalid("expected integer start indices"))?;
        out.push(start.clamp(0, (dims[i] - sizes[i]).max(0)));
    }
    Ok(out)
}

/// An element as an index; unsigned values beyond `i64` saturate.
pub(crate) fn index_of(x: &Literal, i: usize) -> Option<i64> {
    match x.get(i)? {
        hlo_ir::Scalar::Int(v) => Some(v),
        hlo_ir::Scalar::Uint(v) => Some(i64::try_from(v).unwrap_or(i64::MAX)),
        hlo_ir::Scalar::Pred(v) => Some(i64::from(v)),
        hlo_ir::Scalar::Float(_) | hlo_ir::Scalar::Complex(..) => None,
    }
}

/// `dynamic-slice`.
pub(crate) fn dynamic_slice(x: &Literal, starts: &[Arc<Literal>], result: &ArrayShape) -> Result<Literal, EvalError> {
    let starts = clamped_starts(x.dims(), &result.dims, starts)?;
    let mut view = View::whole(&result.dims);
    view.strides = row_major_strides(x.dims());
    view.offset = starts.iter().zip(&view.strides).map(|(s, stride)| s * stride).sum();
    read_view(x, &view, &result.dims)
}

/// `dynamic-update-slice`; writes in place where `x` has no other holder.
pub(crate) fn dynamic_update_slice(
    x: Arc<Literal>,
    update: &Literal,
    starts: &[Arc<Literal>],
) -> Result<Literal, EvalError> {
    let starts = clamped_starts(x.dims(), update.dims(), starts)?;
    let (dtype, dims) = (x.dtype(), Extents::<i64>::from_slice(x.dims()));
    let mut view = View::whole(update.dims());
    view.strides = row_major_strides(&dims);
    view.offset = starts.iter().zip(&view.strides).map(|(s, stride)| s * stride).sum();
    let data = Arc::unwrap_or_clone(x).into_data();
    let data = zip_elems!(data, update.data(), (to, from) => {
        let mut to = to;
        write(&mut to, &view, from)?;
        to
    })?;
    Ok(Literal::new(dtype, &dims, data)?)
}

/// `pad` with `value`; negative paddings cut off.
pub(crate) fn pad(x: &Literal, value: &Literal, padding: &[PadDim], result: &ArrayShape) -> Result<Literal, EvalError> {
    check_rank("padding entries", x.dims().len(), padding.len())?;
    check_rank("result dims", padding.len(), result.rank())?;
    let from_strides = row_major_strides(x.dims());
    let mut from = View::whole(x.dims());
    let mut to = View::whole(&result.dims);
    for (i, pad) in padding.iter().enumerate() {
        let step = pad.interior.max(0).saturating_add(1);
        // Element k of the operand lands at low + k × step; keep those that land inside.
        let first = if pad.low < 0 { pad.low.unsigned_abs().div_ceil(step as u64) as i64 } else { 0 };
        let room = result.dims[i].saturating_sub(1).saturating_sub(pad.low);
        let last = if room < 0 { -1 } else { (room / step).min(x.dims()[i] - 1) };
        let n_kept = (last - first + 1).max(0);
        from.offset += first * from_strides[i];
        from.dims[i] = n_kept as usize;
        to.offset += (pad.low + first * step) * to.strides[i];
        to.strides[i] *= step;
        to.dims[i] = n_kept as usize;
    }
    let n_elems =
        hlo_ir::literal::element_count(&result.dims).ok_or_else(|| EvalError::invalid("dims out of range"))?;
    let data = zip_elems!(x.data(), value.data(), (elems, fill) => {
        let fill = *fill.first().ok_or_else(|| EvalError::invalid("expected a scalar padding value"))?;
        let mut out = vec![fill; n_elems];
        if from.n_elems() > 0 {
            write(&mut out, &to, &read(elems, &from)?)?;
        }
        out
    })?;
    Ok(Literal::new(x.dtype(), &result.dims, data)?)
}

/// `concatenate` along `dim`.
pub(crate) fn concatenate(parts: &[Arc<Literal>], dim: i64) -> Result<Literal, EvalError> {
    let first = parts.first().ok_or_else(|| EvalError::invalid("expected at least one operand to concatenate"))?;
    let dim = dim_index(dim, first.dims().len())?;
    let mut dims = Extents::<i64>::from_slice(first.dims());
    let fits = |p: &Literal| {
        p.dims().len() == dims.len() && p.dims().iter().zip(&dims).enumerate().all(|(i, (a, b))| i == dim || a == b)
    };
    if !parts.iter().all(|p| fits(p)) {
        return Err(EvalError::invalid("expected operands that differ in the concatenated dim only"));
    }
    let n_outer: i64 = dims[..dim].iter().product();
    let inner: i64 = dims[dim + 1..].iter().product();
    dims[dim] = parts.iter().map(|p| p.dims()[dim]).sum();
    let mut data = map_elems!(first.data(), v => Vec::with_capacity(v.len() * parts.len()));
    for outer in 0..n_outer.max(0) as usize {
        for part in parts {
            let n = (part.dims()[dim] * inner) as usize;
            data = zip_elems!(data, part.data(), (to, from) => {
                let mut to = to;
                let row = from.get(outer * n..(outer + 1) * n);
                to.extend_from_slice(row.ok_or_else(|| EvalError::invalid("operand too short"))?);
                to
            })?;
        }
    }
    Ok(Literal::new(first.dtype(), &dims, data)?)
}

/// `reshape`: the same row-major elements under other dims.
pub(crate) fn reshape(x: Arc<Literal>, result: &ArrayShape) -> Result<Arc<Literal>, EvalError> {
    if x.dims() == result.dims.as_slice() {
        return Ok(x);
    }
    Ok(Arc::new(Arc::unwrap_or_clone(x).with_dims(&result.dims)?))
}

/// `bitcast`: the same bytes in memory under another shape and layout.
pub(crate) fn bitcast(x: Arc<Literal>, operand: &ArrayShape, result: &ArrayShape) -> Result<Arc<Literal>, EvalError> {
    let physical = |shape: &ArrayShape| -> Option<Extents<i64>> {
        let order = shape.major_to_minor();
        (!order.is_sorted()).then(|| order.into_iter().map(|dim| dim as i64).collect())
    };
    let mut x = match physical(operand) {
        Some(order) => Arc::new(transpose(&x, &order)?),
        None => x,
    };
    let order = physical(result);
    let mut dims: Extents<i64> = result.dims.iter().copied().collect();
    if let Some(order) = &order {
        for (slot, &d) in dims.iter_mut().zip(order) {
            *slot = result.dims[dim_index(d, result.rank())?];
        }
    }
    if x.dtype() != result.dtype {
        x = Arc::new(x.bitcast_convert(result.dtype, &dims)?);
    } else if x.dims() != dims.as_slice() {
        x = Arc::new(Arc::unwrap_or_clone(x).with_dims(&dims)?);
    }
    let Some(order) = order else { return Ok(x) };
    let mut inverse: Extents<i64> = order.clone();
    for (i, &d) in order.iter().enumerate() {
        inverse[dim_index(d, order.len())?] = i as i64;
    }
    Ok(Arc::new(transpose(&x, &inverse)?))
}

/// `iota` along `dim`.
pub(crate) fn iota(dim: i64, result: &ArrayShape) -> Result<Literal, EvalError> {
    let dim = dim_index(dim, result.rank())?;
    let line = Literal::new(DType::S64, &[result.dims[dim]], Buffer::S64((0..result.dims[dim]).collect()))?;
    broadcast(&line.convert(result.dtype), &[dim as i64], result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::Layout;

    fn array(dims: &[i64]) -> Arc<Literal> {
        let n: i64 = dims.iter().product();
        Arc::new(Literal::from_elems(dims, (0..n as i32).collect()).unwrap())
    }

    fn elems(x: &Literal) -> &[i32] {
        x.elems::<i32>().unwrap()
    }

    fn shape(dims: &[i64]) -> ArrayShape {
        ArrayShape::new(DType::S32, dims.iter().copied())
    }

    fn scalar(x: i32) -> Arc<Literal> {
        Arc::new(Literal::from_elem(x))
    }

    #[test]
    fn moves_are_those_of_small_arrays_by_hand() {
        let x = array(&[2, 3]);
        assert_eq!(elems(&transpose(&x, &[1, 0]).unwrap()), [0, 3, 1, 4, 2, 5]);
        assert_eq!(elems(&reverse(&x, &[1]).unwrap()), [2, 1, 0, 5, 4, 3]);
        assert_eq!(elems(&broadcast(&x, &[0, 2], &shape(&[2, 2, 3])).unwrap()), [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
        let ranges = [SliceDim { start: 0, limit: 2, stride: 1 }, SliceDim { start: 0, limit: 3, stride: 2 }];
        assert_eq!(elems(&slice(&x, &ranges, &shape(&[2, 2])).unwrap()), [0, 2, 3, 5]);
        assert_eq!(elems(&concatenate(&[x.clone(), array(&[2, 1])], 1).unwrap()), [0, 1, 2, 0, 3, 4, 5, 1]);
        assert_eq!(elems(&iota(0, &shape(&[2, 2])).unwrap()), [0, 0, 1, 1]);
    }

    #[test]
    fn dynamic_starts_are_clamped() {
        let x = array(&[4]);
        let at = |i: i32| elems(&dynamic_slice(&x, &[scalar(i)], &shape(&[2])).unwrap()).to_vec();
        assert_eq!((at(-3), at(1), at(9)), (vec![0, 1], vec![1, 2], vec![2, 3]));
        let update = Literal::from_elems(&[2], vec![7, 8]).unwrap();
        assert_eq!(elems(&dynamic_update_slice(x, &update, &[scalar(3)]).unwrap()), [0, 1, 7, 8]);
    }

    #[test]
    fn pads_are_positive_negative_and_interior() {
        let x = array(&[3]);
        let run = |low, high, interior, n| {
            let pad_dim = PadDim { low, high, interior };
            elems(&pad(&x, &scalar(9), &[pad_dim], &shape(&[n])).unwrap()).to_vec()
        };
        assert_eq!(run(1, 2, 0, 6), [9, 0, 1, 2, 9, 9]);
        assert_eq!(run(0, 0, 1, 5), [0, 9, 1, 9, 2]);
        assert_eq!(run(-1, 0, 1, 4), [9, 1, 9, 2]);
        assert_eq!(run(-1, -1, 0, 1), [1]);
        assert_eq!(run(-2, -1, 1, 2), [1, 9]);
        assert_eq!(run(2, -3, 0, 2), [9, 9]);
        assert_eq!(run(-4, 3, 0, 2), [9, 9]);
    }

    #[test]
    fn bitcasts_follow_the_layouts() {
        let laid = |dims: &[i64], order: &[i64]| ArrayShape {
            layout: Some(Box::new(Layout::new(order.iter().copied().collect()))),
            ..shape(dims)
        };
        let x = array(&[2, 3]);
        // Column-major 2×3 holds the bytes of row-major 3×2.
        let y = bitcast(x.clone(), &laid(&[2, 3], &[0, 1]), &laid(&[3, 2], &[1, 0])).unwrap();
        assert_eq!((y.dims(), elems(&y)), (&[3, 2][..], &[0, 3, 1, 4, 2, 5][..]));
        let back = bitcast(y, &laid(&[3, 2], &[1, 0]), &laid(&[2, 3], &[0, 1])).unwrap();
        assert_eq!(back, x);
        let flat = bitcast(x, &laid(&[2, 3], &[1, 0]), &laid(&[6], &[0])).unwrap();
        assert_eq!(elems(&flat), [0, 1, 2, 3, 4, 5]);
    }
}
