//! Which ops of HLO pass a partial sum on, by the rules of [`crate::operators`].

use crate::operators::{LocalOp, OperandState, PASSINGS, Passes};
use hlo_ir::{InstId, Module, Opcode};

/// Operands as bits.
pub(crate) type OperandSet = u8;

/// What ops are in the calculus of operators. Ops that are not listed want whole values.
const LOCAL_OPS: [(Opcode, LocalOp); 14] = [
    (Opcode::Negate, LocalOp::Negate),
    (Opcode::Copy, LocalOp::Reshape),
    (Opcode::Convert, LocalOp::ConvertToWider),
    (Opcode::Transpose, LocalOp::Transpose),
    (Opcode::Reshape, LocalOp::Reshape),
    (Opcode::Broadcast, LocalOp::Broadcast),
    (Opcode::Slice, LocalOp::Slice),
    (Opcode::Divide, LocalOp::Divide),
    (Opcode::Add, LocalOp::Add),
    (Opcode::Subtract, LocalOp::Subtract),
    (Opcode::Concatenate, LocalOp::Concatenate),
    (Opcode::Multiply, LocalOp::Multiply),
    (Opcode::Dot, LocalOp::Dot),
    (Opcode::Convolution, LocalOp::Convolution),
];

/// The most operands of an op that is looked at.
const MOST_OPERANDS: usize = 8;

/// The sets of operands that may be partial sums along an axis while the others are whole; the result is one then.
pub(crate) fn partial_forms(module: &Module, inst: InstId) -> Vec<OperandSet> {
    let instruction = module.inst(inst);
    let dtype = |inst: InstId| module.shape(inst).as_array().map(|array| array.dtype);
    let is_float = dtype(inst).is_some_and(|dtype| dtype.is_float());
    let rounds = instruction.opcode == Opcode::Convert
        && instruction
            .operands
            .first()
            .and_then(|&operand| dtype(operand))
            .is_none_or(|from| !from.is_float() || dtype(inst).is_none_or(|to| to.bits() < from.bits()));
    let n = instruction.operands.len();
    if !is_float || rounds || n > MOST_OPERANDS {
        return Vec::new();
    }
    let Some((_, local)) = LOCAL_OPS.iter().find(|(opcode, _)| *opcode == instruction.opcode) else {
        return Vec::new();
    };
    let rows = PASSINGS.iter().filter(|row| row.op == *local && matches!(row.passes, Passes::Bits | Passes::Exact));
    rows.map(|row| operand_set(row.operands, n, *local)).collect()
}

/// The partial operands of a row; those of a concatenation are all alike.
fn operand_set(states: &[OperandState], n_operands: usize, op: LocalOp) -> OperandSet {
    if op == LocalOp::Concatenate {
        return ((1u16 << n_operands) - 1) as OperandSet;
    }
    let partial = states.iter().enumerate().filter(|(_, state)| **state == OperandState::Partial);
    partial.fold(0, |set, (k, _)| set | 1 << k)
}
