//! Factors of ops that move, cut, join and reduce dims.

use super::rules::WRONG_ATTRS;
use super::*;
use crate::attrs::{Attrs, DimsAttrs};
use FactorRole::{Own, Pass, Shift, Whole};

/// The result lacks a dim of an operand, which only an invalid instruction does.
const UNRELATED: FactorRole = Whole("no other tensor has the dim");

fn dims_of(attrs: &Attrs) -> Result<&DimsAttrs, NoFactors> {
    if let Attrs::Dims(dims) = attrs { Ok(dims) } else { Err(WRONG_ATTRS) }
}

/// Operand dims go where the attributes say; the result's other dims repeat the operand and are its own.
pub(super) fn broadcast(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let dimensions = &dims_of(attrs)?.dimensions;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        match dimensions.iter().position(|&d| d == dim as i64) {
            Some(from) => b.pass(size, &[(0, from)], dim),
            None => {
                let factor = b.add(size);
                b.result(0, dim, factor, Own);
            }
        }
    }
    Ok(b.fill(UNRELATED))
}

pub(super) fn transpose(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let permutation = &dims_of(attrs)?.dimensions;
    for (dim, (&size, &from)) in b.result_dims()?.iter().zip(permutation).enumerate() {
        b.pass(size, &[(0, usize::try_from(from).map_err(|_| WRONG_ATTRS)?)], dim);
    }
    Ok(b.fill(UNRELATED))
}

pub(super) fn reverse(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let reversed = &dims_of(attrs)?.dimensions;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        let is_reversed = reversed.contains(&(dim as i64));
        pass_or_shift(&mut b, dim, size, is_reversed);
    }
    Ok(b.fill(UNRELATED))
}

/// A factor of a result dim, which operand 0 has at the same place or shifted.
fn pass_or_shift(b: &mut FactorBuilder<'_>, dim: usize, size: i64, is_shifted: bool) {
    let factor = b.add(size);
    b.operand(0, dim, factor, if is_shifted { Shift } else { Pass });
    b.result(0, dim, factor, Pass);
}

pub(super) fn concatenate(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let joined = &dims_of(attrs)?.dimensions;
    let n = b.operands.len();
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        if !joined.contains(&(dim as i64)) {
            b.pass_dim(size, 0..n, dim);
            continue;
        }
        let factor = b.add(size);
        (0..n).for_each(|operand| b.operand(operand, dim, factor, Shift));
        b.result(0, dim, factor, Pass);
    }
    Ok(b.fill(UNRELATED))
}

/// Along its own dim a tile starts at another number, so that a shard adds its offset; other dims repeat it.
pub(super) fn iota(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Iota(iota) = attrs else { return Err(WRONG_ATTRS) };
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        let factor = b.add(size);
        b.result(0, dim, factor, if dim as i64 == iota.iota_dimension { Pass } else { Own });
    }
    Ok(b.fill(UNRELATED))
}

pub(super) fn pad(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Pad(pad) = attrs else { return Err(WRONG_ATTRS) };
    for (dim, (&size, padding)) in b.result_dims()?.iter().zip(&pad.padding).enumerate() {
        let is_padded = (padding.low, padding.high, padding.interior) != (0, 0, 0);
        pass_or_shift(&mut b, dim, size, is_padded);
    }
    Ok(b.fill(UNRELATED))
}

/// A dim passes through where the result has it whole.
pub(super) fn slice(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let from = b.operand_dims(0)?;
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        pass_or_shift(&mut b, dim, size, from.get(dim) != Some(&size));
    }
    Ok(b.fill(UNRELATED))
}

/// Splits and merges dims into common factors, major to minor.
pub(super) fn reshape(b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let from: Vec<usize> = (0..b.operand_dims(0)?.len()).collect();
    let to: Vec<usize> = (0..b.result_dims()?.len()).collect();
    regroup(b, &from, &to)
}

/// As reshape, but over the dims in physical order: the bytes stay, the layouts give them new indices.
pub(super) fn bitcast(b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let (Some(operand), Some(result)) = (b.operands.first(), b.results.first()) else { return Err(WRONG_ATTRS) };
    if operand.dtype.bits() != result.dtype.bits() {
        return Err(NoFactors::OfInstruction("a bitcast between element types of different width"));
    }
    let is_tiled = |array: &ArrayShape| array.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty());
    if is_tiled(operand) || is_tiled(result) {
        return Err(NoFactors::OfInstruction("a bitcast between tiled layouts"));
    }
    let (from, to) = (operand.major_to_minor(), result.major_to_minor());
    regroup(b, &from, &to)
}

const REGROUPED: FactorRole = Whole("the dims before and after have no common border here");

/// Walks both dim lists, each given major to minor, and cuts them at common borders.
///
/// `[12, 2]` to `[8, 3]` share a factor of 4; what is left of both, 3 × 2 and 2 × 3, has no border in common.
fn regroup(mut b: FactorBuilder<'_>, from: &[usize], to: &[usize]) -> Result<FactorSet, NoFactors> {
    let (a_dims, r_dims) = (b.operand_dims(0)?, b.result_dims()?);
    if a_dims.iter().chain(r_dims).any(|&d| d <= 0) {
        return Ok(b.fill(Whole("an empty array")));
    }
    let mut left: Vec<i64> = from.iter().map(|&d| a_dims[d]).collect();
    let mut right: Vec<i64> = to.iter().map(|&d| r_dims[d]).collect();
    let (mut i, mut j) = (0, 0);
    while i < left.len() && j < right.len() {
        let shared = gcd(left[i], right[j]);
        if left[i] == 1 {
            i += 1;
        } else if right[j] == 1 {
            j += 1;
        } else if shared > 1 {
            let factor = b.add(shared);
            b.operand(0, from[i], factor, Pass);
            b.result(0, to[j], factor, Pass);
            left[i] /= shared;
            right[j] /= shared;
        } else {
            whole_block(&mut b, (from, &mut left, &mut i), (to, &mut right, &mut j))?;
        }
    }
    // What is left are dims of one element, which come and go.
    Ok(b.fill(Own))
}

/// One side of a block: its dims, what is left of each, and the dim that comes next.
type Side<'s> = (&'s [usize], &'s mut Vec<i64>, &'s mut usize);

/// Covers both sides, from the next dims on, with whole factors until their products meet.
fn whole_block(b: &mut FactorBuilder<'_>, operand: Side<'_>, result: Side<'_>) -> Result<(), NoFactors> {
    let ((from, left, i), (to, right, j)) = (operand, result);
    let (i0, j0) = (*i, *j);
    let (mut x, mut y) = (left[i0], right[j0]);
    while x != y {
        let (rest, at, product) = if x < y { (&*left, &mut *i, &mut x) } else { (&*right, &mut *j, &mut y) };
        *at += 1;
        *product = product.saturating_mul(rest.get(*at).copied().ok_or(WRONG_ATTRS)?);
    }
    for k in i0..=*i {
        let factor = b.add(std::mem::replace(&mut left[k], 1));
        b.operand(0, from[k], factor, REGROUPED);
    }
    for k in j0..=*j {
        let factor = b.add(std::mem::replace(&mut right[k], 1));
        b.result(0, to[k], factor, REGROUPED);
    }
    Ok(())
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Equal widths pass every dim; else one side has an extra minor dim that holds an element's parts.
pub(super) fn bitcast_convert(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let shared = b.operand_dims(0)?.len().min(b.result_dims()?.len());
    for (dim, &size) in b.result_dims()?.iter().take(shared).enumerate() {
        b.pass(size, &[(0, dim)], dim);
    }
    Ok(b.fill(Whole("the dim holds the parts of one element")))
}

/// Kept dims pass through all inputs and results; along reduced dims the reducer combines partial results.
pub(super) fn reduce(mut b: FactorBuilder<'_>, attrs: &Attrs) -> Result<FactorSet, NoFactors> {
    let Attrs::Reduce(a) = attrs else { return Err(WRONG_ATTRS) };
    let n_inputs = b.operands.len() / 2;
    let monoids = b.monoids(a.to_apply, n_inputs);
    let mut kept = 0;
    for (dim, &size) in b.operand_dims(0)?.iter().enumerate() {
        if !a.dimensions.contains(&(dim as i64)) {
            let operands: Vec<_> = (0..n_inputs).map(|operand| (operand, dim)).collect();
            b.pass(size, &operands, kept);
            kept += 1;
            continue;
        }
        let factor = b.add(size);
        for operand in 0..n_inputs {
            let monoid = monoids.as_ref().and_then(|m| m.get(operand));
            let role = monoid.map_or(Whole("the reducer is no op with an identity"), |&m| FactorRole::Reduce(m));
            b.operand(operand, dim, factor, role);
        }
    }
    Ok(b.fill(UNRELATED))
}
