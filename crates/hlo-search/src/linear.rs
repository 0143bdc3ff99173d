//! Which ops of HLO pass a partial sum on: those that are linear in the operands that are partial.
//!
//! What is linear follows from the op table: an elementwise op by the formula of its row, any other by the rule of its factors. The
//! table [`PASSINGS`] of the calculus of operators says the same of its ops, and a test holds one against the other.

use crate::operators::{LocalOp, OperandState, PASSINGS, Passes};
use hlo_ir::op::{ElementwiseRoutine, EvalRoutine, EvalRule, Formulas, Linear, OpKind, StructureRoutine};
use hlo_ir::{InstId, Module};

/// Operands as bits.
pub(crate) type OperandSet = u8;

/// The most operands of an op that is looked at.
const MOST_OPERANDS: usize = 8;

/// The sets of operands that may be partial sums along an axis while the others are whole; the result is one then.
pub(crate) fn partial_forms(module: &Module, inst: InstId) -> Vec<OperandSet> {
    let instruction = module.inst(inst);
    let dtype = |inst: InstId| module.shape(inst).as_array().map(|array| array.dtype);
    let n = instruction.operands.len();
    if !dtype(inst).is_some_and(|dtype| dtype.is_float()) || n > MOST_OPERANDS {
        return Vec::new();
    }
    let row = instruction.opcode.row();
    match row.factors.row().linear {
        Linear::ByFormula => match row.kind {
            OpKind::Scalar(formulas) => linear_sets(formulas, n),
            OpKind::Special(_) => {
                let from = instruction.operands.first().and_then(|&operand| dtype(operand));
                let widens =
                    from.is_some_and(|from| from.is_float() && dtype(inst).is_some_and(|to| to.bits() >= from.bits()));
                forms_of_routine(row.eval, n, widens)
            }
            OpKind::Collective => Vec::new(),
        },
        // Nothing is known of group sizes and scales beside the factors.
        Linear::Each if n > 2 => Vec::new(),
        Linear::Each => (0..n).map(|k| 1 << k).collect(),
        Linear::Together => vec![((1u16 << n) - 1) as OperandSet],
        // Of a reduce, a window, a scatter the computation would have to be a sum; of a pad the second operand zero.
        Linear::Never => Vec::new(),
    }
}

/// The sets of an elementwise op that no formula describes; a conversion passes sums where it `widens`.
fn forms_of_routine(rule: EvalRule, n_operands: usize, widens: bool) -> Vec<OperandSet> {
    let routine = match rule {
        EvalRule::Routine(routine) => routine,
        EvalRule::Unary(_) | EvalRule::Binary(_) | EvalRule::NotEvaluated(_) => return Vec::new(),
    };
    match routine {
        EvalRoutine::Elementwise(ElementwiseRoutine::Convert) if widens => {
            of_local(LocalOp::ConvertToWider, n_operands)
        }
        EvalRoutine::Structure(StructureRoutine::Identity) => of_local(LocalOp::Reshape, n_operands),
        EvalRoutine::Elementwise(
            ElementwiseRoutine::Abs
            | ElementwiseRoutine::IsFinite
            | ElementwiseRoutine::Compare
            | ElementwiseRoutine::Select
            | ElementwiseRoutine::Clamp
            | ElementwiseRoutine::Complex
            | ElementwiseRoutine::Real
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::Convert
            | ElementwiseRoutine::BitcastConvert
            | ElementwiseRoutine::StochasticConvert
            | ElementwiseRoutine::ReducePrecision,
        )
        | EvalRoutine::Structure(
            StructureRoutine::Tuple
            | StructureRoutine::GetTupleElement
            | StructureRoutine::AfterAll
            | StructureRoutine::CopyStart
            | StructureRoutine::CopyDone
            | StructureRoutine::RngBitGenerator,
        )
        | EvalRoutine::Parameter
        | EvalRoutine::Constant
        | EvalRoutine::Shaping(_)
        | EvalRoutine::OneArray(_)
        | EvalRoutine::SeveralArrays(_)
        | EvalRoutine::Lockstep(_) => Vec::new(),
    }
}

/// The sets in which the formula of reals is linear.
fn linear_sets(formulas: Formulas, n_operands: usize) -> Vec<OperandSet> {
    let Some(formula) = formulas.real.map(|formula| formula()) else { return Vec::new() };
    (1..1u16 << n_operands).map(|set| set as OperandSet).filter(|&set| formula.is_linear_in(set)).collect()
}

/// The sets of a table's row for so many operands.
fn of_local(op: LocalOp, n_operands: usize) -> Vec<OperandSet> {
    let rows = PASSINGS.iter().filter(|row| row.op == op && row.operands.len() == n_operands);
    let rows = rows.filter(|row| matches!(row.passes, Passes::Bits | Passes::Exact));
    rows.map(|row| operand_set(row.operands)).collect()
}

/// The partial operands of a row.
fn operand_set(states: &[OperandState]) -> OperandSet {
    let partial = states.iter().enumerate().filter(|(_, state)| **state == OperandState::Partial);
    partial.fold(0, |set, (k, _)| set | 1 << k)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::Opcode;
    use hlo_ir::op::FactorRule;

    #[test]
    fn linear_columns_and_the_calculus_agree() {
        let rules = [
            (FactorRule::Broadcast, LocalOp::Broadcast, 1),
            (FactorRule::Reshape, LocalOp::Reshape, 1),
            (FactorRule::Transpose, LocalOp::Transpose, 1),
            (FactorRule::Slice, LocalOp::Slice, 1),
            (FactorRule::Dot, LocalOp::Dot, 2),
            (FactorRule::Convolution, LocalOp::Convolution, 2),
        ];
        for (rule, local, n_operands) in rules {
            let mut said = of_local(local, n_operands);
            said.sort_unstable();
            assert_eq!(said, (0..n_operands).map(|k| 1 << k).collect::<Vec<_>>(), "{rule:?}");
            assert_eq!(rule.row().linear, Linear::Each, "{rule:?}");
        }
    }

    #[test]
    fn formulas_and_the_calculus_agree() {
        let pairs = [
            (Opcode::Negate, LocalOp::Negate, 1),
            (Opcode::Add, LocalOp::Add, 2),
            (Opcode::Subtract, LocalOp::Subtract, 2),
            (Opcode::Multiply, LocalOp::Multiply, 2),
            (Opcode::Divide, LocalOp::Divide, 2),
            (Opcode::Maximum, LocalOp::Maximum, 2),
        ];
        for (opcode, local, n_operands) in pairs {
            let OpKind::Scalar(formulas) = opcode.row().kind else { panic!("{opcode} has no formula") };
            let (mut found, mut said) = (linear_sets(formulas, n_operands), of_local(local, n_operands));
            found.sort_unstable();
            said.sort_unstable();
            assert_eq!(found, said, "{opcode}");
        }
    }
}
