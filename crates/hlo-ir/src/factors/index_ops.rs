//! Factors of contractions, convolutions, sorting, indexing and linear algebra.

use super::rules::wrong_attrs;
use super::*;
use crate::attrs::Attrs;
use FactorKind::{NeedsWhole, PassThrough, Reduced, Windowed};

fn index(dim: i64) -> Result<usize, NoFactors> {
    usize::try_from(dim).map_err(|_| wrong_attrs())
}

fn size_at(dims: &[i64], dim: i64) -> Result<i64, NoFactors> {
    dims.get(index(dim)?).copied().ok_or_else(wrong_attrs)
}

/// Result dims: batch, then free dims of the left, then of the right.
pub(super) fn dot(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Dot(a) = attrs else { return Err(wrong_attrs()) };
    let (lhs, rhs) = (b.operand_dims(0)?, b.operand_dims(1)?);
    if b.operands.len() != 2 {
        return Err(NoFactors("a sparse dot".into()));
    }
    let mut place = 0;
    for (&l, &r) in a.lhs_batch_dims.iter().zip(&a.rhs_batch_dims) {
        let factor = b.add(size_at(lhs, l)?, PassThrough);
        b.operand(0, index(l)?, factor);
        b.operand(1, index(r)?, factor);
        b.result(0, place, factor);
        place += 1;
    }
    for (&l, &r) in a.lhs_contracting_dims.iter().zip(&a.rhs_contracting_dims) {
        let factor = b.add(size_at(lhs, l)?, Reduced);
        b.operand(0, index(l)?, factor);
        b.operand(1, index(r)?, factor);
    }
    let sides = [(lhs, &a.lhs_batch_dims, &a.lhs_contracting_dims), (rhs, &a.rhs_batch_dims, &a.rhs_contracting_dims)];
    for (operand, (dims, batch, contracted)) in sides.into_iter().enumerate() {
        for (dim, &size) in dims.iter().enumerate() {
            if !batch.contains(&(dim as i64)) && !contracted.contains(&(dim as i64)) {
                let factor = b.add(size, PassThrough);
                b.operand(operand, dim, factor);
                b.result(0, place, factor);
                place += 1;
            }
        }
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn convolution(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Conv(a) = attrs else { return Err(wrong_attrs()) };
    let (input, kernel) = (b.operand_dims(0)?, b.operand_dims(1)?);
    let d = &a.dim_labels;
    let is_grouped = a.feature_group_count.unwrap_or(1) != 1 || a.batch_group_count.unwrap_or(1) != 1;
    if !is_grouped {
        let batch = b.add(size_at(input, d.input_batch)?, PassThrough);
        b.operand(0, index(d.input_batch)?, batch);
        b.result(0, index(d.output_batch)?, batch);
        let contracted = b.add(size_at(input, d.input_feature)?, Reduced);
        b.operand(0, index(d.input_feature)?, contracted);
        b.operand(1, index(d.kernel_input_feature)?, contracted);
        let out = b.add(size_at(kernel, d.kernel_output_feature)?, PassThrough);
        b.operand(1, index(d.kernel_output_feature)?, out);
        b.result(0, index(d.output_feature)?, out);
    } else {
        // Groups tie blocks of these dims together.
        for (operand, dim) in [(0, d.input_batch), (0, d.input_feature)] {
            let factor = b.add(size_at(input, dim)?, NeedsWhole);
            b.operand(operand, index(dim)?, factor);
        }
        for dim in [d.kernel_input_feature, d.kernel_output_feature] {
            let factor = b.add(size_at(kernel, dim)?, NeedsWhole);
            b.operand(1, index(dim)?, factor);
        }
        let output = b.result_dims()?;
        for dim in [d.output_batch, d.output_feature] {
            let factor = b.add(size_at(output, dim)?, NeedsWhole);
            b.result(0, index(dim)?, factor);
        }
    }
    Ok(b.fill(Windowed))
}

/// sort and topk: all dims pass but the sorted one (the last one for topk).
pub(super) fn sort(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let rank = b.operand_dims(0)?.len();
    let sorted = match attrs {
        Attrs::Sort(a) => a.dimensions.first().copied().ok_or_else(wrong_attrs)?,
        Attrs::TopK(_) => rank as i64 - 1,
        _ => return Err(wrong_attrs()),
    };
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        if dim as i64 != sorted {
            let factor = b.add(size, PassThrough);
            (0..b.operands.len()).for_each(|operand| b.operand(operand, dim, factor));
            (0..b.results.len()).for_each(|leaf| b.result(leaf, dim, factor));
        }
    }
    Ok(b.fill(NeedsWhole))
}

/// The dims of `rank` that are not in `taken`, in order.
fn others(rank: usize, taken: &[i64]) -> Vec<usize> {
    (0..rank).filter(|&d| !taken.contains(&(d as i64))).collect()
}

pub(super) fn gather(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Gather(a) = attrs else { return Err(wrong_attrs()) };
    let (operand, indices, result) = (b.operand_dims(0)?, b.operand_dims(1)?, b.result_dims()?);
    let index_batch = others(indices.len(), &[a.index_vector_dim]);
    let result_batch = others(result.len(), &a.offset_dims);
    for (&dim, &place) in index_batch.iter().zip(&result_batch) {
        let factor = b.add(indices[dim], PassThrough);
        b.operand(1, dim, factor);
        b.result(0, place, factor);
        if let Some(k) = a.start_indices_batching_dims.iter().position(|&d| d == dim as i64) {
            b.operand(0, index(*a.operand_batching_dims.get(k).ok_or_else(wrong_attrs)?)?, factor);
        }
    }
    let dropped: Vec<i64> = a.collapsed_slice_dims.iter().chain(&a.operand_batching_dims).copied().collect();
    for (&dim, &place) in others(operand.len(), &dropped).iter().zip(&a.offset_dims) {
        // A dim that is taken whole starts at 0 whatever the index says: starts are clamped.
        if a.slice_sizes.get(dim) == Some(&operand[dim]) {
            let factor = b.add(operand[dim], PassThrough);
            b.operand(0, dim, factor);
            b.result(0, index(place)?, factor);
        }
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn scatter(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Scatter(a) = attrs else { return Err(wrong_attrs()) };
    let n = b.operands.len() / 2;
    let (operand, indices, updates) = (b.operand_dims(0)?, b.operand_dims(n)?, b.operand_dims(n + 1)?);
    let dropped: Vec<i64> = a.inserted_window_dims.iter().chain(&a.input_batching_dims).copied().collect();
    for (&dim, &place) in others(operand.len(), &dropped).iter().zip(&a.update_window_dims) {
        // A dim written whole is written at 0, as other starts are out of bounds, only if no index moves it.
        let is_moved = a.scatter_dims_to_operand_dims.contains(&(dim as i64));
        if !is_moved && updates.get(index(place)?) == Some(&operand[dim]) {
            let factor = b.add(operand[dim], PassThrough);
            (0..n).for_each(|k| b.operand(k, dim, factor));
            for k in 0..n {
                b.operand(n + 1 + k, index(place)?, factor);
            }
            (0..b.results.len()).for_each(|leaf| b.result(leaf, dim, factor));
        }
    }
    let index_batch = others(indices.len(), &[a.index_vector_dim]);
    let update_batch = others(updates.len(), &a.update_window_dims);
    for (&dim, &place) in index_batch.iter().zip(&update_batch) {
        if let Some(k) = a.scatter_indices_batching_dims.iter().position(|&d| d == dim as i64) {
            let own = index(*a.input_batching_dims.get(k).ok_or_else(wrong_attrs)?)?;
            let factor = b.add(indices[dim], PassThrough);
            b.operand(n, dim, factor);
            (0..n).for_each(|k| b.operand(k, own, factor));
            (0..n).for_each(|k| b.operand(n + 1 + k, place, factor));
            (0..b.results.len()).for_each(|leaf| b.result(leaf, own, factor));
        }
    }
    Ok(b.fill(NeedsWhole))
}

/// The leading dims pass through all tensors; the last `n_whole` are whole.
pub(super) fn leading_dims(mut b: FactorBuilder<'_>, n_whole: usize) -> Result<FactorSet, NoFactors> {
    let dims = b.operand_dims(0)?;
    for (dim, &size) in dims.iter().take(dims.len().saturating_sub(n_whole)).enumerate() {
        let factor = b.add(size, PassThrough);
        (0..b.operands.len()).for_each(|operand| b.operand(operand, dim, factor));
        (0..b.results.len()).for_each(|leaf| b.result(leaf, dim, factor));
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn fft(b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Fft(a) = attrs else { return Err(wrong_attrs()) };
    leading_dims(b, a.fft_length.len())
}

/// Batch dims pass; of `b` (and the solution) so does the dim that holds independent right-hand sides.
pub(super) fn triangular_solve(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::TriangularSolve(a) = attrs else { return Err(wrong_attrs()) };
    let rank = b.operand_dims(1)?.len();
    if rank < 2 {
        return Err(wrong_attrs());
    }
    let sides = if a.left_side { rank - 1 } else { rank - 2 };
    for (dim, &size) in b.operand_dims(1)?.iter().enumerate() {
        if dim < rank - 2 || dim == sides {
            let factor = b.add(size, PassThrough);
            b.operand(1, dim, factor);
            b.result(0, dim, factor);
            if dim < rank - 2 {
                b.operand(0, dim, factor);
            }
        }
    }
    Ok(b.fill(NeedsWhole))
}

/// The feature dim passes through everything that has it; statistics need all other dims.
pub(super) fn batch_norm(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::BatchNorm(a) = attrs else { return Err(wrong_attrs()) };
    let feature = index(a.feature_index)?;
    let size = size_at(b.operand_dims(0)?, a.feature_index)?;
    let factor = b.add(size, PassThrough);
    for operand in 0..b.operands.len() {
        let dim = if b.operands[operand].rank() == 1 { 0 } else { feature };
        b.operand(operand, dim, factor);
    }
    for leaf in 0..b.results.len() {
        let dim = if b.results[leaf].rank() == 1 { 0 } else { feature };
        b.result(leaf, dim, factor);
    }
    Ok(b.fill(NeedsWhole))
}
