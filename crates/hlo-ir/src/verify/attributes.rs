//! Attributes that name leaves, operands or parts of them.

use super::Verifier;
use crate::attrs::{CustomAttrs, OperandAlias, ParameterAttrs};
use crate::infer::{ShapeText, agrees};
use crate::module::InstId;
use crate::shape::{Shape, ShapeId};

pub(super) fn check(cx: &mut Verifier<'_>, inst: InstId) {
    let module = cx.module;
    let attrs = &module.inst(inst).attrs;
    if let Some(ParameterAttrs { parameter_replication, .. }) = ParameterAttrs::of(attrs) {
        let n = module.shape(inst).n_leaves();
        if !parameter_replication.is_empty() && parameter_replication.len() != n {
            let expected = format!("{n} flags, one for each leaf");
            cx.at_inst("parameter-replication", inst, expected, parameter_replication.len());
        }
    }
    check_aliasing(cx, inst, attrs.output_aliases());
    if let Some(CustomAttrs { operand_layout_constraints: Some(shapes), .. }) = CustomAttrs::of(attrs) {
        check_layout_constraints(cx, inst, shapes);
    }
}

fn check_aliasing(cx: &mut Verifier<'_>, inst: InstId, aliases: &[OperandAlias]) {
    let module = cx.module;
    for alias in aliases {
        let operand = usize::try_from(alias.operand).ok().and_then(|i| module.inst(inst).operands.get(i));
        let input = operand.and_then(|&o| module.shape(o).at(&alias.operand_index));
        match (module.shape(inst).at(&alias.output_index), input) {
            (Some(output), Some(input)) if holds_the_same(input, output) => {}
            (Some(output), Some(input)) => {
                let expected = format!("{} as aliased output", ShapeText(input));
                cx.at_inst("operand-aliasing", inst, expected, ShapeText(output));
            }
            (None, _) | (_, None) => {
                let found =
                    format!("output {:?}, operand {} {:?}", alias.output_index, alias.operand, alias.operand_index);
                cx.at_inst("operand-aliasing", inst, "an alias of parts that exist", found);
            }
        }
    }
}

/// Whether two parts have the same elements; a buffer may be that of an array, which custom calls pin and unpin.
fn holds_the_same(input: &Shape, output: &Shape) -> bool {
    match (input, output) {
        (Shape::Array(array), Shape::Buffer(_)) => agrees(&Shape::Buffer(array.clone()), output),
        (Shape::Buffer(array), Shape::Array(_)) => agrees(&Shape::Array(array.clone()), output),
        (Shape::Array(_) | Shape::Buffer(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque, _) => {
            agrees(input, output)
        }
    }
}

fn check_layout_constraints(cx: &mut Verifier<'_>, inst: InstId, shapes: &[ShapeId]) {
    let module = cx.module;
    let operands = &module.inst(inst).operands;
    if shapes.len() != operands.len() {
        let expected = format!("{} operand layout constraints", operands.len());
        return cx.at_inst("layout-constraints", inst, expected, shapes.len());
    }
    for (&operand, &shape) in operands.iter().zip(shapes) {
        let (expected, found) = (module.shape(operand), module.shapes.get(shape));
        if !agrees(expected, found) {
            return cx.at_inst("layout-constraints", inst, ShapeText(expected), ShapeText(found));
        }
    }
}
