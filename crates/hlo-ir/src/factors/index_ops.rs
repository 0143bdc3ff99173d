//! Factors of contractions, sorting, indexing, linear algebra and batch norms.

use super::rules::{WRONG_ATTRS, index, size_at};
use super::*;
use crate::attrs::{Attrs, DotAttrs};
use FactorRole::{Own, Pass, Reduce, Whole};

const INDEX_VECTOR: FactorRole = Whole("an index is taken with all its components");
const SLICE_AT_RUN_TIME: FactorRole = Whole("a slice of several rows starts where an index says");
const MATRIX: FactorRole = Whole("a matrix is factored as a whole");

/// Result dims: batch, then free dims of the left, then of the right.
pub(super) fn dot(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let DotAttrs {
        lhs_batch_dims,
        lhs_contracting_dims,
        rhs_batch_dims,
        rhs_contracting_dims,
        // Only `ragged-dot` has groups, and its row of the op table says why it has no factors.
        lhs_ragged_dims: _,
        rhs_group_dims: _,
        // They say how elements are multiplied, not which.
        operand_precision: _,
        algorithm: _,
    } = DotAttrs::of(attrs).ok_or(WRONG_ATTRS)?;
    let (lhs, rhs) = (b.operand_dims(0)?, b.operand_dims(1)?);
    if b.operands.len() != 2 {
        return Err(NoFactors::OfInstruction("a sparse dot"));
    }
    let mut place = 0;
    for (&l, &r) in lhs_batch_dims.iter().zip(rhs_batch_dims) {
        b.pass(size_at(lhs, l)?, &[(0, index(l)?), (1, index(r)?)], place);
        place += 1;
    }
    for (&l, &r) in lhs_contracting_dims.iter().zip(rhs_contracting_dims) {
        let factor = b.add(size_at(lhs, l)?);
        b.operand(0, index(l)?, factor, Reduce(Monoid::Add));
        b.operand(1, index(r)?, factor, Reduce(Monoid::Add));
    }
    let sides = [(lhs, lhs_batch_dims, lhs_contracting_dims), (rhs, rhs_batch_dims, rhs_contracting_dims)];
    for (operand, (dims, batch, contracted)) in sides.into_iter().enumerate() {
        for (dim, &size) in dims.iter().enumerate() {
            if !batch.contains(&(dim as i64)) && !contracted.contains(&(dim as i64)) {
                b.pass(size, &[(operand, dim)], place);
                place += 1;
            }
        }
    }
    Ok(b.fill(Whole("no other tensor has the dim")))
}

/// sort and topk: all dims pass but the sorted one (the last one for topk).
pub(super) fn sort(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let dims = b.operand_dims(0)?;
    let sorted = if let Attrs::Sort(a) = attrs {
        a.dimensions.first().copied().ok_or(WRONG_ATTRS)?
    } else if let Attrs::TopK(_) = attrs {
        dims.len() as i64 - 1
    } else {
        return Err(WRONG_ATTRS);
    };
    let n = b.operands.len();
    for (dim, &size) in dims.iter().enumerate() {
        if dim as i64 != sorted {
            b.pass_dim(size, 0..n, dim);
        }
    }
    Ok(b.fill(Whole("any element of the sorted dim may come first")))
}

/// A dim taken whole passes; a dim of which one row is taken is read by the shard that holds that row.
pub(super) fn dynamic_slice(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let from = b.operand_dims(0)?;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        let whole = from.get(dim).copied().ok_or(WRONG_ATTRS)?;
        if whole == size {
            b.pass(size, &[(0, dim)], dim);
        } else if size == 1 {
            let factor = b.add(whole);
            b.operand(0, dim, factor, Reduce(Monoid::Add));
            let row = b.add(1);
            b.result(0, dim, row, Own);
        }
    }
    Ok(b.fill(SLICE_AT_RUN_TIME))
}

/// Other dims than those written whole pass from the operand to the result, and each shard writes what overlaps its tile.
pub(super) fn dynamic_update_slice(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let update = b.operand_dims(1)?;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        match update.get(dim) == Some(&size) {
            true => b.pass(size, &[(0, dim), (1, dim)], dim),
            false => b.pass(size, &[(0, dim)], dim),
        }
    }
    Ok(b.fill(Whole("every shard may have to write a part of the update")))
}

/// The dims of `rank` that are not in `taken`, in order.
fn others(rank: usize, taken: &[i64]) -> Vec<usize> {
    (0..rank).filter(|&d| !taken.contains(&(d as i64))).collect()
}

/// Index batch dims and dims taken whole pass. A dim of which one row is taken is read by the shard that holds that row.
pub(super) fn gather(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Gather(a) = attrs else { return Err(WRONG_ATTRS) };
    let (operand, indices, result) = (b.operand_dims(0)?, b.operand_dims(1)?, b.result_dims()?);
    let index_batch = others(indices.len(), &[a.index_vector_dim]);
    let result_batch = others(result.len(), &a.offset_dims);
    for (&dim, &place) in index_batch.iter().zip(&result_batch) {
        let mut passed = vec![(1, dim)];
        if let Some(k) = a.start_indices_batching_dims.iter().position(|&d| d == dim as i64) {
            passed.push((0, index(*a.operand_batching_dims.get(k).ok_or(WRONG_ATTRS)?)?));
        }
        b.pass(indices[dim], &passed, place);
    }
    let dropped: Vec<i64> = a.collapsed_slice_dims.iter().chain(&a.operand_batching_dims).copied().collect();
    for (&dim, &place) in others(operand.len(), &dropped).iter().zip(&a.offset_dims) {
        // A dim that is taken whole starts at 0 whatever the index says: starts are clamped.
        if a.slice_sizes.get(dim) == Some(&operand[dim]) {
            b.pass(operand[dim], &[(0, dim)], index(place)?);
        } else if a.slice_sizes.get(dim) == Some(&1) && a.start_index_map.contains(&(dim as i64)) {
            let factor = b.add(operand[dim]);
            b.operand(0, dim, factor, Reduce(Monoid::Add));
            let row = b.add(1);
            b.result(0, index(place)?, row, Own);
        }
    }
    for &dim in a.collapsed_slice_dims.iter().filter(|dim| a.start_index_map.contains(dim)) {
        let factor = b.add(size_at(operand, dim)?);
        b.operand(0, index(dim)?, factor, Reduce(Monoid::Add));
    }
    if let Ok(vector) = index(a.index_vector_dim)
        && let Some(&size) = indices.get(vector)
    {
        let factor = b.add(size);
        b.operand(1, vector, factor, INDEX_VECTOR);
    }
    Ok(b.fill(SLICE_AT_RUN_TIME))
}

/// Windows written whole and explicit batch dims pass. An indexed operand dim with windows of one row passes from operand
/// to result: a shard drops the rows of others. Along an index batch dim, shards combine by the reducer.
pub(super) fn scatter(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Scatter(a) = attrs else { return Err(WRONG_ATTRS) };
    let n = b.operands.len() / 2;
    let (operand, indices, updates) = (b.operand_dims(0)?, b.operand_dims(n)?, b.operand_dims(n + 1)?);
    let every = |dim: usize| (0..n).map(move |k| (k, dim));
    let every_update = |dim: usize| (n + 1..2 * n + 1).map(move |k| (k, dim));
    let dropped: Vec<i64> = a.inserted_window_dims.iter().chain(&a.input_batching_dims).copied().collect();
    for (&dim, &place) in others(operand.len(), &dropped).iter().zip(&a.update_window_dims) {
        let (is_moved, place) = (a.scatter_dims_to_operand_dims.contains(&(dim as i64)), index(place)?);
        // A dim written whole is written at 0: other starts are out of bounds, of the whole dim and of each tile.
        if updates.get(place) == Some(&operand[dim]) {
            b.pass(operand[dim], &every(dim).chain(every_update(place)).collect::<Vec<_>>(), dim);
        } else if is_moved && updates.get(place) == Some(&1) {
            b.pass(operand[dim], &every(dim).collect::<Vec<_>>(), dim);
        }
    }
    for &dim in a.inserted_window_dims.iter().filter(|dim| a.scatter_dims_to_operand_dims.contains(dim)) {
        b.pass(size_at(operand, dim)?, &every(index(dim)?).collect::<Vec<_>>(), index(dim)?);
    }
    let monoids = b.monoids(a.to_apply, n);
    let index_batch = others(indices.len(), &[a.index_vector_dim]);
    let update_batch = others(updates.len(), &a.update_window_dims);
    for (&dim, &place) in index_batch.iter().zip(&update_batch) {
        if let Some(k) = a.scatter_indices_batching_dims.iter().position(|&d| d == dim as i64) {
            let own = index(*a.input_batching_dims.get(k).ok_or(WRONG_ATTRS)?)?;
            b.pass(indices[dim], &every(own).chain([(n, dim)]).chain(every_update(place)).collect::<Vec<_>>(), own);
            continue;
        }
        let factor = b.add(indices[dim]);
        let role = |k: usize| match &monoids {
            Some(monoids) => Reduce(monoids[k]),
            None => Whole("the order of updates counts: the reducer is no op with an identity"),
        };
        b.operand(n, dim, factor, role(0));
        every_update(place).enumerate().for_each(|(k, (operand, dim))| b.operand(operand, dim, factor, role(k)));
    }
    Ok(b.fill(Whole("a window of several rows is written where an index says, or the dim holds the index")))
}

/// The leading dims pass through all tensors; the last `n_whole` are whole.
pub(super) fn leading_dims(
    mut b: FactorBuilder<'_>,
    n_whole: usize,
    reason: &'static str,
) -> Result<FactorSet, NoFactors> {
    let (dims, n) = (b.operand_dims(0)?, b.operands.len());
    for (dim, &size) in dims.iter().take(dims.len().saturating_sub(n_whole)).enumerate() {
        b.pass_dim(size, 0..n, dim);
    }
    Ok(b.fill(Whole(reason)))
}

pub(super) fn fft(b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Fft(a) = attrs else { return Err(WRONG_ATTRS) };
    leading_dims(b, a.fft_length.len(), "a transform mixes all elements")
}

/// Batch dims pass; of `b` (and the solution) so does the dim that holds independent right-hand sides.
pub(super) fn triangular_solve(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::TriangularSolve(a) = attrs else { return Err(WRONG_ATTRS) };
    let rank = b.operand_dims(1)?.len();
    if rank < 2 {
        return Err(WRONG_ATTRS);
    }
    let sides = if a.left_side { rank - 1 } else { rank - 2 };
    for (dim, &size) in b.operand_dims(1)?.iter().enumerate() {
        if dim < rank - 2 {
            b.pass(size, &[(0, dim), (1, dim)], dim);
        } else if dim == sides {
            b.pass(size, &[(1, dim)], dim);
        }
    }
    Ok(b.fill(MATRIX))
}

/// The feature dim passes through everything that has it. Training and gradients take statistics over all other dims;
/// inference is given them, and its other dims pass.
pub(super) fn batch_norm(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::BatchNorm(a) = attrs else { return Err(WRONG_ATTRS) };
    let (dims, feature) = (b.operand_dims(0)?, index(a.feature_index)?);
    let factor = b.add(size_at(dims, a.feature_index)?);
    for operand in 0..b.operands.len() {
        let dim = if b.operands[operand].rank() == 1 { 0 } else { feature };
        b.operand(operand, dim, factor, Pass);
    }
    for leaf in 0..b.results.len() {
        let dim = if b.results[leaf].rank() == 1 { 0 } else { feature };
        b.result(leaf, dim, factor, Pass);
    }
    let takes_statistics = b.results.len() > 1;
    for (dim, &size) in dims.iter().enumerate().filter(|&(dim, _)| dim != feature && !takes_statistics) {
        b.pass(size, &[(0, dim)], dim);
    }
    Ok(b.fill(Whole("statistics are taken over the dim")))
}
