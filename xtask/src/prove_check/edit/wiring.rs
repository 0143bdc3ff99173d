//! Changes of which value goes where.

use hlo_ir::attrs::{ConditionalAttrs, DimsAttrs, SliceAttrs, SliceDim};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_tests::random_module::Rng;

use super::{is_alike, opcode, replace};

/// Exchanges two operands. Whether they are two.
fn exchange(module: &mut Module, inst: InstId, i: usize, j: usize) -> bool {
    let operands = &mut module.inst_mut(inst).operands;
    if i >= operands.len() || j >= operands.len() || operands[i] == operands[j] {
        return false;
    }
    operands.swap(i, j);
    true
}

/// Operations of two operands for which the order matters.
const ORDERED: [Opcode; 6] =
    [Opcode::Subtract, Opcode::Divide, Opcode::Power, Opcode::Compare, Opcode::Dot, Opcode::Remainder];

/// Operations with an index for each dim, and the first of these operands.
const INDEXED: [(Opcode, usize); 2] = [(Opcode::DynamicSlice, 1), (Opcode::DynamicUpdateSlice, 2)];

/// The operands of an ordered operation, or two indices.
pub(super) fn exchange_operands(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let op = opcode(module, inst);
    let Some(&(_, first_index)) = INDEXED.iter().find(|(indexed, _)| *indexed == op) else {
        return ORDERED.contains(&op) && exchange(module, inst, 0, 1);
    };
    let n = module.inst(inst).operands.len() - first_index;
    exchange(module, inst, first_index + rng.below(n), first_index + rng.below(n))
}

/// Two parts of a concatenation.
pub(super) fn exchange_parts(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let n = module.inst(inst).operands.len();
    opcode(module, inst) == Opcode::Concatenate && exchange(module, inst, rng.below(n), rng.below(n))
}

/// Two elements of a tuple: outputs, or what a loop carries.
pub(super) fn exchange_elements(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::Tuple {
        return false;
    }
    let operands = module.inst(inst).operands.clone();
    let (i, j) = (rng.below(operands.len()), rng.below(operands.len()));
    operands.len() > 1 && is_alike(module, operands[i], operands[j]) && exchange(module, inst, i, j)
}

/// An operand that has the result's shape in the place of the result.
pub(super) fn leave_out(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let operands = module.inst(inst).operands.clone();
    if operands.is_empty() || !opcode(module, inst).is_elementwise() {
        return false;
    }
    let operand = *rng.pick(&operands);
    if !is_alike(module, inst, operand) {
        return false;
    }
    put(module, inst, operand)
}

/// An older value in the place of a value, also as a root.
fn put(module: &mut Module, inst: InstId, other: InstId) -> bool {
    if module.inst(inst).shape != module.inst(other).shape {
        return false;
    }
    module.replace_all_uses(inst, other);
    true
}

pub(super) fn exchange_bounds(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    opcode(module, inst) == Opcode::Clamp && exchange(module, inst, 2 * rng.below(2), 1 + rng.below(2))
}

/// A value of the same shape that is computed before.
pub(super) fn other_operand(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let comp = module.inst(inst).parent;
    let operands = module.inst(inst).operands.clone();
    if operands.is_empty() {
        return false;
    }
    let k = rng.below(operands.len());
    let insts = &module.comp(comp).insts;
    let n = insts.iter().position(|&other| other == inst).unwrap_or(0);
    let alike: Vec<InstId> =
        insts[..n].iter().copied().filter(|&o| o != operands[k] && is_alike(module, o, operands[k])).collect();
    if alike.is_empty() {
        return false;
    }
    module.inst_mut(inst).operands[k] = *rng.pick(&alike);
    true
}

pub(super) fn other_parameter(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let comp = module.inst(inst).parent;
    let params = module.comp(comp).params.clone();
    let own: Vec<usize> = (0..module.inst(inst).operands.len())
        .filter(|&k| opcode(module, module.inst(inst).operands[k]) == Opcode::Parameter)
        .collect();
    if own.is_empty() || params.is_empty() {
        return false;
    }
    let (k, new) = (*rng.pick(&own), *rng.pick(&params));
    let old = module.inst(inst).operands[k];
    module.inst_mut(inst).operands[k] = new;
    old != new && is_alike(module, old, new)
}

pub(super) fn exchange_branches(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    opcode(module, inst) == Opcode::Select && exchange(module, inst, 1, 2)
}

pub(super) fn exchange_computations(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let Some(attrs) = ConditionalAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    if attrs.branch_computations.len() > 1 {
        attrs.branch_computations.swap(0, 1);
    } else {
        std::mem::swap(&mut attrs.true_computation, &mut attrs.false_computation);
    }
    let n = module.inst(inst).operands.len();
    // Each branch keeps its operand, if they have one type.
    n < 3 || is_alike(module, module.inst(inst).operands[1], module.inst(inst).operands[2])
}

/// A value transposed and reshaped to what it was.
pub(super) fn transpose(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let own = module.shape(inst).as_array().filter(|array| array.dims.iter().filter(|&&n| n > 1).count() > 1).cloned();
    let Some(own) = own else { return false };
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let turned = ArrayShape::new(own.dtype, own.dims.iter().rev().copied()).with_row_major();
    let dimensions = (0..own.dims.len() as i64).rev().collect();
    let mut builder = Builder::new(module, comp);
    let turned = builder.add("turned", Opcode::Transpose, Shape::Array(turned), [inst], DimsAttrs { dimensions });
    let attrs = hlo_ir::attrs::ReshapeAttrs::default();
    let back = builder.add("as_it_was", Opcode::Reshape, Shape::Array(own), [turned], attrs);
    replace(module, inst, back, n);
    true
}

/// A value whose first row comes last.
pub(super) fn rotate(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(own) = module.shape(inst).as_array().filter(|a| !a.dims.is_empty()).cloned() else { return false };
    let dim = rng.below(own.dims.len());
    let size = own.dims[dim];
    if size < 2 {
        return false;
    }
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let cut = |start: i64, limit: i64| {
        let mut slice: Vec<SliceDim> = own.dims.iter().map(|&n| SliceDim { start: 0, limit: n, stride: 1 }).collect();
        slice[dim] = SliceDim { start, limit, stride: 1 };
        let mut dims = own.dims.to_vec();
        dims[dim] = limit - start;
        (Shape::Array(ArrayShape::new(own.dtype, dims).with_row_major()), SliceAttrs { slice })
    };
    let mut builder = Builder::new(module, comp);
    let (shape, attrs) = cut(0, 1);
    let first = builder.add("first", Opcode::Slice, shape, [inst], attrs);
    let (shape, attrs) = cut(1, size);
    let rest = builder.add("rest", Opcode::Slice, shape, [inst], attrs);
    let dimensions = std::iter::once(dim as i64).collect();
    let attrs = DimsAttrs { dimensions };
    let both = builder.add("rotated", Opcode::Concatenate, Shape::Array(own.clone()), [rest, first], attrs);
    replace(module, inst, both, n);
    true
}

/// What goes into a collective that keeps its shape, in the place of what comes out.
pub(super) fn leave_out_collective(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let keeps_shape = [Opcode::AllReduce, Opcode::CollectivePermute, Opcode::AllToAll, Opcode::CollectiveBroadcast];
    let operands = module.inst(inst).operands.clone();
    keeps_shape.contains(&opcode(module, inst)) && operands.len() == 1 && put(module, inst, operands[0])
}

/// What an update goes into, in the place of the result.
pub(super) fn leave_out_update(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let updates = [Opcode::DynamicUpdateSlice, Opcode::Scatter, Opcode::Select, Opcode::Clamp];
    if !updates.contains(&opcode(module, inst)) {
        return false;
    }
    let operands = module.inst(inst).operands.clone();
    let other = operands.iter().copied().find(|&o| is_alike(module, o, inst));
    other.is_some_and(|other| put(module, inst, other))
}
