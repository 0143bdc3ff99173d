//! Rewrites that keep every bit of what a module computes, applied at random: a pass has to cope with what programs look like when
//! they were written in another way (after PolyJuice, Zhou et al. 2024, which does so to tensor programs).
//!
//! Each rewrite is equal by its own definition: moves and their inverses, an exchange of the operands of a commutative operation,
//! conversions to a wider type and back, two negations, a detour through a tuple or a call, a sum of two halves in two all-reduces.

use crate::random_module::Rng;
use hlo_ir::attrs::{Attrs, CallAttrs, DimsAttrs, ParameterAttrs, SliceAttrs, SliceDim, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::literal::Scalar;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Literal, Module, Opcode, Shape};
use hlo_spmd::ChannelIds;

/// A rewrite: makes a value equal to that of an instruction, with new instructions in its computation, or `None` where it does not
/// apply.
type Rewrite = fn(&mut Module, InstId) -> Option<InstId>;

/// All of them.
const REWRITES: [(&str, Rewrite); 11] = [
    ("copy", copy),
    ("transpose twice", transpose_twice),
    ("reshape twice", reshape_twice),
    ("reverse twice", reverse_twice),
    ("negate twice", negate_twice),
    ("convert and back", convert_and_back),
    ("first half of two copies", half_of_two),
    ("select itself", select_itself),
    ("through a tuple", through_a_tuple),
    ("through a call", through_a_call),
    ("sum in halves", sum_in_halves),
];

/// Applies `n` rewrites at random places, as far as they apply; how many did.
pub fn rewrite(module: &mut Module, n: usize, rng: &mut Rng) -> usize {
    let mut n_done = 0;
    for _ in 0..n {
        let places = places(module);
        if places.is_empty() {
            break;
        }
        let inst = *rng.pick(&places);
        if rng.below(REWRITES.len() + 1) == 0 {
            n_done += usize::from(exchange_operands(module, inst));
            continue;
        }
        let (_, rewrite) = rng.pick(&REWRITES);
        n_done += usize::from(apply(module, inst, *rewrite));
    }
    n_done
}

/// Arrays in computations that are steps of the program, and not the inside of a reduction.
fn places(module: &Module) -> Vec<InstId> {
    let mut comps: Vec<CompId> = module.entry().into_iter().collect();
    let mut next = 0;
    while let Some(&comp) = comps.get(next) {
        next += 1;
        for &inst in &module.comp(comp).insts {
            let is_step = [Opcode::While, Opcode::Conditional, Opcode::Call].contains(&module.inst(inst).opcode);
            let called = module.called(inst);
            comps.extend(called.into_iter().filter(|callee| is_step && !comps.contains(callee)).collect::<Vec<_>>());
        }
    }
    let insts = comps.iter().flat_map(|&comp| module.comp(comp).insts.iter().copied());
    // Only its other half may take what has begun.
    let is_whole = |inst: InstId| !module.inst(inst).opcode.name().ends_with("-start");
    insts.filter(|&inst| module.shape(inst).as_array().is_some() && is_whole(inst)).collect()
}

/// Puts the rewrite of a value in its place, everywhere but in the new instructions.
fn apply(module: &mut Module, inst: InstId, rewrite: Rewrite) -> bool {
    let comp = module.inst(inst).parent;
    let n_before = module.comp(comp).insts.len();
    let Some(new) = rewrite(module, inst) else { return false };
    let made: Vec<InstId> = module.comp(comp).insts[n_before..].to_vec();
    module.replace_all_uses(inst, new);
    // What was made reads the old value still.
    for made in made {
        for operand in &mut module.inst_mut(made).operands {
            if *operand == new {
                *operand = inst;
            }
        }
    }
    module.restore_order(comp).is_ok()
}

fn exchange_operands(module: &mut Module, inst: InstId) -> bool {
    let commutes = [Opcode::Add, Opcode::Multiply, Opcode::And, Opcode::Or, Opcode::Xor];
    let operands = &mut module.inst_mut(inst).operands;
    let is_pair = operands.len() == 2;
    operands.reverse();
    if !is_pair || !commutes.contains(&module.inst(inst).opcode) {
        module.inst_mut(inst).operands.reverse();
        return false;
    }
    true
}

/// Adds to the computation of `like`.
fn add(
    module: &mut Module,
    like: InstId,
    opcode: Opcode,
    shape: Shape,
    operands: &[InstId],
    attrs: impl Into<Attrs>,
) -> InstId {
    let comp = module.inst(like).parent;
    Builder::new(module, comp).add("equal", opcode, shape, operands.iter().copied(), attrs)
}

fn array(module: &Module, inst: InstId) -> Option<ArrayShape> {
    module.shape(inst).as_array().cloned()
}

/// An array of this type and these dims, with the layout that has none.
fn plain(dtype: DType, dims: impl IntoIterator<Item = i64>) -> Shape {
    Shape::Array(ArrayShape::new(dtype, dims).with_row_major())
}

fn copy(module: &mut Module, inst: InstId) -> Option<InstId> {
    let shape = module.shape(inst).clone();
    Some(add(module, inst, Opcode::Copy, shape, &[inst], Attrs::Plain))
}

fn transpose_twice(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst).filter(|array| array.dims.len() > 1)?;
    let dimensions: hlo_ir::shape::Dims = (0..own.dims.len() as i64).rev().collect();
    let turned = plain(own.dtype, own.dims.iter().rev().copied());
    let there = add(module, inst, Opcode::Transpose, turned, &[inst], DimsAttrs { dimensions: dimensions.clone() });
    Some(add(module, inst, Opcode::Transpose, Shape::Array(own), &[there], DimsAttrs { dimensions }))
}

fn reshape_twice(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst)?;
    let flat = plain(own.dtype, [own.dims.iter().product::<i64>()]);
    let there = add(module, inst, Opcode::Reshape, flat, &[inst], hlo_ir::attrs::ReshapeAttrs::default());
    Some(add(module, inst, Opcode::Reshape, Shape::Array(own), &[there], hlo_ir::attrs::ReshapeAttrs::default()))
}

fn reverse_twice(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst).filter(|array| !array.dims.is_empty())?;
    let attrs = || DimsAttrs { dimensions: (0..own.dims.len() as i64).collect() };
    let there = add(module, inst, Opcode::Reverse, Shape::Array(own.clone()), &[inst], attrs());
    Some(add(module, inst, Opcode::Reverse, Shape::Array(own.clone()), &[there], attrs()))
}

fn negate_twice(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst).filter(|a| [DType::F32, DType::F64, DType::BF16, DType::S32].contains(&a.dtype))?;
    let there = add(module, inst, Opcode::Negate, Shape::Array(own.clone()), &[inst], Attrs::Plain);
    Some(add(module, inst, Opcode::Negate, Shape::Array(own), &[there], Attrs::Plain))
}

fn convert_and_back(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst)?;
    let wide = match own.dtype {
        DType::F32 => DType::F64,
        DType::BF16 | DType::F16 => DType::F32,
        DType::S32 => DType::S64,
        DType::U32 => DType::U64,
        DType::Pred => DType::S32,
        _ => return None,
    };
    let shape = Shape::Array(ArrayShape { dtype: wide, ..own.clone() });
    let there = add(module, inst, Opcode::Convert, shape, &[inst], Attrs::Plain);
    Some(add(module, inst, Opcode::Convert, Shape::Array(own), &[there], Attrs::Plain))
}

fn half_of_two(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst).filter(|array| !array.dims.is_empty())?;
    let mut dims = own.dims.to_vec();
    dims[0] *= 2;
    let both = plain(own.dtype, dims);
    let both = add(
        module,
        inst,
        Opcode::Concatenate,
        both,
        &[inst, inst],
        DimsAttrs { dimensions: [0].into_iter().collect() },
    );
    let slice = own.dims.iter().map(|&n| SliceDim { start: 0, limit: n, stride: 1 }).collect();
    Some(add(module, inst, Opcode::Slice, Shape::Array(own), &[both], SliceAttrs { slice }))
}

fn select_itself(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst)?;
    let comp = module.inst(inst).parent;
    let yes = Literal::scalar(DType::Pred, Scalar::Pred(true));
    let yes = Builder::new(module, comp).constant("yes", yes);
    let shape = plain(DType::Pred, own.dims.iter().copied());
    let yes = add(module, inst, Opcode::Broadcast, shape, &[yes], DimsAttrs::default());
    let zeros = Literal::zeros(own.dtype, &[]).ok()?;
    let zero = Builder::new(module, comp).constant("zero", zeros);
    let zeros = add(module, inst, Opcode::Broadcast, Shape::Array(own.clone()), &[zero], DimsAttrs::default());
    Some(add(module, inst, Opcode::Select, Shape::Array(own), &[yes, inst, zeros], Attrs::Plain))
}

fn through_a_tuple(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = module.shape(inst).clone();
    let tuple = Shape::Tuple([own.clone(), own.clone()].into_iter().collect());
    let both = add(module, inst, Opcode::Tuple, tuple, &[inst, inst], Attrs::Plain);
    Some(add(module, inst, Opcode::GetTupleElement, own, &[both], TupleIndexAttrs { index: 1 }))
}

/// A call of a computation that gives back what it takes.
fn through_a_call(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = module.shape(inst).clone();
    let name = module.names.fresh("same");
    let callee = module.add_computation(name);
    let param = Builder::new(module, callee).add(
        "given",
        Opcode::Parameter,
        own.clone(),
        [],
        ParameterAttrs { number: 0, ..ParameterAttrs::default() },
    );
    let result = Builder::new(module, callee).add("same", Opcode::Copy, own.clone(), [param], Attrs::Plain);
    module.comp_mut(callee).root = Some(result).into();
    let order = module.computations().to_vec();
    let caller = module.inst(inst).parent;
    let mut sorted: Vec<CompId> = order.into_iter().filter(|&comp| comp != callee).collect();
    let place = sorted.iter().position(|&comp| comp == caller)?;
    sorted.insert(place, callee);
    module.set_computation_order(sorted);
    Some(add(module, inst, Opcode::Call, own, &[inst], CallAttrs { to_apply: Some(callee), ..CallAttrs::default() }))
}

/// An all-reduce of one array as two all-reduces of its halves.
fn sum_in_halves(module: &mut Module, inst: InstId) -> Option<InstId> {
    let own = array(module, inst).filter(|array| array.dims.first().is_some_and(|&n| n > 1))?;
    let instruction = module.inst(inst).clone();
    let &[operand] = instruction.operands.as_slice() else { return None };
    if instruction.opcode != Opcode::AllReduce {
        return None;
    }
    let n = own.dims[0];
    let mut channels = ChannelIds::free_in(module);
    let mut halves = Vec::new();
    for (start, limit) in [(0, n / 2), (n / 2, n)] {
        let mut dims = own.dims.to_vec();
        dims[0] = limit - start;
        let mut slice: Vec<SliceDim> = own.dims.iter().map(|&n| SliceDim { start: 0, limit: n, stride: 1 }).collect();
        slice[0] = SliceDim { start, limit, stride: 1 };
        let part = plain(own.dtype, dims.iter().copied());
        let half = add(module, inst, Opcode::Slice, part.clone(), &[operand], SliceAttrs { slice });
        let mut attrs = instruction.attrs.clone();
        channels.renew(&mut attrs);
        halves.push(add(module, inst, Opcode::AllReduce, part, &[half], attrs));
    }
    Some(add(
        module,
        inst,
        Opcode::Concatenate,
        Shape::Array(own),
        &halves,
        DimsAttrs { dimensions: [0].into_iter().collect() },
    ))
}
