//! Factors of ops that move, cut, join and reduce dims.

use super::rules::wrong_attrs;
use super::*;
use crate::attrs::{Attrs, WindowDim};
use crate::shape::Layout;
use FactorKind::{NeedsWhole, PassThrough, Reduced, Windowed};

fn dims_of(attrs: &Attrs) -> Result<&[i64], NoFactors> {
    match attrs {
        Attrs::Dims(a) => Ok(&a.dimensions),
        Attrs::Reduce(a) => Ok(&a.dimensions),
        _ => Err(wrong_attrs()),
    }
}

pub(super) fn broadcast(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let dimensions = dims_of(attrs)?;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        let factor = b.add(size, PassThrough);
        b.result(0, dim, factor);
        if let Some(from) = dimensions.iter().position(|&d| d == dim as i64) {
            b.operand(0, from, factor);
        }
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn transpose(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let permutation = dims_of(attrs)?;
    for (dim, (&size, &from)) in b.result_dims()?.iter().zip(permutation).enumerate() {
        let factor = b.add(size, PassThrough);
        b.result(0, dim, factor);
        b.operand(0, usize::try_from(from).map_err(|_| wrong_attrs())?, factor);
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn reverse(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let reversed = dims_of(attrs)?;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        let factor = b.add(size, if reversed.contains(&(dim as i64)) { NeedsWhole } else { PassThrough });
        b.result(0, dim, factor);
        b.operand(0, dim, factor);
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn concatenate(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let joined = dims_of(attrs)?;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        if joined.contains(&(dim as i64)) {
            continue;
        }
        let factor = b.add(size, PassThrough);
        b.result(0, dim, factor);
        for operand in 0..b.operands.len() {
            b.operand(operand, dim, factor);
        }
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn iota(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Iota(iota) = attrs else { return Err(wrong_attrs()) };
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        // Along its own dim a piece starts at another number.
        let factor = b.add(size, if dim as i64 == iota.iota_dimension { NeedsWhole } else { PassThrough });
        b.result(0, dim, factor);
    }
    Ok(b.fill(NeedsWhole))
}

pub(super) fn pad(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Pad(pad) = attrs else { return Err(wrong_attrs()) };
    for (dim, (&size, padding)) in b.result_dims()?.iter().zip(&pad.padding).enumerate() {
        if (padding.low, padding.high, padding.interior) == (0, 0, 0) {
            let factor = b.add(size, PassThrough);
            b.result(0, dim, factor);
            b.operand(0, dim, factor);
        }
    }
    Ok(b.fill(NeedsWhole))
}

/// Slices: a dim passes through where the result and the named operands have it whole.
pub(super) fn same_size_dims(mut b: FactorBuilder<'_>, arrays: &[usize]) -> Result<FactorSet, NoFactors> {
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        let is_whole = arrays.iter().all(|&a| b.operands.get(a).and_then(|s| s.dims.get(dim)) == Some(&size));
        if is_whole {
            let factor = b.add(size, PassThrough);
            b.result(0, dim, factor);
            for &operand in arrays {
                b.operand(operand, dim, factor);
            }
        }
    }
    Ok(b.fill(NeedsWhole))
}

/// Splits and merges dims into common factors, major to minor.
pub(super) fn reshape(b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let from: Vec<usize> = (0..b.operand_dims(0)?.len()).collect();
    let to: Vec<usize> = (0..b.result_dims()?.len()).collect();
    regroup(b, &from, &to)
}

/// As reshape, but over the dims in physical order: the bytes stay, the layouts give them new indices.
pub(super) fn bitcast(b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let major_to_minor = |array: &ArrayShape| -> Result<Vec<usize>, NoFactors> {
        let layout = array.layout.as_deref().cloned().unwrap_or_else(|| Layout::row_major(array.rank()));
        if !layout.tiles.is_empty() || layout.minor_to_major.len() != array.rank() {
            return Err(NoFactors("a bitcast between tiled layouts".into()));
        }
        Ok(layout.minor_to_major.iter().rev().map(|&d| d as usize).collect())
    };
    let (Some(operand), Some(result)) = (b.operands.first(), b.results.first()) else { return Err(wrong_attrs()) };
    if operand.dtype.bits() != result.dtype.bits() {
        return Err(NoFactors("a bitcast between element types of different width".into()));
    }
    let (from, to) = (major_to_minor(operand)?, major_to_minor(result)?);
    regroup(b, &from, &to)
}

/// Walks both dim lists, each given major to minor, and cuts them at common borders.
fn regroup(mut b: FactorBuilder<'_>, from: &[usize], to: &[usize]) -> Result<FactorSet, NoFactors> {
    let (a_dims, r_dims) = (b.operand_dims(0)?, b.result_dims()?);
    if a_dims.iter().chain(r_dims).any(|&d| d <= 0) {
        return Ok(b.fill(NeedsWhole));
    }
    let mut left: Vec<i64> = from.iter().map(|&d| a_dims[d]).collect();
    let mut right: Vec<i64> = to.iter().map(|&d| r_dims[d]).collect();
    let (mut i, mut j) = (0, 0);
    while i < left.len() && j < right.len() {
        if left[i] == 1 {
            i += 1;
        } else if right[j] == 1 {
            j += 1;
        } else if left[i] % right[j] == 0 || right[j] % left[i] == 0 {
            let size = left[i].min(right[j]);
            let factor = b.add(size, PassThrough);
            b.operand(0, from[i], factor);
            b.result(0, to[j], factor);
            left[i] /= size;
            right[j] /= size;
        } else {
            // No common border inside: cover both sides of the block with whole factors until they meet.
            let (mut x, mut y) = (left[i], right[j]);
            let (i0, j0) = (i, j);
            while x != y {
                if x < y {
                    i += 1;
                    x = x.saturating_mul(left.get(i).copied().ok_or_else(wrong_attrs)?);
                } else {
                    j += 1;
                    y = y.saturating_mul(right.get(j).copied().ok_or_else(wrong_attrs)?);
                }
            }
            for k in i0..=i {
                let factor = b.add(std::mem::replace(&mut left[k], 1), NeedsWhole);
                b.operand(0, from[k], factor);
            }
            for k in j0..=j {
                let factor = b.add(std::mem::replace(&mut right[k], 1), NeedsWhole);
                b.result(0, to[k], factor);
            }
        }
    }
    Ok(b.fill(PassThrough))
}

/// Equal widths pass every dim; else one side has an extra minor dim that holds an element's parts.
pub(super) fn bitcast_convert(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let shared = b.operand_dims(0)?.len().min(b.result_dims()?.len());
    for (dim, &size) in b.result_dims()?.iter().take(shared).enumerate() {
        let factor = b.add(size, PassThrough);
        b.result(0, dim, factor);
        b.operand(0, dim, factor);
    }
    Ok(b.fill(NeedsWhole))
}

/// Kept dims pass through all inputs and results; reduced dims give partial results.
pub(super) fn reduce(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let reduced = dims_of(attrs)?;
    let n_inputs = b.operands.len() / 2;
    let mut kept = 0;
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        let is_reduced = reduced.contains(&(dim as i64));
        let factor = b.add(size, if is_reduced { Reduced } else { PassThrough });
        for operand in 0..n_inputs {
            b.operand(operand, dim, factor);
        }
        if !is_reduced {
            for leaf in 0..b.results.len() {
                b.result(leaf, kept, factor);
            }
            kept += 1;
        }
    }
    Ok(b.fill(NeedsWhole))
}

fn is_trivial(window: &WindowDim) -> bool {
    *window == WindowDim { is_reversed: window.is_reversed, ..WindowDim::default() }
}

pub(super) fn reduce_window(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::ReduceWindow(a) = attrs else { return Err(wrong_attrs()) };
    let n_inputs = b.operands.len() / 2;
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        if a.window.dims.get(dim).is_none_or(is_trivial) {
            let factor = b.add(size, PassThrough);
            (0..n_inputs).for_each(|operand| b.operand(operand, dim, factor));
            (0..b.results.len()).for_each(|leaf| b.result(leaf, dim, factor));
        }
    }
    Ok(b.fill(Windowed))
}

pub(super) fn select_and_scatter(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::SelectAndScatter(a) = attrs else { return Err(wrong_attrs()) };
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        if a.window.dims.get(dim).is_none_or(is_trivial) {
            let factor = b.add(size, PassThrough);
            b.operand(0, dim, factor);
            b.operand(1, dim, factor);
            b.result(0, dim, factor);
        }
    }
    Ok(b.fill(Windowed))
}
