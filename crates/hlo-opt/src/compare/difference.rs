//! How far the outputs of two runs are apart: the oracle's measure.
//!
//! Integers and booleans must be equal, NaN and infinities stand in the same places, and floats be no further apart than a share of
//! what their output is measured by: its largest element over all devices, with two exceptions. A new weight is the old one and a small
//! step, so an output that is near an input of its shape is measured by the largest step. And one huge element, such as what masks a
//! score, must not hide the others: elements that both programs have bit for bit count for no more than [`OUTLIER`] times the largest
//! of the others.

use cranelift_entity::SecondaryMap;
use hlo_analysis::values::{SharedCallees, Through, User, ValueId, Values};
use hlo_eval::{Inputs, Outputs, result_leaves};
use hlo_ir::literal::Scalar;
use hlo_ir::{DType, InstId, Literal, Module};
use std::sync::Arc;

/// Rounding of another order of summation, with room to spare.
const FLOOR: f64 = 2e-5;
/// Half an ulp of f32: what any correct implementation may do to an input.
const PERTURB: f64 = 6e-8;
/// How many times what moved inputs change is allowed.
const MARGIN: f64 = 10.0;
/// The same where inputs move by half an ulp of a narrower type: fewer roundings add up to more.
const NARROW_MARGIN: f64 = 3.0;
/// A share above this, of one output, says nothing of the others.
const WIDEST: f64 = 0.1;

/// How many times larger than all elements that differ an equal element may be and still count.
const OUTLIER: f64 = 10.0;
/// An output that is so near an input, as a share of its largest element, is that input and a step.
const NEAR: f64 = 0.1;
/// Roundings of an old value and of a new one that another order of operations may change, in ulps of the value.
const STEP_ULPS: f64 = 3.0;
/// Elements by which the input is chosen that an output is nearest to.
const N_SAMPLED: usize = 64;

/// By how much floats may differ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Tolerance {
    /// The share of the scale by which an output is measured.
    pub share: f64,
    /// Whether the user says the share: then it is one of the largest element, whatever the output is.
    pub is_said: bool,
    /// Besides.
    pub absolute: f64,
    /// As [`Measure::step`].
    pub step: Option<f64>,
    /// As [`Measure::flips`].
    pub flips: Option<Flips>,
    /// Whether NaN in the place of an infinity is no difference: in trials of large and small numbers neither program may compute any there.
    pub may_overflow: bool,
}

/// Elements of an output that moved inputs change by much: those behind a step, such as a rounding, a sign or a comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Flips {
    n_elems: usize,
    /// The largest change.
    largest: f64,
}

/// How one output is measured.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Measure {
    /// How far the output is from an input that it is near.
    pub step: Option<f64>,
    /// The input that this is the distance from.
    input: Option<usize>,
    /// By which share of its scale floats may differ at least.
    pub share: f64,
    /// Elements that may differ though they are behind a step.
    pub flips: Option<Flips>,
}

/// A run of the reference on moved inputs, beside the run on those that were drawn.
pub(crate) struct Moved<'r> {
    /// By which share inputs moved.
    pub share: f64,
    /// The inputs before and after.
    pub inputs: [&'r Inputs; 2],
    /// The outputs before and after.
    pub outputs: [&'r Outputs; 2],
    /// Of each output whether this run says how it is measured.
    pub is_meant: &'r [bool],
}

impl Tolerance {
    /// What is allowed where nothing is said of the module.
    pub(crate) fn floor(absolute: f64) -> Tolerance {
        Tolerance { share: FLOOR, is_said: false, absolute, step: None, flips: None, may_overflow: false }
    }

    /// How each output is measured, given what moved inputs change. All outputs that are no steps widen one another's share, up to [`WIDEST`].
    /// Elements that change more are counted: of such an output so many times more may differ, by no more than that. Each step is measured
    /// by itself.
    pub(crate) fn widened(self, measures: &[Measure], moved: &Moved<'_>) -> Vec<Measure> {
        let margin = if moved.share > PERTURB { NARROW_MARGIN } else { MARGIN };
        let changes = differences(moved.outputs[0], moved.outputs[1], (self, measures));
        // Elements that change so much are behind a step, such as a sign or a comparison: they are counted, not measured.
        let far = Tolerance { share: WIDEST / margin, ..self };
        let flips = differences(moved.outputs[0], moved.outputs[1], (far, measures));
        // Of each output the largest change, what it is measured by, and how many elements change by far more.
        let of_change = |(number, leaf): (usize, &LeafDifference)| match measures.get(number).and_then(Measure::of_step)
        {
            Some((step, input)) => {
                let (largest, n_far) = moved.change_of_step(number, input, far.share * step);
                (largest, step, n_far)
            }
            None if leaf.is_inexact => (leaf.largest_error, leaf.scale, flips[number].n_different),
            None => (leaf.largest_error, 1.0, leaf.n_different),
        };
        let found: Vec<(f64, f64, usize)> = changes.iter().enumerate().map(of_change).collect();
        let share = |number: usize| match found[number] {
            (largest, scale, _) if largest.is_finite() && scale > 0.0 => largest / scale,
            (largest, ..) if largest.is_finite() => largest,
            _ => 0.0,
        };
        let is_meant = |number: usize| moved.is_meant.get(number).copied().unwrap_or(true);
        let others = (0..measures.len().min(changes.len())).filter(|&number| {
            is_meant(number) && measures[number].step.is_none() && changes[number].is_inexact && found[number].2 == 0
        });
        let worst = others.map(share).fold(0.0, f64::max);
        let of_output = |(number, measure): (usize, &Measure)| {
            let Some(leaf) = changes.get(number).filter(|_| is_meant(number)) else { return *measure };
            let (largest, _, n_flipped) = found[number];
            if n_flipped == 0 {
                let change = if measure.step.is_some() { share(number) } else { worst };
                return Measure { share: measure.share.max((margin * change).min(WIDEST)), ..*measure };
            }
            let known = measure.flips.unwrap_or(Flips { n_elems: 0, largest: 0.0 });
            let flips = Flips {
                n_elems: known.n_elems.max((MARGIN * n_flipped as f64) as usize),
                largest: known.largest.max(if leaf.is_inexact { MARGIN } else { 1.0 } * largest),
            };
            let share = if leaf.is_inexact { measure.share.max(WIDEST) } else { measure.share };
            Measure { flips: Some(flips), share, ..*measure }
        };
        measures.iter().enumerate().map(of_output).collect()
    }

    /// The same for one output.
    pub(crate) fn of_output(self, measure: Measure) -> Tolerance {
        if self.is_said {
            return self;
        }
        Tolerance { share: self.share.max(measure.share), step: measure.step, flips: measure.flips, ..self }
    }

    /// The scale of an output, given its largest element and its largest element that differs.
    fn scale(self, largest: f64, largest_unlike: f64) -> f64 {
        match self.step {
            _ if self.is_said => largest,
            Some(step) => step,
            None if largest_unlike > 0.0 => largest.min(OUTLIER * largest_unlike),
            None => largest,
        }
    }

    /// The difference that is allowed in an output of this type and scale, besides roundings of its elements.
    fn allowed(self, dtype: DType, scale: f64) -> f64 {
        let share = if self.is_said { self.share } else { self.share.max(ulp_of_one(dtype)) };
        // Numbers below the least normal one are as far apart as those beside it.
        let scale = if self.is_said { scale } else { scale.max(least_normal(dtype)) };
        self.absolute + share * scale
    }

    /// The difference that roundings of an old and a new value may add, as a share of an element.
    fn of_roundings(self, dtype: DType) -> f64 {
        if self.step.is_some() { STEP_ULPS * ulp_of_one(dtype) } else { 0.0 }
    }
}

impl Moved<'_> {
    /// The largest change of the distance of an output from an input, and how many elements change by more than `far`.
    fn change_of_step(&self, output: usize, input: usize, far: f64) -> (f64, usize) {
        let rows = |side: usize| Some((self.inputs[side].leaves.get(input)?, self.outputs[side].leaves.get(output)?));
        let (Some((old, new)), Some((moved_old, moved_new))) = (rows(0), rows(1)) else { return (0.0, 0) };
        let (mut largest, mut n_far) = (0.0f64, 0);
        for device in 0..new.len() {
            let of =
                |row: &[Arc<Literal>], i: usize| row.get(device).or(row.first()).and_then(|array| real(array.get(i)?));
            for i in 0..new[device].n_elems() {
                let step = |old: &[Arc<Literal>], new: &[Arc<Literal>]| Some(of(new, i)? - of(old, i)?);
                if let (Some(a), Some(b)) = (step(old, new), step(moved_old, moved_new)) {
                    let change = (a - b).abs();
                    largest = if change.is_finite() { largest.max(change) } else { largest };
                    n_far += usize::from(change > far);
                }
            }
        }
        (largest, n_far)
    }
}

impl Measure {
    /// The step, and the input that it is the distance from.
    fn of_step(&self) -> Option<(f64, usize)> {
        self.step.zip(self.input)
    }
}

fn real(scalar: Scalar) -> Option<f64> {
    match scalar {
        Scalar::Float(value) => Some(value),
        Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_) | Scalar::Complex(..) => None,
    }
}

/// A share by which inputs are moved, and of each output whether that run says how it is measured.
pub(crate) struct Move {
    /// The share.
    pub share: f64,
    /// Of each output.
    pub is_meant: Vec<bool>,
}

/// How inputs are moved: by half an ulp of f32, and for outputs that are computed in a narrower type of floats by half an ulp of the narrowest
/// such type of the program.
pub(crate) fn moves_of(module: &Module) -> Vec<Move> {
    let half_ulp = |inst: InstId| {
        let mut share = 0.0f64;
        module.shape(inst).for_each_leaf(&mut |_, leaf| {
            let dtype = leaf.as_array().map(|array| array.dtype).filter(|dtype| dtype.is_float());
            share = share.max(dtype.map_or(0.0, |dtype| ulp_of_one(dtype) / 2.0));
        });
        share
    };
    let values = Values::find(module, Through::ALL, SharedCallees::Entered);
    let insts = || module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    let narrowest = insts().map(half_ulp).fold(PERTURB, f64::max);
    let is_narrow = |inst: InstId| {
        let called = module.called(inst);
        let within = called.iter().filter(|&&comp| !values.knows(comp)).flat_map(|&comp| &module.comp(comp).insts);
        half_ulp(inst) > PERTURB || within.copied().any(|inner| half_ulp(inner) > PERTURB)
    };
    let mut open: Vec<ValueId> = values.values.keys().filter(|&value| is_narrow(values.inst(value))).collect();
    let mut reached: SecondaryMap<ValueId, bool> = SecondaryMap::new();
    let n_outputs = result_leaves(module).len();
    let mut is_behind = vec![false; n_outputs];
    while let Some(value) = open.pop() {
        if std::mem::replace(&mut reached[value], true) {
            continue;
        }
        for taken in &values.uses[value] {
            match taken.user {
                User::Op { inst, .. } | User::Opaque(inst) => {
                    open.extend(values.leaves(inst).iter().filter_map(|leaf| leaf.expand()));
                }
                User::Becomes(into) => open.push(into),
                User::Exit(output) => is_behind.get_mut(output as usize).into_iter().for_each(|known| *known = true),
            }
        }
    }
    let plain = Move { share: PERTURB, is_meant: is_behind.iter().map(|is_behind| !is_behind).collect() };
    let narrow = Move { share: narrowest, is_meant: is_behind };
    [plain, narrow].into_iter().filter(|of| of.is_meant.contains(&true)).collect()
}

/// How each output is measured: its step is its distance from the input that it is nearest to, over all devices. Both are
/// `[leaf][device]`; of a global program's inputs there is one for all devices.
pub(crate) fn measures(inputs: &Inputs, outputs: &Outputs) -> Vec<Measure> {
    let of_output = |output: &Vec<Arc<Literal>>| {
        let first = output.first().filter(|array| array.dtype().is_float())?;
        let is_alike = |input: &&Vec<Arc<Literal>>| {
            input.first().is_some_and(|array| array.dtype() == first.dtype() && array.dims() == first.dims())
        };
        let stride = (first.n_elems() / N_SAMPLED).max(1);
        let alike = inputs.leaves.iter().enumerate().filter(|(_, input)| is_alike(input));
        let near = alike.filter_map(|(number, input)| Some((number, step_between(input, output, stride)?)));
        let (input, _) = near.min_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let step = step_between(inputs.leaves.get(input)?, output, 1)?;
        Some(Measure { step: Some(step), input: Some(input), ..Measure::default() })
    };
    outputs.leaves.iter().map(|output| of_output(output).unwrap_or_default()).collect()
}

/// The largest difference of an output and an input, among each `stride`-th element; `None` if the output is not near the input.
fn step_between(input: &[Arc<Literal>], output: &[Arc<Literal>], stride: usize) -> Option<f64> {
    let (mut step, mut largest) = (0.0f64, 0.0f64);
    for (device, new) in output.iter().enumerate() {
        if device > 0 && Arc::ptr_eq(new, &output[device - 1]) {
            continue;
        }
        let old = input.get(device).or(input.first())?;
        for i in (0..new.n_elems()).step_by(stride) {
            let (Some(a), Some(b)) = (old.get(i), new.get(i)) else { continue };
            if magnitude(b).is_finite() {
                largest = largest.max(magnitude(b));
                step = step.max(apart(a, b));
            }
        }
    }
    (step > 0.0 && step <= NEAR * largest).then_some(step)
}

/// The least number of a type of floats that has all of the type's bits.
fn least_normal(dtype: DType) -> f64 {
    let dtype = dtype.real_part();
    if dtype == DType::F64 {
        return f64::MIN_POSITIVE;
    }
    let ulp = ulp_of_one(dtype);
    let is_normal = |power: &f64| {
        let next = power * (1.0 + ulp);
        Literal::scalar(dtype, Scalar::Float(next)).get(0) == Some(Scalar::Float(next))
    };
    (0..127).map(|k| 0.5f64.powi(k)).take_while(is_normal).last().unwrap_or(0.0)
}

/// The distance of 1 to the next number of a type of floats, which is what a rounding can change; 0 of other types.
fn ulp_of_one(dtype: DType) -> f64 {
    let dtype = dtype.real_part();
    if !dtype.is_float() {
        return 0.0;
    }
    let is_seen = |ulp: f64| Literal::scalar(dtype, Scalar::Float(1.0 + ulp)).get(0) != Some(Scalar::Float(1.0));
    let ulps = (0..60).map(|k| 0.5f64.powi(k));
    ulps.take_while(|&ulp| is_seen(ulp)).last().unwrap_or(0.0)
}

/// The first value of an output that differs.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct FirstDifference {
    /// Flat id.
    pub device: usize,
    /// One number for each dim.
    pub index: Vec<i64>,
    /// What is right.
    pub expected: Scalar,
    /// What is there.
    pub found: Scalar,
}

/// How far an output is apart, over all devices.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct LeafDifference {
    /// The flat number of the output.
    pub number: usize,
    /// Whether its elements are rounded.
    pub is_inexact: bool,
    /// The first value that differs by more than is allowed.
    pub first: Option<FirstDifference>,
    /// How many differ so.
    pub n_different: usize,
    /// How many there are.
    pub n_elems: usize,
    /// The largest difference; infinite where a NaN or an infinity is in another place, or integers differ.
    pub largest_error: f64,
    /// The scale of the difference: the largest finite element that is right, or less.
    pub scale: f64,
    /// The difference that is allowed, besides roundings of a value and a small step.
    pub allowed: f64,
    /// Elements of the reference that hide differences: NaN, infinities of an output without a finite element, and all where rounding
    /// alone changes most of them.
    pub n_hiding: usize,
    /// Of a global program's output, how it is taken to be cut.
    pub cut: Option<String>,
}

impl LeafDifference {
    /// The largest difference as a share of what it is measured by.
    pub(crate) fn share(&self) -> f64 {
        if self.scale > 0.0 { self.largest_error / self.scale } else { self.largest_error }
    }
}

/// The differences of `[leaf][device]` arrays; the shapes are the same.
pub(crate) fn differences(
    expected: &Outputs,
    found: &Outputs,
    (tolerance, measures): (Tolerance, &[Measure]),
) -> Vec<LeafDifference> {
    let rows = expected.leaves.iter().zip(&found.leaves).enumerate();
    let measure = |leaf: usize| measures.get(leaf).copied().unwrap_or_default();
    let mut out = Vec::with_capacity(expected.leaves.len());
    for (number, (expected, found)) in rows {
        let difference = of_leaf(expected, found, tolerance.of_output(measure(number)));
        out.push(LeafDifference { number, ..difference });
    }
    out
}

/// The differences of one output's arrays, `[device]`; the shapes are the same.
pub(crate) fn of_leaf(expected: &[Arc<Literal>], found: &[Arc<Literal>], tolerance: Tolerance) -> LeafDifference {
    let dtype = expected.first().map_or(DType::Pred, |array| array.dtype());
    let (largest, n_hiding) = finite_size(expected);
    let is_inexact = dtype.is_float() || dtype.is_complex();
    let is_equal = |a: &Arc<Literal>, b: &Arc<Literal>| Arc::ptr_eq(a, b) || a == b;
    let unlike = expected.iter().zip(found).filter(|(a, b)| is_inexact && !is_equal(a, b));
    let largest_unlike = unlike.map(|(a, b)| size_of_unlike(a, b)).fold(0.0, f64::max);
    let scale = tolerance.scale(largest, largest_unlike);
    let mut out = LeafDifference {
        number: 0,
        is_inexact,
        first: None,
        n_different: 0,
        n_elems: 0,
        largest_error: 0.0,
        scale,
        allowed: if is_inexact { tolerance.allowed(dtype, scale) } else { 0.0 },
        n_hiding,
        cut: None,
    };
    let of_roundings = tolerance.of_roundings(dtype);
    for (device, (expected, found)) in expected.iter().zip(found).enumerate() {
        out.n_elems += expected.n_elems();
        if is_equal(expected, found) {
            continue;
        }
        for i in 0..expected.n_elems() {
            let (Some(a), Some(b)) = (expected.get(i), found.get(i)) else { continue };
            if tolerance.may_overflow && !magnitude(a).is_finite() && !magnitude(b).is_finite() {
                continue;
            }
            let error = apart(a, b);
            out.largest_error = out.largest_error.max(error);
            let rounded = if of_roundings > 0.0 { of_roundings * magnitude(a) } else { 0.0 };
            if error > out.allowed + rounded {
                out.n_different += 1;
                out.first.get_or_insert_with(|| FirstDifference {
                    device,
                    index: index_of(i, expected.dims()),
                    expected: a,
                    found: b,
                });
            }
        }
    }
    if let Some(flips) = tolerance.flips
        && out.n_different > 0
        && out.n_different <= flips.n_elems
        && out.largest_error <= flips.largest
    {
        (out.first, out.n_different) = (None, 0);
        // Where rounding alone changes most of an output, that no more differs says nothing of it.
        if 2 * flips.n_elems >= out.n_elems {
            out.n_hiding = out.n_elems;
        }
    }
    out
}

/// The largest finite element of an output's arrays, `[device]`, and how many elements hide differences.
fn finite_size(arrays: &[Arc<Literal>]) -> (f64, usize) {
    let (mut largest, mut n_nan, mut n_infinite, mut n_elems) = (0.0f64, 0, 0, 0);
    // Arrays that neighboring devices share are looked at once, and counted for each.
    let mut counted = (0, 0);
    for (device, array) in arrays.iter().enumerate() {
        if device == 0 || !Arc::ptr_eq(array, &arrays[device - 1]) {
            counted = (0, 0);
            for magnitude in (0..array.n_elems()).filter_map(|i| array.get(i)).map(magnitude) {
                counted.0 += usize::from(magnitude.is_nan());
                counted.1 += usize::from(magnitude.is_infinite());
                largest = if magnitude.is_finite() { largest.max(magnitude) } else { largest };
            }
        }
        n_nan += counted.0;
        n_infinite += counted.1;
        n_elems += array.n_elems();
    }
    (largest, if n_nan + n_infinite == n_elems { n_elems } else { n_nan })
}

/// The largest finite element of either of two arrays at a place where they differ.
fn size_of_unlike(a: &Literal, b: &Literal) -> f64 {
    let pairs = (0..a.n_elems()).filter_map(|i| Some((a.get(i)?, b.get(i)?)));
    let sizes = pairs.filter(|(a, b)| apart(*a, *b) > 0.0).flat_map(|(a, b)| [magnitude(a), magnitude(b)]);
    sizes.filter(|size| size.is_finite()).fold(0.0, f64::max)
}

/// The magnitude of an element; NaN if a part of it is.
fn magnitude(scalar: Scalar) -> f64 {
    match scalar {
        Scalar::Complex(re, im) if re.is_nan() || im.is_nan() => f64::NAN,
        Scalar::Pred(value) => f64::from(u8::from(value)),
        Scalar::Int(value) => value.unsigned_abs() as f64,
        Scalar::Uint(value) => value as f64,
        Scalar::Float(value) => value.abs(),
        Scalar::Complex(re, im) => re.abs().max(im.abs()),
    }
}

/// How far two elements of one type are apart. A NaN is equal to a NaN, and infinitely far from all else.
fn apart(a: Scalar, b: Scalar) -> f64 {
    let floats = |a: f64, b: f64| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false if a.is_finite() && b.is_finite() => (a - b).abs(),
        false => f64::INFINITY,
    };
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => floats(a, b),
        (Scalar::Complex(a, c), Scalar::Complex(b, d)) => floats(a, b).max(floats(c, d)),
        (Scalar::Int(a), Scalar::Int(b)) => a.abs_diff(b) as f64,
        (Scalar::Uint(a), Scalar::Uint(b)) => a.abs_diff(b) as f64,
        (Scalar::Pred(a), Scalar::Pred(b)) => f64::from(u8::from(a != b)),
        (Scalar::Float(_) | Scalar::Complex(..) | Scalar::Int(_) | Scalar::Uint(_) | Scalar::Pred(_), _) => {
            f64::INFINITY
        }
    }
}

fn index_of(flat: usize, dims: &[i64]) -> Vec<i64> {
    let mut rest = flat as i64;
    let mut index: Vec<i64> = dims
        .iter()
        .rev()
        .map(|&dim| {
            let at = rest % dim.max(1);
            rest /= dim.max(1);
            at
        })
        .collect();
    index.reverse();
    index
}

/// The inputs, each float moved up or down by this share of itself.
pub(crate) fn moved(inputs: &Inputs, share: f64) -> Inputs {
    let move_array = |array: &Arc<Literal>| -> Arc<Literal> {
        if !array.dtype().is_float() && !array.dtype().is_complex() {
            return Arc::clone(array);
        }
        let mut out = (**array).clone();
        for i in 0..out.n_elems() {
            // Neighbours go different ways, without a pattern that sums would cancel.
            let up = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
            let factor = if up { 1.0 + share } else { 1.0 - share };
            match out.get(i) {
                Some(Scalar::Float(value)) => out.set(i, Scalar::Float(value * factor)),
                Some(Scalar::Complex(re, im)) => out.set(i, Scalar::Complex(re * factor, im * factor)),
                Some(Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_)) | None => false,
            };
        }
        Arc::new(out)
    };
    let of_row = |row: &Vec<Arc<Literal>>| {
        let mut out: Vec<Arc<Literal>> = Vec::with_capacity(row.len());
        for (device, array) in row.iter().enumerate() {
            let same = row[..device].iter().position(|other| Arc::ptr_eq(other, array));
            out.push(same.map_or_else(|| move_array(array), |same| Arc::clone(&out[same])));
        }
        out
    };
    Inputs { leaves: inputs.leaves.iter().map(of_row).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs(values: &[f32]) -> Outputs {
        let array = Literal::from_elems(&[values.len() as i64], values.to_vec()).expect("a vector");
        Outputs { leaves: vec![vec![Arc::new(array)]] }
    }

    fn one(expected: &[f32], found: &[f32]) -> LeafDifference {
        differences(&outputs(expected), &outputs(found), (Tolerance::floor(0.0), &[])).remove(0)
    }

    #[test]
    fn floats_may_differ_by_a_share_of_the_largest() {
        assert_eq!(one(&[100.0, 20.0], &[100.0, 20.0015]).n_different, 0);
        let found = one(&[100.0, 20.0], &[100.0, 20.003]);
        assert_eq!((found.n_different, found.n_elems), (1, 2));
        assert_eq!(found.first.map(|first| (first.device, first.index)), Some((0, vec![1])));
    }

    #[test]
    fn a_huge_element_hides_no_other() {
        let mask = -1e9;
        assert_eq!(one(&[mask, 1.0, 2.0], &[mask, 1.0, -2.0]).n_different, 1);
        // Both round: then the huge one counts.
        assert_eq!(one(&[mask, 1.0], &[-1.000_000_1e9, 1.1]).n_different, 0);
        // Nor does one that cancels count for less than the others.
        assert_eq!(one(&[1.0, 1e-4], &[1.0, 1.000_1e-4]).n_different, 0);
    }

    #[test]
    fn a_small_step_from_an_input_is_what_counts() {
        let old: Vec<f32> = (0..100).map(|k| 1.0 + k as f32).collect();
        let stepped = |by: f32| outputs(&old.iter().map(|w| w - by).collect::<Vec<f32>>());
        let inputs = Inputs { leaves: [outputs(&[3.0; 100]).leaves, outputs(&old).leaves].concat() };
        let of = |right: &Outputs, found: &Outputs| {
            let measures = measures(&inputs, right);
            differences(right, found, (Tolerance::floor(0.0), &measures)).remove(0).n_different
        };
        assert_eq!(of(&stepped(1e-2), &stepped(1.02e-2)), 100);
        assert_eq!(of(&stepped(1e-2), &stepped(1.000_02e-2)), 0);
        // A value is rounded by more than a small one's step, but not the small one.
        assert!((20..80).contains(&of(&stepped(1e-5), &stepped(-1e-5))));
        // What is far from all inputs is measured by itself.
        assert_eq!(measures(&inputs, &outputs(&[50.0; 100])), [Measure::default()]);
    }

    #[test]
    fn few_integers_may_flip_where_moved_inputs_flip_some() {
        let integers = |values: &[i32]| Literal::from_elems(&[values.len() as i64], values.to_vec()).expect("a vector");
        let rows = |values: &[i32]| vec![Arc::new(integers(values))];
        let flips = Some(Flips { n_elems: 1, largest: 1.0 });
        let n_different = |found: &[i32], flips: Option<Flips>| {
            let tolerance = Tolerance::floor(0.0).of_output(Measure { flips, ..Measure::default() });
            of_leaf(&rows(&[1, 2, 3]), &rows(found), tolerance).n_different
        };
        assert_eq!((n_different(&[1, 2, 4], flips), n_different(&[1, 2, 4], None)), (0, 1));
        assert_eq!((n_different(&[1, 2, 5], flips), n_different(&[2, 2, 4], flips)), (1, 2));
    }

    #[test]
    fn infinities_hide_where_nothing_is_finite() {
        let infinite = f32::INFINITY;
        assert_eq!(one(&[infinite, -infinite], &[infinite, -infinite]).n_hiding, 2);
        assert_eq!(one(&[infinite, 1.0], &[infinite, 1.0]).n_hiding, 0);
    }

    #[test]
    fn nan_is_equal_to_nan_alone() {
        let nan = f32::NAN;
        assert_eq!(one(&[nan, 1.0], &[nan, 1.0]).n_different, 0);
        assert_eq!(one(&[nan, 1.0], &[nan, 1.0]).n_hiding, 1);
        assert_eq!(one(&[nan, 1.0], &[2.0, 1.0]).n_different, 1);
        assert_eq!(one(&[f32::INFINITY, 1.0], &[-f32::INFINITY, 1.0]).largest_error, f64::INFINITY);
    }

    #[test]
    fn ulps_are_those_of_the_types() {
        let ulps = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::S32].map(ulp_of_one);
        assert_eq!(ulps, [0.5f64.powi(52), 0.5f64.powi(23), 0.5f64.powi(7), 0.5f64.powi(10), 0.0]);
    }

    #[test]
    fn places_are_counted_row_by_row() {
        assert_eq!(index_of(17, &[2, 3, 4]), [1, 1, 1]);
        assert_eq!(index_of(0, &[]), [0i64; 0]);
    }

    #[test]
    fn moved_inputs_stay_shared_and_near() {
        let array = Arc::new(Literal::from_elems(&[2], vec![1.0f32, -3.0]).expect("a vector"));
        let row = vec![Arc::clone(&array), array];
        let out = moved(&Inputs { leaves: vec![row.clone()] }, PERTURB);
        assert!(Arc::ptr_eq(&out.leaves[0][0], &out.leaves[0][1]));
        assert!(out.leaves[0][0] != row[0]);
    }
}
