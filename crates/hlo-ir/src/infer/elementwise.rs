//! Shape rules of elementwise ops: every dim of every operand is a dim of the result.

use super::*;
use crate::dtype::{DType, NumberClass};
use crate::op::Numbers;

fn check_class(cx: &Infer<'_>, dtype: DType, numbers: Numbers) -> Checked<()> {
    if numbers.has(dtype) {
        return Ok(());
    }
    fail("elementwise.element-type", format_args!("an element type that {} takes", cx.op.opcode), dtype)
}

fn check_same_dims(i: usize, a: &ArrayShape, b: &ArrayShape) -> Checked<()> {
    if dims_agree(&a.dims, &b.dims) {
        return Ok(());
    }
    fail(
        "elementwise.dims",
        format_args!("dims {} as of the other operands", shape_text::DimsText(&a.dims)),
        format_args!("{} as operand {i}", shape_text::DimsText(&b.dims)),
    )
}

fn check_same_dtype(i: usize, a: &ArrayShape, b: &ArrayShape) -> Checked<()> {
    if a.dtype == b.dtype {
        return Ok(());
    }
    fail("elementwise.one-element-type", a.dtype, format_args!("{} as operand {i}", b.dtype))
}

/// The dims of `a` and `b` together: sizes win over unbounded dims, dynamic marks over none.
fn merged(dtype: DType, a: &ArrayShape, b: &ArrayShape) -> Inferred {
    let dims = a.dims.iter().zip(&b.dims).map(|(&x, &y)| if x == UNBOUNDED_DIM { y } else { x }).collect();
    Inferred::Shape(Shape::Array(ArrayShape { dtype, dims, dynamic: a.dynamic | b.dynamic, layout: a.layout.clone() }))
}

/// The array, layout included, with elements of another type.
fn with_dtype(array: &ArrayShape, dtype: DType) -> Inferred {
    Inferred::Shape(Shape::Array(ArrayShape { dtype, ..array.clone() }))
}

pub(super) fn unary(cx: &Infer<'_>, numbers: Numbers) -> Checked<Inferred> {
    let array = cx.array(0)?;
    check_class(cx, array.dtype, numbers)?;
    if let Attrs::ReducePrecision(attrs) = cx.op.attrs
        && (attrs.exponent_bits < 1 || attrs.mantissa_bits < 0)
    {
        let found = format!("{} and {}", attrs.exponent_bits, attrs.mantissa_bits);
        return fail("reduce-precision.bits", "1 or more exponent bits and 0 or more mantissa bits", found);
    }
    Ok(Inferred::Operand(0))
}

pub(super) fn binary(cx: &Infer<'_>, numbers: Numbers) -> Checked<Inferred> {
    let (a, b) = (cx.array(0)?, cx.array(1)?);
    check_same_dtype(1, a, b)?;
    check_same_dims(1, a, b)?;
    check_class(cx, a.dtype, numbers)?;
    Ok(if a.dims == b.dims && a.dynamic == b.dynamic { Inferred::Operand(0) } else { merged(a.dtype, a, b) })
}

pub(super) fn abs(cx: &Infer<'_>) -> Checked<Inferred> {
    let array = cx.array(0)?;
    match array.dtype.class() {
        NumberClass::Signed | NumberClass::Float => Ok(Inferred::Operand(0)),
        NumberClass::Complex => Ok(with_dtype(array, array.dtype.real_part())),
        NumberClass::Pred | NumberClass::Unsigned => {
            fail("elementwise.element-type", "a signed, floating or complex element type", array.dtype)
        }
    }
}

pub(super) fn is_finite(cx: &Infer<'_>) -> Checked<Inferred> {
    let array = cx.array(0)?;
    check_class(cx, array.dtype, Numbers::FLOAT)?;
    Ok(with_dtype(array, DType::Pred))
}

pub(super) fn compare(cx: &Infer<'_>) -> Checked<Inferred> {
    let (a, b) = (cx.array(0)?, cx.array(1)?);
    check_same_dtype(1, a, b)?;
    check_same_dims(1, a, b)?;
    if let Attrs::Compare(attrs) = cx.op.attrs {
        let is_right = match attrs.order.as_str() {
            "" => true,
            "FLOAT" => a.dtype.is_float() || a.dtype.is_complex(),
            "TOTALORDER" => a.dtype.is_float(),
            "SIGNED" => matches!(a.dtype.class(), NumberClass::Signed),
            "UNSIGNED" => matches!(a.dtype.class(), NumberClass::Unsigned | NumberClass::Pred),
            _ => false,
        };
        if !is_right {
            return fail("compare.type", format_args!("an order for {}", a.dtype), attrs.order.as_str());
        }
    }
    Ok(merged(DType::Pred, a, b))
}

pub(super) fn select(cx: &Infer<'_>) -> Checked<Inferred> {
    let pred = cx.array(0)?;
    if pred.dtype != DType::Pred {
        return fail("select.pred", "pred as operand 0", pred.dtype);
    }
    let (a, b) = (cx.array(1)?, cx.array(2)?);
    check_same_dtype(2, a, b)?;
    check_same_dims(2, a, b)?;
    if pred.rank() != 0 {
        check_same_dims(0, a, pred)?;
    }
    Ok(match (a.dims == b.dims, pred.rank()) {
        (true, 0) => Inferred::Operand(1),
        // XLA takes the layout of an array of predicates.
        (true, _) => Inferred::Shape(Shape::Array(ArrayShape { layout: pred.layout.clone(), ..a.clone() })),
        (false, _) => merged(a.dtype, a, b),
    })
}

pub(super) fn clamp(cx: &Infer<'_>) -> Checked<Inferred> {
    let (low, array, high) = (cx.array(0)?, cx.array(1)?, cx.array(2)?);
    for (i, bound) in [(0, low), (2, high)] {
        check_same_dtype(i, array, bound)?;
        if bound.rank() != 0 {
            check_same_dims(i, array, bound)?;
        }
    }
    Ok(Inferred::Operand(1))
}

pub(super) fn complex(cx: &Infer<'_>) -> Checked<Inferred> {
    let (re, im) = (cx.array(0)?, cx.array(1)?);
    check_same_dtype(1, re, im)?;
    check_same_dims(1, re, im)?;
    match re.dtype {
        DType::F32 => Ok(merged(DType::C64, re, im)),
        DType::F64 => Ok(merged(DType::C128, re, im)),
        other => fail("elementwise.element-type", "f32 or f64", other),
    }
}

pub(super) fn complex_part(cx: &Infer<'_>) -> Checked<Inferred> {
    let array = cx.array(0)?;
    check_class(cx, array.dtype, Numbers::FLOAT.or(Numbers::COMPLEX))?;
    Ok(with_dtype(array, array.dtype.real_part()))
}

pub(super) fn convert(cx: &Infer<'_>) -> Checked<Inferred> {
    let (from, to) = (cx.array(0)?, cx.stated_array()?);
    if from.dtype.is_complex() && !to.dtype.is_complex() {
        return fail("convert.complex-to-real", "a complex result type", to.dtype);
    }
    Ok(with_dtype(from, to.dtype))
}

pub(super) fn stochastic_convert(cx: &Infer<'_>) -> Checked<Inferred> {
    let (from, random, to) = (cx.array(0)?, cx.array(1)?, cx.stated_array()?);
    check_same_dims(1, from, random)?;
    check_class(cx, from.dtype, Numbers::FLOAT)?;
    if !matches!(random.dtype.class(), NumberClass::Unsigned) || random.dtype.bits() != from.dtype.bits() {
        return fail("stochastic-convert.random", format_args!("u{}", from.dtype.bits()), random.dtype);
    }
    if !to.dtype.is_integer() && !to.dtype.is_float() {
        return fail("stochastic-convert.result", "an integer or floating result type", to.dtype);
    }
    Ok(with_dtype(from, to.dtype))
}

/// `f32[3] → u8[3,4]`, `u8[3,4] → f32[3]`, or equal widths and dims.
pub(super) fn bitcast_convert(cx: &Infer<'_>) -> Checked<Inferred> {
    let (from, to) = (cx.array(0)?, cx.stated_array()?);
    if from.dtype.is_complex() != to.dtype.is_complex() {
        return fail("bitcast-convert.complex", "both types complex or both real", to.dtype);
    }
    let (from_bits, to_bits) = (i64::from(from.dtype.bits()), i64::from(to.dtype.bits()));
    if from_bits == to_bits {
        return Ok(with_dtype(from, to.dtype));
    }
    let mut dims = from.dims.clone();
    if from_bits > to_bits {
        dims.push(from_bits / to_bits);
        return Ok(array_of(to.dtype, dims, from.dynamic));
    }
    let ratio = to_bits / from_bits;
    match dims.pop() {
        Some(last) if dim_agrees(last, ratio) => Ok(array_of(to.dtype, dims, from.dynamic)),
        Some(last) => fail("bitcast-convert.last-dim", format_args!("a last dim of {ratio}"), last),
        None => fail("bitcast-convert.last-dim", format_args!("a last dim of {ratio}"), "a scalar"),
    }
}

pub(super) fn map(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Reduce(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let first = cx.array(0)?;
    for i in 1..cx.n_operands() {
        check_same_dims(i, first, cx.array(i)?)?;
    }
    if !attrs.dimensions.iter().enumerate().all(|(i, &d)| d == i as i64) || attrs.dimensions.len() != first.rank() {
        let expected = format!("all dims in order, 0 to {}", first.rank());
        return fail("map.dimensions", expected, shape_text::DimsText(&attrs.dimensions));
    }
    let dtype = match cx.callee_result(attrs.to_apply) {
        Some(Shape::Array(result)) if result.rank() == 0 => result.dtype,
        Some(other) => return fail("map.result", "a scalar result of the mapped computation", ShapeText(other)),
        None => first.dtype,
    };
    Ok(with_dtype(first, dtype))
}
