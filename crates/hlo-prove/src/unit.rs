//! Ops that act on each position of some dims alone: gathers, convolutions, sorts, factorizations.
//!
//! What the op table's factors pass, an op computes position by position. Such an op is a function of its operands at one
//! position of the passed factors, a *unit*, and the terms' coordinates say which position. Factors that the op reduces are
//! positions as well, over which the units are summed. So a convolution on a part of the batch is a part of the whole's,
//! and one on a part of the input features is a summand.

use crate::array::{Tree, Value};
use crate::prover::{Prover, Side};
use crate::segment::{Coords, Dim, Region, row_major};
use crate::term::{ArrayId, Extra, Head, Inner, TermId, Terms};
use hlo_ir::attrs::{GatherAttrs, ScatterAttrs};
use hlo_ir::factors::{FactorId, FactorRole, FactorSet, TensorFactors, find_factors};
use hlo_ir::monoid::Monoid;
use hlo_ir::op::FactorRule;
use hlo_ir::{ArrayShape, DType, Dims, InstId, Module, Shape};
use smallvec::SmallVec;
use std::rc::Rc;

/// The factors of an op that are positions of its units.
struct Positions {
    passed: Vec<FactorId>,
    reduced: Vec<FactorId>,
    monoid: Monoid,
}

/// A tensor's dims: those of the positions, in their order, and the others.
struct Split {
    /// For each position its dim, if the tensor has it.
    positions: Vec<Option<usize>>,
    inner: Vec<usize>,
}

impl Prover {
    /// The value of an op by its units. `None` if it has no dims that it treats position by position.
    pub(crate) fn unit_op(&mut self, side: &mut Side<'_>, inst: InstId, operands: &[Tree]) -> Option<Tree> {
        let module = side.module;
        let set = find_factors(module, inst).ok()?;
        let positions = positions_of(module, inst, &set)?;
        let all: Vec<FactorId> = positions.passed.iter().chain(&positions.reduced).copied().collect();
        let sizes: Vec<i64> = all.iter().map(|&f| set.factors[f].size).collect();
        let values: Vec<Value> = operands.iter().flat_map(Tree::leaves).collect();
        let shapes: Vec<&ArrayShape> =
            module.inst(inst).operands.iter().map(|&o| module.shape(o).as_array()).collect::<Option<_>>()?;
        // How many elements of a dynamic dim are in use is no position's own.
        if values.len() != shapes.len() || shapes.iter().any(|shape| shape.dynamic != 0) {
            return None;
        }
        let splits: Vec<Split> = set.operands.iter().map(|t| split(t, &all)).collect();
        let word = self.unit_word(side, inst, &shapes, &splits);
        let shape = module.shape(inst);
        let leaves: &[Shape] = shape.as_tuple().unwrap_or(std::slice::from_ref(shape));
        let mut out = Vec::with_capacity(leaves.len());
        for (k, leaf) in leaves.iter().enumerate() {
            let to = leaf.as_array()?;
            let result = split(set.results.get(k)?, &all);
            let word =
                self.arrays.terms.word(&format!("{word} result {k} {} of {:?}", to.dtype, result.inner_dims(to)));
            let refs: Vec<&Value> = values.iter().collect();
            let units = self.map(&refs, |p, arrays| {
                let mut parts = Vec::with_capacity(arrays.len());
                for ((&array, shape), split) in arrays.iter().zip(&shapes).zip(&splits) {
                    parts.push(p.unit_parts(array, shape, split, &sizes)?);
                }
                p.units(word, &parts, &sizes, &result.inner_dims(to))
            })?;
            out.push(Tree::Leaf(self.result_of_units(&units, &positions, &sizes, &result, to)?));
        }
        Some(match (shape, out.pop()) {
            (Shape::Tuple(_), last) => {
                out.extend(last);
                Tree::Tuple(Rc::new(out))
            }
            (_, Some(only)) => only,
            (_, None) => return None,
        })
    }

    /// The op and its attributes, without the sizes of what is a position.
    fn unit_word(&mut self, side: &mut Side<'_>, inst: InstId, shapes: &[&ArrayShape], splits: &[Split]) -> String {
        let module = side.module;
        let mut text = format!("unit {}", module.inst(inst).opcode);
        for (shape, split) in shapes.iter().zip(splits) {
            let dims: Vec<String> = (0..shape.rank())
                .map(|d| if split.inner.contains(&d) { shape.dims[d].to_string() } else { "*".to_string() })
                .collect();
            text.push_str(&format!(" {}[{}]", shape.dtype, dims.join(",")));
        }
        // A slice that takes the whole of a position's dim takes one element of a unit.
        if let (Some(attrs), Some(split)) = (GatherAttrs::of(&module.inst(inst).attrs), splits.first()) {
            let mut attrs = attrs.clone();
            for (d, size) in attrs.slice_sizes.iter_mut().enumerate() {
                if !split.inner.contains(&d) {
                    *size = 1;
                }
            }
            text.push_str(&format!(" {attrs:?}"));
        } else {
            text.push_str(&side.words.attributes(&mut self.arrays.terms, module, inst));
        }
        text
    }

    /// The segments of an operand within one unit, with the steps from position to position.
    fn unit_parts(
        &mut self,
        array: ArrayId,
        shape: &ArrayShape,
        split: &Split,
        sizes: &[i64],
    ) -> Option<Vec<(TermId, Region)>> {
        let steps = row_major(&shape.dims);
        let inner_dims = split.inner_dims(shape);
        let places = row_major(&inner_dims);
        // Positions first, then the places within a unit.
        let mut region = Region { at: Coords::from_slice(&[0, 0]), dims: SmallVec::new() };
        for (dim, &n) in split.positions.iter().zip(sizes) {
            let step = dim.map_or(0, |d| steps[d]);
            region.dims.push(Dim { n, step: Coords::from_slice(&[0, step]) });
        }
        for (k, &d) in split.inner.iter().enumerate() {
            if shape.dims[d] != 1 {
                region.dims.push(Dim { n: shape.dims[d], step: Coords::from_slice(&[places[k], steps[d]]) });
            }
        }
        let segments = self.arrays.take(array, region)?;
        let is_whole = |region: &Region| region.dims.iter().zip(sizes).all(|(d, &n)| d.n == n);
        let fits = segments.iter().all(|s| s.region.dims.len() >= sizes.len() && is_whole(&s.region));
        fits.then(|| segments.into_iter().map(|s| (s.term, s.region)).collect())
    }

    /// All units, as an array of the positions and the places within a unit's result.
    fn units(
        &mut self,
        word: crate::term::WordId,
        operands: &[Vec<(TermId, Region)>],
        sizes: &[i64],
        inner: &[i64],
    ) -> Option<ArrayId> {
        let n_inner: i64 = inner.iter().product();
        let n_positions = sizes.iter().try_fold(1i64, |n, &s| n.checked_mul(s))?;
        n_positions.checked_mul(n_inner)?;
        let mut region = Region { at: Coords::from_slice(&[0]), dims: SmallVec::new() };
        let mut place = n_positions.checked_mul(n_inner)?;
        for &n in sizes {
            place /= n.max(1);
            region.dims.push(Dim { n, step: Coords::from_slice(&[place]) });
        }
        region.dims.push(Dim { n: n_inner, step: Coords::from_slice(&[1]) });
        // The place within the result.
        region.at.push(0);
        for (k, dim) in region.dims.iter_mut().enumerate() {
            dim.step.push(i64::from(k == sizes.len()));
        }
        let iota = self.arrays.terms.iota(DType::S64);
        let mut args = vec![(iota, Terms::NO_EXTRA, 1)];
        for (operand, parts) in operands.iter().enumerate() {
            let mut parts: Vec<&(TermId, Region)> = parts.iter().collect();
            parts.sort_by_key(|(_, r)| r.at[0]);
            for (term, part) in parts {
                let rank = self.arrays.terms.rank(*term);
                let mut inner = Region { at: Coords::from_slice(&[part.at[0]]), dims: SmallVec::new() };
                inner.at.extend(std::iter::repeat_n(0, rank));
                inner.dims.extend(part.dims[sizes.len()..].iter().cloned());
                inner.normalize();
                let extra = self.arrays.terms.extra(Extra::Inner(Inner { operand, region: inner }));
                args.push((*term, extra, region.at.len()));
                region.at.extend_from_slice(&part.at[1..]);
                for (k, dim) in region.dims.iter_mut().enumerate() {
                    match part.dims.get(k).filter(|_| k < sizes.len()) {
                        Some(position) => dim.step.extend_from_slice(&position.step[1..]),
                        None => dim.step.extend(std::iter::repeat_n(0, rank)),
                    }
                }
            }
        }
        region.dims.retain(|d| d.n != 1);
        let segment = self.arrays.terms.apply(Head::Unit(word), &args, &region);
        Some(self.arrays.intern(vec![segment]))
    }

    /// The op's result: the units, summed over the reduced positions, in the order of the result's dims.
    fn result_of_units(
        &mut self,
        units: &Value,
        positions: &Positions,
        sizes: &[i64],
        result: &Split,
        to: &ArrayShape,
    ) -> Option<Value> {
        let inner_dims = result.inner_dims(to);
        let n_passed = positions.passed.len();
        let mut dims: Vec<i64> = sizes.to_vec();
        dims.extend(&inner_dims);
        let mut value = units.clone();
        if !positions.reduced.is_empty() {
            let reduced: Vec<i64> = (n_passed as i64..sizes.len() as i64).collect();
            value = self.reduce(&value, &dims, &reduced, positions.monoid, to.dtype)?;
            dims.drain(n_passed..sizes.len());
        }
        let steps = row_major(&dims);
        let mut to_steps = vec![0; to.rank()];
        for (k, dim) in result.positions[..n_passed].iter().enumerate() {
            to_steps[(*dim)?] = steps[k];
        }
        for (k, &d) in result.inner.iter().enumerate() {
            to_steps[d] = steps[n_passed + k];
        }
        self.view(&value, &to.dims, 0, &to_steps)
    }
}

impl Split {
    fn inner_dims(&self, shape: &ArrayShape) -> Vec<i64> {
        self.inner.iter().map(|&d| shape.dims[d]).collect()
    }
}

fn split(tensor: &TensorFactors, positions: &[FactorId]) -> Split {
    let positions: Vec<Option<usize>> = positions.iter().map(|&f| FactorSet::dim_of(tensor, f)).collect();
    let inner = (0..tensor.len()).filter(|d| !positions.contains(&Some(*d))).collect();
    Split { positions, inner }
}

/// Which factors of an op can be positions.
struct Allowed {
    /// Operand dims that indices count along: a position there is not the op at that position.
    indexed: Dims,
    /// Whether each operand element enters once for each position that is summed over, so that sums of units are the op.
    sums: bool,
}

/// `None` for ops that are not read by units.
fn allowed(module: &Module, inst: InstId) -> Option<Allowed> {
    let attrs = &module.inst(inst).attrs;
    let (indexed, sums) = match module.inst(inst).opcode.row().factors {
        FactorRule::Convolution => (Dims::new(), true),
        FactorRule::Gather => (GatherAttrs::of(attrs)?.start_index_map.clone(), false),
        FactorRule::Scatter => (ScatterAttrs::of(attrs)?.scatter_dims_to_operand_dims.clone(), false),
        FactorRule::Sort
        | FactorRule::Reduce
        | FactorRule::ReduceWindow
        | FactorRule::SelectAndScatter
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::BatchNorm => (Dims::new(), false),
        FactorRule::Elementwise
        | FactorRule::Broadcast
        | FactorRule::Reshape
        | FactorRule::Bitcast
        | FactorRule::BitcastConvert
        | FactorRule::Transpose
        | FactorRule::Reverse
        | FactorRule::Slice
        | FactorRule::DynamicSlice
        | FactorRule::DynamicUpdateSlice
        | FactorRule::Pad
        | FactorRule::Concatenate
        | FactorRule::Iota
        | FactorRule::Dot
        | FactorRule::CustomCall
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => return None,
    };
    Some(Allowed { indexed, sums })
}

/// The factors that every tensor passes or that the op reduces, each alone in its dims.
fn positions_of(module: &Module, inst: InstId, set: &FactorSet) -> Option<Positions> {
    let allowed = allowed(module, inst)?;
    let mut positions = Positions { passed: Vec::new(), reduced: Vec::new(), monoid: Monoid::Add };
    let mut monoid = None;
    for factor in 0..set.factors.len() {
        let is_alone = |tensor: &TensorFactors| {
            !FactorSet::mentions(tensor, factor) || FactorSet::dim_of(tensor, factor).is_some()
        };
        // The arrays that indices count along come first; a scatter may have several.
        let n_arrays = (set.operands.len().saturating_sub(1) / 2).max(1);
        let is_indexed = set.operands[..n_arrays]
            .iter()
            .any(|tensor| FactorSet::dim_of(tensor, factor).is_some_and(|dim| allowed.indexed.contains(&(dim as i64))));
        if set.factors[factor].size <= 0 || is_indexed || !set.operands.iter().chain(&set.results).all(is_alone) {
            continue;
        }
        let in_results = set.results.iter().all(|t| FactorSet::mentions(t, factor));
        if in_results && set.uses(factor).all(|one| one.role == FactorRole::Pass) {
            positions.passed.push(factor);
            continue;
        }
        let of_use = |role: FactorRole| match role {
            FactorRole::Reduce(monoid) => Some(monoid),
            FactorRole::Pass | FactorRole::Own | FactorRole::Whole(_) | FactorRole::Shift => None,
        };
        let mut monoids = set.uses(factor).map(|one| of_use(one.role));
        let first = monoids.next().flatten();
        let in_no_result = set.results.iter().all(|t| !FactorSet::mentions(t, factor));
        let agrees = first.is_some() && monoids.all(|m| m == first) && monoid.is_none_or(|m| Some(m) == first);
        if in_no_result && agrees && allowed.sums {
            monoid = first;
            positions.reduced.push(factor);
        }
    }
    positions.monoid = monoid.unwrap_or(Monoid::Add);
    (!positions.passed.is_empty() || !positions.reduced.is_empty()).then_some(positions)
}
