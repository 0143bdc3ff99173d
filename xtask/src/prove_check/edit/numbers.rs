//! Changes of numbers and of what is done with them.

use hlo_ir::attrs::{Attrs, FieldMut};
use hlo_ir::edit::Builder;
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::{ArrayShape, DType, InstId, Literal, Module, Opcode, Shape};
use hlo_tests::random_module::Rng;

use super::{opcode, replace};

fn literal_mut(module: &mut Module, inst: InstId) -> Option<&mut Literal> {
    let Attrs::Constant(value) = &mut module.inst_mut(inst).attrs else { return None };
    match &mut **value {
        ConstantValue::Array(literal) => Some(literal),
        ConstantValue::Tuple(_) | ConstantValue::Elided => None,
    }
}

/// Another number in the place of one.
fn change(literal: &mut Literal, at: usize, rng: &mut Rng) -> bool {
    let new = match literal.get(at) {
        Some(Scalar::Pred(value)) => Scalar::Pred(!value),
        Some(Scalar::Int(value)) => Scalar::Int(value + *rng.pick(&[-1, 1, 1, 2])),
        Some(Scalar::Uint(value)) => Scalar::Uint(value + 1),
        Some(Scalar::Float(value)) => Scalar::Float(*rng.pick(&[value + 1.0, -value, value * 2.0, 1.0, 0.0])),
        Some(Scalar::Complex(..)) | None => return false,
    };
    Some(new) != literal.get(at) && literal.set(at, new)
}

pub(super) fn other_scalar(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    literal_mut(module, inst).is_some_and(|literal| literal.n_elems() == 1 && change(literal, 0, rng))
}

pub(super) fn other_in_table(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(literal) = literal_mut(module, inst).filter(|literal| literal.n_elems() > 1) else { return false };
    let at = rng.below(literal.n_elems());
    change(literal, at, rng)
}

pub(super) fn exchange_in_table(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(literal) = literal_mut(module, inst).filter(|literal| literal.n_elems() > 1) else { return false };
    let (i, j) = (rng.below(literal.n_elems()), rng.below(literal.n_elems()));
    let (Some(a), Some(b)) = (literal.get(i), literal.get(j)) else { return false };
    a != b && literal.set(i, b) && literal.set(j, a)
}

/// A number that a loop's condition compares with.
pub(super) fn other_trip_count(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::While {
        return false;
    }
    let Some(&condition) = module.called(inst).first() else { return false };
    let insts = module.comp(condition).insts.clone();
    insts.into_iter().any(|inst| other_scalar(module, inst, rng))
}

const SIBLINGS: &[&[Opcode]] = &[
    &[Opcode::Add, Opcode::Subtract, Opcode::Multiply, Opcode::Maximum, Opcode::Minimum, Opcode::Divide],
    &[Opcode::And, Opcode::Or, Opcode::Xor],
    &[Opcode::Exponential, Opcode::ExponentialMinusOne, Opcode::Tanh, Opcode::Logistic],
    &[Opcode::Sqrt, Opcode::Rsqrt, Opcode::Cbrt, Opcode::Abs, Opcode::Negate, Opcode::Sign],
    &[Opcode::Sine, Opcode::Cosine, Opcode::Log, Opcode::LogPlusOne],
    &[Opcode::Floor, Opcode::Ceil],
];

pub(super) fn sibling(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let old = opcode(module, inst);
    let Some(family) = SIBLINGS.iter().find(|family| family.contains(&old)) else { return false };
    let new = *rng.pick(family);
    module.inst_mut(inst).opcode = new;
    new != old
}

/// Another operation in the computation that a collective or a reduction applies.
pub(super) fn other_reducer(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let reduces = [Opcode::AllReduce, Opcode::ReduceScatter, Opcode::Reduce, Opcode::Scatter, Opcode::ReduceWindow];
    if !reduces.contains(&opcode(module, inst)) {
        return false;
    }
    let Some(&reducer) = module.called(inst).first() else { return false };
    // A copy, so that others keep theirs.
    let copy = module.clone_computation(reducer);
    module.inst_mut(inst).attrs.for_each_field_mut(&mut |field| {
        if let FieldMut::Comp(Some(comp)) = field {
            *comp = copy;
        }
    });
    let root = module.comp(copy).root.expand();
    root.is_some_and(|root| sibling(module, root, rng))
}

/// A value through a type with fewer digits, and back.
pub(super) fn narrow(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let Some(own) = module.shape(inst).as_array().cloned() else { return false };
    let narrower = match own.dtype {
        DType::F64 => DType::F32,
        DType::F32 => DType::BF16,
        DType::S32 | DType::U32 => DType::S8,
        _ => return false,
    };
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let there = Shape::Array(ArrayShape { dtype: narrower, ..own.clone() });
    let mut builder = Builder::new(module, comp);
    let there = builder.add("narrow", Opcode::Convert, there, [inst], Attrs::Plain);
    let back = builder.add("wide", Opcode::Convert, Shape::Array(own), [there], Attrs::Plain);
    replace(module, inst, back, n);
    true
}

/// A value of an elementwise op of one operand in the place of a value.
fn insert_unary(module: &mut Module, inst: InstId, op: Opcode) -> bool {
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let shape = module.shape(inst).clone();
    let new = Builder::new(module, comp).add("changed", op, shape, [inst], Attrs::Plain);
    replace(module, inst, new, n);
    true
}

pub(super) fn negate(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let is_pred = module.shape(inst).as_array().is_some_and(|array| array.dtype == DType::Pred);
    is_pred && insert_unary(module, inst, Opcode::Not)
}

pub(super) fn no_device_id(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    if ![Opcode::PartitionId, Opcode::ReplicaId].contains(&opcode(module, inst)) {
        return false;
    }
    let comp = module.inst(inst).parent;
    let zero = Literal::scalar(DType::U32, Scalar::Uint(0));
    let zero = Builder::new(module, comp).constant("zero", zero);
    module.replace_all_uses(inst, zero);
    true
}

/// One added to a scalar, such as an offset.
pub(super) fn add_one(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let Some(own) = module.shape(inst).as_array().filter(|array| array.dims.is_empty()).cloned() else { return false };
    let one = match own.dtype {
        DType::S32 => Scalar::Int(1),
        DType::U32 => Scalar::Uint(1),
        DType::F32 => Scalar::Float(1.0),
        _ => return false,
    };
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let mut builder = Builder::new(module, comp);
    let one = builder.constant("one", Literal::scalar(own.dtype, one));
    let sum = builder.add("one_more", Opcode::Add, Shape::Array(own), [inst, one], Attrs::Plain);
    replace(module, inst, sum, n);
    true
}
