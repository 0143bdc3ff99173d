//! Shapes: every distinct shape is well formed, and every instruction has the shape its operands imply.

use super::{Verifier, reducers};
use crate::infer::{self, Inferred, ShapeError, ShapeText};
use crate::module::InstId;
use crate::op::{CollectiveRule, ShapeRule};
use crate::shape::{ArrayShape, Layout, Shape, ShapeId, UNBOUNDED_DIM};
use cranelift_entity::{EntityRef, SecondaryMap};

/// Checks each distinct shape of the module; a bad one is reported where it is used.
pub(super) fn check_pool(cx: &mut Verifier<'_>) {
    let module = cx.module;
    let errors: Vec<_> =
        (0..module.shapes.len()).map(|i| check_shape(module.shapes.get(ShapeId::new(i))).err()).collect();
    if errors.iter().all(Option::is_none) {
        return;
    }
    for &inst in module.computations().iter().flat_map(|&c| &module.comp(c).insts) {
        if let Some(Some((rule, found))) = errors.get(module.inst(inst).shape.index()) {
            cx.at_inst(rule, inst, "dims of 0 or more, at most 64, and layouts that order each dim once", found);
        }
    }
    if cx.found.is_empty()
        && let Some((rule, found)) = errors.into_iter().flatten().next()
    {
        cx.at_module(rule, "well-formed shapes in the header and in attributes", found);
    }
}

/// Checks that sizes can be added up: the arrays of all instructions together have a number of bytes that fits 63 bits.
pub(super) fn check_sizes(cx: &mut Verifier<'_>) {
    const MOST: u64 = i64::MAX as u64;
    let module = cx.module;
    let mut bytes_of: SecondaryMap<ShapeId, Option<u64>> = SecondaryMap::with_capacity(module.shapes.len());
    let mut sum = 0u64;
    for &inst in module.computations().iter().flat_map(|&c| &module.comp(c).insts) {
        let shape = module.inst(inst).shape;
        let bytes = *bytes_of[shape].get_or_insert_with(|| module.shapes.get(shape).memory_bytes());
        sum = sum.saturating_add(bytes);
        if sum > MOST {
            let found = format_args!("{bytes} more in this one");
            return cx.at_inst("module-bytes", inst, "at most 2^63 - 1 bytes in all instructions up to here", found);
        }
    }
}

type BadShape = (&'static str, &'static str);

fn check_shape(shape: &Shape) -> Result<(), BadShape> {
    match shape {
        Shape::Array(array) | Shape::Buffer(array) => check_array(array),
        Shape::Tuple(elements) => elements.iter().try_for_each(check_shape),
        Shape::Token | Shape::Opaque => Ok(()),
    }
}

fn check_array(array: &ArrayShape) -> Result<(), BadShape> {
    if array.rank() > 64 {
        return Err(("shape-dims", "more than 64 dims"));
    }
    if array.dims.iter().any(|&d| d < 0 && d != UNBOUNDED_DIM) {
        return Err(("shape-dims", "a negative dim"));
    }
    let beyond = if array.rank() == 64 { 0 } else { u64::MAX << array.rank() };
    if array.dynamic & beyond != 0 {
        return Err(("shape-dims", "a dynamic mark beyond the last dim"));
    }
    array.layout.as_deref().map_or(Ok(()), |layout| check_layout(layout, array.rank()))
}

fn check_layout(layout: &Layout, rank: usize) -> Result<(), BadShape> {
    let mut seen = 0u64;
    for &dim in &layout.minor_to_major {
        match usize::try_from(dim) {
            Ok(d) if d < rank && seen >> d & 1 == 0 => seen |= 1 << d,
            Ok(_) | Err(_) => return Err(("layout-permutation", "a layout that is no permutation")),
        }
    }
    if layout.minor_to_major.len() == rank { Ok(()) } else { Err(("layout-permutation", "a layout of another rank")) }
}

/// Checks the instruction's shape and the computations that it applies to elements.
pub(super) fn check(cx: &mut Verifier<'_>, inst: InstId) {
    if infer::infer_by_ids(cx.module, inst) {
        return;
    }
    match infer::infer_inst(cx.module, inst) {
        // The rules of groups say more about groups of no size or of several sizes.
        Err(error) if error.constraint == "collective.groups" => {}
        Err(error) => {
            let rule = rule_of(cx.module.inst(inst).opcode.row().shape, &error);
            let expected = format_args!("{}", error.expected);
            cx.at_inst(rule, inst, expected, format_args!("{} ({})", error.found, error.constraint));
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
        let rule = rule_of_result(module.inst(inst).opcode.row().shape, expected, stated);
        cx.at_inst(rule, inst, ShapeText(expected), ShapeText(stated));
    }
}

/// The verifier's rule for a result of another shape.
fn rule_of_result(rule: ShapeRule, expected: &Shape, stated: &Shape) -> &'static str {
    let is_arity = expected.n_leaves() != stated.n_leaves();
    if let ShapeRule::Collective(rule) = rule {
        return match (rule.reduces(), rule.scatters, rule.gathers) {
            (true, false, false) if is_arity => "all-reduce-arity",
            (true, true, false) if is_arity => "reduce-scatter-arity",
            (true, true, false) => "reduce-scatter-shard-count",
            (false, false, true) if is_arity => "all-gather-arity",
            (false, false, true) => "all-gather-shard-count",
            (true, false, false) | (false, false, false) | (false, true, _) | (true, _, true) => "shape-mismatch",
        };
    }
    rule_of_callee(rule).unwrap_or("shape-mismatch")
}

/// The verifier's rule for an op whose shape follows from the computations that it runs.
fn rule_of_callee(rule: ShapeRule) -> Option<&'static str> {
    if rule == ShapeRule::Call {
        return Some("called-signature");
    }
    rule_of_control_flow(rule)
}

/// The verifier's rule for loops and branches.
fn rule_of_control_flow(rule: ShapeRule) -> Option<&'static str> {
    let known = [(ShapeRule::While, "while-shape"), (ShapeRule::Conditional, "conditional-shape")];
    known.iter().find(|(of, _)| *of == rule).map(|(_, id)| *id)
}

/// The verifier's rule for a broken constraint of shape inference.
fn rule_of(rule: ShapeRule, error: &ShapeError) -> &'static str {
    if let ShapeRule::Collective(rule) = rule
        && let Some(id) = rule_of_collective(rule, error.constraint)
    {
        return id;
    }
    match error.constraint {
        "op.arity" => "operand-count",
        "op.format" => "attribute-format",
        "all-to-all.n-operands" => "all-to-all-arity",
        "all-to-all.divides" => "all-to-all-split",
        "elementwise.one-element-type" | "concatenate.element-type" | "dynamic-update-slice.element-type" => {
            "mixed-precision"
        }
        "scatter.element-type" | "select-and-scatter.element-type" => "mixed-precision",
        "call.callee" | "call.n-operands" | "call.operand" => rule_of_control_flow(rule).unwrap_or("called-signature"),
        constraint => match rule_of_control_flow(rule) {
            Some(id) => id,
            None if ["reduce.reducer-result", "scan.body-result", "map.result"].contains(&constraint) => {
                "reducer-signature"
            }
            None => "shape-mismatch",
        },
    }
}

/// The verifier's rule for a broken constraint of a collective, where it has one of its own.
fn rule_of_collective(rule: CollectiveRule, constraint: &str) -> Option<&'static str> {
    match (rule.reduces(), rule.scatters, rule.gathers) {
        (true, false, false) => (constraint == "tuple.n-elements").then_some("all-reduce-arity"),
        (true, true, false) => match constraint {
            "collective.dimension" => Some("reduce-scatter-dim"),
            "reduce-scatter.divides" => Some("reduce-scatter-shard-count"),
            _ => None,
        },
        (false, false, true) => match constraint {
            "op.array-operand" => Some("all-gather-operand"),
            "collective.dimension" => Some("all-gather-dim"),
            _ => None,
        },
        (false, false, false) | (false, true, _) | (true, _, true) => None,
    }
}
