//! Constants, tuples and nested computations.

use hlo_analysis::values::{InstLeaf, LeafSource, Through, source_of_leaf};
use hlo_ir::ConstantValue;
use hlo_ir::attrs::Attrs;

use super::emitter::{Element, Emitted, Emitter};

pub(super) fn constant(e: &mut Emitter<'_>, Element { inst, leaf, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Constant(value) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected the value of a constant"));
    };
    match leaf_of_constant(value, &mut { leaf }) {
        Some(ConstantValue::Array(literal)) => e.constant_element(inst, literal, index),
        Some(ConstantValue::Tuple(_)) | None => Err(e.unsupported(inst, "expected an array constant")),
        Some(ConstantValue::Elided) => Err(e.unsupported(inst, "expected elements, found {...}")),
    }
}

fn leaf_of_constant<'a>(value: &'a ConstantValue, left: &mut usize) -> Option<&'a ConstantValue> {
    match value {
        ConstantValue::Tuple(parts) => parts.iter().find_map(|part| leaf_of_constant(part, left)),
        ConstantValue::Array(_) | ConstantValue::Elided if *left == 0 => Some(value),
        ConstantValue::Array(_) | ConstantValue::Elided => {
            *left -= 1;
            None
        }
    }
}

/// The leaf of an operand that a tuple, an element of a tuple or a barrier hands on.
pub(super) fn handed_on(e: &mut Emitter<'_>, Element { frame, inst, leaf, index }: Element<'_>) -> Emitted {
    match source_of_leaf(e.module, InstLeaf::new(inst, leaf as u32), Through::MARKERS) {
        LeafSource::Operand(from) => e.value(frame, from.inst, from.leaf_idx as usize, index),
        LeafSource::Argument | LeafSource::Callees(_) | LeafSource::Computed => {
            Err(e.unsupported(inst, format!("expected a leaf {leaf}")))
        }
    }
}

/// A call or a nested fusion: the called computation's result.
pub(super) fn call(e: &mut Emitter<'_>, Element { frame, inst, leaf, index }: Element<'_>) -> Emitted {
    let callee = e.module.called(inst).first().copied();
    let callee = callee.ok_or_else(|| e.unsupported(inst, "expected a called computation"))?;
    let root = e.module.comp(callee).root.expand();
    let root = root.ok_or_else(|| e.unsupported(inst, "expected a root of the called computation"))?;
    let inner = e.callee(frame, inst, callee);
    e.value(inner, root, leaf, index)
}
