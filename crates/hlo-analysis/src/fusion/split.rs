//! Reductions in two steps, so that many blocks take part.
//!
//! A reduction of `[d…]` along dims of which `D` lies slowest becomes one of `[…, S, D/S, …]` that keeps `S`, and one
//! of its results along `S`. In a sum of columns, dims that follow `D` and are reduced too are one with it where that gives more parts. Each step's
//! order is fixed, so that equal inputs give equal results; no atomics.
//! An argmax of values and indices goes in two steps likewise, whatever its initial values: one that takes part several times
//! changes nothing.
//! Other reductions stay whole in three cases: their elements are smaller than 32 bits, so parts would be rounded; their
//! computation is no plain sum, product, extremum or bitwise operation with a neutral initial value; `D` has no fitting
//! divisor.

use super::columns::{column_sum, max_parts, may_be_of_rows, min_parts, rows_at_least};
use super::neutral::has_neutral_init;
use hlo_ir::arg_extremum::find_arg_extremum;
use hlo_ir::attrs::{Attrs, ReduceAttrs, ReshapeAttrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, InstId, Layout, Module, Opcode, Shape};
use smallvec::SmallVec;

/// Parts that a reduction to one result goes in at most, and what a reduction of rows should have altogether.
const ROW_PARTS: i64 = 512;
/// Blocks of 32 columns that a reduction of columns should have altogether.
const COLUMN_BLOCKS: i64 = 1024;
/// Elements of a part at least, along rows and along columns.
const MIN_ROW_PART: i64 = 1024;
const MIN_COLUMN_PART: i64 = 64;
/// Elements of an operand below which another launch costs more than it saves.
const MIN_ELEMS: u64 = 1 << 15;

/// How a reduction goes in two steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Split {
    /// The operand's dim that is split, slowest in memory among the reduced ones, and how many of the dims after it are one with it.
    dim: usize,
    n_merged: usize,
    /// Parts that it is split into.
    n_parts: i64,
    /// All reduced dims.
    reduced: SmallVec<[usize; 4]>,
}

/// How a reduction goes in two steps, where it should; `is_by_rows` if teams of threads that have a row each add up its columns.
pub(super) fn find_split(module: &Module, inst: InstId, is_by_rows: bool) -> Option<Split> {
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
    let long = shape.long_dims_major_to_minor();
    let is_reduced = |dim: &usize| attrs.dimensions.contains(&(*dim as i64));
    let first = long.iter().position(is_reduced)?;
    let dim = long[first];
    let is_of_columns = !long.last().is_some_and(is_reduced);
    // Dims of rows that follow in the text and in memory.
    let follow = long[first..].iter().zip(dim..).take_while(|&(&at, next)| at == next && is_reduced(&at)).count();
    let follow = if is_of_columns { follow } else { 1 };
    let reduced: SmallVec<[usize; 4]> = (0..shape.rank()).filter(is_reduced).collect();
    let n_results = i64::try_from(result.n_elems()).ok()?.max(1);
    let n_reduced = i64::try_from(shape.n_elems()).ok()? / n_results;
    let divide = |most: i64| {
        let of_dims = |n_merged: usize| {
            let size: i64 = shape.dims[dim..dim + n_merged].iter().product();
            let n_parts = (2..=most.min(size)).rev().find(|n| size % n == 0)?;
            Some(Split { dim, n_merged, n_parts, reduced: reduced.clone() })
        };
        let alone = of_dims(1);
        let merged = of_dims(follow).filter(|merged| alone.as_ref().is_none_or(|one| one.n_parts < merged.n_parts));
        merged.or(alone)
    };
    if let Some(sum) = column_sum(module, inst).filter(|sum| is_by_rows && may_be_of_rows(module, sum)) {
        let by_rows = divide(max_parts(sum.n_columns).min(n_reduced / rows_at_least(sum.n_columns)));
        if by_rows.as_ref().is_some_and(|split| split.n_parts * sum.n_parts >= min_parts(sum.n_elems())) {
            return by_rows;
        }
    }
    let (most, least_part) = if is_of_columns {
        (COLUMN_BLOCKS / (n_results.checked_add(31)? / 32), MIN_COLUMN_PART)
    } else {
        (ROW_PARTS / n_results, MIN_ROW_PART)
    };
    // A few parts are not worth another launch.
    divide(most.min(n_reduced / least_part)).filter(|split| split.n_parts >= 4)
}

/// A sum of columns in two steps, of which the first has parts of `n_rows` rows.
fn column_split(module: &Module, inst: InstId, n_rows: i64) -> Option<Split> {
    let (sum, Attrs::Reduce(attrs)) = (column_sum(module, inst)?, &module.inst(inst).attrs) else { return None };
    let shape = module.shape(*module.inst(inst).operands.first()?).as_array()?;
    let reduced: SmallVec<[usize; 4]> = (0..shape.rank()).filter(|&d| attrs.dimensions.contains(&(d as i64))).collect();
    let &dim = reduced.first()?;
    let is_run = reduced.iter().copied().eq(dim..dim + reduced.len());
    let is_long = shape.n_elems() >= MIN_ELEMS && shape.dtype.bits() >= 32;
    let fits = is_run && shape.is_row_major() && is_long && n_rows > 0 && sum.n_rows % n_rows == 0;
    fits.then(|| Split { dim, n_merged: reduced.len(), n_parts: sum.n_rows / n_rows, reduced })
}

/// Whether a sum of columns may go in two steps, of which the first has parts of `n_rows` rows: these divide it, no part is rounded, its
/// dims are one after the other, and it is long enough for another launch.
pub fn may_split_column_sum(module: &Module, inst: InstId, n_rows: i64) -> bool {
    column_split(module, inst, n_rows).is_some()
}

/// Lets it go so, if it may. Returns the first step. The computation's order is to be restored.
pub fn split_column_sum(module: &mut Module, comp: CompId, inst: InstId, n_rows: i64) -> Option<InstId> {
    let split = column_split(module, inst, n_rows)?;
    build_split(module, comp, inst, &split)?;
    module.inst(inst).operands.first().copied()
}

/// The dims of `shape` with `n_merged` dims from `dim` on as `n_parts` times the rest of them, in the same memory.
fn split_shape(shape: &ArrayShape, &Split { dim, n_merged, n_parts, .. }: &Split) -> ArrayShape {
    let size: i64 = shape.dims[dim..dim + n_merged].iter().product();
    let mut dims: SmallVec<[i64; 6]> = SmallVec::from_slice(&shape.dims[..dim]);
    dims.extend([n_parts, size / n_parts]);
    dims.extend_from_slice(&shape.dims[dim + n_merged..]);
    let slowest_first = shape.minor_to_major().iter().rev().map(|&d| d as usize).collect::<SmallVec<[usize; 6]>>();
    let order = slowest_first.into_iter().flat_map(|d| match d {
        d if d == dim => [Some(dim), Some(dim + 1)],
        d if d < dim => [Some(d), None],
        d if d < dim + n_merged => [None, None],
        d => [Some(d + 2 - n_merged), None],
    });
    let order: Vec<usize> = order.flatten().collect();
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

/// Writes the two steps.
pub(super) fn build_split(module: &mut Module, comp: CompId, inst: InstId, split: &Split) -> Option<()> {
    let all = module.inst(inst).operands.clone();
    let (operands, inits) = all.split_at(all.len() / 2);
    let Attrs::Reduce(attrs) = module.inst(inst).attrs.clone() else { return None };
    let hint = format!("{}.parts", module.inst_name(inst));
    let dim = split.dim;
    let is_whole = split.n_merged == 1 && module.shape(*operands.first()?).as_array()?.dims[dim] == split.n_parts;
    let merged = dim..dim + split.n_merged;
    let others = split.reduced.iter().filter(|d| !merged.contains(d));
    let moved = |&d: &usize| if !is_whole && d >= merged.end { d + 2 - split.n_merged } else { d };
    let mut inner: Vec<usize> = (!is_whole).then_some(dim + 1).into_iter().chain(others.map(moved)).collect();
    inner.sort();
    let (mut read, mut parts) = (Vec::new(), Vec::new());
    for &operand in operands {
        let shape = module.shape(operand).as_array()?.clone();
        let shape = if is_whole { shape } else { split_shape(&shape, split) };
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
