//! Shape rules of ops that only move elements.

use super::shape_text::DimsText;
use super::*;
use crate::dtype::DType;

pub(super) fn broadcast(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Dims(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (from, to) = (cx.array(0)?, cx.stated_array()?);
    if from.dtype != to.dtype {
        return fail("broadcast.element-type", from.dtype, to.dtype);
    }
    if attrs.dimensions.len() != from.rank() {
        return fail(
            "broadcast.n-dimensions",
            format_args!("{} dims, one for each of the operand", from.rank()),
            DimsText(&attrs.dimensions),
        );
    }
    dim_set("broadcast.dimensions", &attrs.dimensions, to.rank())?;
    for (i, &d) in attrs.dimensions.iter().enumerate() {
        if !dim_agrees(from.dims[i], to.dims[d as usize]) {
            let found = format!("{} in operand dim {i}", from.dims[i]);
            return fail("broadcast.sizes", format_args!("size {} of result dim {d}", to.dims[d as usize]), found);
        }
    }
    Ok(Inferred::Stated)
}

fn has_unbounded(array: &ArrayShape) -> bool {
    array.dims.contains(&UNBOUNDED_DIM)
}

pub(super) fn reshape(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Reshape(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (from, to) = (cx.array(0)?, cx.stated_array()?);
    check_reshape(from, to)?;
    if let Some(dim) = attrs.inferred_dimension
        && dim != -1
    {
        dim_index("reshape.inferred-dimension", dim, to.rank())?;
    }
    Ok(Inferred::Stated)
}

fn check_reshape(from: &ArrayShape, to: &ArrayShape) -> Checked<()> {
    if from.dtype != to.dtype {
        return fail("reshape.element-type", from.dtype, to.dtype);
    }
    if from.n_elems() != to.n_elems() && !has_unbounded(from) && !has_unbounded(to) {
        return fail(
            "reshape.n-elements",
            format_args!("{} elements", from.n_elems()),
            format_args!("{} in {}", to.n_elems(), DimsText(&to.dims)),
        );
    }
    Ok(())
}

pub(super) fn dynamic_reshape(cx: &Infer<'_>) -> Checked<Inferred> {
    let (from, to) = (cx.array(0)?, cx.stated_array()?);
    check_reshape(from, to)?;
    if cx.n_operands() != to.rank() + 1 {
        let expected = format!("{} dim sizes after the array", to.rank());
        return fail("dynamic-reshape.n-sizes", expected, cx.n_operands() - 1);
    }
    for i in 1..cx.n_operands() {
        check_scalar("dynamic-reshape.size", i, cx.array(i)?, Some(DType::S32))?;
    }
    Ok(Inferred::Stated)
}

fn check_scalar(constraint: &'static str, i: usize, array: &ArrayShape, dtype: Option<DType>) -> Checked<()> {
    let is_right = array.rank() == 0 && dtype.is_none_or(|d| d == array.dtype);
    if is_right {
        return Ok(());
    }
    let what = dtype.map_or("scalar".to_string(), |d| format!("{d}[]"));
    let found = format!("{}{}", array.dtype, DimsText(&array.dims));
    fail(constraint, format_args!("{what} as operand {i}"), found)
}

/// A bitcast may change dims, layout and element type; the bits stay.
pub(super) fn bitcast(cx: &Infer<'_>) -> Checked<Inferred> {
    let (from, to) = (cx.operand(0)?, cx.stated()?);
    let (Shape::Array(a), Shape::Array(b)) = (from, to) else {
        return fail("bitcast.array", "arrays on both sides", ShapeText(to));
    };
    let bits = |x: &ArrayShape| u128::from(x.n_elems()) * u128::from(x.dtype.bits());
    if bits(a) != bits(b) && !has_unbounded(a) && !has_unbounded(b) {
        return fail("bitcast.size", format_args!("{} bits of data", bits(a)), bits(b));
    }
    Ok(Inferred::Stated)
}

pub(super) fn transpose(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Dims(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let from = cx.array(0)?;
    if attrs.dimensions.len() != from.rank() {
        let expected = format!("a permutation of {} dims", from.rank());
        return fail("transpose.permutation", expected, DimsText(&attrs.dimensions));
    }
    dim_set("transpose.permutation", &attrs.dimensions, from.rank())?;
    let dims = attrs.dimensions.iter().map(|&d| from.dims[d as usize]).collect();
    let dynamic = attrs.dimensions.iter().enumerate().fold(0, |set, (to, &d)| set | dynamic_bit(from, d as usize, to));
    // The elements stay where they are: dim `d` of the operand is now the dim at which the permutation names it.
    let moved = |&d: &i64| attrs.dimensions.iter().position(|&from| from == d).map_or(d, |to| to as i64);
    let minor_to_major = match &from.layout {
        Some(layout) => layout.minor_to_major.iter().map(moved).collect(),
        None => (0..from.rank() as i64).rev().map(|d| moved(&d)).collect(),
    };
    let layout = Some(Box::new(Layout::new(minor_to_major)));
    Ok(Inferred::Shape(Shape::Array(ArrayShape { dtype: from.dtype, dims, dynamic, layout })))
}

pub(super) fn reverse(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Dims(attrs) = cx.op.attrs else { return cx.wrong_format() };
    dim_set("reverse.dimensions", &attrs.dimensions, cx.array(0)?.rank())?;
    Ok(Inferred::Operand(0))
}

pub(super) fn slice(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Slice(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let from = cx.array(0)?;
    if attrs.slice.len() != from.rank() {
        return fail("slice.n-ranges", format_args!("{} ranges", from.rank()), attrs.slice.len());
    }
    let mut dims = Dims::new();
    for (range, &size) in attrs.slice.iter().zip(&from.dims) {
        let is_inside = range.start >= 0
            && range.start <= range.limit
            && (range.limit <= size || size == UNBOUNDED_DIM)
            && range.stride > 0;
        if !is_inside {
            return fail(
                "slice.range",
                format_args!("0 <= start <= limit <= {size} and a positive stride"),
                format_args!("[{}:{}:{}]", range.start, range.limit, range.stride),
            );
        }
        let extent = range.limit - range.start;
        dims.push(extent / range.stride + i64::from(extent % range.stride != 0));
    }
    Ok(array_of(from.dtype, dims, 0))
}

/// Start indices are scalars, one for each dim, or one vector (the older form).
fn check_start_indices(cx: &Infer<'_>, first: usize, rank: usize) -> Checked<()> {
    const RULE: &str = "dynamic-slice.start-indices";
    let n_indices = cx.n_operands() - first;
    if n_indices == 1 {
        let index = cx.array(first)?;
        if index.dtype.is_integer() && index.dims.as_slice() == [rank as i64] {
            return Ok(());
        }
    }
    if n_indices != rank {
        return fail(RULE, format_args!("{rank} start indices"), n_indices);
    }
    for i in first..cx.n_operands() {
        let index = cx.array(i)?;
        check_scalar(RULE, i, index, None)?;
        if !index.dtype.is_integer() || index.dtype != cx.array(first)?.dtype {
            return fail(RULE, "one integer type for all start indices", index.dtype);
        }
    }
    Ok(())
}

pub(super) fn dynamic_slice(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::DynamicSlice(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let from = cx.array(0)?;
    let sizes = &attrs.dynamic_slice_sizes;
    if sizes.len() != from.rank() {
        return fail("dynamic-slice.n-sizes", format_args!("{} slice sizes", from.rank()), sizes.len());
    }
    for (&size, &dim) in sizes.iter().zip(&from.dims) {
        if size < 0 || (size > dim && dim != UNBOUNDED_DIM) {
            return fail("dynamic-slice.size", format_args!("a slice size of at most {dim}"), size);
        }
    }
    check_start_indices(cx, 1, from.rank())?;
    Ok(array_of(from.dtype, sizes.clone(), 0))
}

pub(super) fn dynamic_update_slice(cx: &Infer<'_>) -> Checked<Inferred> {
    let (array, update) = (cx.array(0)?, cx.array(1)?);
    if array.dtype != update.dtype {
        return fail("dynamic-update-slice.element-type", array.dtype, update.dtype);
    }
    let fits = |(&u, &d): (&i64, &i64)| u <= d || u == UNBOUNDED_DIM || d == UNBOUNDED_DIM;
    if array.rank() != update.rank() || !update.dims.iter().zip(&array.dims).all(fits) {
        let expected = format!("an update that fits in {}", DimsText(&array.dims));
        return fail("dynamic-update-slice.update-size", expected, DimsText(&update.dims));
    }
    check_start_indices(cx, 2, array.rank())?;
    Ok(Inferred::Operand(0))
}

pub(super) fn pad(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Pad(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (from, value) = (cx.array(0)?, cx.array(1)?);
    check_scalar("pad.value", 1, value, Some(from.dtype))?;
    if attrs.padding.len() != from.rank() {
        return fail("pad.n-dims", format_args!("{} paddings", from.rank()), attrs.padding.len());
    }
    let (mut dims, mut dynamic) = (Dims::new(), 0);
    for (i, (pad, &size)) in attrs.padding.iter().zip(&from.dims).enumerate() {
        if pad.interior < 0 {
            return fail("pad.interior", "interior padding of 0 or more", pad.interior);
        }
        if size == UNBOUNDED_DIM {
            dims.push(UNBOUNDED_DIM);
        } else {
            let holes = (size - 1).max(0).checked_mul(pad.interior);
            let padded = holes
                .and_then(|h| h.checked_add(size))
                .and_then(|n| n.checked_add(pad.low))
                .and_then(|n| n.checked_add(pad.high));
            match padded {
                Some(n) if n >= 0 => dims.push(n),
                Some(n) => return fail("pad.size", format_args!("a size of 0 or more in dim {i}"), n),
                None => return fail("pad.size", format_args!("a size of 0 or more in dim {i}"), "an overflow"),
            }
        }
        dynamic |= dynamic_bit(from, i, i);
    }
    Ok(array_of(from.dtype, dims, dynamic))
}

pub(super) fn concatenate(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Dims(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let first = cx.array(0)?;
    let [dim] = attrs.dimensions.as_slice() else {
        return fail("concatenate.dimension", "one dim", DimsText(&attrs.dimensions));
    };
    let dim = dim_index("concatenate.dimension", *dim, first.rank())?;
    let (mut dims, mut dynamic) = (first.dims.clone(), first.dynamic);
    for i in 1..cx.n_operands() {
        let next = cx.array(i)?;
        if next.dtype != first.dtype {
            return fail("concatenate.element-type", first.dtype, format_args!("{} as operand {i}", next.dtype));
        }
        let is_same = next.rank() == first.rank()
            && (0..first.rank()).all(|d| d == dim || dim_agrees(first.dims[d], next.dims[d]));
        if !is_same {
            return fail(
                "concatenate.other-dims",
                format_args!("{} but for dim {dim}", DimsText(&first.dims)),
                format_args!("{} as operand {i}", DimsText(&next.dims)),
            );
        }
        dims[dim] = match (dims[dim], next.dims[dim]) {
            (UNBOUNDED_DIM, _) | (_, UNBOUNDED_DIM) => UNBOUNDED_DIM,
            (a, b) => a.saturating_add(b),
        };
        dynamic |= next.dynamic;
    }
    Ok(array_of(first.dtype, dims, dynamic))
}

pub(super) fn iota(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Iota(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let to = cx.stated_array()?;
    if to.dtype == DType::Pred {
        return fail("iota.element-type", "a number type", to.dtype);
    }
    dim_index("iota.dimension", attrs.iota_dimension, to.rank())?;
    Ok(Inferred::Stated)
}

fn the_dim(cx: &Infer<'_>) -> Checked<usize> {
    let Attrs::Dims(attrs) = cx.op.attrs else { return cx.wrong_format() };
    match attrs.dimensions.as_slice() {
        [dim] => dim_index("dimension-size.dimension", *dim, cx.array(0)?.rank()),
        other => fail("dimension-size.dimension", "one dim", DimsText(other)),
    }
}

pub(super) fn get_dimension_size(cx: &Infer<'_>) -> Checked<Inferred> {
    the_dim(cx)?;
    Ok(array_of(DType::S32, Dims::new(), 0))
}

pub(super) fn set_dimension_size(cx: &Infer<'_>) -> Checked<Inferred> {
    let dim = the_dim(cx)?;
    check_scalar("dimension-size.size", 1, cx.array(1)?, Some(DType::S32))?;
    let array = cx.array(0)?;
    let mark = if dim < 64 { 1 << dim } else { 0 };
    Ok(array_of(array.dtype, array.dims.clone(), array.dynamic | mark))
}
