//! Shape rules of the three batch-norm ops.

use super::shape_text::DimsText;
use super::*;

/// Checks the feature dim and the per-feature operands; returns the shape of a per-feature result.
fn check_features(cx: &Infer<'_>, per_feature: std::ops::Range<usize>) -> Checked<Shape> {
    let Attrs::BatchNorm(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let operand = cx.array(0)?;
    let dim = dim_index("batch-norm.feature-index", attrs.feature_index, operand.rank())?;
    if !operand.dtype.is_float() {
        return fail("batch-norm.element-type", "a floating element type", operand.dtype);
    }
    let n = operand.dims[dim];
    for i in per_feature {
        let values = cx.array(i)?;
        if !dims_agree(&values.dims, &[n]) || values.dtype != operand.dtype {
            let found = format!("{}{} as operand {i}", values.dtype, DimsText(&values.dims));
            return fail("batch-norm.per-feature", format_args!("{}[{n}]", operand.dtype), found);
        }
    }
    Ok(Shape::array(operand.dtype, [n]))
}

fn with_statistics(cx: &Infer<'_>, statistics: Shape) -> Checked<Inferred> {
    Ok(Inferred::Shape(Shape::Tuple(vec![cx.operand(0)?.clone(), statistics.clone(), statistics])))
}

/// `(x, scale, offset) → (y, mean, variance)`.
pub(super) fn training(cx: &Infer<'_>) -> Checked<Inferred> {
    with_statistics(cx, check_features(cx, 1..3)?)
}

/// `(x, scale, offset, mean, variance) → y`.
pub(super) fn inference(cx: &Infer<'_>) -> Checked<Inferred> {
    check_features(cx, 1..5)?;
    Ok(Inferred::Operand(0))
}

/// `(x, scale, mean, variance, dy) → (dx, dscale, doffset)`.
pub(super) fn grad(cx: &Infer<'_>) -> Checked<Inferred> {
    let statistics = check_features(cx, 1..4)?;
    let (x, dy) = (cx.operand(0)?, cx.operand(4)?);
    if !agrees(x, dy) {
        return fail("batch-norm.grad-output", ShapeText(x), ShapeText(dy));
    }
    with_statistics(cx, statistics)
}
