//! How a run of dims goes through an op: which dims of the operands go with which dims of the result.
//!
//! A *run* is a group of consecutive dims that are merged into one and cut (§4.1 of the paper: a trivial reshape, then a cut
//! along one dim). An op can be computed on shards if the run of its result and those of its operands are the same piece of
//! index space. The op table's factors say which dims go together; nothing here knows an opcode.
//!
//! A reshape may take a run to one of more or fewer elements, which stay together in *units*: rows of 16 that are cut anywhere are a flat
//! array that is cut at multiples of 16. Padding behind the end of a cut dim, or a slice from its start, leaves the elements in
//! their shards, as long as every shard has as many units as the larger of both needs.

use crate::format::DimRun;
use hlo_ir::attrs::{Attrs, DynamicSliceAttrs, PadAttrs, SliceAttrs};
use hlo_ir::factors::{FactorId, FactorRole, FactorSet, find_factors};
use hlo_ir::localize::{CannotCut, Tensor, localize, merged_attrs};
use hlo_ir::op::{FactorRule, Flow};
use hlo_ir::shape::Dims;
use hlo_ir::{InstId, Module};

/// Where one dim of an operand goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Link {
    /// To this dim of the result.
    To(usize),
    /// It is reduced: shards give partial results.
    Reduced,
    /// It cannot be cut.
    Blocked,
}

/// How an operand is taken by an op whose result is cut along a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperandCut {
    /// The operand does not have the cut dims: every shard takes the whole of it.
    Whole,
    /// The operand is cut along this run.
    Run(DimRun),
    /// The op cannot be computed on such shards.
    Impossible,
}

/// How a result comes out if an operand is cut along a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResultCut {
    /// Cut along this run.
    Run(DimRun),
    /// Whole, but every shard gives only its part of a reduction.
    Partial,
    /// The op cannot be computed on such shards.
    Impossible,
}

/// The dims of an op's operands and result.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DimRelation {
    /// For each operand, for each dim.
    links: Vec<Vec<Link>>,
    /// Operand and result dims of a reshape, which are related by their products instead.
    reshape: Option<(Dims, Dims)>,
    /// Result dims that cannot be cut.
    fixed: Vec<usize>,
    /// Whether consecutive dims may be merged before they are cut.
    merges: bool,
    /// The dim to whose end something is added, or from whose end something is taken away.
    end: Option<usize>,
}

impl DimRelation {
    /// The relation of an op that computes one array and that may be computed on shards: elementwise, broadcast, transpose,
    /// reshape, reduce, and along dims that they take whole slices, updates, padding and concatenation. `None` for all others:
    /// they take their operands whole.
    pub fn find(module: &Module, inst: InstId) -> Option<DimRelation> {
        let instruction = module.inst(inst);
        let row = instruction.opcode.row();
        let is_plain = matches!(row.flow, Flow::All | Flow::Identity);
        let result = module.shape(inst).as_array()?;
        let has_control = instruction.marks.as_ref().is_some_and(|m| !m.control_predecessors.is_empty());
        let (merges, copies) = (row.factors.merged_dims().is_some(), row.factors.copies_elements());
        if !(merges || copies) || !is_plain || has_control || result.dynamic != 0 || module.must_stay(inst) {
            return None;
        }
        if let (FactorRule::Reshape, Some(&operand)) = (row.factors, instruction.operands.first()) {
            let operand = module.shape(operand).as_array()?;
            return (operand.dynamic == 0).then(|| DimRelation {
                links: Vec::new(),
                reshape: Some((operand.dims.clone(), result.dims.clone())),
                fixed: Vec::new(),
                merges,
                end: None,
            });
        }
        let set = find_factors(module, inst).ok()?;
        let [result] = set.results.as_slice() else { return None };
        // Elements move along the other dims, from shard to shard.
        let stays = |factor| !copies || cut_along(module, inst, &set, factor, 2).is_ok();
        let links = set.operands.iter().map(|operand| {
            (0..operand.len())
                .map(|dim| {
                    let Some(one) = FactorSet::sole_use(operand, dim) else { return Link::Blocked };
                    match (one.role, FactorSet::dim_of(result, one.factor)) {
                        (FactorRole::Pass, Some(to)) if stays(one.factor) => Link::To(to),
                        (FactorRole::Reduce(_), None) => Link::Reduced,
                        (FactorRole::Pass | FactorRole::Reduce(_), _) => Link::Blocked,
                        (FactorRole::Own | FactorRole::Whole(_) | FactorRole::Shift, _) => Link::Blocked,
                    }
                })
                .collect()
        });
        let mut links: Vec<Vec<Link>> = links.collect();
        let end = changed_end(module, inst);
        if let (Some(dim), Some(first)) = (end, links.first_mut()) {
            first[dim] = Link::To(dim);
        }
        let is_fixed = |dim: &usize| !links.iter().flatten().any(|link| *link == Link::To(*dim));
        let fixed = (0..result.len()).filter(|dim| copies && is_fixed(dim)).collect();
        Some(DimRelation { links, reshape: None, fixed, merges, end })
    }

    /// For a reshape whose operand (or result) is cut along `run`: the least multiple of its unit with which fewer dims of the other
    /// would be merged.
    pub fn finer_unit(&self, is_operand: bool, run: DimRun) -> Option<i64> {
        let (operand, result) = self.reshape.as_ref()?;
        if is_operand { finer(operand, run, result) } else { finer(result, run, operand) }
    }

    /// Whether the op only adds to, or takes away from, the end of this dim: padding behind it, or a slice from its start.
    pub fn changes_end(&self, dim: usize) -> bool {
        self.end == Some(dim)
    }

    /// How operand `k` is taken if the result is cut along `run`.
    #[inline]
    pub fn operand_cut(&self, k: usize, run: DimRun) -> OperandCut {
        if let Some((operand, result)) = &self.reshape {
            return aligned(result, run, operand).map_or(OperandCut::Impossible, OperandCut::Run);
        }
        if !self.merges && (run.len > 1 || self.fixed.contains(&run.start)) {
            return OperandCut::Impossible;
        }
        let links = self.links.get(k).map_or(&[][..], Vec::as_slice);
        let Some(start) = links.iter().position(|l| matches!(l, Link::To(to) if run.dims().contains(to))) else {
            return OperandCut::Whole;
        };
        let is_same = run.dims().enumerate().all(|(i, dim)| links.get(start + i) == Some(&Link::To(dim)));
        match is_same {
            true => OperandCut::Run(DimRun { start, ..run }),
            false => OperandCut::Impossible,
        }
    }

    /// How the result comes out if operand `k` is cut along `run`.
    #[inline]
    pub fn result_cut(&self, k: usize, run: DimRun) -> ResultCut {
        if let Some((operand, result)) = &self.reshape {
            return aligned(operand, run, result).map_or(ResultCut::Impossible, ResultCut::Run);
        }
        if !self.merges && run.len > 1 {
            return ResultCut::Impossible;
        }
        let Some(links) = self.links.get(k).and_then(|l| l.get(run.dims())) else { return ResultCut::Impossible };
        match links[0] {
            Link::To(start) if links.iter().enumerate().all(|(i, l)| *l == Link::To(start + i)) => {
                ResultCut::Run(DimRun { start, ..run })
            }
            Link::Reduced if self.merges && links.iter().all(|l| *l == Link::Reduced) => ResultCut::Partial,
            Link::To(_) | Link::Reduced | Link::Blocked => ResultCut::Impossible,
        }
    }
}

/// The one dim to whose end a `pad` adds, or from whose end a `slice` takes away, little: at most an eighth. Shards of operand and result
/// hold the same elements then, and some of the last ones none.
fn changed_end(module: &Module, inst: InstId) -> Option<usize> {
    let instruction = module.inst(inst);
    let operand = module.shape(*instruction.operands.first()?).as_array()?;
    let result = module.shape(inst).as_array()?;
    let changed: Vec<usize> = (0..result.rank()).filter(|&d| operand.dims.get(d) != result.dims.get(d)).collect();
    let &[dim] = changed.as_slice() else { return None };
    let (&from, &to) = (operand.dims.get(dim)?, result.dims.get(dim)?);
    let pads = PadAttrs::of(&instruction.attrs)
        .is_some_and(|pad| pad.padding.iter().all(|p| p.low == 0 && p.interior == 0 && p.high >= 0));
    let takes = SliceAttrs::of(&instruction.attrs)
        .is_some_and(|slice| slice.slice.iter().all(|s| s.start == 0 && s.stride == 1));
    ((pads || takes) && from.abs_diff(to).saturating_mul(8) <= from.min(to).unsigned_abs()).then_some(dim)
}

/// The attributes of an op that is cut along one factor into `n_shards` shards, where nothing else has to be done: every shard
/// computes its part of the result from its parts of the operands.
///
/// # Errors
/// There is no such form, or shards would need more than their own parts.
fn cut_along(
    module: &Module,
    inst: InstId,
    set: &FactorSet,
    factor: FactorId,
    n_shards: usize,
) -> Result<Attrs, CannotCut> {
    let cuts: Vec<i64> = (0..set.factors.len()).map(|f| if f == factor { n_shards as i64 } else { 1 }).collect();
    let form = localize(module, inst, set, &cuts)?;
    match form.before.is_empty() && form.after.is_empty() {
        true => Ok(form.attrs),
        false => {
            let reason = "shards would need elements of their neighbours";
            Err(CannotCut::Whole { tensor: Tensor::Operand(0), factor, reason })
        }
    }
}

/// The attributes of an op that computes `n_shards` shards of its result along `result`, and takes its first operand's along
/// `operand` (`None`: whole).
///
/// # Errors
/// The op has no such form.
pub fn shard_attrs(
    module: &Module,
    inst: InstId,
    operand: Option<DimRun>,
    result: Option<DimRun>,
    n_shards: usize,
) -> Result<Attrs, CannotCut> {
    let instruction = module.inst(inst);
    let rule = instruction.opcode.row().factors;
    if rule.merged_dims().is_some() {
        return merged_attrs(rule, &instruction.attrs, operand.map(DimRun::dims), result.map(DimRun::dims));
    }
    let set = find_factors(module, inst).map_err(CannotCut::NoFactors)?;
    let dim = result.map_or(0, |run| run.start);
    let factor = set.results.first().and_then(|dims| FactorSet::sole_use(dims, dim));
    cut_along(module, inst, &set, factor.ok_or(CannotCut::NotOneCutForEachFactor)?.factor, n_shards)
}

/// The attributes of an op on shards that have `shard_size` elements along `dim`, which the op takes whole.
pub fn with_shard_size(mut attrs: Attrs, dim: usize, shard_size: i64) -> Attrs {
    if let Some(range) = SliceAttrs::of_mut(&mut attrs).and_then(|slice| slice.slice.get_mut(dim)) {
        range.limit = shard_size;
    }
    if let Some(size) = DynamicSliceAttrs::of_mut(&mut attrs).and_then(|s| s.dynamic_slice_sizes.get_mut(dim)) {
        *size = shard_size;
    }
    attrs
}

/// The product of dims; saturates.
fn n_elems(dims: &[i64]) -> i64 {
    dims.iter().fold(1, |n: i64, &d| n.saturating_mul(d))
}

/// The dims of `to` before which there are as many elements as before the run of `from`: the first of them, and the elements behind
/// the run.
fn starts(from: &[i64], run: DimRun, to: &[i64]) -> Option<(usize, i64)> {
    let before = n_elems(from.get(..run.start)?);
    let after = n_elems(from.get(run.dims().end..)?);
    let mut product = 1i64;
    // Dims of one element may stand anywhere: take the run that starts as late as it can.
    for (dim, &d) in to.iter().enumerate() {
        if product == before && d != 1 {
            return Some((dim, after));
        }
        product = d.saturating_mul(product);
    }
    None
}

/// The run of `to` that has the same elements in the same shards as `run` of `from`: the shortest, so that as few dims as possible are
/// merged.
fn aligned(from: &[i64], run: DimRun, to: &[i64]) -> Option<DimRun> {
    let (start, after) = starts(from, run, to)?;
    let together = run.unit.saturating_mul(after);
    (1..=to.len() - start).find_map(|len| {
        let behind = n_elems(&to[start + len..]);
        (behind > 0 && together % behind == 0).then(|| DimRun { start, len, unit: together / behind })
    })
}

/// The least multiple of the run's unit with which fewer dims of `to` would be merged than are.
fn finer(from: &[i64], run: DimRun, to: &[i64]) -> Option<i64> {
    let (start, after) = starts(from, run, to)?;
    let together = run.unit.saturating_mul(after);
    let behind = n_elems(to.get(start + 1..)?);
    (behind > 0 && together > 0 && together % behind != 0).then(|| behind / gcd(behind, together))
}

fn gcd(mut a: i64, mut b: i64) -> i64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_through_reshapes_where_they_hold_the_same_elements() {
        let run = |start, len| DimRun::of(start, len);
        let in_units = |start, len, unit| DimRun { start, len, unit };
        assert_eq!(aligned(&[3, 3, 64], run(0, 2), &[9, 64]), Some(run(0, 1)));
        assert_eq!(aligned(&[9, 64], run(0, 1), &[3, 3, 64]), Some(run(0, 2)));
        assert_eq!(aligned(&[9, 64], run(0, 1), &[576]), Some(in_units(0, 1, 64)));
        assert_eq!(aligned(&[576], run(0, 1), &[9, 64]), Some(run(0, 2)));
        assert_eq!(finer(&[576], run(0, 1), &[9, 64]), Some(64));
        assert_eq!(aligned(&[576], in_units(0, 1, 64), &[9, 64]), Some(run(0, 1)));
        assert_eq!(aligned(&[576], in_units(0, 1, 128), &[9, 64]), Some(in_units(0, 1, 2)));
        assert_eq!(finer(&[576], in_units(0, 1, 16), &[9, 64]), Some(4));
        assert_eq!(finer(&[104, 37], run(0, 1), &[3848]), None);
        assert_eq!(aligned(&[3, 3, 64], run(0, 3), &[576]), Some(run(0, 1)));
        assert_eq!(aligned(&[8, 64], run(1, 1), &[1, 8, 64, 1]), Some(run(2, 1)));
        assert_eq!(aligned(&[8, 64], run(0, 1), &[4, 128]), Some(in_units(0, 2, 64)));
        assert_eq!(aligned(&[2, 8, 64], run(1, 1), &[2, 4, 128]), Some(in_units(1, 2, 64)));
        assert_eq!(aligned(&[2, 8, 64], run(1, 1), &[16, 64]), None);
    }
}
