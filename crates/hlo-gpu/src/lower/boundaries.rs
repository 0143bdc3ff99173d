//! Give what enters and leaves loops, branches and calls the layouts that are stated there, by physical copies of the
//! leaves that have another.

use super::strides::is_same_layout;
use hlo_analysis::values::{CallSite, argument_idx};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{InstId, Module, Opcode, Shape, ShapeId};

/// Rewrites the operands of an instruction that enters computations, and the roots of those.
pub(crate) fn rewrite_boundaries(module: &mut Module, inst: InstId) {
    let opcode = module.inst(inst).opcode;
    let Some(entry) = opcode.row().flow.entry().filter(|_| opcode != Opcode::Fusion) else { return };
    let callees = module.called(inst);
    for (k, &callee) in callees.iter().enumerate() {
        for (number, param) in module.comp(callee).params.clone().into_iter().enumerate() {
            let site = CallSite { inst, slot: k as u32 };
            let Some(operand_idx) = argument_idx(module, site, number) else { continue };
            let operand = module.inst(inst).operands[operand_idx];
            let wanted = module.inst(param).shape;
            let restated = restate(module, operand, wanted);
            module.inst_mut(inst).operands[operand_idx] = restated;
        }
        // What a loop's condition returns is no state.
        if let Some(root) = module.comp(callee).root.expand().filter(|_| entry.returns(k)) {
            let wanted = module.inst(inst).shape;
            let restated = restate(module, root, wanted);
            if restated != root {
                module.comp_mut(callee).root = Some(restated).into();
            }
        }
    }
}

/// The value with all leaves in the layouts of `wanted`: itself if they are so already or the shapes differ otherwise.
pub(crate) fn restate(module: &mut Module, value: InstId, wanted: ShapeId) -> InstId {
    let (found, wanted) = (module.shape(value).clone(), module.shapes.get(wanted).clone());
    if !found.same_type(&wanted) || agrees(&found, &wanted) {
        return value;
    }
    convert(module, value, &found, &wanted)
}

fn agrees(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Array(a), Shape::Array(b)) => is_same_layout(a, b),
        (Shape::Tuple(a), Shape::Tuple(b)) => a.iter().zip(b).all(|(a, b)| agrees(a, b)),
        (Shape::Array(_) | Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_), _) => true,
    }
}

fn convert(module: &mut Module, value: InstId, found: &Shape, wanted: &Shape) -> InstId {
    if agrees(found, wanted) {
        return value;
    }
    let comp = module.inst(value).parent;
    let hint = format!("{}.layout", module.inst_name(value));
    match (found, wanted) {
        (Shape::Tuple(elements), Shape::Tuple(wanted_elements)) => {
            let mut parts = Vec::new();
            for (k, (element, wanted)) in elements.iter().zip(wanted_elements).enumerate() {
                let index = TupleIndexAttrs { index: k as i64 };
                let mut builder = Builder::new(module, comp);
                let part = builder.add(&hint, Opcode::GetTupleElement, element.clone(), [value], index);
                parts.push(convert(module, part, element, wanted));
            }
            let shapes = parts.iter().map(|&part| module.shape(part).clone()).collect();
            Builder::new(module, comp).add(&hint, Opcode::Tuple, Shape::Tuple(shapes), parts, Attrs::Plain)
        }
        (_, _) => Builder::new(module, comp).add(&hint, Opcode::Copy, wanted.clone(), [value], Attrs::Plain),
    }
}
