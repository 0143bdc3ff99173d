//! One op in the place of one in each branch: every operand and the result have a further dim in front, the branch.

use cranelift_entity::EntitySet;
use hlo_ir::attrs::{Attrs, DimsAttrs, DotAttrs, PadAttrs, PadDim, ReduceAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::op::FactorRule;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode, Shape};

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
    match node.opcode.row().factors {
        FactorRule::Elementwise => {
            // The scalar of a `select` or `clamp` is one for all elements.
            let is_scalar = rank(inst) > 0 && node.operands.get(k).is_some_and(|&operand| rank(operand) == 0);
            Some(if is_scalar { OperandForm::Same } else { OperandForm::Stacked })
        }
        FactorRule::Dot if node.opcode == Opcode::Dot => Some(OperandForm::Stacked),
        FactorRule::Broadcast
        | FactorRule::Reshape
        | FactorRule::Transpose
        | FactorRule::Slice
        | FactorRule::Reverse
        | FactorRule::Concatenate => Some(OperandForm::Stacked),
        FactorRule::Reduce if node.operands.len() == 2 => Some([OperandForm::Stacked, OperandForm::Same][k.min(1)]),
        FactorRule::Pad => Some([OperandForm::Stacked, OperandForm::Same][k.min(1)]),
        FactorRule::Dot
        | FactorRule::Reduce
        | FactorRule::Bitcast
        | FactorRule::BitcastConvert
        | FactorRule::Iota
        | FactorRule::DynamicSlice
        | FactorRule::DynamicUpdateSlice
        | FactorRule::Gather
        | FactorRule::Scatter
        | FactorRule::Convolution
        | FactorRule::ReduceWindow
        | FactorRule::SelectAndScatter
        | FactorRule::Sort
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::BatchNorm
        | FactorRule::CustomCall
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => None,
    }
}

/// Whether ops of one kind can be one op on stacked operands.
pub(super) fn can_stack(module: &Module, insts: &[InstId], seen: &EntitySet<InstId>) -> bool {
    let first = insts[0];
    // What stands beside an op is kept only where it says nothing of the op itself.
    let is_free = |inst: InstId| {
        module.inst(inst).marks.as_ref().is_none_or(|marks| {
            marks.control_predecessors.is_empty()
                && marks.sharding.is_none()
                && marks.backend_config.is_none()
                && marks.result_accuracy == Default::default()
                && marks.statistics == Default::default()
        })
    };
    let is_plain = |&inst: &InstId| may_lie_otherwise(module, inst, seen) && is_free(inst);
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

/// Whether an instruction gives one array.
fn is_array(module: &Module, inst: InstId) -> bool {
    matches!(module.shape(inst), Shape::Array(array) if array.dynamic == 0)
}

/// Values of which somebody sees how they lie: results of the computation, and what is taken by an op that is no function of elements and
/// their places alone (`bitcast`, custom calls).
pub(super) fn seen_layouts(module: &Module, comp: CompId) -> EntitySet<InstId> {
    let mut seen: EntitySet<InstId> = EntitySet::new();
    seen.extend(module.comp(comp).root.expand());
    for &inst in &module.comp(comp).insts {
        let sees = match module.inst(inst).opcode.row().factors {
            FactorRule::Elementwise
            | FactorRule::Dot
            | FactorRule::Broadcast
            | FactorRule::Reshape
            | FactorRule::Transpose
            | FactorRule::Reverse
            | FactorRule::Slice
            | FactorRule::Pad
            | FactorRule::Concatenate
            | FactorRule::Reduce
            | FactorRule::Convolution
            | FactorRule::ReduceWindow
            | FactorRule::SelectAndScatter
            | FactorRule::DynamicSlice
            | FactorRule::DynamicUpdateSlice
            | FactorRule::Gather
            | FactorRule::Scatter
            | FactorRule::Iota => false,
            FactorRule::Bitcast
            | FactorRule::BitcastConvert
            | FactorRule::Sort
            | FactorRule::Cholesky
            | FactorRule::TriangularSolve
            | FactorRule::Fft
            | FactorRule::BatchNorm
            | FactorRule::CustomCall
            | FactorRule::Structural(_)
            | FactorRule::Whole(_) => true,
        };
        if sees {
            seen.extend(module.inst(inst).operands.iter().copied());
        }
    }
    seen
}

/// Whether an instruction gives one array that may lie as arrays do where nothing is said.
pub(super) fn may_lie_otherwise(module: &Module, inst: InstId, seen: &EntitySet<InstId>) -> bool {
    let Some(array) = module.shape(inst).as_array().filter(|_| is_array(module, inst)) else { return false };
    let unsaid = ArrayShape::new(array.dtype, array.dims.iter().copied());
    let plain = unsaid.clone().with_row_major();
    if *array == unsaid || *array == plain {
        return true;
    }
    let is_seen = seen.contains(inst) || module.inst(inst).opcode == Opcode::Parameter;
    let mut turned = array.clone();
    if let (Some(own), Some(plain)) = (&mut turned.layout, &plain.layout) {
        own.minor_to_major = plain.minor_to_major.clone();
    }
    // Tiles and memory spaces are kept as they are.
    !is_seen && turned == plain
}
