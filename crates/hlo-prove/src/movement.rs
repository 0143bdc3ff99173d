//! Ops that move elements: which element of which operand stands at each place of the result.

use crate::array::{Value, part};
use crate::elementwise::{ElementwiseOp, holds};
use crate::prover::Prover;
use crate::segment::{Coords, Dim, Region, Segment, region_between, row_major};
use crate::term::ArrayId;
use hlo_ir::attrs::PadDim;
use hlo_ir::{ArrayShape, DType, Layout, Opcode};
use smallvec::SmallVec;

/// A box within an array.
pub(crate) struct Window {
    pub start: Vec<i64>,
    pub sizes: Vec<i64>,
}

/// Where one dim of a window begins.
enum Start {
    At(i64),
    /// At a scalar of run time.
    By(ArrayId),
}

impl Prover {
    /// The elements of a value at these places.
    pub(crate) fn view(&mut self, value: &Value, dims: &[i64], start: i64, steps: &[i64]) -> Option<Value> {
        self.map(&[value], |p, a| p.arrays.view(a[0], dims, start, steps))
    }

    pub(crate) fn transpose(&mut self, value: &Value, from: &[i64], permutation: &[i64]) -> Option<Value> {
        let steps = row_major(from);
        let dims: Vec<i64> = permutation.iter().map(|&d| from[d as usize]).collect();
        let steps: Vec<i64> = permutation.iter().map(|&d| steps[d as usize]).collect();
        self.view(value, &dims, 0, &steps)
    }

    pub(crate) fn broadcast(&mut self, value: &Value, from: &[i64], dims: &[i64], to: &[i64]) -> Option<Value> {
        let from_steps = row_major(from);
        let mut steps = vec![0; to.len()];
        for (k, &d) in dims.iter().enumerate() {
            if from[k] != 1 {
                steps[d as usize] = from_steps[k];
            }
        }
        self.view(value, to, 0, &steps)
    }

    /// A scalar at every place of `n_elems`.
    pub(crate) fn splat(&mut self, value: &Value, n_elems: i64) -> Option<Value> {
        self.view(value, &[n_elems], 0, &[0])
    }

    /// The operand's elements in the order of its layout, read in the order of the result's.
    pub(crate) fn bitcast(&mut self, value: &Value, from: &ArrayShape, to: &ArrayShape) -> Option<Value> {
        if !are_in_order(from, to) {
            return None;
        }
        let order: Vec<i64> = from.major_to_minor().iter().map(|&d| d as i64).collect();
        let physical = self.transpose(value, &from.dims, &order)?;
        let to_order = to.major_to_minor();
        let physical_dims: Vec<i64> = to_order.iter().map(|&d| to.dims[d]).collect();
        let physical_steps = row_major(&physical_dims);
        let mut steps = vec![0; to.dims.len()];
        for (k, &d) in to_order.iter().enumerate() {
            steps[d] = physical_steps[k];
        }
        self.view(&physical, &to.dims, 0, &steps)
    }

    /// Each element's index along a dim. `None` if the type does not hold all of them: they wrap.
    pub(crate) fn iota(&mut self, dtype: DType, dims: &[i64], along: usize) -> Option<ArrayId> {
        if dtype.is_integer() && !holds(dtype, dims[along] - 1) {
            return None;
        }
        let term = self.arrays.terms.iota(dtype);
        let places = row_major(dims);
        let dims = dims
            .iter()
            .zip(&places)
            .enumerate()
            .filter(|(_, (n, _))| **n != 1)
            .map(|(d, (&n, &place))| Dim { n, step: Coords::from_slice(&[place, i64::from(d == along)]) });
        let region = Region { at: Coords::from_slice(&[0, 0]), dims: dims.collect() };
        Some(self.arrays.intern(vec![Segment { term, region }]))
    }

    pub(crate) fn concatenate(&mut self, values: &[&Value], sizes: &[i64], dim: usize, to: &[i64]) -> Option<Value> {
        self.map(values, |p, arrays| {
            let mut out = Vec::new();
            let mut start = vec![0; to.len()];
            for (&array, &size) in arrays.iter().zip(sizes) {
                let mut dims = to.to_vec();
                dims[dim] = size;
                p.place(array, &Window { start: start.clone(), sizes: dims }, to, &mut out)?;
                start[dim] += size;
            }
            Some(p.arrays.intern(out))
        })
    }

    /// Puts an array of the window's shape into an array of dims `to`.
    pub(crate) fn place(&mut self, array: ArrayId, window: &Window, to: &[i64], out: &mut Vec<Segment>) -> Option<()> {
        if window.sizes.contains(&0) {
            return Some(());
        }
        let to_steps = row_major(to);
        // The places of the array in the window, turned around.
        let mut region = region_between(&window.sizes, 0, &to_steps);
        region.at.swap(0, 1);
        region.dims.iter_mut().for_each(|dim| dim.step.swap(0, 1));
        region.at[0] = window.start.iter().zip(&to_steps).map(|(s, step)| s * step).sum();
        out.extend(self.arrays.take(array, region)?);
        Some(())
    }

    /// The elements of an array of dims `dims` that lie outside a window, where they are.
    pub(crate) fn keep_outside(
        &mut self,
        array: ArrayId,
        window: &Window,
        dims: &[i64],
        out: &mut Vec<Segment>,
    ) -> Option<()> {
        let steps = row_major(dims);
        let mut start = vec![0; dims.len()];
        let mut sizes = dims.to_vec();
        for d in 0..dims.len() {
            let end = window.start[d] + window.sizes[d];
            for (from, n) in [(0, window.start[d]), (end, dims[d] - end)] {
                if n <= 0 {
                    continue;
                }
                let (mut slab_start, mut slab) = (start.clone(), sizes.clone());
                slab_start[d] = from;
                slab[d] = n;
                if slab.contains(&0) {
                    continue;
                }
                let at: i64 = slab_start.iter().zip(&steps).map(|(s, step)| s * step).sum();
                let mut region = region_between(&slab, at, &steps);
                region.at[0] = at;
                region.dims.iter_mut().for_each(|dim| dim.step[0] = dim.step[1]);
                out.extend(self.arrays.take(array, region)?);
            }
            start[d] = window.start[d];
            sizes[d] = window.sizes[d];
        }
        Some(())
    }

    pub(crate) fn pad(
        &mut self,
        value: &Value,
        filler: &Value,
        from: &[i64],
        padding: &[PadDim],
        to: &[i64],
    ) -> Option<Value> {
        let (mut spread, mut from) = (value.clone(), from.to_vec());
        for (d, pad) in padding.iter().enumerate() {
            if pad.interior > 0 && from[d] > 1 {
                spread = self.spread_out(&spread, filler, &mut from, d, pad.interior)?;
            }
        }
        let value = &spread;
        // Negative padding cuts elements off.
        let start: Vec<i64> = padding.iter().map(|p| p.low.max(0)).collect();
        let cut: Vec<i64> = padding.iter().map(|p| (-p.low).max(0)).collect();
        let sizes: Vec<i64> = (0..to.len()).map(|d| (from[d] - cut[d] - (-padding[d].high).max(0)).max(0)).collect();
        if sizes.contains(&0) {
            return self.splat(filler, to.iter().product());
        }
        let steps = row_major(&from);
        let offset = cut.iter().zip(&steps).map(|(c, s)| c * s).sum();
        let inside = self.view(value, &sizes, offset, &steps)?;
        let filler = self.splat(filler, to.iter().product())?;
        let window = Window { start, sizes };
        self.map(&[&inside, &filler], |p, a| {
            let mut out = Vec::new();
            p.keep_outside(a[1], &window, to, &mut out)?;
            p.place(a[0], &window, to, &mut out)?;
            Some(p.arrays.intern(out))
        })
    }

    /// A value with so many fillers between neighbours along a dim, which becomes as long as it is then.
    fn spread_out(
        &mut self,
        value: &Value,
        filler: &Value,
        dims: &mut [i64],
        d: usize,
        interior: i64,
    ) -> Option<Value> {
        // Each element becomes the first of a row of its own; the last row is cut behind it.
        let mut rows = dims.to_vec();
        rows.insert(d + 1, interior.checked_add(1)?);
        let mut sizes = rows.clone();
        sizes[d + 1] = 1;
        let window = Window { start: vec![0; rows.len()], sizes };
        let n = rows.iter().try_fold(1i64, |n, &row| n.checked_mul(row))?;
        let filler = self.splat(filler, n)?;
        let whole = self.map(&[value, &filler], |p, a| {
            let mut out = Vec::new();
            p.keep_outside(a[1], &window, &rows, &mut out)?;
            p.place(a[0], &window, &rows, &mut out)?;
            Some(p.arrays.intern(out))
        })?;
        let mut joined = dims.to_vec();
        joined[d] *= 1 + interior;
        let steps = row_major(&joined);
        dims[d] = joined[d] - interior;
        self.view(&whole, dims, 0, &steps)
    }

    /// Where the window of a dynamic op begins along each dim.
    fn starts(&self, indices: &[ArrayId], dims: &[i64], sizes: &[i64]) -> Vec<Start> {
        (0..dims.len())
            .map(|d| match (dims[d] - sizes[d], self.arrays.as_integer(indices[d])) {
                (0, _) => Start::At(0),
                (room, Some(at)) => Start::At(at.clamp(0, room)),
                (_, None) => Start::By(indices[d]),
            })
            .collect()
    }

    pub(crate) fn dynamic_slice(
        &mut self,
        value: &Value,
        indices: &[&Value],
        from: &[i64],
        sizes: &[i64],
    ) -> Option<Value> {
        let mut values = vec![value];
        values.extend(indices);
        self.map(&values, |p, a| p.dynamic_slice_array(a[0], &a[1..], from, sizes))
    }

    fn dynamic_slice_array(
        &mut self,
        array: ArrayId,
        indices: &[ArrayId],
        from: &[i64],
        sizes: &[i64],
    ) -> Option<ArrayId> {
        let starts = self.starts(indices, from, sizes);
        let (steps, places) = (row_major(from), row_major(sizes));
        let mut region = Region { at: Coords::from_slice(&[0, 0]), dims: SmallVec::new() };
        // Dims that begin at a scalar come first, in full.
        let mut unknown = Vec::new();
        for d in 0..from.len() {
            match starts[d] {
                Start::At(at) => region.at[1] += at * steps[d],
                Start::By(index) => {
                    region.dims.push(Dim { n: from[d], step: Coords::from_slice(&[places[d], steps[d]]) });
                    unknown.push((d, index));
                }
            }
        }
        for d in 0..from.len() {
            if matches!(starts[d], Start::At(_)) && sizes[d] != 1 {
                region.dims.push(Dim { n: sizes[d], step: Coords::from_slice(&[places[d], steps[d]]) });
            }
        }
        let mut segments = self.arrays.take(array, region)?;
        for segment in &mut segments {
            for (k, &(d, index)) in unknown.iter().enumerate() {
                if segment.region.dims.get(k)?.n != from[d] {
                    return None;
                }
                let step = part(&segment.region.dims[k].step, 1, self.arrays.terms.rank(segment.term));
                let by = self.scalar_term(index)?;
                segment.term = self.moved(segment.term, &step, from[d] - sizes[d], by);
                segment.region.dims[k].n = sizes[d];
            }
        }
        Some(self.arrays.intern(segments))
    }

    /// The term of an array of one element.
    pub(crate) fn scalar_term(&mut self, array: ArrayId) -> Option<crate::term::TermId> {
        let segments = self.arrays.segments(array);
        let [segment] = &*segments else { return None };
        let is_still = segment.region.dims.iter().all(|d| d.step[1..].iter().all(|&s| s == 0));
        is_still.then(|| self.arrays.terms.element(segment.term, &segment.region.at[1..]))
    }

    pub(crate) fn dynamic_update(
        &mut self,
        value: &Value,
        update: &Value,
        indices: &[&Value],
        dims: &[i64],
        sizes: &[i64],
        dtype: (DType, DType),
    ) -> Option<Value> {
        let mut values = vec![value, update];
        values.extend(indices);
        self.map(&values, |p, a| p.dynamic_update_array(a[0], a[1], &a[2..], (dims, sizes), dtype))
    }

    fn dynamic_update_array(
        &mut self,
        array: ArrayId,
        update: ArrayId,
        indices: &[ArrayId],
        (dims, sizes): (&[i64], &[i64]),
        (dtype, index_dtype): (DType, DType),
    ) -> Option<ArrayId> {
        if sizes.contains(&0) {
            return Some(array);
        }
        let starts = self.starts(indices, dims, sizes);
        let mut window = Window { start: vec![0; dims.len()], sizes: sizes.to_vec() };
        let mut unknown = Vec::new();
        for d in 0..dims.len() {
            match starts[d] {
                Start::At(at) => window.start[d] = at,
                Start::By(index) => {
                    // A window of several rows would need to know how far a row is from its first.
                    if sizes[d] != 1 {
                        return None;
                    }
                    window.sizes[d] = dims[d];
                    unknown.push((d, index));
                }
            }
        }
        let mut out = Vec::new();
        self.keep_outside(array, &window, dims, &mut out)?;
        let written = if unknown.is_empty() {
            update
        } else {
            let n: i64 = window.sizes.iter().product();
            let mut operands = Vec::new();
            let mut attributes = String::new();
            for &(d, index) in &unknown {
                let iota = self.iota(index_dtype, &window.sizes, d)?;
                let all = Value::Same(index);
                let Value::Same(index) = self.splat(&all, n)? else { return None };
                operands.extend([iota, index]);
                attributes.push_str(&format!(" row<{}", dims[d]));
            }
            // The new row at each row's place, and what was there.
            let mut steps = row_major(sizes);
            for &(d, _) in &unknown {
                steps[d] = 0;
            }
            operands.push(self.arrays.view(update, &window.sizes, 0, &steps)?);
            let at = window.start.iter().zip(row_major(dims)).map(|(s, step)| s * step).sum();
            operands.push(self.arrays.view(array, &window.sizes, at, &row_major(dims))?);
            let op = ElementwiseOp {
                opcode: Opcode::DynamicUpdateSlice,
                dtype,
                operand_dtype: index_dtype,
                comparison: None,
                attributes,
            };
            let word = self.elementwise.word(&mut self.arrays.terms, op);
            self.elementwise.apply(&mut self.arrays, word, operands.into(), n)?
        };
        self.place(written, &window, dims, &mut out)?;
        Some(self.arrays.intern(out))
    }
}

/// Whether the elements of both lie in memory in an order of dims: not tile by tile, nor with anything between them.
fn are_in_order(from: &ArrayShape, to: &ArrayShape) -> bool {
    let bits = |shape: &ArrayShape| shape.layout.as_ref().map_or(0, |layout| layout.element_size_in_bits);
    let is_order = |shape: &ArrayShape| {
        let layout = shape.layout.as_deref().cloned();
        layout.is_none_or(|layout| Layout { memory_space: 0, element_size_in_bits: 0, ..layout }.is_only_an_order())
    };
    bits(from) == bits(to) && is_order(from) && is_order(to)
}
