//! Attributes that name leaves, operands or parts of them.

use super::Verifier;
use crate::attrs::{Attrs, OperandAlias};
use crate::infer::{ShapeText, agrees};
use crate::module::InstId;
use crate::shape::ShapeId;

pub(super) fn check(cx: &mut Verifier<'_>, inst: InstId) {
    match &cx.module.inst(inst).attrs {
        Attrs::Parameter(a) if !a.parameter_replication.is_empty() => {
            let n = cx.module.shape(inst).n_leaves();
            if a.parameter_replication.len() != n {
                let expected = format!("{n} flags, one for each leaf");
                cx.at_inst("parameter-replication", inst, expected, a.parameter_replication.len());
            }
        }
        Attrs::Call(a) => check_aliasing(cx, inst, &a.output_to_operand_aliasing),
        Attrs::Fusion(a) => check_aliasing(cx, inst, &a.output_to_operand_aliasing),
        Attrs::Custom(a) => {
            check_aliasing(cx, inst, &a.output_to_operand_aliasing);
            if let Some(shapes) = &a.operand_layout_constraints {
                check_layout_constraints(cx, inst, shapes);
            }
        }
        Attrs::Parameter(_)
        | Attrs::Plain
        | Attrs::Constant(_)
        | Attrs::Dims(_)
        | Attrs::TupleIndex(_)
        | Attrs::Iota(_)
        | Attrs::Reshape(_)
        | Attrs::Slice(_)
        | Attrs::DynamicSlice(_)
        | Attrs::Pad(_)
        | Attrs::Dot(_)
        | Attrs::Conv(_)
        | Attrs::Gather(_)
        | Attrs::Scatter(_)
        | Attrs::Reduce(_)
        | Attrs::Sort(_)
        | Attrs::ReduceWindow(_)
        | Attrs::SelectAndScatter(_)
        | Attrs::Scan(_)
        | Attrs::Compare(_)
        | Attrs::While(_)
        | Attrs::Conditional(_)
        | Attrs::Combining(_)
        | Attrs::Gathering(_)
        | Attrs::Exchanging(_)
        | Attrs::Permuting(_)
        | Attrs::Transfer(_)
        | Attrs::Infeed(_)
        | Attrs::Outfeed(_)
        | Attrs::Rng(_)
        | Attrs::RngBits(_)
        | Attrs::RngState(_)
        | Attrs::TriangularSolve(_)
        | Attrs::Cholesky(_)
        | Attrs::Fft(_)
        | Attrs::ReducePrecision(_)
        | Attrs::BatchNorm(_)
        | Attrs::Domain(_)
        | Attrs::Async(_)
        | Attrs::CopyStart(_)
        | Attrs::TopK(_)
        | Attrs::Metadata(_) => {}
    }
}

fn check_aliasing(cx: &mut Verifier<'_>, inst: InstId, aliases: &[OperandAlias]) {
    let module = cx.module;
    for alias in aliases {
        let operand = usize::try_from(alias.operand).ok().and_then(|i| module.inst(inst).operands.get(i));
        let input = operand.and_then(|&o| module.shape(o).at(&alias.operand_index));
        match (module.shape(inst).at(&alias.output_index), input) {
            (Some(output), Some(input)) if agrees(input, output) => {}
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
