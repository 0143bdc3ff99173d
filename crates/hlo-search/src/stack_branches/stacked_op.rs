//! One op in the place of one in each branch: every operand and the result have a further dim in front, the branch.

use crate::rewritable::{is_array, may_lie_otherwise, says_nothing_beside};
use cranelift_entity::EntitySet;
use hlo_ir::attrs::{Attrs, DimsAttrs, DotAttrs, PadAttrs, PadDim, ReduceAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::op::{FactorRule, Stacks};
use hlo_ir::{InstId, Module, Opcode};

/// How an operand comes to the stacked op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperandForm {
    /// With the dim of the branches in front.
    Stacked,
    /// As it is; it must be the same in all branches.
    Same,
}

/// The form of operand `k` of an op that can be stacked; `None` for ops that cannot.
pub(super) fn operand_form(module: &Module, inst: InstId, k: usize) -> Option<OperandForm> {
    let node = module.inst(inst);
    let rank = |inst: InstId| module.shape(inst).as_array().map_or(0, |array| array.rank());
    if node.opcode == Opcode::Parameter {
        return Some(OperandForm::Stacked);
    }
    let rule = node.opcode.row().factors;
    match rule.row().stacks {
        Stacks::All if rule == FactorRule::Elementwise => {
            // The scalar of a `select` or `clamp` is one for all elements.
            let is_scalar = rank(inst) > 0 && node.operands.get(k).is_some_and(|&operand| rank(operand) == 0);
            Some(if is_scalar { OperandForm::Same } else { OperandForm::Stacked })
        }
        Stacks::All if rule == FactorRule::Dot && node.opcode != Opcode::Dot => None,
        Stacks::All => Some(OperandForm::Stacked),
        Stacks::First if rule == FactorRule::Reduce && node.operands.len() != 2 => None,
        Stacks::First => Some([OperandForm::Stacked, OperandForm::Same][k.min(1)]),
        Stacks::Never => None,
    }
}

/// Whether ops of one kind can be one op on stacked operands.
pub(super) fn can_stack(module: &Module, insts: &[InstId], seen: &EntitySet<InstId>) -> bool {
    let first = insts[0];
    let is_plain = |&inst: &InstId| may_lie_otherwise(module, inst, seen) && says_nothing_beside(module, inst);
    // An elementwise op that calls another computation (`map`) says which dims it goes over.
    let calls = !module.called(first).is_empty() && module.inst(first).opcode.row().factors != FactorRule::Reduce;
    let n_operands = module.inst(first).operands.len();
    let is_sound = |k: usize| {
        let operands: Vec<InstId> = insts.iter().map(|&inst| module.inst(inst).operands[k]).collect();
        let dims = |inst: InstId| module.shape(inst).as_array().map(|array| (array.dtype, array.dims.clone()));
        match operand_form(module, first, k) {
            Some(OperandForm::Stacked) => operands.iter().all(|&o| is_array(module, o) && dims(o) == dims(operands[0])),
            Some(OperandForm::Same) => is_same_everywhere(module, &operands),
            None => false,
        }
    };
    operand_form(module, first, 0).is_some()
        && !calls
        && insts.iter().all(|inst| is_plain(inst) && module.inst(*inst).operands.len() == n_operands)
        && (0..n_operands).all(is_sound)
}

/// The attributes of the op with a dim of `n_branches` in front.
pub(super) fn stacked_attrs(module: &Module, inst: InstId, n_branches: usize) -> Attrs {
    let attrs = &module.inst(inst).attrs;
    let rule = module.inst(inst).opcode.row().factors;
    if let Some(dot) = DotAttrs::of(attrs) {
        let mut dot = dot.clone();
        let lists = [
            &mut dot.lhs_batch_dims,
            &mut dot.rhs_batch_dims,
            &mut dot.lhs_contracting_dims,
            &mut dot.rhs_contracting_dims,
        ];
        lists.into_iter().for_each(|list| list.iter_mut().for_each(|dim| *dim += 1));
        dot.lhs_batch_dims.insert(0, 0);
        dot.rhs_batch_dims.insert(0, 0);
        return dot.into();
    }
    if let Some(reduce) = ReduceAttrs::of(attrs) {
        let mut reduce = reduce.clone();
        reduce.dimensions.iter_mut().for_each(|dim| *dim += 1);
        return reduce.into();
    }
    if let Some(slice) = SliceAttrs::of(attrs) {
        let mut slice = slice.clone();
        slice.slice.insert(0, SliceDim { start: 0, limit: n_branches as i64, stride: 1 });
        return slice.into();
    }
    if let Some(pad) = PadAttrs::of(attrs) {
        let mut pad = pad.clone();
        pad.padding.insert(0, PadDim::default());
        return pad.into();
    }
    if let Some(dims) = DimsAttrs::of(attrs) {
        let mut dims = dims.clone();
        dims.dimensions.iter_mut().for_each(|dim| *dim += 1);
        // Of a broadcast and a transpose these are the places of all dims of the operand or the result; of the others, those that are meant.
        if matches!(rule, FactorRule::Broadcast | FactorRule::Transpose) {
            dims.dimensions.insert(0, 0);
        }
        return dims.into();
    }
    if ReshapeAttrs::of(attrs).is_some() {
        return ReshapeAttrs::default().into();
    }
    attrs.clone()
}

/// Whether these are one value: one instruction, or constants and what is made of them alike.
pub(super) fn is_same_everywhere(module: &Module, insts: &[InstId]) -> bool {
    insts.iter().all(|&inst| is_same_value(module, insts[0], inst, 8))
}

fn is_same_value(module: &Module, a: InstId, b: InstId, depth: usize) -> bool {
    if a == b {
        return true;
    }
    let (one, other) = (module.inst(a), module.inst(b));
    let is_rebuilt = matches!(
        one.opcode.row().factors,
        FactorRule::Broadcast | FactorRule::Reshape | FactorRule::Iota | FactorRule::Elementwise
    ) || one.opcode == Opcode::Constant;
    depth > 0
        && is_rebuilt
        && (one.opcode, one.shape) == (other.opcode, other.shape)
        && one.attrs == other.attrs
        && one.operands.len() == other.operands.len()
        && one.operands.iter().zip(&other.operands).all(|(&a, &b)| is_same_value(module, a, b, depth - 1))
}
