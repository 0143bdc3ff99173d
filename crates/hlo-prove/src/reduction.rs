//! Reductions and matrix products: sums along dims.

use crate::array::{Value, part};
use crate::elementwise::{ElementwiseOp, product_attributes};
use crate::prover::Prover;
use crate::rules::{Rule, Rules};
use crate::segment::{Coords, Dim, MAX_SEGMENTS, Region, refine, row_major};
use crate::sum::Summand;
use crate::term::ArrayId;
use hlo_ir::attrs::DotAttrs;
use hlo_ir::monoid::Monoid;
use hlo_ir::{DType, Literal, Opcode};
use smallvec::SmallVec;

/// The parts of an array that are summed into one region of the result.
struct Group {
    /// The region's places in the result.
    kept: Region,
    /// Each part: the segment and its region, with the places of result and operand before the term's coordinates.
    parts: Vec<(usize, Region)>,
}

impl Prover {
    /// The reduction of a value of dims `from` over `dims`.
    pub(crate) fn reduce(
        &mut self,
        value: &Value,
        from: &[i64],
        dims: &[i64],
        monoid: Monoid,
        dtype: DType,
    ) -> Option<Value> {
        self.map(&[value], |p, a| p.reduce_array(a[0], from, dims, monoid, dtype))
    }

    fn reduce_array(
        &mut self,
        array: ArrayId,
        from: &[i64],
        reduced: &[i64],
        monoid: Monoid,
        dtype: DType,
    ) -> Option<ArrayId> {
        let steps = row_major(from);
        let is_reduced = |d: usize| reduced.contains(&(d as i64));
        let kept: Vec<i64> = (0..from.len()).filter(|&d| !is_reduced(d)).map(|d| from[d]).collect();
        let places = row_major(&kept);
        let n_kept: i64 = kept.iter().product();
        let mut region = Region { at: Coords::from_slice(&[0, 0]), dims: SmallVec::new() };
        let mut k = 0;
        for d in 0..from.len() {
            let place = if is_reduced(d) { 0 } else { places[k] };
            k += usize::from(!is_reduced(d));
            if from[d] != 1 {
                region.dims.push(Dim { n: from[d], step: Coords::from_slice(&[place, steps[d]]) });
            }
        }
        if n_kept == 0 {
            return Some(self.arrays.intern(Vec::new()));
        }
        let source = self.arrays.segments(array);
        let parts = refine(&source, region, 1)?;
        // Identities change nothing where something else is summed as well; they are cut in their own way.
        let identity = monoid.identity(dtype).map(|value| Literal::scalar(dtype, value));
        let is_identity = |part: &(usize, Region)| {
            identity.is_some() && self.arrays.terms.as_constant(source[part.0].term) == identity.as_ref()
        };
        let mut rules = Rules::NONE;
        let mut groups = None;
        if self.elementwise.reassociates() && parts.iter().any(is_identity) {
            let others: Vec<_> = parts.iter().filter(|part| !is_identity(part)).cloned().collect();
            groups = group(others, n_kept).filter(|groups| cover_all(groups, n_kept));
            rules = Rules::of(Rule::IdentityDrops);
        }
        let groups = groups
            .or_else(|| group(parts.clone(), n_kept))
            .or_else(|| group(cut_alike(parts.clone()), n_kept))
            .or_else(|| group(cut_in_grid(parts, &kept, &places)?, n_kept))?;
        let mut out = Vec::new();
        for Group { kept, parts } in groups {
            let mut summands = Vec::with_capacity(parts.len());
            for (segment, region) in parts {
                let term = source[segment].term;
                let (rank, classes) = (self.arrays.terms.rank(term), self.arrays.terms.classes(term));
                let spread = self.arrays.terms.devices.own(classes);
                let is_kept = |d: &&Dim| d.step[0] != 0;
                let mut steps: Vec<(i64, Coords)> =
                    region.dims.iter().filter(is_kept).map(|d| (d.step[0], part(&d.step, 2, rank))).collect();
                steps.sort_by_key(|(place, _)| std::cmp::Reverse(*place));
                let summed = region.dims.iter().filter(|d| d.step[0] == 0 && d.n != 1);
                summands.push(Summand {
                    term,
                    at: part(&region.at, 2, rank),
                    steps: steps.into_iter().map(|(_, step)| step).collect(),
                    reduce: summed.map(|d| (d.n, part(&d.step, 2, rank))).collect(),
                    spread,
                });
            }
            let sum = self.elementwise.sum(&mut self.arrays.terms, monoid, dtype, &kept, summands);
            self.arrays.terms.mark(sum.term, rules);
            out.push(sum);
        }
        Some(self.arrays.intern(out))
    }

    /// `lhs: [b…, m…, k…]` times `rhs: [b…, n…, k…]`, each in the order of its dims, to `[b…, m…, n…]`.
    pub(crate) fn dot(
        &mut self,
        (lhs, lhs_dims): (&Value, &[i64]),
        (rhs, rhs_dims): (&Value, &[i64]),
        attrs: &DotAttrs,
        dtypes: [DType; 3],
    ) -> Option<Value> {
        let is_free = |d: &i64, batch: &[i64], contracting: &[i64]| !batch.contains(d) && !contracting.contains(d);
        let free = |dims: &[i64], batch: &[i64], contracting: &[i64]| -> Vec<i64> {
            (0..dims.len() as i64).filter(|d| is_free(d, batch, contracting)).collect()
        };
        let lhs_free = free(lhs_dims, &attrs.lhs_batch_dims, &attrs.lhs_contracting_dims);
        let rhs_free = free(rhs_dims, &attrs.rhs_batch_dims, &attrs.rhs_contracting_dims);
        // One loop nest: batch, rows, columns, contracted.
        let (lhs_steps, rhs_steps) = (row_major(lhs_dims), row_major(rhs_dims));
        let mut nest: Vec<(i64, i64, i64)> = Vec::new();
        let pair = |a: &[i64], b: &[i64]| -> Vec<(i64, i64)> { a.iter().copied().zip(b.iter().copied()).collect() };
        for (a, b) in pair(&attrs.lhs_batch_dims, &attrs.rhs_batch_dims) {
            nest.push((lhs_dims[a as usize], lhs_steps[a as usize], rhs_steps[b as usize]));
        }
        nest.extend(lhs_free.iter().map(|&d| (lhs_dims[d as usize], lhs_steps[d as usize], 0)));
        nest.extend(rhs_free.iter().map(|&d| (rhs_dims[d as usize], 0, rhs_steps[d as usize])));
        let n_kept = nest.len();
        for (a, b) in pair(&attrs.lhs_contracting_dims, &attrs.rhs_contracting_dims) {
            nest.push((lhs_dims[a as usize], lhs_steps[a as usize], rhs_steps[b as usize]));
        }
        let dims: Vec<i64> = nest.iter().map(|d| d.0).collect();
        let n = dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d))?;
        let a = self.view(lhs, &dims, 0, &nest.iter().map(|d| d.1).collect::<Vec<_>>())?;
        let b = self.view(rhs, &dims, 0, &nest.iter().map(|d| d.2).collect::<Vec<_>>())?;
        let [lhs_dtype, rhs_dtype, dtype] = dtypes;
        let op = ElementwiseOp {
            opcode: Opcode::Dot,
            dtype,
            operand_dtype: lhs_dtype,
            comparison: None,
            attributes: product_attributes(rhs_dtype, &attrs.operand_precision, attrs.algorithm.as_str()),
        };
        let products = self.elementwise(op, &[&a, &b], n)?;
        let contracted: Vec<i64> = (n_kept as i64..dims.len() as i64).collect();
        self.reduce(&products, &dims, &contracted, Monoid::Add, dtype)
    }
}

/// Parts whose places in the result are runs, cut where any of them begins or ends.
fn cut_alike(parts: Vec<(usize, Region)>) -> Vec<(usize, Region)> {
    let run = |region: &Region| -> Option<(Option<usize>, i64)> {
        let mut kept = (0..region.dims.len()).filter(|&k| region.dims[k].n != 1 && region.dims[k].step[0] != 0);
        match (kept.next(), kept.next()) {
            (None, _) => Some((None, 1)),
            (Some(k), None) if region.dims[k].step[0] == 1 => Some((Some(k), region.dims[k].n)),
            (Some(_), _) => None,
        }
    };
    let runs: Option<Vec<(Option<usize>, i64)>> = parts.iter().map(|(_, region)| run(region)).collect();
    let Some(runs) = runs else { return parts };
    let mut borders: Vec<i64> =
        parts.iter().zip(&runs).flat_map(|((_, region), (_, n))| [region.at[0], region.at[0] + n]).collect();
    borders.sort();
    borders.dedup();
    let mut out = Vec::with_capacity(parts.len());
    for ((segment, mut region), (dim, n)) in parts.into_iter().zip(runs) {
        let first = region.at[0];
        let within = borders.iter().filter(|&&b| b > first && b < first + n);
        if let Some(dim) = dim {
            for &border in within {
                let (before, rest) = region.clone().split(dim, border - region.at[0]);
                out.push((segment, before));
                region = rest;
            }
        }
        out.push((segment, region));
    }
    out
}

/// Parts that are boxes in the result, cut along each of its dims where any of them begins or ends. `None` if they are no
/// boxes, or become too many.
fn cut_in_grid(parts: Vec<(usize, Region)>, kept: &[i64], places: &[i64]) -> Option<Vec<(usize, Region)>> {
    let mut parts = parts;
    for (d, (&size, &place)) in kept.iter().zip(places).enumerate() {
        if size == 1 {
            continue;
        }
        let start_of = |region: &Region| region.at[0] / place % size;
        // The steps along this dim alone: fewer than a step of the dim around it.
        let around = d.checked_sub(1).map_or(i64::MAX, |outer| places[outer]);
        let mut along = Vec::with_capacity(parts.len());
        for (_, region) in &parts {
            let is_along = |dim: &Dim| dim.n != 1 && dim.step[0] >= place && dim.step[0] < around;
            let mut dims = (0..region.dims.len()).filter(|&k| is_along(&region.dims[k]));
            let (dim, None) = (dims.next(), dims.next()) else { return None };
            if dim.is_some_and(|k| region.dims[k].step[0] != place) {
                return None;
            }
            let n = dim.map_or(1, |k| region.dims[k].n);
            if start_of(region) + n > size {
                return None;
            }
            along.push((dim, n));
        }
        let ends = parts.iter().zip(&along).flat_map(|((_, r), &(_, n))| [start_of(r), start_of(r) + n]);
        let mut borders: Vec<i64> = ends.collect();
        borders.sort();
        borders.dedup();
        let mut out = Vec::with_capacity(parts.len());
        for ((segment, mut region), (dim, n)) in parts.into_iter().zip(along) {
            let first = start_of(&region);
            if let Some(dim) = dim {
                for &border in borders.iter().filter(|&&b| b > first && b < first + n) {
                    let (before, rest) = region.clone().split(dim, border - start_of(&region));
                    out.push((segment, before));
                    region = rest;
                }
            }
            out.push((segment, region));
            if out.len() > MAX_SEGMENTS {
                return None;
            }
        }
        parts = out;
    }
    Some(parts)
}

/// Whether each of the places is in one of the groups, some of whose parts were left out.
fn cover_all(groups: &[Group], n_kept: i64) -> bool {
    let Some(mut is_covered) = usize::try_from(n_kept).ok().filter(|&n| n <= MAX_COVERED).map(|n| vec![false; n])
    else {
        return false;
    };
    for group in groups {
        let sizes: Vec<i64> = group.kept.dims.iter().map(|dim| dim.n).collect();
        for mut step in 0..group.kept.n_elems() {
            let mut place = group.kept.at[0];
            for (dim, &n) in group.kept.dims.iter().zip(&sizes) {
                place += step % n * dim.step[0];
                step /= n;
            }
            match usize::try_from(place).ok().and_then(|place| is_covered.get_mut(place)) {
                Some(slot) => *slot = true,
                None => return false,
            }
        }
    }
    is_covered.into_iter().all(|covered| covered)
}

/// With more places than this it is not looked whether all are covered.
const MAX_COVERED: usize = 1 << 22;

/// Parts by the region of the result that they go into. `None` if regions overlap without being equal.
fn group(parts: Vec<(usize, Region)>, n_kept: i64) -> Option<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for (segment, mut region) in parts {
        region.dims.retain(|d| d.n != 1);
        for dim in &mut region.dims {
            if dim.step[0] < 0 {
                return None;
            }
        }
        let mut kept = Region { at: Coords::from_slice(&[region.at[0]]), dims: SmallVec::new() };
        kept.dims = region.dims.iter().filter(|d| d.step[0] != 0).cloned().collect();
        kept.dims.iter_mut().for_each(|d| d.step.truncate(1));
        kept.dims.sort_by(|a, b| b.step.cmp(&a.step));
        match groups.iter_mut().find(|g| g.kept == kept) {
            Some(group) => group.parts.push((segment, region)),
            None => groups.push(Group { kept, parts: vec![(segment, region)] }),
        }
    }
    let covered: i64 = groups.iter().map(|g| g.kept.n_elems()).sum();
    (covered == n_kept).then_some(groups)
}
