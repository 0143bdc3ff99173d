//! Shape rules of async pairs, copies and transfers.

use super::*;
use crate::dtype::DType;

/// Element 1 of the start's tuple is the result.
pub(super) fn done_of_pair(cx: &Infer<'_>) -> Checked<Inferred> {
    element_of_start(cx, 1)
}

fn element_of_start(cx: &Infer<'_>, index: usize) -> Checked<Inferred> {
    let start = cx.operand(0)?;
    match (start.as_tuple().and_then(|t| t.get(index)), cx.op.stated) {
        (Some(element), Some(stated)) if agrees(element, stated) => Ok(Inferred::Stated),
        (Some(element), _) => Ok(Inferred::Shape(element.clone())),
        (None, _) => fail("async.start-shape", format_args!("a tuple with an element {index}"), ShapeText(start)),
    }
}

/// `((operands…), result, context…)`: the context is the backend's.
pub(super) fn async_start(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Async(attrs) = cx.op.attrs else { return cx.wrong_format() };
    if let Some(comp) = attrs.calls {
        structure::check_params(cx, comp, cx.op.operands)?;
    }
    let inputs = || Shape::Tuple(cx.op.operands.iter().map(|s| (*s).clone()).collect());
    let Some(result) = cx.callee_result(attrs.calls) else { return cx.stated().map(|_| Inferred::Stated) };
    match cx.op.stated {
        Some(Shape::Tuple(parts)) => match parts.as_slice() {
            [Shape::Tuple(given), out, ..]
                if agrees(result, out)
                    && given.len() == cx.n_operands()
                    && given.iter().zip(cx.op.operands).all(|(a, b)| agrees(a, b)) =>
            {
                Ok(Inferred::Stated)
            }
            _ => Ok(Inferred::Shape(Shape::Tuple(vec![inputs(), result.clone()]))),
        },
        Some(_) | None => Ok(Inferred::Shape(Shape::Tuple(vec![inputs(), result.clone()]))),
    }
}

pub(super) fn async_update(cx: &Infer<'_>) -> Checked<Inferred> {
    let start = cx.operand(0)?;
    if cx.n_operands() > 1 {
        let expected = "one operand: a chain begins where its last operand is bound";
        return fail("async.bound-late", expected, cx.n_operands());
    }
    match start {
        Shape::Tuple(elements) if elements.len() >= 2 => Ok(Inferred::Operand(0)),
        other => fail("async.start-shape", "a tuple of operands, result and context", ShapeText(other)),
    }
}

/// `(destination, source, u32[])`.
pub(super) fn copy_start(cx: &Infer<'_>) -> Checked<Inferred> {
    let from = cx.operand(0)?;
    let parts = vec![from.clone(), from.clone(), Shape::array(DType::U32, [])];
    Ok(Inferred::Shape(Shape::Tuple(parts)))
}

pub(super) fn copy_done(cx: &Infer<'_>) -> Checked<Inferred> {
    element_of_start(cx, 0)
}

fn check_token(cx: &Infer<'_>, i: usize) -> Checked<()> {
    match cx.operand(i)? {
        Shape::Token => Ok(()),
        other => fail("op.token-operand", format_args!("a token as operand {i}"), ShapeText(other)),
    }
}

/// `(data, u32[], token[])`; the data may be in a pipelined context tuple of the backend.
fn transfer(data: &Shape) -> Inferred {
    Inferred::Shape(Shape::Tuple(vec![data.clone(), Shape::array(DType::U32, []), Shape::Token]))
}

pub(super) fn send(cx: &Infer<'_>) -> Checked<Inferred> {
    check_token(cx, 1)?;
    Ok(transfer(cx.operand(0)?))
}

pub(super) fn send_done(cx: &Infer<'_>) -> Checked<Inferred> {
    check_transfer_operand(cx)?;
    Ok(Inferred::Shape(Shape::Token))
}

pub(super) fn recv(cx: &Infer<'_>) -> Checked<Inferred> {
    check_token(cx, 0)?;
    match cx.stated()? {
        Shape::Tuple(parts) if parts.len() == 3 => Ok(transfer(&parts[0])),
        other => fail("recv.result", "(data, u32[], token[])", ShapeText(other)),
    }
}

/// The data of the send or recv that is the operand.
fn check_transfer_operand<'a>(cx: &Infer<'a>) -> Checked<&'a Shape> {
    match cx.operand(0)? {
        Shape::Tuple(parts) if parts.len() == 3 => Ok(&parts[0]),
        other => fail("transfer.operand", "(data, u32[], token[])", ShapeText(other)),
    }
}

pub(super) fn recv_done(cx: &Infer<'_>) -> Checked<Inferred> {
    let data = check_transfer_operand(cx)?;
    Ok(Inferred::Shape(Shape::Tuple(vec![data.clone(), Shape::Token])))
}

pub(super) fn outfeed(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Outfeed(attrs) = cx.op.attrs else { return cx.wrong_format() };
    check_token(cx, 1)?;
    if let Some(shape) = attrs.outfeed_shape {
        let (expected, found) = (cx.module.shapes.get(shape), cx.operand(0)?);
        if !agrees(expected, found) {
            return fail("outfeed.shape", ShapeText(expected), ShapeText(found));
        }
    }
    Ok(Inferred::Shape(Shape::Token))
}
