//! Shapes: every distinct shape is well formed, and every instruction has the shape its operands imply.

use super::{Verifier, reducers};
use crate::infer::{self, Inferred, ShapeError, ShapeText};
use crate::module::InstId;
use crate::shape::{ArrayShape, Layout, Shape, ShapeId, UNBOUNDED_DIM};
use cranelift_entity::EntityRef;

/// Checks each distinct shape of the module.
pub(super) fn check_pool(cx: &mut Verifier<'_>) {
    for i in 0..cx.module.shapes.len() {
        let shape = cx.module.shapes.get(ShapeId::new(i));
        if let Err(found) = check_shape(shape) {
            let message = "dims of 0 or more, at most 64, and layouts that order each dim once";
            cx.at_module("shape-well-formed", message, format_args!("{found} in {}", ShapeText(shape)));
        }
    }
}

fn check_shape(shape: &Shape) -> Result<(), &'static str> {
    match shape {
        Shape::Array(array) | Shape::Buffer(array) => check_array(array),
        Shape::Tuple(elements) => elements.iter().try_for_each(check_shape),
        Shape::Token | Shape::Opaque => Ok(()),
    }
}

fn check_array(array: &ArrayShape) -> Result<(), &'static str> {
    if array.rank() > 64 {
        return Err("more than 64 dims");
    }
    if array.dims.iter().any(|&d| d < 0 && d != UNBOUNDED_DIM) {
        return Err("a negative dim");
    }
    let beyond = if array.rank() == 64 { 0 } else { u64::MAX << array.rank() };
    if array.dynamic & beyond != 0 {
        return Err("a dynamic mark beyond the last dim");
    }
    array.layout.as_deref().map_or(Ok(()), |layout| check_layout(layout, array.rank()))
}

fn check_layout(layout: &Layout, rank: usize) -> Result<(), &'static str> {
    let mut seen = 0u64;
    for &dim in &layout.minor_to_major {
        match usize::try_from(dim) {
            Ok(d) if d < rank && seen >> d & 1 == 0 => seen |= 1 << d,
            Ok(_) | Err(_) => return Err("a layout that is no permutation"),
        }
    }
    if layout.minor_to_major.len() == rank { Ok(()) } else { Err("a layout of another rank") }
}

/// Checks the instruction's shape and the computations that it applies to elements.
pub(super) fn check(cx: &mut Verifier<'_>, inst: InstId) {
    if infer::infer_by_ids(cx.module, inst) {
        return;
    }
    match infer::infer_inst(cx.module, inst) {
        Err(error) => {
            let expected = format_args!("{}", error.expected);
            cx.at_inst(rule_of(&error), inst, expected, format_args!("{} ({})", error.found, error.constraint));
        }
        Ok(inferred) => {
            compare(cx, inst, &inferred);
            reducers::check(cx, inst);
        }
    }
}

fn compare(cx: &mut Verifier<'_>, inst: InstId, inferred: &Inferred) {
    let module = cx.module;
    let stated = module.shape(inst);
    let expected = match inferred {
        Inferred::Stated => return,
        Inferred::Shape(shape) => shape,
        Inferred::Operand(i) => match module.inst(inst).operands.get(*i) {
            Some(&operand) => module.shape(operand),
            None => return,
        },
    };
    if !infer::agrees(expected, stated) {
        cx.at_inst("result-shape", inst, ShapeText(expected), ShapeText(stated));
    }
}

/// The verifier's rule for a broken constraint of shape inference.
fn rule_of(error: &ShapeError) -> &'static str {
    match error.constraint {
        "op.arity" => "operand-count",
        "op.format" => "attribute-format",
        "tuple.element" | "tuple.n-elements" | "map.result" => "result-shape",
        "elementwise.one-element-type"
        | "concatenate.element-type"
        | "dynamic-update-slice.element-type"
        | "scatter.element-type"
        | "select-and-scatter.element-type" => "mixed-precision",
        other if other.starts_with("call.") => "call-signature",
        other if other.starts_with("while.") => "while-signature",
        other if other.starts_with("conditional.") => "conditional-signature",
        "reduce.reducer-result" | "scan.body-result" => "reducer-signature",
        _ => "operand-shapes",
    }
}
