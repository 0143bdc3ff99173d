//! Which ops pass a partial sum on: those that are linear in some of their operands.
//!
//! If the operands named are sums over devices and the others are whole, the op on each device's part gives a sum with the right total
//! (`facts` of the calculus in [`crate::operators`]). Ops that are not listed want whole values.

use hlo_ir::{InstId, Module, Opcode};

/// Operands as bits.
pub(crate) type OperandSet = u8;

/// In what an op is linear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Linearity {
    /// In its first operand, the others being whole.
    First,
    /// In all its operands together.
    Together,
    /// In each of its first two operands alone.
    Each,
    /// In its second and third operand together, the first one being whole.
    Branches,
}

/// The ops that are linear. A widening or equal `convert` is; one that rounds is not, which is looked at apart.
const LINEAR: [(Opcode, Linearity); 17] = [
    (Opcode::Negate, Linearity::First),
    (Opcode::Copy, Linearity::First),
    (Opcode::Convert, Linearity::First),
    (Opcode::Transpose, Linearity::First),
    (Opcode::Reshape, Linearity::First),
    (Opcode::Broadcast, Linearity::First),
    (Opcode::Slice, Linearity::First),
    (Opcode::Divide, Linearity::First),
    (Opcode::DynamicSlice, Linearity::First),
    (Opcode::Reverse, Linearity::First),
    (Opcode::Add, Linearity::Together),
    (Opcode::Subtract, Linearity::Together),
    (Opcode::Concatenate, Linearity::Together),
    (Opcode::Multiply, Linearity::Each),
    (Opcode::Dot, Linearity::Each),
    (Opcode::Convolution, Linearity::Each),
    (Opcode::Select, Linearity::Branches),
];

/// The sets of operands that may be partial sums along an axis while the others are whole; the result is one then.
pub(crate) fn partial_forms(module: &Module, inst: InstId) -> Vec<OperandSet> {
    let instruction = module.inst(inst);
    let dtype = |inst: InstId| module.shape(inst).as_array().map(|array| array.dtype);
    let is_float = dtype(inst).is_some_and(|dtype| dtype.is_float());
    let rounds = instruction.opcode == Opcode::Convert
        && instruction.operands.first().and_then(|&operand| dtype(operand)).is_none_or(|from| {
            !from.is_float() || dtype(inst).is_none_or(|to| to.bits() < from.bits())
        });
    if !is_float || rounds {
        return Vec::new();
    }
    let n = instruction.operands.len();
    let of = LINEAR.iter().find(|(opcode, _)| *opcode == instruction.opcode).map(|(_, linearity)| *linearity);
    match of {
        None => Vec::new(),
        Some(Linearity::First) => vec![1],
        Some(Linearity::Together) if n <= 8 => vec![((1u16 << n) - 1) as u8],
        Some(Linearity::Together) => Vec::new(),
        Some(Linearity::Each) => vec![0b01, 0b10],
        Some(Linearity::Branches) => vec![0b110],
    }
}
