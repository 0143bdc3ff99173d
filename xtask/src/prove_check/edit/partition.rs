//! Changes that a partitioner could make by mistake: of halos, bounds of masks, groups, the dim of a reduce-scatter, initial values.

use hlo_ir::attrs::{Attrs, CombiningAttrs, DimsAttrs, FieldMut, ReshapeAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::groups::ReplicaGroups;
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::{ArrayShape, InstId, Literal, Module, NumberClass, Opcode, Shape};
use hlo_tests::random_module::Rng;

use super::{opcode, replace};

/// Zeros in the place of what neighbours send.
pub(super) fn drop_halo(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::CollectivePermute {
        return false;
    }
    let Some(own) = module.shape(inst).as_array().cloned() else { return false };
    let Ok(zero) = Literal::zeros(own.dtype, &[]) else { return false };
    let mut builder = Builder::new(module, module.inst(inst).parent);
    let zero = builder.constant("nothing", zero);
    let zeros = builder.add("no_halo", Opcode::Broadcast, Shape::Array(own), [zero], DimsAttrs::default());
    module.replace_all_uses(inst, zeros);
    true
}

/// One more or one less on one side of a comparison of integers.
pub(super) fn shift_bound(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::Compare {
        return false;
    }
    let bound = module.inst(inst).operands[1];
    let Some(own) = module.shape(bound).as_array().filter(|own| own.dtype.is_integer()).cloned() else { return false };
    let one = match own.dtype.class() {
        NumberClass::Signed => Scalar::Int(1),
        NumberClass::Unsigned => Scalar::Uint(1),
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => return false,
    };
    let op = *rng.pick(&[Opcode::Add, Opcode::Subtract]);
    let mut builder = Builder::new(module, module.inst(inst).parent);
    let one = builder.constant("one", Literal::scalar(own.dtype, one));
    let shape = Shape::Array(own);
    let all = builder.add("ones", Opcode::Broadcast, shape.clone(), [one], DimsAttrs::default());
    let shifted = builder.add("other_bound", op, shape, [bound, all], Attrs::Plain);
    module.inst_mut(inst).operands[1] = shifted;
    true
}

/// Groups along another axis: of `G` groups of `n` the `k`-th member of the `g`-th is device `g + k * G` in the place of `g * n + k`, or
/// the other way round.
pub(super) fn other_axis(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    let mut is_changed = false;
    module.inst_mut(inst).attrs.for_each_field_mut(&mut |field| {
        let FieldMut::Groups(groups) = field else { return };
        let Some(list) = groups.expand().filter(|list| list.len() > 1) else { return };
        let (n_groups, size) = (list.len(), list[0].len());
        if size < 2 || list.iter().any(|group| group.len() != size) {
            return;
        }
        let mut ids: Vec<i64> = list.concat();
        ids.sort_unstable();
        let strided: Vec<Vec<i64>> =
            (0..n_groups).map(|g| (0..size).map(|k| ids[g + k * n_groups]).collect()).collect();
        let rows: Vec<Vec<i64>> = ids.chunks(size).map(<[i64]>::to_vec).collect();
        let new = if strided == list { rows } else { strided };
        is_changed = new != list;
        *groups = ReplicaGroups::List(new);
    });
    is_changed
}

/// A reduce-scatter along another dim, its result put into the shape that was expected.
pub(super) fn scatter_elsewhere(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::ReduceScatter || module.inst(inst).operands.len() != 1 {
        return false;
    }
    let operand = module.inst(inst).operands[0];
    let (Some(whole), Some(own)) = (module.shape(operand).as_array().cloned(), module.shape(inst).as_array().cloned())
    else {
        return false;
    };
    let Some(attrs) = CombiningAttrs::of(&module.inst(inst).attrs).cloned() else { return false };
    let Some(&dim) = attrs.dimensions.first() else { return false };
    let n = whole.dims[dim as usize] / own.dims[dim as usize].max(1);
    let others: Vec<usize> =
        (0..whole.dims.len()).filter(|&d| d as i64 != dim && n > 1 && whole.dims[d] % n == 0).collect();
    if others.is_empty() {
        return false;
    }
    let other = *rng.pick(&others);
    let mut dims = whole.dims.to_vec();
    dims[other] /= n;
    let mut attrs = attrs;
    attrs.dimensions[0] = other as i64;
    let shape = Shape::Array(ArrayShape::new(own.dtype, dims).with_row_major());
    let mut builder = Builder::new(module, module.inst(inst).parent);
    let scattered = builder.add("scattered", Opcode::ReduceScatter, shape, [operand], attrs);
    let back = builder.add("as_wanted", Opcode::Reshape, Shape::Array(own), [scattered], ReshapeAttrs::default());
    module.replace_all_uses(inst, back);
    true
}

/// The initial value of a reduction enters once more.
pub(super) fn init_twice(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::Reduce || module.inst(inst).operands.len() != 2 {
        return false;
    }
    let init = module.inst(inst).operands[1];
    let zeros = [Scalar::Float(0.0), Scalar::Int(0), Scalar::Uint(0), Scalar::Pred(false)];
    let is_zero = if let Attrs::Constant(value) = &module.inst(init).attrs
        && let ConstantValue::Array(literal) = &**value
    {
        literal.get(0).is_some_and(|x| zeros.contains(&x))
    } else {
        false
    };
    let Some(own) = module.shape(inst).as_array().filter(|_| !is_zero).cloned() else { return false };
    let Some(&reducer) = module.called(inst).first() else { return false };
    let Some(root) = module.comp(reducer).root.expand() else { return false };
    let op = opcode(module, root);
    if ![Opcode::Add, Opcode::Multiply].contains(&op) {
        return false;
    }
    let comp = module.inst(inst).parent;
    let n = module.comp(comp).insts.len();
    let shape = Shape::Array(own);
    let mut builder = Builder::new(module, comp);
    let all = builder.add("inits", Opcode::Broadcast, shape.clone(), [init], DimsAttrs::default());
    let twice = builder.add("once_more", op, shape, [inst, all], Attrs::Plain);
    replace(module, inst, twice, n);
    true
}

/// What only one device may add is added by all: the first branch of a choice by the number of the device.
pub(super) fn always(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::Select {
        return false;
    }
    let branch = module.inst(inst).operands[1 + rng.below(2)];
    module.replace_all_uses(inst, branch);
    true
}
