//! Rewrites before fusion: broadcasts that repeat nothing become reshapes, which are views. Copies that keep the layout go.
//! Long reductions to few results go in two steps, so that many blocks take part. Cheap values that are needed late are
//! computed again ([`super::repeat`]). Views go above operations that they look at ([`super::lift_views`]).
//!
//! A reduction of `[d…]` along dims among which `D` lies slowest becomes one of `[…, S, D/S, …]` that keeps `S`, and one
//! of its results along `S`. Each step's order is fixed, so that equal inputs give equal results; no atomics.
//! An argmax of values and indices goes in two steps likewise, whatever its initial values: one that takes part several times
//! changes nothing.
//! Other reductions stay whole in three cases: their elements are smaller than 32 bits, so parts would be rounded; their
//! computation is no plain sum, product, extremum or bitwise operation with a neutral initial value; `D` has no fitting
//! divisor and is the only reduced dim.

use super::groups::StagedEdges;
use super::lift_views::lift_views;
use super::neutral::{has_neutral_init, plain_operation};
use super::repeat::repeat_cheap_values;
use super::spreads::part_spreads;
use hashbrown::HashSet;
use hlo_ir::arg_extremum::find_arg_extremum;
use hlo_ir::attrs::{Attrs, DimsAttrs, ReduceAttrs, ReshapeAttrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, InstId, InstMap, Layout, Module, Opcode, Shape};
use smallvec::SmallVec;

/// Parts that a reduction to one result goes in at most, and what a reduction of rows should have altogether.
const ROW_PARTS: i64 = 512;
/// Blocks of 32 columns that a reduction of columns should have altogether.
const COLUMN_BLOCKS: i64 = 256;
/// Elements of a part at least, along rows and along columns.
const MIN_ROW_PART: i64 = 1024;
const MIN_COLUMN_PART: i64 = 64;
/// Elements of an operand below which another launch costs more than it saves.
const MIN_ELEMS: u64 = 1 << 15;

/// What was rewritten before fusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prepared {
    /// Broadcasts that became reshapes.
    pub n_views: usize,
    /// Views that are of the operands of the operation that they were of.
    pub n_lifted: usize,
    /// Reductions that go in two steps.
    pub n_split: usize,
    /// Copies that are gone.
    pub n_copies: usize,
    /// Values that are computed again for late users.
    pub n_repeated: usize,
}

/// Rewrites a computation so that its fusible groups are what a backend computes. The values stay the same.
///
/// # Errors
/// An instruction on a cycle, which no verified module has.
pub fn prepare(module: &mut Module, comp: CompId) -> Result<Prepared, InstId> {
    prepare_and_stage(module, comp).map(|(prepared, _)| prepared)
}

/// The same, with what [`find_groups_of`](super::find_groups_of) begins with where that was found on the way.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_and_stage(module: &mut Module, comp: CompId) -> Result<(Prepared, StagedEdges), InstId> {
    let n_views = rewrite_idle_broadcasts(module, comp) + rewrite_idle_reductions(module, comp)?;
    let (n_lifted, n_split) = (lift_views(module, comp), split_reductions(module, comp));
    if n_lifted + n_split > 0 {
        module.restore_order(comp)?;
    }
    let n_copies = remove_idle_copies(module, comp);
    if part_spreads(module, comp) {
        module.restore_order(comp)?;
    }
    let (n_repeated, staged) = repeat_cheap_values(module, comp)?;
    Ok((Prepared { n_views, n_lifted, n_split, n_copies, n_repeated }, staged))
}

/// Turns broadcasts that only add dims of size 1 into reshapes. Returns how many.
fn rewrite_idle_broadcasts(module: &mut Module, comp: CompId) -> usize {
    let mut n_rewritten = 0;
    for inst in module.comp(comp).insts.clone() {
        let instruction = module.inst(inst);
        let (Opcode::Broadcast, Attrs::Dims(attrs)) = (instruction.opcode, &instruction.attrs) else { continue };
        let operand = instruction.operands.first().and_then(|&o| module.shape(o).as_array());
        let (Some(from), Some(to)) = (operand, module.shape(inst).as_array()) else { continue };
        let long: SmallVec<[i64; 4]> =
            attrs.dimensions.iter().zip(&from.dims).filter(|(_, n)| **n != 1).map(|(&dim, _)| dim).collect();
        if from.n_elems() == to.n_elems() && long.is_sorted() && from.dynamic == 0 && to.dynamic == 0 {
            let instruction = module.inst_mut(inst);
            instruction.opcode = Opcode::Reshape;
            instruction.attrs = ReshapeAttrs::default().into();
            n_rewritten += 1;
        }
    }
    n_rewritten
}

/// Turns reductions of one element each into the operation of their initial value and that element. Returns how many. The gradient
/// of a broadcast to dims of which one has one element is such.
fn rewrite_idle_reductions(module: &mut Module, comp: CompId) -> Result<usize, InstId> {
    let mut n_rewritten = 0;
    for inst in module.comp(comp).insts.clone() {
        let instruction = module.inst(inst);
        let (Opcode::Reduce, Attrs::Reduce(attrs)) = (instruction.opcode, &instruction.attrs) else { continue };
        let &[operand, init] = instruction.operands.as_slice() else { continue };
        let (Some(from), Some(to)) = (module.shape(operand).as_array(), module.shape(inst).as_array()) else {
            continue;
        };
        let Some(opcode) = plain_operation(module, attrs) else { continue };
        if from.n_elems() != to.n_elems() || from.dynamic != 0 || to.n_elems() == 0 {
            continue;
        }
        let (shape, hint) = (Shape::Array(to.clone()), module.inst_name(inst).to_string());
        let mut build = Builder::new(module, comp);
        let element = build.add(&hint, Opcode::Reshape, shape.clone(), [operand], ReshapeAttrs::default());
        let inits = build.add(&hint, Opcode::Broadcast, shape, [init], DimsAttrs::default());
        let instruction = module.inst_mut(inst);
        instruction.opcode = opcode;
        instruction.operands = [inits, element].into_iter().collect();
        instruction.attrs = Attrs::Plain;
        n_rewritten += 1;
    }
    if n_rewritten > 0 {
        module.restore_order(comp)?;
    }
    Ok(n_rewritten)
}

/// How a reduction goes in two steps.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Split {
    /// The operand's dim that is split, slowest in memory among the reduced ones.
    dim: usize,
    /// Parts that it is split into.
    n_parts: i64,
    /// All reduced dims.
    reduced: SmallVec<[usize; 4]>,
}

/// Lets long reductions with few results go in two steps. Returns how many.
fn split_reductions(module: &mut Module, comp: CompId) -> usize {
    let mut n_split = 0;
    for inst in module.comp(comp).insts.clone() {
        if let Some(split) = find_split(module, inst) {
            n_split += usize::from(build_split(module, comp, inst, &split).is_some());
        }
    }
    n_split
}

fn find_split(module: &Module, inst: InstId) -> Option<Split> {
    let instruction = module.inst(inst);
    let (Opcode::Reduce, Attrs::Reduce(attrs)) = (instruction.opcode, &instruction.attrs) else { return None };
    let (operands, inits) = instruction.operands.split_at(instruction.operands.len() / 2);
    let shape = module.shape(*operands.first()?).as_array()?;
    let result = module.shapes.leaf(instruction.shape, 0)?.as_array()?;
    let may_split = match inits {
        &[init] => shape.dtype.bits() >= 32 && has_neutral_init(module, attrs, init, shape.dtype),
        _ => attrs.to_apply.is_some_and(|comp| find_arg_extremum(module, comp).is_some()),
    };
    let is_alike = |&operand: &InstId| {
        module.shape(operand).as_array().is_some_and(|other| other.dynamic == 0 && other.is_same_order(shape))
    };
    if shape.n_elems() < MIN_ELEMS || !operands.iter().all(is_alike) || !may_split {
        return None;
    }
    let order = shape.minor_to_major();
    let long: SmallVec<[usize; 4]> =
        order.iter().rev().map(|&dim| dim as usize).filter(|&dim| shape.dims[dim] != 1).collect();
    let is_reduced = |dim: &usize| attrs.dimensions.contains(&(*dim as i64));
    let dim = long.iter().copied().find(is_reduced)?;
    let n_results = i64::try_from(result.n_elems()).ok()?.max(1);
    let n_reduced = i64::try_from(shape.n_elems()).ok()? / n_results;
    let (most, least_part) = if long.last().is_some_and(is_reduced) {
        (ROW_PARTS / n_results, MIN_ROW_PART)
    } else {
        (COLUMN_BLOCKS / (n_results.checked_add(31)? / 32), MIN_COLUMN_PART)
    };
    let most = most.min(n_reduced / least_part);
    let size = shape.dims[dim];
    let n_parts = (2..=most.min(size)).rev().find(|n| size % n == 0)?;
    let reduced: SmallVec<[usize; 4]> = (0..shape.rank()).filter(is_reduced).collect();
    // A few parts are not worth another launch.
    (n_parts >= 4).then_some(Split { dim, n_parts, reduced })
}

/// The dims of `shape` with `dim` as `n_parts` times the rest of it, in the same memory.
fn split_shape(shape: &ArrayShape, dim: usize, n_parts: i64) -> ArrayShape {
    let mut dims = shape.dims.clone();
    dims[dim] /= n_parts;
    dims.insert(dim, n_parts);
    let moved = |d: i64| if d as usize > dim { d + 1 } else { d };
    let slowest_first = shape.minor_to_major().iter().rev().copied().collect::<SmallVec<[i64; 6]>>();
    let order = slowest_first.into_iter().flat_map(|d| {
        let inner = (d as usize == dim).then_some(dim + 1);
        std::iter::once(moved(d) as usize).chain(inner)
    });
    let order: Vec<usize> = order.collect();
    let mut split = ArrayShape::new(shape.dtype, dims);
    split.layout = Some(Box::new(Layout::from_major_to_minor(order)));
    split
}

/// The array that is left of `shape` without `dims`, in the same order.
fn without(shape: &ArrayShape, dims: &[usize]) -> ArrayShape {
    let kept: Vec<usize> = (0..shape.rank()).filter(|dim| !dims.contains(dim)).collect();
    let order: Vec<usize> =
        shape.minor_to_major().iter().rev().filter_map(|&dim| kept.iter().position(|&k| k == dim as usize)).collect();
    let mut left = ArrayShape::new(shape.dtype, kept.iter().map(|&dim| shape.dims[dim]));
    left.layout = Some(Box::new(Layout::from_major_to_minor(order)));
    left
}

fn build_split(module: &mut Module, comp: CompId, inst: InstId, split: &Split) -> Option<()> {
    let all = module.inst(inst).operands.clone();
    let (operands, inits) = all.split_at(all.len() / 2);
    let Attrs::Reduce(attrs) = module.inst(inst).attrs.clone() else { return None };
    let hint = format!("{}.parts", module.inst_name(inst));
    let dim = split.dim;
    let is_whole = module.shape(*operands.first()?).as_array()?.dims[dim] == split.n_parts;
    let moved = |d: usize| if !is_whole && d >= dim { d + 1 } else { d };
    let inner: Vec<usize> = split.reduced.iter().filter(|&&d| !(is_whole && d == dim)).map(|&d| moved(d)).collect();
    let (mut read, mut parts) = (Vec::new(), Vec::new());
    for &operand in operands {
        let shape = module.shape(operand).as_array()?.clone();
        let shape = if is_whole { shape } else { split_shape(&shape, dim, split.n_parts) };
        parts.push(Shape::Array(without(&shape, &inner)));
        let mut b = Builder::new(module, comp);
        let reshape = |b: &mut Builder<'_>| {
            b.add(&hint, Opcode::Reshape, Shape::Array(shape), [operand], ReshapeAttrs::default())
        };
        read.push(if is_whole { operand } else { reshape(&mut b) });
    }
    let kept_before = (0..dim).filter(|d| !split.reduced.contains(d)).count();
    let first = ReduceAttrs { dimensions: inner.iter().map(|&d| d as i64).collect(), ..(*attrs).clone() };
    read.extend_from_slice(inits);
    let mut b = Builder::new(module, comp);
    let parts = match parts.as_slice() {
        [shape] => vec![b.add(&hint, Opcode::Reduce, shape.clone(), read, first)],
        shapes => {
            let all = b.add(&hint, Opcode::Reduce, Shape::Tuple(shapes.to_vec()), read, first);
            let leaf = |(k, shape): (usize, &Shape)| {
                let index = TupleIndexAttrs { index: k as i64 };
                b.add(&hint, Opcode::GetTupleElement, shape.clone(), [all], index)
            };
            shapes.iter().enumerate().map(leaf).collect()
        }
    };
    let second = ReduceAttrs { dimensions: std::iter::once(kept_before as i64).collect(), ..*attrs };
    let reduce = module.inst_mut(inst);
    reduce.operands.iter_mut().zip(parts).for_each(|(operand, part)| *operand = part);
    reduce.attrs = second.into();
    Some(())
}

/// Lets users of copies that keep the layout read what is copied. Returns how many.
fn remove_idle_copies(module: &mut Module, comp: CompId) -> usize {
    let mut n_removed = 0;
    // What others wait for by a control dependency stays.
    let named = |inst: &InstId| {
        let marks = module.inst(*inst).marks.as_ref();
        marks.map(|m| m.control_predecessors.clone()).unwrap_or_default()
    };
    let kept: HashSet<InstId> = module.comp(comp).insts.iter().flat_map(named).collect();
    let mut source: InstMap<Option<InstId>> = InstMap::of(module, comp);
    for inst in module.comp(comp).insts.clone() {
        let operands = module.inst(inst).operands.clone();
        for (k, operand) in operands.iter().enumerate() {
            if let Some(source) = source[*operand] {
                module.inst_mut(inst).operands[k] = source;
            }
        }
        let instruction = module.inst(inst);
        if instruction.opcode != Opcode::Copy
            || kept.contains(&inst)
            || instruction.marks.as_ref().is_some_and(|m| !m.control_predecessors.is_empty())
        {
            continue;
        }
        let Some(&operand) = instruction.operands.first() else { continue };
        let shapes = (module.shape(operand).as_array(), module.shape(inst).as_array());
        let is_root = module.comp(comp).root.expand() == Some(inst);
        if let (Some(from), Some(to)) = shapes
            && from.same_type(to)
            && from.is_same_order(to)
            && from.memory_space() == to.memory_space()
            && !is_root
        {
            source[inst] = Some(operand);
            n_removed += 1;
        }
    }
    if n_removed > 0 {
        module.comp_mut(comp).insts.retain(|&inst| source[inst].is_none());
    }
    n_removed
}
