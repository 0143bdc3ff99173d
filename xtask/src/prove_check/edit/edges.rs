//! Changes that show at the edges alone: beyond the first element, at the ends of a type, out of bounds, in the way that groups are read.

use hlo_ir::attrs::{Attrs, DimsAttrs, FieldMut, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::edit::Builder;
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::shape::Layout;
use hlo_ir::{ArrayShape, InstId, Literal, Module, NumberClass, Opcode, Shape};
use hlo_tests::random_module::Rng;

use super::{is_alike, opcode, replace};

/// The largest array that becomes a table.
const MAX_TABLE_ELEMS: usize = 4096;

/// A number at an end of its type, one that is no factor, or none.
pub(super) fn edge_scalar(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Attrs::Constant(value) = &mut module.inst_mut(inst).attrs else { return false };
    let ConstantValue::Array(literal) = &mut **value else { return false };
    if literal.n_elems() == 0 {
        return false;
    }
    let at = literal.n_elems() - 1;
    let new = match literal.get(at) {
        Some(Scalar::Float(_)) => Scalar::Float(*rng.pick(&[0.0, -0.0, 1.0, f64::INFINITY, f64::NAN])),
        Some(Scalar::Int(_)) => Scalar::Int(*rng.pick(&[-1, 0, 1, 127, i64::from(i32::MAX), i64::from(i32::MIN)])),
        Some(Scalar::Uint(_)) => Scalar::Uint(*rng.pick(&[0, 1, 255, u64::from(u32::MAX)])),
        Some(Scalar::Pred(_) | Scalar::Complex(..)) | None => return false,
    };
    literal.get(at) != Some(new) && literal.set(at, new)
}

/// A number everywhere becomes a table that begins with it and ends with another.
pub(super) fn unlike_splat(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::Broadcast {
        return false;
    }
    let operand = module.inst(inst).operands[0];
    let Attrs::Constant(value) = &module.inst(operand).attrs else { return false };
    let ConstantValue::Array(scalar) = &**value else { return false };
    let Some(own) = module.shape(inst).as_array().filter(|own| own.n_elems() as usize <= MAX_TABLE_ELEMS) else {
        return false;
    };
    let Some(number) = scalar.get(0).filter(|_| scalar.n_elems() == 1) else { return false };
    let Ok(mut table) = Literal::zeros(own.dtype, &own.dims) else { return false };
    let n = table.n_elems();
    if n < 2 || (0..n).any(|k| !table.set(k, number)) {
        return false;
    }
    let other = match number {
        Scalar::Float(value) => Scalar::Float(value + 1.0),
        Scalar::Int(value) => Scalar::Int(value + 1),
        Scalar::Uint(value) => Scalar::Uint(value + 1),
        Scalar::Pred(value) => Scalar::Pred(!value),
        Scalar::Complex(..) => return false,
    };
    if !table.set(n - 1 - rng.below(n / 2), other) {
        return false;
    }
    let comp = module.inst(inst).parent;
    let table = Builder::new(module, comp).constant("table", table);
    module.replace_all_uses(inst, table);
    true
}

/// The first element everywhere in the place of a value.
pub(super) fn first_everywhere(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let Some(own) = module.shape(inst).as_array().filter(|own| own.n_elems() > 1).cloned() else { return false };
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let slice = own.dims.iter().map(|_| SliceDim { start: 0, limit: 1, stride: 1 }).collect();
    let one = ArrayShape::new(own.dtype, own.dims.iter().map(|_| 1)).with_row_major();
    let scalar = ArrayShape::new(own.dtype, []);
    let mut builder = Builder::new(module, comp);
    let first = builder.add("first", Opcode::Slice, Shape::Array(one), [inst], SliceAttrs { slice });
    let first = builder.add("scalar", Opcode::Reshape, Shape::Array(scalar), [first], ReshapeAttrs::default());
    let all = builder.add("everywhere", Opcode::Broadcast, Shape::Array(own), [first], DimsAttrs::default());
    replace(module, inst, all, n);
    true
}

/// One part of a row twice, in the place of another.
pub(super) fn repeat_part(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let operands = module.inst(inst).operands.clone();
    let is_row = [Opcode::Concatenate, Opcode::Tuple].contains(&opcode(module, inst));
    if !is_row || operands.len() < 2 {
        return false;
    }
    let (i, j) = (rng.below(operands.len()), rng.below(operands.len()));
    if operands[i] == operands[j] || !is_alike(module, operands[i], operands[j]) {
        return false;
    }
    module.inst_mut(inst).operands[j] = operands[i];
    true
}

/// A number added to an integer operand, after which it is far out of bounds or just beyond them.
fn shift(module: &mut Module, inst: InstId, k: usize, by: i64) -> bool {
    let Some(&index) = module.inst(inst).operands.get(k) else { return false };
    let Some(own) = module.shape(index).as_array().filter(|own| own.dtype.is_integer()).cloned() else { return false };
    let number = match own.dtype.class() {
        NumberClass::Signed if own.dtype.bits() >= 32 => Scalar::Int(by),
        NumberClass::Unsigned if own.dtype.bits() >= 32 => Scalar::Uint(by.unsigned_abs()),
        NumberClass::Pred | NumberClass::Signed | NumberClass::Unsigned | NumberClass::Float | NumberClass::Complex => {
            return false;
        }
    };
    let comp = module.inst(inst).parent;
    let mut builder = Builder::new(module, comp);
    let number = builder.constant("far", Literal::scalar(own.dtype, number));
    let shape = Shape::Array(own);
    let all = builder.add("far_everywhere", Opcode::Broadcast, shape.clone(), [number], DimsAttrs::default());
    let sum = builder.add("farther", Opcode::Add, shape, [index, all], Attrs::Plain);
    module.inst_mut(inst).operands[k] = sum;
    true
}

pub(super) fn shift_index(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    // The first operand that may be an index, and whether those behind it may be too.
    let indices = [
        (Opcode::DynamicSlice, 1, true),
        (Opcode::DynamicUpdateSlice, 2, true),
        (Opcode::Gather, 1, false),
        (Opcode::Scatter, 1, false),
    ];
    let op = opcode(module, inst);
    let Some((_, first, has_more)) = indices.into_iter().find(|(indexed, ..)| *indexed == op) else { return false };
    let k = if has_more { first + rng.below(module.inst(inst).operands.len() - first) } else { first };
    let by = *rng.pick(&[1, -1, 1000, -1000, i64::from(i32::MAX)]);
    shift(module, inst, k, by)
}

/// What a loop begins with: another number, or another value of the same type.
pub(super) fn other_start(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::While {
        return false;
    }
    let start = module.inst(inst).operands[0];
    if opcode(module, start) != Opcode::Tuple {
        return false;
    }
    let n = module.inst(start).operands.len();
    let k = rng.below(n);
    if rng.one_in(2) && shift(module, start, k, 1) {
        return true;
    }
    let operands = module.inst(start).operands.clone();
    let alike: Vec<InstId> =
        operands.iter().copied().filter(|&o| o != operands[k] && is_alike(module, o, operands[k])).collect();
    if alike.is_empty() {
        return false;
    }
    module.inst_mut(start).operands[k] = *rng.pick(&alike);
    true
}

/// A collective with a channel or without one, or whose ids are read in another way.
pub(super) fn other_mode(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if !opcode(module, inst).name().starts_with("all-") && opcode(module, inst) != Opcode::ReduceScatter {
        return false;
    }
    let (mut is_changed, changes_ids) = (false, rng.one_in(2));
    module.inst_mut(inst).attrs.for_each_field_mut(&mut |field| match field {
        FieldMut::OptInt(channel) if !changes_ids => {
            *channel = if channel.is_some() { None } else { Some(77) };
            is_changed = true;
        }
        FieldMut::Bool(is_global) if changes_ids => {
            *is_global = !*is_global;
            is_changed = true;
        }
        _ => {}
    });
    is_changed
}

/// A bitcast to another layout, so that other elements stand at a place.
pub(super) fn other_layout(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let Some(own) = module.shape(inst).as_array().filter(|own| own.dims.len() > 1).cloned() else { return false };
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let dims = (0..own.dims.len() as i64).collect();
    let layout =
        Layout { minor_to_major: dims, ..own.clone().with_row_major().layout.map_or_else(Layout::default, |l| *l) };
    let turned = ArrayShape { layout: Some(Box::new(layout)), ..own.clone() };
    let row_major = own.clone().with_row_major();
    let mut builder = Builder::new(module, comp);
    let plain = builder.add("row_major", Opcode::Copy, Shape::Array(row_major), [inst], Attrs::Plain);
    let turned = builder.add("turned", Opcode::Bitcast, Shape::Array(turned), [plain], Attrs::Plain);
    let back = builder.add("as_it_was", Opcode::Copy, Shape::Array(own), [turned], Attrs::Plain);
    replace(module, inst, back, n);
    true
}
