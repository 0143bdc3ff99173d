//! Shape rules of ops that apply a scalar computation along dims.

use super::shape_text::DimsText;
use super::*;
use crate::dtype::DType;

/// The first half of the operands are arrays of equal dims, the second half their scalar init values.
fn check_inputs_and_inits<'a>(cx: &Infer<'a>) -> Checked<(usize, &'a ArrayShape)> {
    let n = cx.n_operands() / 2;
    if cx.n_operands() != 2 * n {
        return fail("reduce.operands", "one init value for each array", format_args!("{} operands", cx.n_operands()));
    }
    let first = cx.array(0)?;
    for i in 0..n {
        let (input, init) = (cx.array(i)?, cx.array(n + i)?);
        if !dims_agree(&first.dims, &input.dims) {
            return fail(
                "reduce.input-dims",
                DimsText(&first.dims),
                format_args!("{} as operand {i}", DimsText(&input.dims)),
            );
        }
        if init.rank() != 0 {
            return fail("reduce.init", format_args!("a scalar as operand {}", n + i), DimsText(&init.dims));
        }
        if init.dtype != input.dtype && !(init.dtype.is_float() && input.dtype.is_float()) {
            return fail("reduce.init", format_args!("{} as operand {}", input.dtype, n + i), init.dtype);
        }
    }
    Ok((n, first))
}

/// Element type `i` of what a reducer returns; that of the init value while the reducer is not known.
fn accumulator(cx: &Infer<'_>, reducer: Option<CompId>, n: usize, i: usize) -> Checked<DType> {
    let Some(result) = cx.callee_result(reducer) else { return Ok(cx.array(i + n)?.dtype) };
    let leaf = if n == 1 { Some(result) } else { result.as_tuple().and_then(|t| t.get(i)) };
    match leaf.and_then(Shape::as_array) {
        Some(scalar) if scalar.rank() == 0 => Ok(scalar.dtype),
        Some(_) | None => fail("reduce.reducer-result", format_args!("{n} scalars"), ShapeText(result)),
    }
}

/// One array of these dims for each input, with the reducer's element types.
fn reduced(cx: &Infer<'_>, reducer: Option<CompId>, n: usize, dims: Dims, dynamic: u64) -> Checked<Inferred> {
    if n == 1 {
        return Ok(array_of(accumulator(cx, reducer, 1, 0)?, dims, dynamic));
    }
    let shape = |i| {
        Ok(Shape::Array(ArrayShape {
            dtype: accumulator(cx, reducer, n, i)?,
            dims: dims.clone(),
            dynamic,
            layout: None,
        }))
    };
    Ok(Inferred::Shape(Shape::Tuple((0..n).map(shape).collect::<Checked<_>>()?)))
}

pub(super) fn reduce(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Reduce(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (n, first) = check_inputs_and_inits(cx)?;
    let gone = dim_set("reduce.dimensions", &attrs.dimensions, first.rank())?;
    let (mut dims, mut dynamic) = (Dims::new(), 0u64);
    for (d, &size) in first.dims.iter().enumerate() {
        if d >= 64 || gone >> d & 1 == 0 {
            dynamic |= dynamic_bit(first, d, dims.len());
            dims.push(size);
        }
    }
    reduced(cx, attrs.to_apply, n, dims, dynamic)
}

pub(super) fn reduce_window(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::ReduceWindow(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (n, first) = check_inputs_and_inits(cx)?;
    let dims = window::output_sizes(&attrs.window, &first.dims)?;
    reduced(cx, attrs.to_apply, n, dims, first.dynamic)
}

pub(super) fn select_and_scatter(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::SelectAndScatter(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (operand, source, init) = (cx.array(0)?, cx.array(1)?, cx.array(2)?);
    let windows = window::output_sizes(&attrs.window, &operand.dims)?;
    if !dims_agree(&windows, &source.dims) {
        return fail("select-and-scatter.source", DimsText(&windows), DimsText(&source.dims));
    }
    if init.rank() != 0 || init.dtype != operand.dtype || source.dtype != operand.dtype {
        let expected = format!("source and scalar init value of {}", operand.dtype);
        return fail("select-and-scatter.element-type", expected, format_args!("{} and {}", source.dtype, init.dtype));
    }
    Ok(Inferred::Operand(0))
}

pub(super) fn sort(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Sort(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let first = cx.array(0)?;
    let [dim] = attrs.dimensions.as_slice() else {
        return fail("sort.dimension", "one dim", DimsText(&attrs.dimensions));
    };
    dim_index("sort.dimension", *dim, first.rank())?;
    for i in 1..cx.n_operands() {
        let next = cx.array(i)?;
        if !dims_agree(&first.dims, &next.dims) {
            return fail("sort.operand-dims", DimsText(&first.dims), DimsText(&next.dims));
        }
    }
    if cx.n_operands() == 1 {
        return Ok(Inferred::Operand(0));
    }
    Ok(Inferred::Shape(Shape::Tuple(cx.op.operands.iter().map(|s| (*s).clone()).collect())))
}

/// `(arrays…, carries…) → (stacked outputs…, carries…)`; the body works on one slice without the scanned dim.
pub(super) fn scan(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Scan(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let n_carries = match usize::try_from(attrs.num_carries.unwrap_or(0)) {
        Ok(n) if n <= cx.n_operands() => n,
        Ok(_) | Err(_) => {
            let found = attrs.num_carries.unwrap_or(0);
            return fail("scan.num-carries", format_args!("0 to {} carries", cx.n_operands()), found);
        }
    };
    let [dim] = attrs.dimensions.as_slice() else {
        return fail("scan.dimension", "one dim", DimsText(&attrs.dimensions));
    };
    let mut length = None;
    for i in 0..cx.n_operands() - n_carries {
        let input = cx.array(i)?;
        let size = input.dims[dim_index("scan.dimension", *dim, input.rank())?];
        if *length.get_or_insert(size) != size {
            return fail("scan.length", "one length of the scanned dim in all arrays", size);
        }
    }
    let Some(result) = cx.callee_result(attrs.to_apply) else {
        return cx.stated().map(|_| Inferred::Stated);
    };
    let outputs = match result {
        Shape::Tuple(elements) => elements.as_slice(),
        Shape::Array(_) | Shape::Buffer(_) | Shape::Token | Shape::Opaque => std::slice::from_ref(result),
    };
    if outputs.len() < n_carries {
        return fail("scan.body-result", format_args!("{n_carries} carries among the results"), outputs.len());
    }
    let n_stacked = outputs.len() - n_carries;
    let mut shapes = Vec::with_capacity(outputs.len());
    for (i, output) in outputs.iter().enumerate() {
        match (output, length) {
            (Shape::Array(array), Some(length)) if i < n_stacked => {
                let at = match usize::try_from(*dim) {
                    Ok(d) if d <= array.rank() => d,
                    Ok(_) | Err(_) => return fail("scan.dimension", format_args!("a dim up to {}", array.rank()), dim),
                };
                let mut dims = array.dims.clone();
                dims.insert(at, length);
                shapes.push(Shape::Array(ArrayShape { dtype: array.dtype, dims, dynamic: 0, layout: None }));
            }
            (other, _) if i >= n_stacked => shapes.push(other.clone()),
            (other, _) => return fail("scan.body-result", "arrays to stack over a scanned array", ShapeText(other)),
        }
    }
    Ok(match result {
        Shape::Tuple(_) => Inferred::Shape(Shape::Tuple(shapes)),
        Shape::Array(_) | Shape::Buffer(_) | Shape::Token | Shape::Opaque => array_or_tuple(shapes),
    })
}

pub(super) fn topk(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::TopK(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let from = cx.array(0)?;
    let mut dims = from.dims.clone();
    match dims.last_mut() {
        Some(last) if attrs.k >= 0 && (attrs.k <= *last || *last == UNBOUNDED_DIM) => *last = attrs.k,
        Some(last) => return fail("topk.k", format_args!("k from 0 to {last}"), attrs.k),
        None => return fail("topk.rank", "rank 1 or more", "a scalar"),
    }
    let indices = Shape::array(DType::S32, dims.iter().copied());
    Ok(Inferred::Shape(Shape::Tuple(vec![Shape::array(from.dtype, dims), indices])))
}
