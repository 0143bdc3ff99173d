//! Shape rules of dot products and convolution.

use super::shape_text::DimsText;
use super::*;
use crate::attrs::DotAttrs;
use crate::dtype::DType;

/// Checks the dim lists of a dot and returns the masks of dims that are not free, for each side.
fn check_dot_dims(attrs: &DotAttrs, lhs: &ArrayShape, rhs: &ArrayShape) -> Checked<(u64, u64)> {
    let DotAttrs {
        lhs_batch_dims,
        lhs_contracting_dims,
        rhs_batch_dims,
        rhs_contracting_dims,
        // `ragged_dot` checks them.
        lhs_ragged_dims: _,
        rhs_group_dims: _,
        // They say how elements are multiplied; the result's element type is stated.
        operand_precision: _,
        algorithm: _,
    } = attrs;
    let pairs = [
        ("dot.batch-dims", lhs_batch_dims, rhs_batch_dims),
        ("dot.contracting-dims", lhs_contracting_dims, rhs_contracting_dims),
    ];
    let (mut lhs_used, mut rhs_used) = (0u64, 0u64);
    for (constraint, l, r) in pairs {
        if l.len() != r.len() {
            return fail(constraint, format_args!("{} dims on both sides", l.len()), r.len());
        }
        let (l_set, r_set) = (dim_set(constraint, l, lhs.rank())?, dim_set(constraint, r, rhs.rank())?);
        if l_set & lhs_used != 0 || r_set & rhs_used != 0 {
            return fail(constraint, "contracting dims that are not batch dims", "a dim that is both");
        }
        (lhs_used, rhs_used) = (lhs_used | l_set, rhs_used | r_set);
        for (&a, &b) in l.iter().zip(r) {
            let (n, m) = (lhs.dims[a as usize], rhs.dims[b as usize]);
            if !dim_agrees(n, m) {
                let expected = format!("size {n} of left dim {a} in right dim {b}");
                return fail(
                    if constraint == "dot.batch-dims" { "dot.batch-sizes" } else { "dot.contracting-sizes" },
                    expected,
                    m,
                );
            }
        }
    }
    Ok((lhs_used, rhs_used))
}

fn check_dot_types(cx: &Infer<'_>, lhs: &ArrayShape, rhs: &ArrayShape) -> Checked<DType> {
    let kind = |d: DType| (d.is_float(), d.is_integer(), d.is_complex());
    if kind(lhs.dtype) != kind(rhs.dtype) {
        return fail("dot.element-types", format_args!("a right element type like {}", lhs.dtype), rhs.dtype);
    }
    let dtype = cx.stated_dtype().unwrap_or(if rhs.dtype.bits() > lhs.dtype.bits() { rhs.dtype } else { lhs.dtype });
    if lhs.dtype.is_complex() != dtype.is_complex() {
        return fail("dot.result-type", format_args!("a result type like {}", lhs.dtype), dtype);
    }
    Ok(dtype)
}

/// Batch dims, then the free dims of both sides; `used` masks say what is not free.
fn dot_result(attrs: &DotAttrs, dtype: DType, sides: [(&ArrayShape, u64); 2], lead: Option<i64>) -> Inferred {
    let (mut dims, mut dynamic) = (Dims::new(), 0u64);
    dims.extend(lead);
    for &d in &attrs.lhs_batch_dims {
        dynamic |= dynamic_bit(sides[0].0, d as usize, dims.len());
        dims.push(sides[0].0.dims[d as usize]);
    }
    for (side, used) in sides {
        for (d, &size) in side.dims.iter().enumerate() {
            if d >= 64 || used >> d & 1 == 0 {
                dynamic |= dynamic_bit(side, d, dims.len());
                dims.push(size);
            }
        }
    }
    array_of(dtype, dims, dynamic)
}

pub(super) fn dot(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Dot(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (lhs, rhs) = (cx.array(0)?, cx.array(1)?);
    let dtype = check_dot_types(cx, lhs, rhs)?;
    let (lhs_used, rhs_used) = check_dot_dims(attrs, lhs, rhs)?;
    Ok(dot_result(attrs, dtype, [(lhs, lhs_used), (rhs, rhs_used)], None))
}

/// The scales are checked to be arrays of the operands' rank: what they mean is the backend's.
pub(super) fn scaled_dot(cx: &Infer<'_>) -> Checked<Inferred> {
    for i in 0..2 {
        let (side, scale) = (cx.array(i)?, cx.array(i + 2)?);
        if scale.rank() != 0 && scale.rank() != side.rank() {
            return fail("scaled-dot.scale-rank", format_args!("rank {} or 0", side.rank()), scale.rank());
        }
    }
    dot(cx)
}

/// The ragged dim of the left side is free, contracted or batch: `[b,m,n]`, `[g,b,m,n]`, `[b,m,n]`.
pub(super) fn ragged_dot(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Dot(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (lhs, rhs, sizes) = (cx.array(0)?, cx.array(1)?, cx.array(2)?);
    let dtype = check_dot_types(cx, lhs, rhs)?;
    let (lhs_used, rhs_used) = check_dot_dims(attrs, lhs, rhs)?;
    let [ragged] = attrs.lhs_ragged_dims.as_slice() else {
        return fail("ragged-dot.ragged-dim", "one ragged dim", DimsText(&attrs.lhs_ragged_dims));
    };
    let ragged = dim_index("ragged-dot.ragged-dim", *ragged, lhs.rank())?;
    let groups = dim_set("ragged-dot.group-dims", &attrs.rhs_group_dims, rhs.rank())?;
    if groups & rhs_used != 0 {
        return fail("ragged-dot.group-dims", "group dims that are neither batch nor contracted", "an overlap");
    }
    let Some(&n_groups) = sizes.dims.last() else {
        return fail("ragged-dot.group-sizes", "group sizes of rank 1 or more", "a scalar");
    };
    if !sizes.dtype.is_integer() {
        return fail("ragged-dot.group-sizes", "integer group sizes", sizes.dtype);
    }
    let is_free = ragged >= 64 || lhs_used >> ragged & 1 == 0;
    if is_free != (attrs.rhs_group_dims.len() == 1) {
        return fail("ragged-dot.group-dims", "one group dim exactly if the ragged dim is free", "otherwise");
    }
    if let [group] = attrs.rhs_group_dims.as_slice()
        && !dim_agrees(rhs.dims[*group as usize], n_groups)
    {
        return fail("ragged-dot.group-sizes", format_args!("{} groups", rhs.dims[*group as usize]), n_groups);
    }
    let is_contracted = attrs.lhs_contracting_dims.contains(&(ragged as i64));
    let lead = is_contracted.then_some(n_groups);
    Ok(dot_result(attrs, dtype, [(lhs, lhs_used), (rhs, rhs_used | groups)], lead))
}

/// Every label of one array stands for a dim of its own and all dims are labelled.
fn check_labels(array: &str, rank: usize, a: i64, b: i64, spatial: &[i64]) -> Checked<()> {
    let all: Dims = [a, b].into_iter().chain(spatial.iter().copied()).collect();
    if all.len() != rank {
        return fail("convolution.labels", format_args!("{rank} labels for the {array}"), all.len());
    }
    dim_set("convolution.labels", &all, rank).map(drop)
}

pub(super) fn convolution(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Conv(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let (input, kernel) = (cx.array(0)?, cx.array(1)?);
    let (labels, rank) = (&attrs.dim_labels, input.rank());
    check_dot_types(cx, input, kernel)?;
    if kernel.rank() != rank || rank < 2 {
        return fail(
            "convolution.rank",
            format_args!("input and kernel of one rank, 2 or more ({rank})"),
            kernel.rank(),
        );
    }
    check_labels("input", rank, labels.input_batch, labels.input_feature, &labels.input_spatial)?;
    check_labels("kernel", rank, labels.kernel_input_feature, labels.kernel_output_feature, &labels.kernel_spatial)?;
    check_labels("output", rank, labels.output_batch, labels.output_feature, &labels.output_spatial)?;
    let feature_groups = attrs.feature_group_count.unwrap_or(1);
    let batch_groups = attrs.batch_group_count.unwrap_or(1);
    if feature_groups < 1 || batch_groups < 1 || (feature_groups > 1 && batch_groups > 1) {
        let found = format!("{feature_groups} and {batch_groups}");
        return fail("convolution.groups", "group counts of 1 or more, one of them 1", found);
    }
    let (in_f, k_in, k_out) = (
        input.dims[labels.input_feature as usize],
        kernel.dims[labels.kernel_input_feature as usize],
        kernel.dims[labels.kernel_output_feature as usize],
    );
    let batch = input.dims[labels.input_batch as usize];
    if in_f != UNBOUNDED_DIM && k_in != UNBOUNDED_DIM && k_in.saturating_mul(feature_groups) != in_f {
        let found = format!("{k_in} × {feature_groups} groups in the kernel");
        return fail("convolution.features", format_args!("{in_f} input features"), found);
    }
    if k_out % feature_groups != 0 || k_out % batch_groups != 0 || batch % batch_groups != 0 {
        let found = format!("{k_out} output features, batch {batch}");
        return fail("convolution.groups", "sizes that the group counts divide", found);
    }
    let in_spatial: Dims = labels.input_spatial.iter().map(|&d| input.dims[d as usize]).collect();
    let out_spatial = window::output_sizes(&attrs.window, &in_spatial)?;
    let mut dims = Dims::from_elem(0, rank);
    for (i, window_dim) in attrs.window.dims.iter().enumerate() {
        let size = kernel.dims[labels.kernel_spatial[i] as usize];
        if !dim_agrees(size, window_dim.size) {
            return fail("convolution.window-size", format_args!("window size {size} of kernel dim"), window_dim.size);
        }
        dims[labels.output_spatial[i] as usize] = out_spatial[i];
    }
    dims[labels.output_batch as usize] = if batch == UNBOUNDED_DIM { batch } else { batch / batch_groups };
    dims[labels.output_feature as usize] = k_out;
    let dtype = cx.stated_dtype().unwrap_or(input.dtype);
    let dynamic = dynamic_bit(input, labels.input_batch as usize, labels.output_batch as usize);
    Ok(array_of(dtype, dims, dynamic))
}
