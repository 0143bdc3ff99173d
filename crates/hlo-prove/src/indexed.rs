//! Gathers and scatters of rows as sums over rows, so that a shard of the rows is a part of the sum.
//!
//! `gather(x, c)[i] = Σ_r select(r = clamp(c[i]), x[r], 0)` and `scatter-add(x, c, u)[r] = x[r] + Σ_i select(r = c[i], u[i], 0)`.
//! A device that has some of the rows, and zeros for the others, has some of the summands.

use crate::array::Value;
use crate::elementwise::{Elementwise, ElementwiseOp, Freedom, holds, range_of};
use crate::prover::Prover;
use crate::rules::{Rule, Rules};
use crate::segment::{Coords, Dim, Region, Segment, row_major};
use crate::sum::Summand;
use crate::term::{Extra, Head, Node, Place, Terms, WordId};
use hlo_ir::attrs::{Comparison, GatherAttrs, ScatterAttrs};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, DType, InstId, Literal, Module, NumberClass, Opcode};

/// The loops over rows and over what is beside them.
struct Nest {
    dims: Vec<i64>,
    /// What a step of each loop adds to the place in the array of rows, and in the indices.
    rows: Vec<i64>,
    indices: Vec<i64>,
    /// The loop that counts rows.
    along: usize,
    n_rows: i64,
}

impl Prover {
    /// A gather of rows, as sums. `None` for gathers of other shapes.
    pub(crate) fn gather_rows(
        &mut self,
        attrs: &GatherAttrs,
        values: &[&Value],
        shapes: &[&ArrayShape],
        to: &ArrayShape,
    ) -> Option<Value> {
        let ([operand, indices], [from, by]) = (values, shapes) else { return None };
        let &[dim] = attrs.start_index_map.as_slice() else { return None };
        let dim = usize::try_from(dim).ok()?;
        let steps = row_major(&from.dims);
        let mut offsets = Vec::new();
        for d in 0..from.rank() {
            let is_batch = attrs.operand_batching_dims.contains(&(d as i64));
            let is_collapsed = attrs.collapsed_slice_dims.contains(&(d as i64));
            if !is_batch && !is_collapsed {
                offsets.push(steps[d]);
            }
            let is_fine = match d == dim {
                true => is_collapsed,
                false => is_batch || attrs.slice_sizes[d] == from.dims[d],
            };
            if !is_fine {
                return None;
            }
        }
        let index_dims = dims_without(by, attrs.index_vector_dim)?;
        let index_steps = row_major(&by.dims);
        let mut nest = Nest {
            dims: to.dims.to_vec(),
            rows: Vec::new(),
            indices: Vec::new(),
            along: to.rank(),
            n_rows: from.dims[dim],
        };
        let (mut next_offset, mut next_index) = (offsets.into_iter(), index_dims.into_iter());
        for k in 0..to.rank() {
            if attrs.offset_dims.contains(&(k as i64)) {
                nest.rows.push(next_offset.next()?);
                nest.indices.push(0);
            } else {
                let d = next_index.next()?;
                let partner = attrs.start_indices_batching_dims.iter().position(|&b| b == d as i64);
                let batch = partner.and_then(|k| attrs.operand_batching_dims.get(k));
                nest.rows.push(batch.map_or(0, |&b| steps[b as usize]));
                nest.indices.push(index_steps[d]);
            }
        }
        nest.dims.push(from.dims[dim]);
        nest.rows.push(steps[dim]);
        nest.indices.push(0);
        let n = nest.dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d))?;
        let index = self.view(indices, &nest.dims, 0, &nest.indices)?;
        let clamp = plain_op(Opcode::Clamp, by.dtype, by.dtype);
        let [low, high] = [0, nest.n_rows - 1].map(|c| self.arrays.numbers(by.dtype, std::iter::once(c)));
        let (low, high) = (self.splat(&low, n)?, self.splat(&high, n)?);
        let clamped = self.elementwise(clamp, &[&low, &index, &high], n)?;
        let rows = self.view(operand, &nest.dims, 0, &nest.rows)?;
        let chosen = self.chosen_rows(&nest, &rows, &clamped, (to.dtype, by.dtype))?;
        self.reduce(&chosen, &nest.dims, &[nest.along as i64], Monoid::Add, to.dtype)
    }

    /// A scatter that adds rows, as sums. `None` for scatters of other shapes.
    pub(crate) fn scatter_rows(
        &mut self,
        module: &Module,
        attrs: &ScatterAttrs,
        values: &[&Value],
        shapes: &[&ArrayShape],
        to: &ArrayShape,
    ) -> Option<Value> {
        let ([operand, indices, updates], [_, by, written]) = (values, shapes) else { return None };
        let &[dim] = attrs.scatter_dims_to_operand_dims.as_slice() else { return None };
        let dim = usize::try_from(dim).ok()?;
        let is_inserted = attrs.inserted_window_dims.as_slice() == [dim as i64];
        if !is_inserted || find_monoid(module, attrs.to_apply?)? != Monoid::Add {
            return None;
        }
        let (steps, index_steps) = (row_major(&written.dims), row_major(&by.dims));
        // The update dims that are none of a window go with the dims of the indices.
        let is_window = |k: usize| attrs.update_window_dims.contains(&(k as i64));
        let outer: Vec<usize> = (0..written.rank()).filter(|&k| !is_window(k)).collect();
        let index_dims = dims_without(by, attrs.index_vector_dim)?;
        if outer.len() != index_dims.len() {
            return None;
        }
        let mut windows = attrs.update_window_dims.iter();
        let mut nest = Nest {
            dims: to.dims.to_vec(),
            rows: Vec::new(),
            indices: vec![0; to.rank()],
            along: dim,
            n_rows: to.dims[dim],
        };
        for d in 0..to.rank() {
            if let Some(k) = attrs.input_batching_dims.iter().position(|&b| b == d as i64) {
                let of_indices = *attrs.scatter_indices_batching_dims.get(k)? as usize;
                let of_updates = outer[index_dims.iter().position(|&i| i == of_indices)?];
                nest.rows.push(steps[of_updates]);
                nest.indices[d] = index_steps[of_indices];
                continue;
            }
            let window = if d == dim { None } else { Some(*windows.next()? as usize) };
            if window.is_some_and(|w| written.dims[w] != to.dims[d]) {
                return None;
            }
            nest.rows.push(window.map_or(0, |w| steps[w]));
        }
        for (&k, &of_indices) in outer.iter().zip(&index_dims) {
            if !attrs.scatter_indices_batching_dims.contains(&(of_indices as i64)) {
                nest.dims.push(written.dims[k]);
                nest.rows.push(steps[k]);
                nest.indices.push(index_steps[of_indices]);
            }
        }
        let index = self.view(indices, &nest.dims, 0, &nest.indices)?;
        let rows = self.view(updates, &nest.dims, 0, &nest.rows)?;
        let chosen = self.chosen_rows(&nest, &rows, &index, (to.dtype, by.dtype))?;
        let reduced: Vec<i64> = (to.rank() as i64..nest.dims.len() as i64).collect();
        let added = self.reduce(&chosen, &nest.dims, &reduced, Monoid::Add, to.dtype)?;
        let add = plain_op(Opcode::Add, to.dtype, to.dtype);
        self.elementwise(add, &[operand, &added], to.n_elems() as i64)
    }

    /// Each row where its number is the index, else zero.
    fn chosen_rows(&mut self, nest: &Nest, rows: &Value, index: &Value, (dtype, by): (DType, DType)) -> Option<Value> {
        if matches!(dtype.class(), NumberClass::Pred) || !holds(by, nest.n_rows - 1) {
            return None;
        }
        let n = nest.dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d))?;
        let number = Value::Same(self.iota(by, &nest.dims, nest.along)?);
        let compare = ElementwiseOp { comparison: Some(Comparison::Eq), ..plain_op(Opcode::Compare, DType::Pred, by) };
        let is_row = self.elementwise(compare, &[&number, index], n)?;
        let zero = self.arrays.terms.constant(Literal::zeros(dtype, &[]).ok()?);
        let zeros = Value::Same(self.arrays.whole(zero, n));
        let chosen = self.elementwise(plain_op(Opcode::Select, dtype, DType::Pred), &[&is_row, rows, &zeros], n)?;
        self.mark(&chosen, Rule::RowSums);
        Some(chosen)
    }

    /// A gather or a scatter by its rows, where sums may be taken apart.
    pub(crate) fn indexed_op(
        &mut self,
        module: &Module,
        inst: InstId,
        values: &[&Value],
        shapes: &[&ArrayShape],
    ) -> Option<Value> {
        if self.elementwise.freedom < Freedom::Rows {
            return None;
        }
        let to = module.shape(inst).as_array()?;
        let attrs = &module.inst(inst).attrs;
        match (GatherAttrs::of(attrs), ScatterAttrs::of(attrs)) {
            (Some(gather), _) => self.gather_rows(gather, values, shapes, to),
            (None, Some(scatter)) => self.scatter_rows(module, scatter, values, shapes, to),
            (None, None) => None,
        }
    }
}

fn plain_op(opcode: Opcode, dtype: DType, operand_dtype: DType) -> ElementwiseOp {
    ElementwiseOp { opcode, dtype, operand_dtype, comparison: None, attributes: String::new() }
}

/// The dims of the indices without the one that holds index vectors, which are scalars here.
fn dims_without(indices: &ArrayShape, vector_dim: i64) -> Option<Vec<usize>> {
    let vector_dim = usize::try_from(vector_dim).ok()?;
    let is_scalar = indices.dims.get(vector_dim).is_none_or(|&n| n == 1);
    is_scalar.then(|| (0..indices.rank()).filter(|&d| d != vector_dim).collect())
}

/// `low <= c <= high`, or its opposite.
struct Within {
    c: Place,
    low: i64,
    high: i64,
}

impl Elementwise {
    /// The op's word, opcode and arguments, if a term is an elementwise op.
    fn op_of(&self, terms: &Terms, place: &Place) -> Option<(WordId, &ElementwiseOp, Vec<Place>)> {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(place.term) else { return None };
        Some((*word, self.op(*word)?, args.iter().map(|arg| place.of(arg)).collect()))
    }

    /// What a truth value says of a number; whether it holds inside.
    fn within(&self, terms: &mut Terms, condition: &Place) -> Option<(Within, bool)> {
        let (_, op, parts) = self.op_of(terms, condition)?;
        let is_inside = op.opcode == Opcode::And;
        if !is_inside && op.opcode != Opcode::Or {
            return None;
        }
        let (mut low, mut high) = (None, None);
        let mut places = Vec::new();
        for part in &parts {
            let (_, op, operands) = self.op_of(terms, part)?;
            let [c, number] = operands.as_slice() else { return None };
            let number = terms.as_integer(number.term)?;
            match (op.comparison?, is_inside) {
                (Comparison::Ge, true) | (Comparison::Lt, false) => low = Some(number),
                (Comparison::Le, true) | (Comparison::Gt, false) => high = Some(number),
                (Comparison::Gt, true) | (Comparison::Le, false) => low = Some(number.checked_add(1)?),
                (Comparison::Lt, true) | (Comparison::Ge, false) => high = Some(number.checked_sub(1)?),
                (Comparison::Eq | Comparison::Ne, _) => return None,
            }
            places.push(c.clone());
        }
        let [a, b] = places.as_slice() else { return None };
        let is_one = terms.is_same(a, b, &mut MAX_STEPS.clone());
        is_one.then_some((Within { c: a.clone(), low: low?, high: high? }, is_inside))
    }

    /// A gather of a shard's rows, masked where the row is not in the shard: the whole's summands of those rows.
    ///
    /// For rows `r` in `0 ..= high - low`:
    /// `select(low <= c <= high, Σ_r select(r = clamp(c - low, 0..high - low), x[r], 0), 0) = Σ_r select(r + low = c, x[r], 0)`.
    pub(crate) fn masked_rows(&self, terms: &mut Terms, operands: [&Segment; 3], region: &Region) -> Option<Segment> {
        let [condition, a, b] = operands;
        let (within, is_inside) = self.within(terms, &place_of(condition))?;
        let (sum, zero) = if is_inside { (a, b) } else { (b, a) };
        if !terms.is_zero(zero.term) {
            return None;
        }
        let Node::Apply(Head::Sum(Monoid::Add, dtype), args) = terms.node(sum.term).clone() else { return None };
        let sum = place_of(sum);
        let mut summands = Vec::with_capacity(args.len());
        for arg in &args {
            let Extra::Extent(extent) = terms.extra_of(arg.extra).clone() else { return None };
            let classes = terms.classes(arg.term);
            if extent.spread != terms.devices.own(classes) {
                return None;
            }
            let mut one = sum.of(arg);
            one.steps.extend(extent.reduce.iter().map(|(_, step)| step.clone()));
            let mut sizes: Vec<i64> = region.dims.iter().map(|d| d.n).collect();
            sizes.extend(extent.reduce.iter().map(|(n, _)| *n));
            let row = self.shifted_row(terms, &one, &within, &sizes, region.dims.len())?;
            let (kept, reduced) = row.region.dims.split_at(region.dims.len());
            let classes = terms.classes(row.term);
            summands.push(Summand {
                term: row.term,
                at: Coords::from_slice(&row.region.at[1..]),
                steps: kept.iter().map(|d| Coords::from_slice(&d.step[1..])).collect(),
                reduce: reduced.iter().map(|d| (d.n, Coords::from_slice(&d.step[1..]))).collect(),
                spread: terms.devices.own(classes),
            });
        }
        Some(self.sum(terms, Monoid::Add, dtype, region, summands))
    }

    /// The summand without the clamp, its rows counted from the first of the whole.
    fn shifted_row(
        &self,
        terms: &mut Terms,
        summand: &Place,
        within: &Within,
        sizes: &[i64],
        n_kept: usize,
    ) -> Option<Segment> {
        let (select, op, parts) = self.op_of(terms, summand)?;
        let [is_row, row, zero] = parts.as_slice() else { return None };
        if op.opcode != Opcode::Select || !terms.is_zero(zero.term) {
            return None;
        }
        let (compare, op, parts) = self.op_of(terms, is_row)?;
        let [number, clamped] = parts.as_slice() else { return None };
        let is_iota = matches!(terms.node(number.term), Node::Iota(_));
        if op.opcode != Opcode::Compare || op.comparison != Some(Comparison::Eq) || !is_iota {
            return None;
        }
        let by = op.operand_dtype;
        let (_, op, parts) = self.op_of(terms, clamped)?;
        let [low, index, high] = parts.as_slice() else { return None };
        let bounds = (terms.as_integer(low.term), terms.as_integer(high.term));
        if op.opcode != Opcode::Clamp || bounds != (Some(0), Some(within.high.checked_sub(within.low)?)) {
            return None;
        }
        let index = match self.op_of(terms, index) {
            Some((_, op, parts)) if op.opcode == Opcode::Subtract && within.low != 0 => {
                let [c, number] = parts.as_slice() else { return None };
                if terms.as_integer(number.term) != Some(within.low) {
                    return None;
                }
                c.clone()
            }
            Some(_) | None if within.low == 0 => index.clone(),
            Some(_) | None => return None,
        };
        // The index is that of the mask, and the same for all rows.
        let is_still = index.steps[n_kept..].iter().all(|step| step.iter().all(|&s| s == 0));
        let kept = Place { steps: index.steps[..n_kept].to_vec(), ..index.clone() };
        if !is_still || !terms.is_same(&kept, &within.c, &mut MAX_STEPS.clone()) {
            return None;
        }
        // A row beyond the clamp's bounds would count only without it, and an empty range clamps to no row of its own.
        let (first, last) = numbers(number, sizes)?;
        if within.low > within.high || first < 0 || last > within.high - within.low {
            return None;
        }
        let mut number = number.clone();
        number.at[0] = number.at[0].checked_add(within.low)?;
        if !holds_all(by, &number, sizes) {
            return None;
        }
        let is_row = apply_to(terms, compare, &[&number, &index], sizes);
        let chosen = apply_to(terms, select, &[&place_of(&is_row), row, zero], sizes);
        terms.mark(chosen.term, Rules::of(Rule::RowSums));
        Some(chosen)
    }
}

impl Elementwise {
    /// `iota[i] = x - c` as `iota[i + c] = x`, which holds for numbers that wrap as well.
    pub(crate) fn shifted_comparison(
        &self,
        terms: &mut Terms,
        op: &ElementwiseOp,
        [number, difference]: [&Segment; 2],
    ) -> Option<Segment> {
        let is_equality = matches!(op.comparison, Some(Comparison::Eq | Comparison::Ne));
        if !is_equality || !matches!(terms.node(number.term), Node::Iota(_)) {
            return None;
        }
        let (_, inner, parts) = self.op_of(terms, &place_of(difference))?;
        let [x, c] = parts.as_slice() else { return None };
        if inner.opcode != Opcode::Subtract || inner.dtype != op.operand_dtype {
            return None;
        }
        let mut shifted = place_of(number);
        shifted.at[0] = shifted.at[0].checked_add(terms.as_integer(c.term)?)?;
        let sizes: Vec<i64> = number.region.dims.iter().map(|d| d.n).collect();
        if !holds_all(op.operand_dtype, &place_of(number), &sizes) || !holds_all(op.operand_dtype, &shifted, &sizes) {
            return None;
        }
        let word = self.known_word(op)?;
        let mut segment = apply_to(terms, word, &[&shifted, x], &sizes);
        segment.region.at[0] = number.region.at[0];
        for (dim, places) in segment.region.dims.iter_mut().zip(&number.region.dims) {
            dim.step[0] = places.step[0];
        }
        Some(segment)
    }
}

/// The least and the greatest number that an iota has there.
fn numbers(number: &Place, sizes: &[i64]) -> Option<(i64, i64)> {
    range_of(number.at[0], number.steps.iter().zip(sizes).map(|(step, &n)| (step[0], n)))
}

/// Whether a type holds every number that an iota has there.
fn holds_all(dtype: DType, number: &Place, sizes: &[i64]) -> bool {
    numbers(number, sizes).is_some_and(|(low, high)| holds(dtype, low) && holds(dtype, high))
}

/// How many steps a comparison of terms takes at most.
const MAX_STEPS: usize = 200;

/// A segment's term with its coordinates.
fn place_of(segment: &Segment) -> Place {
    Place {
        term: segment.term,
        at: Coords::from_slice(&segment.region.at[1..]),
        steps: segment.region.dims.iter().map(|d| Coords::from_slice(&d.step[1..])).collect(),
    }
}

/// An op on terms at these coordinates, over loops of these sizes.
fn apply_to(terms: &mut Terms, word: WordId, operands: &[&Place], sizes: &[i64]) -> Segment {
    let mut region = Region { at: Coords::from_slice(&[0]), dims: Default::default() };
    region.dims.extend(sizes.iter().map(|&n| Dim { n, step: Coords::from_slice(&[0]) }));
    let mut args = Vec::with_capacity(operands.len());
    for place in operands {
        args.push((place.term, Terms::NO_EXTRA, region.at.len()));
        region.at.extend_from_slice(&place.at);
        for (dim, step) in region.dims.iter_mut().zip(&place.steps) {
            dim.step.extend_from_slice(step);
        }
    }
    terms.apply(Head::Elementwise(word), &args, &region)
}
