//! The common case without looking at shapes: an instruction whose operands and result are one interned type.

use crate::attrs::Attrs;
use crate::module::{InstId, Instruction, Module};
use crate::op::ShapeRule;
use crate::shape::{Shape, ShapeId};

/// True if the shape of `inst` is right and its rule has nothing else to check; false says nothing.
///
/// Two thirds of real modules are elementwise ops, parameters, copies and calls; for them this is a few comparisons
/// of ids, where the rules of [`super`] would gather operand shapes first.
pub fn infer_by_ids(module: &Module, inst: InstId) -> bool {
    let node = module.inst(inst);
    let row = node.opcode.row();
    if !row.arity.accepts(node.operands.len()) {
        return false;
    }
    let bare = module.shapes.bare(node.shape);
    let operand = |i: usize| Some(module.shapes.bare(module.inst(*node.operands.get(i)?).shape));
    let is_same = |i: usize| operand(i) == Some(bare);
    match row.shape {
        ShapeRule::Stated(_) => true,
        ShapeRule::Unary(numbers) => {
            matches!(node.attrs, Attrs::Plain) && is_same(0) && dtype_in(module, bare, numbers)
        }
        ShapeRule::Binary(numbers) => is_same(0) && is_same(1) && dtype_in(module, bare, numbers),
        ShapeRule::Select => {
            is_same(1)
                && is_same(2)
                && matches!(&module.shapes[bare], Shape::Array(a) if pred_fits(module, node, a.rank()))
        }
        ShapeRule::FirstOperand => node.operands.len() == 1 && is_same(0),
        ShapeRule::Call => call_fits(module, node, bare),
        ShapeRule::While => while_fits(module, node, bare),
        // Their rules look at dims; another rule is worth a case above only where a profile says so.
        ShapeRule::Abs
        | ShapeRule::IsFinite
        | ShapeRule::Compare
        | ShapeRule::Clamp
        | ShapeRule::Complex
        | ShapeRule::ComplexPart
        | ShapeRule::Convert
        | ShapeRule::BitcastConvert
        | ShapeRule::StochasticConvert
        | ShapeRule::Broadcast
        | ShapeRule::Reshape
        | ShapeRule::DynamicReshape
        | ShapeRule::Bitcast
        | ShapeRule::Transpose
        | ShapeRule::Reverse
        | ShapeRule::Slice
        | ShapeRule::DynamicSlice
        | ShapeRule::DynamicUpdateSlice
        | ShapeRule::Pad
        | ShapeRule::Concatenate
        | ShapeRule::Iota
        | ShapeRule::Dot
        | ShapeRule::RaggedDot
        | ShapeRule::ScaledDot
        | ShapeRule::Convolution
        | ShapeRule::Reduce
        | ShapeRule::Map
        | ShapeRule::ReduceWindow
        | ShapeRule::SelectAndScatter
        | ShapeRule::Sort
        | ShapeRule::Scan
        | ShapeRule::Gather
        | ShapeRule::Scatter
        | ShapeRule::TopK
        | ShapeRule::Fft
        | ShapeRule::Cholesky
        | ShapeRule::TriangularSolve
        | ShapeRule::BatchNormTraining
        | ShapeRule::BatchNormInference
        | ShapeRule::BatchNormGrad
        | ShapeRule::GetDimensionSize
        | ShapeRule::SetDimensionSize
        | ShapeRule::RngBitGenerator
        | ShapeRule::RngState
        | ShapeRule::Rng
        | ShapeRule::Tuple
        | ShapeRule::GetTupleElement
        | ShapeRule::AfterAll
        | ShapeRule::Constant
        | ShapeRule::Conditional
        | ShapeRule::Collective(_)
        | ShapeRule::DoneOfPair
        | ShapeRule::AsyncStart
        | ShapeRule::AsyncUpdate
        | ShapeRule::AsyncDone
        | ShapeRule::CopyStart
        | ShapeRule::CopyDone
        | ShapeRule::Send
        | ShapeRule::SendDone
        | ShapeRule::Recv
        | ShapeRule::RecvDone
        | ShapeRule::Outfeed
        | ShapeRule::DeviceId => false,
    }
}

fn dtype_in(module: &Module, shape: ShapeId, numbers: crate::op::Numbers) -> bool {
    matches!(module.shapes.get(shape), Shape::Array(a) if numbers.has(a.dtype))
}

/// A select's predicate that needs no look at dims: a scalar one.
fn pred_fits(module: &Module, node: &Instruction, rank: usize) -> bool {
    let Some(&pred) = node.operands.first() else { return false };
    matches!(module.shape(pred), Shape::Array(p) if p.dtype == crate::DType::Pred && p.rank() == 0 && rank > 0)
}

fn call_fits(module: &Module, node: &Instruction, bare: ShapeId) -> bool {
    let Some(Some(comp)) = node.attrs.callee() else { return false };
    let params = &module.comp(comp).params;
    let same = |a: InstId, b: InstId| {
        let (a, b) = (module.inst(a).shape, module.inst(b).shape);
        a == b || module.shapes.bare(a) == module.shapes.bare(b)
    };
    params.len() == node.operands.len()
        && params.iter().zip(&node.operands).all(|(&p, &o)| same(p, o))
        && module.result_shape(comp).is_some_and(|s| module.shapes.bare(s) == bare)
}

fn while_fits(module: &Module, node: &Instruction, bare: ShapeId) -> bool {
    let Attrs::While(attrs) = &node.attrs else { return false };
    let (Some(condition), Some(body)) = (attrs.condition, attrs.body) else { return false };
    let takes_state = |comp| match module.comp(comp).params.as_slice() {
        [param] => module.shapes.bare(module.inst(*param).shape) == bare,
        _ => false,
    };
    let is_pred = |shape: ShapeId| matches!(module.shapes.get(shape), Shape::Array(a) if a.dtype == crate::DType::Pred && a.rank() == 0);
    node.operands.first().is_some_and(|&o| module.shapes.bare(module.inst(o).shape) == bare)
        && takes_state(condition)
        && takes_state(body)
        && module.result_shape(body).is_some_and(|s| module.shapes.bare(s) == bare)
        && module.result_shape(condition).is_some_and(is_pred)
}
