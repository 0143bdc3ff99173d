//! Floats below 32 bits, as XLA's CPU backend adds them: every step is rounded, and long sums are taken in rounds.
//!
//! The rounding of each step makes the order of a sum visible: a `bf16` 256 stays 256 when any number of ones is added to it,
//! one at a time. So the order is XLA's too:
//! - a `reduce` over dims of more than 32 elements first reduces windows of 32, until 32 or fewer are left;
//! - a `reduce-window` that sums up a whole dim cumulatively works in blocks of 16.
//!
//! Both start every window from the initial value, which is neutral in a sensible module.

use half::{bf16, f16};
use hlo_ir::attrs::WindowDim;
use hlo_ir::float::minifloat::Format;
use hlo_ir::{DType, Literal};

use crate::EvalError;

/// How a result computed in `f32` is rounded when it is stored as a smaller float.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rounding {
    /// To `bf16`.
    Bf16,
    /// To `f16`.
    F16,
    /// To `f16`, in which XLA computes the 8-bit formats, and then to the format.
    ThroughF16(Format),
    /// To a format with a wider range than `f16`, at once.
    Direct(Format),
}

impl Rounding {
    /// The rounding of a floating-point type below 32 bits; `None` for every other type.
    pub(crate) fn of(dtype: DType) -> Option<Rounding> {
        let format = Format::of(dtype)?;
        let f16_exponent_bits = Format::of(DType::F16)?.exponent_bits;
        Some(match dtype {
            DType::BF16 => Rounding::Bf16,
            DType::F16 => Rounding::F16,
            _ if format.exponent_bits <= f16_exponent_bits => Rounding::ThroughF16(format),
            _ => Rounding::Direct(format),
        })
    }

    /// The value as it is read back after being stored.
    #[inline]
    pub(crate) fn round(self, x: f32) -> f32 {
        match self {
            Rounding::Bf16 => bf16::from_f32(x).to_f32(),
            Rounding::F16 => f16::from_f32(x).to_f32(),
            Rounding::ThroughF16(format) => format.decode(format.encode(f16::from_f32(x).to_f64())) as f32,
            Rounding::Direct(format) => format.decode(format.encode(f64::from(x))) as f32,
        }
    }
}

/// An array that was computed in a wider float, rounded as XLA stores it in an array of `dtype`.
pub(crate) fn stored(wide: Literal, dtype: DType) -> Literal {
    match Rounding::of(dtype) {
        Some(Rounding::ThroughF16(_)) => wide.convert(DType::F16).convert(dtype),
        Some(Rounding::Bf16 | Rounding::F16 | Rounding::Direct(_)) | None if wide.dtype() != dtype => {
            wide.convert(dtype)
        }
        Some(Rounding::Bf16 | Rounding::F16 | Rounding::Direct(_)) | None => wide,
    }
}

/// The type in which a collective adds values of type `dtype`; they are rounded to `dtype` once, at the end.
pub(crate) fn collective_type(dtype: DType) -> DType {
    match Rounding::of(dtype) {
        Some(Rounding::Bf16 | Rounding::Direct(_)) => DType::F32,
        Some(Rounding::F16 | Rounding::ThroughF16(_)) => DType::F16,
        None => dtype,
    }
}

/// Elements that a cumulative sum takes in one go.
const BLOCK: usize = 16;

/// A window that sums up one dim cumulatively.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cumulative {
    dim_idx: usize,
    is_from_end: bool,
    /// The sums leave their own place out, and there is one more of them.
    is_exclusive: bool,
}

impl Cumulative {
    /// What `window` sums up over an array of `dims`, if that is one dim as a whole and longer than a block.
    pub(crate) fn find(dims: &[i64], window: &[WindowDim]) -> Option<Cumulative> {
        let trivial = WindowDim::default();
        let mut wide = window.iter().enumerate().filter(|(_, dim)| **dim != trivial);
        let (Some((dim_idx, dim)), None) = (wide.next(), wide.next()) else { return None };
        let n = *dims.get(dim_idx)?;
        let plain = WindowDim { size: n, pad_low: dim.pad_low, pad_high: dim.pad_high, ..trivial };
        if *dim != plain || n <= BLOCK as i64 {
            return None;
        }
        let (is_from_end, reach) = match (dim.pad_low, dim.pad_high) {
            (reach, 0) => (false, reach),
            (0, reach) => (true, reach),
            _ => return None,
        };
        (reach == n || reach == n - 1).then_some(Cumulative { dim_idx, is_from_end, is_exclusive: reach == n })
    }

    /// The sums of `elems`, an array of `dims` in row-major order.
    ///
    /// # Errors
    /// Those of `combine`.
    pub(crate) fn run<T: Copy>(
        self,
        elems: &[T],
        dims: &[i64],
        init: T,
        combine: &mut dyn FnMut(T, T) -> Result<T, EvalError>,
    ) -> Result<Vec<T>, EvalError> {
        let n = dims.get(self.dim_idx).map_or(0, |&n| n as usize);
        let inner: usize = dims.iter().skip(self.dim_idx + 1).map(|&n| n as usize).product();
        let n_sums = n + usize::from(self.is_exclusive);
        if elems.is_empty() || !elems.len().is_multiple_of(n * inner) {
            return Ok(Vec::new());
        }
        let mut out = vec![init; elems.len() / n * n_sums];
        for (block, sums) in elems.chunks_exact(n * inner).zip(out.chunks_exact_mut(n_sums * inner)) {
            for column in 0..inner {
                let line: Vec<T> = block.iter().skip(column).step_by(inner).copied().collect();
                let start = if self.is_exclusive && !self.is_from_end { inner } else { 0 };
                let places = sums.iter_mut().skip(start + column).step_by(inner);
                places.zip(self.sum_line(&line, init, combine)?).for_each(|(place, sum)| *place = sum);
            }
        }
        Ok(out)
    }

    fn sum_line<T: Copy>(
        self,
        line: &[T],
        init: T,
        combine: &mut dyn FnMut(T, T) -> Result<T, EvalError>,
    ) -> Result<Vec<T>, EvalError> {
        if line.len() <= BLOCK {
            return self.sum_block(line, init, combine);
        }
        let mut local = Vec::with_capacity(line.len().div_ceil(BLOCK));
        for block in line.chunks(BLOCK) {
            let mut block = block.to_vec();
            block.resize(BLOCK, init);
            local.push(self.sum_block(&block, init, combine)?);
        }
        let whole = |sums: &Vec<T>| if self.is_from_end { sums.first().copied() } else { sums.last().copied() };
        let wholes: Vec<T> = local.iter().filter_map(whole).collect();
        let mut others = self.sum_line(&wholes, init, combine)?;
        // Every block is joined with the sum of the blocks before it (or after it).
        if self.is_from_end {
            others.push(init);
            others.remove(0);
        } else {
            others.insert(0, init);
        }
        let mut out = Vec::with_capacity(line.len());
        for (sums, other) in local.into_iter().zip(others) {
            for sum in sums {
                out.push(combine(sum, other)?);
            }
        }
        out.truncate(line.len());
        Ok(out)
    }

    /// Every sum by itself, from the initial value and in ascending order.
    fn sum_block<T: Copy>(
        self,
        block: &[T],
        init: T,
        combine: &mut dyn FnMut(T, T) -> Result<T, EvalError>,
    ) -> Result<Vec<T>, EvalError> {
        let range = |i: usize| if self.is_from_end { i..block.len() } else { 0..i + 1 };
        (0..block.len()).map(|i| block[range(i)].iter().try_fold(init, |sum, &x| combine(sum, x))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::reduce::reduce;
    use super::super::reducer::ScalarReducer;
    use super::*;
    use hlo_ir::Literal;
    use hlo_ir::Scalar;
    use hlo_ir::monoid::Monoid;
    use std::sync::Arc;

    /// A large value, then ones that it swallows if they are added to it one at a time.
    fn swallowing(dtype: DType, large: f64, n: i64) -> Literal {
        let mut out = Literal::splat(dtype, &[n], Scalar::Float(1.0)).unwrap();
        out.set(0, Scalar::Float(large));
        out
    }

    #[test]
    fn long_sums_are_taken_in_rounds_as_xla_takes_them() {
        // Length of the row and its sum, computed by XLA's CPU backend.
        let bf16 = [(3, 256.0), (32, 256.0), (33, 272.0), (100, 338.0), (1000, 1232.0), (5000, 5248.0)];
        let f16 = [(3, 2048.0), (32, 2048.0), (33, 2064.0), (100, 2130.0), (1000, 3028.0), (5000, 7028.0)];
        for (dtype, large, sums) in [(DType::BF16, 256.0, bf16), (DType::F16, 2048.0, f16)] {
            for (n, want) in sums {
                let (x, init) = (swallowing(dtype, large, n), Literal::scalar(dtype, Scalar::Float(0.0)));
                let mut add = ScalarReducer { known: Monoid::Add, dtype };
                let out = reduce(&[Arc::new(x)], &[Arc::new(init)], &[0], &mut add).unwrap();
                assert_eq!(out[0].get(0), Some(Scalar::Float(want)), "{dtype} {n}");
            }
        }
    }

    #[test]
    fn cumulative_windows_are_found() {
        let w = WindowDim::default();
        let sum = |n, pad_low, pad_high| WindowDim { size: n, pad_low, pad_high, ..w };
        let found = |is_from_end, is_exclusive| Some(Cumulative { dim_idx: 1, is_from_end, is_exclusive });
        for (dim, want) in [
            (sum(40, 39, 0), found(false, false)),
            (sum(40, 40, 0), found(false, true)),
            (sum(40, 0, 39), found(true, false)),
            (sum(40, 0, 40), found(true, true)),
            (sum(40, 39, 1), None),
            (sum(39, 38, 0), None),
            (WindowDim { is_reversed: true, ..sum(40, 39, 0) }, None),
        ] {
            assert_eq!(Cumulative::find(&[3, 40], &[w, dim]), want, "{dim:?}");
        }
        assert_eq!(Cumulative::find(&[3, 16], &[w, sum(16, 15, 0)]), None);
        assert_eq!(Cumulative::find(&[20, 40], &[sum(20, 19, 0), sum(40, 39, 0)]), None);
    }

    #[test]
    fn cumulative_sums_are_those_of_the_definition() {
        let elems: Vec<i64> = (0..2 * 300 * 3).map(|i| i * i % 23).collect();
        let mut add = |a: i64, b: i64| Ok(a + b);
        for (is_from_end, is_exclusive) in [(false, false), (false, true), (true, false), (true, true)] {
            let cumulative = Cumulative { dim_idx: 1, is_from_end, is_exclusive };
            let out = cumulative.run(&elems, &[2, 300, 3], 0, &mut add).unwrap();
            let n_sums = 300 + usize::from(is_exclusive);
            assert_eq!(out.len(), 2 * n_sums * 3);
            for (at, &sum) in out.iter().enumerate() {
                let (i, j, k) = (at / 3 / n_sums, at / 3 % n_sums, at % 3);
                let range = match (is_from_end, is_exclusive) {
                    (false, false) => 0..j + 1,
                    (false, true) => 0..j,
                    (true, _) => j..300,
                };
                let want: i64 = range.map(|j| elems[(i * 300 + j) * 3 + k]).sum();
                assert_eq!(sum, want, "{cumulative:?} {i} {j} {k}");
            }
        }
    }

    #[test]
    fn small_formats_are_rounded_through_f16() {
        // The square root of 0.953125 is a tie of f8e3m4 once it is rounded to f16.
        let rounding = Rounding::of(DType::F8E3M4).unwrap();
        assert_eq!(rounding.round(0.953_125_f32.sqrt()), 0.96875);
        assert_eq!(collective_type(DType::BF16), DType::F32);
        assert_eq!(collective_type(DType::F16), DType::F16);
        assert_eq!(collective_type(DType::F8E5M2), DType::F16);
        assert_eq!(collective_type(DType::F8E8M0FNU), DType::F32);
        assert_eq!(collective_type(DType::S8), DType::S8);
    }
}
