//! Shape rules of tuples, calls, control flow, constants and random numbers.

use super::*;
use crate::attrs::ConditionalAttrs;
use crate::dtype::DType;
use crate::literal::ConstantValue;

pub(super) fn tuple(cx: &Infer<'_>) -> Checked<Inferred> {
    if let Some(stated @ Shape::Tuple(elements)) = cx.op.stated {
        // Comparing in place saves building the tuple.
        if elements.len() != cx.n_operands() {
            return fail("tuple.n-elements", format_args!("{} elements", cx.n_operands()), ShapeText(stated));
        }
        for (i, (operand, element)) in cx.op.operands.iter().zip(elements).enumerate() {
            if !agrees(operand, element) {
                return fail(
                    "tuple.element",
                    format_args!("{} as element {i}", ShapeText(operand)),
                    ShapeText(element),
                );
            }
        }
        return Ok(Inferred::Stated);
    }
    Ok(Inferred::Shape(Shape::Tuple(cx.op.operands.iter().map(|s| (*s).clone()).collect())))
}

pub(super) fn get_tuple_element(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::TupleIndex(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let from = cx.operand(0)?;
    let Some(elements) = from.as_tuple() else {
        return fail("get-tuple-element.operand", "a tuple", ShapeText(from));
    };
    let Some(element) = usize::try_from(attrs.index).ok().and_then(|i| elements.get(i)) else {
        return fail("get-tuple-element.index", format_args!("an index below {}", elements.len()), attrs.index);
    };
    match cx.op.stated {
        Some(stated) if agrees(element, stated) => Ok(Inferred::Stated),
        Some(_) | None => Ok(Inferred::Shape(element.clone())),
    }
}

/// The first operand as it is; further ones are tokens that only order it.
pub(super) fn first_operand(cx: &Infer<'_>) -> Checked<Inferred> {
    check_tokens(cx, 1)?;
    cx.operand(0)?;
    Ok(Inferred::Operand(0))
}

fn check_tokens(cx: &Infer<'_>, first: usize) -> Checked<()> {
    for i in first..cx.n_operands() {
        match cx.operand(i)? {
            Shape::Token => {}
            other @ (Shape::Array(_) | Shape::Tuple(_) | Shape::Opaque | Shape::Buffer(_)) => {
                return fail("op.token-operand", format_args!("a token as operand {i}"), ShapeText(other));
            }
        }
    }
    Ok(())
}

pub(super) fn after_all(cx: &Infer<'_>) -> Checked<Inferred> {
    check_tokens(cx, 0)?;
    Ok(Inferred::Shape(Shape::Token))
}

pub(super) fn constant(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Constant(value) = cx.op.attrs else { return cx.wrong_format() };
    match (cx.op.stated, value_shape(value)) {
        (Some(stated), _) if value_has_shape(value, stated) => Ok(Inferred::Stated),
        (_, Some(shape)) => Ok(Inferred::Shape(shape)),
        (_, None) => fail("op.needs-shape", "a stated shape for an elided constant", "none"),
    }
}

fn value_has_shape(value: &ConstantValue, shape: &Shape) -> bool {
    match (value, shape) {
        (ConstantValue::Elided, _) => true,
        (ConstantValue::Array(literal), Shape::Array(array)) => {
            literal.dtype() == array.dtype && literal.dims() == array.dims.as_slice()
        }
        (ConstantValue::Tuple(values), Shape::Tuple(shapes)) => {
            values.len() == shapes.len() && values.iter().zip(shapes).all(|(v, s)| value_has_shape(v, s))
        }
        (ConstantValue::Array(_) | ConstantValue::Tuple(_), _) => false,
    }
}

fn value_shape(value: &ConstantValue) -> Option<Shape> {
    match value {
        ConstantValue::Elided => None,
        ConstantValue::Array(literal) => Some(Shape::array(literal.dtype(), literal.dims().iter().copied())),
        ConstantValue::Tuple(values) => Some(Shape::Tuple(values.iter().map(value_shape).collect::<Option<_>>()?)),
    }
}

/// The result of a called computation, given or as the operand's type, without building it where it is stated.
fn result_of(cx: &Infer<'_>, comp: Option<CompId>) -> Checked<Inferred> {
    match (cx.callee_result(comp), cx.op.stated) {
        (Some(result), Some(stated)) if agrees(result, stated) => Ok(Inferred::Stated),
        (Some(result), _) => Ok(Inferred::Shape(result.clone())),
        (None, Some(_)) => Ok(Inferred::Stated),
        (None, None) => fail("call.callee", "a whole computation to call", "none"),
    }
}

/// Checks `operands` against the parameters of `comp`.
pub(super) fn check_params(cx: &Infer<'_>, comp: CompId, operands: &[&Shape]) -> Checked<()> {
    let params = &cx.module.comp(comp).params;
    let name = cx.module.comp_name(comp);
    if params.len() != operands.len() {
        return fail("call.n-operands", format_args!("{} operands for {name}", params.len()), operands.len());
    }
    for (i, (&param, operand)) in params.iter().zip(operands).enumerate() {
        let expected = cx.module.shape(param);
        if !agrees(expected, operand) {
            let expected = format!("{} as operand {i} of {name}", ShapeText(expected));
            return fail("call.operand", expected, ShapeText(operand));
        }
    }
    Ok(())
}

pub(super) fn call(cx: &Infer<'_>) -> Checked<Inferred> {
    let Some(callee) = cx.op.attrs.callee() else { return cx.wrong_format() };
    if let Some(comp) = callee {
        check_params(cx, comp, cx.op.operands)?;
    }
    result_of(cx, callee)
}

pub(super) fn while_loop(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::While(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let state = cx.operand(0)?;
    for comp in [attrs.condition, attrs.body].into_iter().flatten() {
        check_params(cx, comp, &[state])?;
    }
    if let Some(result) = cx.callee_result(attrs.condition)
        && !result.as_array().is_some_and(|a| a.dtype == DType::Pred && a.rank() == 0)
    {
        return fail("while.condition-result", "pred[]", ShapeText(result));
    }
    if let Some(result) = cx.callee_result(attrs.body)
        && !agrees(state, result)
    {
        return fail("while.body-result", ShapeText(state), ShapeText(result));
    }
    Ok(Inferred::Operand(0))
}

/// The branches of a conditional by number: false is 1 and true is 0, as operands are given in that order.
pub(super) fn branches(attrs: &ConditionalAttrs) -> SmallVec<[CompId; 2]> {
    let named = [attrs.true_computation, attrs.false_computation];
    named.into_iter().flatten().chain(attrs.branch_computations.iter().copied()).collect()
}

pub(super) fn conditional(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Conditional(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let branches = branches(attrs);
    let chooser = cx.array(0)?;
    let is_named = attrs.branch_computations.is_empty();
    let is_right = chooser.rank() == 0
        && (chooser.dtype == DType::Pred && branches.len() == 2 || chooser.dtype == DType::S32 && !is_named);
    if !is_right {
        let expected = if is_named { "pred[]" } else { "s32[]" };
        return fail("conditional.chooser", expected, ShapeText(cx.operand(0)?));
    }
    if branches.is_empty() || cx.n_operands() != branches.len() + 1 {
        let expected = format!("{} operands, one for each branch after the first", branches.len() + 1);
        return fail("conditional.n-operands", expected, cx.n_operands());
    }
    for (i, &branch) in branches.iter().enumerate() {
        check_params(cx, branch, &cx.op.operands[i + 1..i + 2])?;
    }
    let first = cx.callee_result(branches.first().copied());
    for &branch in &branches {
        if let (Some(first), Some(other)) = (first, cx.callee_result(Some(branch)))
            && !agrees(first, other)
        {
            return fail("conditional.branch-result", ShapeText(first), ShapeText(other));
        }
    }
    result_of(cx, branches.first().copied())
}

/// `(state, bits)`: the state keeps its type, the bits are as stated.
pub(super) fn rng_bit_generator(cx: &Infer<'_>) -> Checked<Inferred> {
    let state = cx.operand(0)?;
    let bits = match cx.stated()? {
        Shape::Tuple(elements) => match elements.as_slice() {
            [new_state, bits] if agrees(state, new_state) => bits,
            _ => {
                let expected = format!("({}, bits)", ShapeText(state));
                return fail("rng-bit-generator.result", expected, ShapeText(cx.stated()?));
            }
        },
        other @ (Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_)) => other,
    };
    match bits.as_array() {
        Some(array) if array.dtype.is_integer() || array.dtype.is_float() => {}
        Some(_) | None => return fail("rng-bit-generator.bits", "an array of bits", ShapeText(bits)),
    }
    match state.as_array() {
        Some(array) if array.dtype.is_integer() => Ok(Inferred::Stated),
        Some(_) | None => fail("rng-bit-generator.state", "an integer array as state", ShapeText(state)),
    }
}

pub(super) fn rng_state(_: &Infer<'_>) -> Checked<Inferred> {
    Ok(Inferred::Shape(Shape::array(DType::U64, [2])))
}

pub(super) fn rng(cx: &Infer<'_>) -> Checked<Inferred> {
    let to = cx.stated_array()?;
    for i in 0..cx.n_operands() {
        let bound = cx.array(i)?;
        if bound.rank() != 0 || bound.dtype != to.dtype {
            return fail("rng.parameters", format_args!("{}[] as operand {i}", to.dtype), ShapeText(cx.operand(i)?));
        }
    }
    Ok(Inferred::Stated)
}
