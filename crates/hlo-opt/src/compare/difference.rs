//! How far the outputs of two runs are apart: the oracle's measure.
//!
//! Integers and booleans must be equal, NaN and infinities stand in the same places, and floats be no further apart than a share of
//! the largest element of their output over all devices.

use hlo_eval::{Inputs, Outputs};
use hlo_ir::literal::Scalar;
use hlo_ir::{DType, Literal};
use std::sync::Arc;

/// Rounding of another order of summation, with room to spare.
const FLOOR: f64 = 2e-5;
/// Half an ulp of f32: what any correct implementation may do to an input.
const PERTURB: f64 = 6e-8;
/// How many times what moved inputs change is allowed.
const MARGIN: f64 = 10.0;
/// A share above this would prove nothing.
const WIDEST: f64 = 0.1;

/// By how much floats may differ.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Tolerance {
    /// Of the largest element of an output.
    pub share: f64,
    /// Whether narrow types may be an ulp of theirs apart.
    pub allows_ulp: bool,
    /// Besides.
    pub absolute: f64,
}

impl Tolerance {
    /// What is allowed where nothing is said of the module.
    pub(crate) fn floor(absolute: f64) -> Tolerance {
        Tolerance { share: FLOOR, allows_ulp: true, absolute }
    }

    /// What is allowed of a module whose outputs change by so much when its inputs move by half an ulp.
    pub(crate) fn widened(self, moved: &[LeafDifference]) -> Tolerance {
        let worst = moved.iter().filter(|leaf| leaf.largest_error.is_finite()).map(LeafDifference::share);
        let change = worst.fold(0.0, f64::max);
        Tolerance { share: self.share.max((MARGIN * change).min(WIDEST)), ..self }
    }

    fn allowed(self, dtype: DType, largest: f64) -> f64 {
        let share = if self.allows_ulp { self.share.max(ulp_of_one(dtype)) } else { self.share };
        self.absolute + share * largest
    }
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
    /// The first value that differs by more than is allowed.
    pub first: Option<FirstDifference>,
    /// How many differ so.
    pub n_different: usize,
    /// How many there are.
    pub n_elems: usize,
    /// The largest difference; infinite where a NaN or an infinity is in another place, or integers differ.
    pub largest_error: f64,
    /// The largest finite element that is right.
    pub largest: f64,
    /// What is allowed.
    pub allowed: f64,
    /// Elements that are NaN in the reference: they hide differences.
    pub n_nan: usize,
    /// Of a global program's output, how it is taken to be cut.
    pub cut: Option<String>,
}

impl LeafDifference {
    /// The largest difference over the largest element.
    pub(crate) fn share(&self) -> f64 {
        if self.largest > 0.0 { self.largest_error / self.largest } else { self.largest_error }
    }
}

/// The differences of `[leaf][device]` arrays; the shapes are the same.
pub(crate) fn differences(expected: &Outputs, found: &Outputs, tolerance: Tolerance) -> Vec<LeafDifference> {
    let rows = expected.leaves.iter().zip(&found.leaves);
    rows.map(|(expected, found)| of_leaf(expected, found, tolerance)).collect()
}

/// The differences of one output's arrays, `[device]`; the shapes are the same.
pub(crate) fn of_leaf(expected: &[Arc<Literal>], found: &[Arc<Literal>], tolerance: Tolerance) -> LeafDifference {
    let dtype = expected.first().map_or(DType::Pred, |array| array.dtype());
    let scalars = |array: &Arc<Literal>| (0..array.n_elems()).filter_map(|i| array.get(i)).collect::<Vec<_>>();
    let mut out = LeafDifference {
        first: None,
        n_different: 0,
        n_elems: 0,
        largest_error: 0.0,
        largest: 0.0,
        allowed: 0.0,
        n_nan: 0,
        cut: None,
    };
    let mut n_nan_before = 0;
    for (device, array) in expected.iter().enumerate() {
        // Arrays that neighboring devices share are looked at once, and counted for each.
        if device == 0 || !Arc::ptr_eq(array, &expected[device - 1]) {
            n_nan_before = 0;
            for magnitude in scalars(array).into_iter().map(magnitude) {
                n_nan_before += usize::from(magnitude.is_nan());
                out.largest = if magnitude.is_finite() { out.largest.max(magnitude) } else { out.largest };
            }
        }
        out.n_nan += n_nan_before;
    }
    let is_inexact = dtype.is_float() || dtype.is_complex();
    out.allowed = if is_inexact { tolerance.allowed(dtype, out.largest) } else { 0.0 };
    for (device, (expected, found)) in expected.iter().zip(found).enumerate() {
        out.n_elems += expected.n_elems();
        if Arc::ptr_eq(expected, found) || expected == found {
            continue;
        }
        for i in 0..expected.n_elems() {
            let (Some(a), Some(b)) = (expected.get(i), found.get(i)) else { continue };
            let error = apart(a, b);
            out.largest_error = out.largest_error.max(error);
            if error > out.allowed {
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
    out
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

/// The inputs, each float moved up or down by half an ulp of f32.
pub(crate) fn moved(inputs: &Inputs) -> Inputs {
    let move_array = |array: &Arc<Literal>| -> Arc<Literal> {
        if !array.dtype().is_float() && !array.dtype().is_complex() {
            return Arc::clone(array);
        }
        let mut out = (**array).clone();
        for i in 0..out.n_elems() {
            // Neighbours go different ways, without a pattern that sums would cancel.
            let up = (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
            let factor = if up { 1.0 + PERTURB } else { 1.0 - PERTURB };
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
        differences(&outputs(expected), &outputs(found), Tolerance::floor(0.0)).remove(0)
    }

    #[test]
    fn floats_may_differ_by_a_share_of_the_largest() {
        assert_eq!(one(&[100.0, 1.0], &[100.0, 1.0015]).n_different, 0);
        let found = one(&[100.0, 1.0], &[100.0, 1.003]);
        assert_eq!((found.n_different, found.n_elems), (1, 2));
        assert_eq!(found.first.map(|first| (first.device, first.index)), Some((0, vec![1])));
    }

    #[test]
    fn nan_is_equal_to_nan_alone() {
        let nan = f32::NAN;
        assert_eq!(one(&[nan, 1.0], &[nan, 1.0]).n_different, 0);
        assert_eq!(one(&[nan, 1.0], &[nan, 1.0]).n_nan, 1);
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
        let out = moved(&Inputs { leaves: vec![row.clone()] });
        assert!(Arc::ptr_eq(&out.leaves[0][0], &out.leaves[0][1]));
        assert!(out.leaves[0][0] != row[0]);
    }
}
