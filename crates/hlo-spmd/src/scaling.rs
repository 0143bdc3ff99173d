//! The scalar that an array repeats, and scalings by such a scalar.

use crate::collective::array;
use hlo_ir::attrs::Attrs;
use hlo_ir::dtype::NumberClass;
use hlo_ir::{ArrayShape, ConstantValue, InstId, Module, Opcode, Scalar};

/// Whether the elements are real or complex floating-point numbers: division distributes over addition but for rounding.
pub fn is_floating(array: &ArrayShape) -> bool {
    matches!(array.dtype.class(), NumberClass::Float | NumberClass::Complex)
}

/// The scalar that all elements of an array equal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Splat {
    /// A constant.
    Value(Scalar),
    /// An instruction of shape `[]` that is no constant.
    Scalar(InstId),
}

impl Splat {
    /// Whether all elements are the constant zero.
    pub fn is_zero(self) -> bool {
        match self {
            Splat::Value(Scalar::Int(v)) => v == 0,
            Splat::Value(Scalar::Uint(v)) => v == 0,
            Splat::Value(Scalar::Float(v)) => v == 0.0,
            Splat::Value(Scalar::Complex(re, im)) => re == 0.0 && im == 0.0,
            Splat::Value(Scalar::Pred(_)) | Splat::Scalar(_) => false,
        }
    }
}

/// The scalar that `inst` repeats, read through broadcasts, reshapes and copies.
pub fn find_splat(module: &Module, inst: InstId) -> Option<Splat> {
    let (mut at, mut scalar) = (inst, None);
    loop {
        let instruction = module.inst(at);
        if array(module, at)?.rank() == 0 {
            scalar = Some(at);
        }
        if let Attrs::Constant(value) = &instruction.attrs
            && let ConstantValue::Array(literal) = &**value
        {
            return (literal.n_elems() > 0 && literal.is_splat()).then(|| literal.get(0).map(Splat::Value)).flatten();
        }
        let repeats = [Opcode::Broadcast, Opcode::Reshape, Opcode::Copy].contains(&instruction.opcode);
        match instruction.operands.first() {
            Some(&operand) if repeats => at = operand,
            Some(_) | None => break,
        }
    }
    scalar.map(Splat::Scalar)
}

/// `x * s` or `x / s` with a repeated scalar `s`: the mean behind a sum.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scaling {
    /// `multiply` or `divide`.
    pub opcode: Opcode,
    /// The operand that repeats the scalar: 1, or for a product also 0.
    pub scale_idx: usize,
    /// What is repeated.
    pub splat: Splat,
}

/// How `inst` scales `value`, which is one of its operands. Integer quotients are left out: they do not distribute over sums.
pub fn find_scaling(module: &Module, inst: InstId, value: InstId) -> Option<Scaling> {
    let instruction = module.inst(inst);
    let opcode = instruction.opcode;
    let [lhs, rhs] = instruction.operands.as_slice() else { return None };
    let scales = opcode == Opcode::Multiply || (opcode == Opcode::Divide && is_floating(array(module, inst)?));
    if !scales || lhs == rhs {
        return None;
    }
    let (scale_idx, scale) = match value {
        v if v == *lhs => (1, *rhs),
        v if v == *rhs && opcode == Opcode::Multiply => (0, *lhs),
        _ => return None,
    };
    Some(Scaling { opcode, scale_idx, splat: find_splat(module, scale)? })
}
