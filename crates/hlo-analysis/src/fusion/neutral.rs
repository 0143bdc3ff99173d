//! How reductions join two elements, where that is one operation, and the values that change nothing.

use hlo_ir::attrs::{Attrs, ReduceAttrs};
use hlo_ir::{ConstantValue, DType, InstId, Literal, Module, Opcode, Scalar};

/// The operation by which a reduction joins two elements, where it is one operation of both.
pub(super) fn plain_operation(module: &Module, attrs: &ReduceAttrs) -> Option<Opcode> {
    let comp = attrs.to_apply.map(|comp| module.comp(comp))?;
    let root = comp.root.expand().map(|root| module.inst(root))?;
    let &[a, b] = comp.params.as_slice() else { return None };
    let is_plain = root.operands.as_slice() == [a, b] || root.operands.as_slice() == [b, a];
    let opcodes = [Opcode::Add, Opcode::Multiply, Opcode::Maximum, Opcode::Minimum];
    (is_plain && opcodes.contains(&root.opcode)).then_some(root.opcode)
}

/// Whether a reduction joins by one operation whose neutral value `init` is.
pub(super) fn has_neutral_init(module: &Module, attrs: &ReduceAttrs, init: InstId, dtype: DType) -> bool {
    let Some(opcode) = plain_operation(module, attrs) else { return false };
    let Attrs::Constant(value) = &module.inst(init).attrs else { return false };
    let ConstantValue::Array(literal) = value.as_ref() else { return false };
    is_neutral(opcode, literal, dtype)
}

fn is_neutral(opcode: Opcode, literal: &Literal, dtype: DType) -> bool {
    let Some(value) = literal.get(0) else { return false };
    let number = match value {
        Scalar::Float(x) => x,
        Scalar::Int(x) => x as f64,
        Scalar::Uint(x) => x as f64,
        Scalar::Pred(_) | Scalar::Complex(..) => return false,
    };
    let lowest = if dtype.is_float() { f64::NEG_INFINITY } else { f64::NAN };
    let neutral = [(Opcode::Add, 0.0), (Opcode::Multiply, 1.0), (Opcode::Maximum, lowest), (Opcode::Minimum, -lowest)];
    neutral.contains(&(opcode, number))
}
