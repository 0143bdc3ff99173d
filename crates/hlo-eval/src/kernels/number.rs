//! The few machine types in which kernels compute, and the way from and to every element type.
//!
//! Small types are computed in a wide one and brought back once at the end, as XLA's CPU backend does for sums and
//! products: integers in 64 bits (wrapping commutes with add and multiply), floats up to `f32` in `f32`.

use std::borrow::Cow;
use std::cmp::Ordering;

use half::{bf16, f16};
use hlo_ir::float::Complex;
use hlo_ir::literal::Element;
use hlo_ir::{DType, Literal, NumberClass, Scalar};

use crate::EvalError;

/// A type in which kernels compute.
pub(crate) trait Number: Element + PartialEq + Default {
    /// The neutral element of [`Number::add`].
    const ZERO: Self;
    /// The order of two values; `None` if one is a NaN or complex.
    fn order(self, other: Self) -> Option<Ordering>;
    /// The order in which -NaN < -inf < … < -0 < 0 < … < inf < NaN; complex numbers are all equal.
    fn total_order(self, other: Self) -> Ordering;
    /// HLO's `add`; `or` of predicates.
    fn add(self, other: Self) -> Self;
    /// HLO's `multiply`; `and` of predicates.
    fn multiply(self, other: Self) -> Self;
    /// HLO's `maximum`; complex numbers have none and give the first operand.
    fn maximum(self, other: Self) -> Self;
    /// HLO's `minimum`; complex numbers have none and give the first operand.
    fn minimum(self, other: Self) -> Self;
    /// HLO's `and`; floating-point and complex numbers have none and give the first operand.
    fn and(self, other: Self) -> Self;
    /// HLO's `or`; floating-point and complex numbers have none and give the first operand.
    fn or(self, other: Self) -> Self;
    /// `c += a·b` of row-major matrices, `a: [m, k]`, `b: [k, n]`, `c: [m, n]`; slices of other lengths are left alone.
    fn multiply_matrices(size: MatrixSize, a: &[Self], b: &[Self], c: &mut [Self]) {
        multiply_plainly(size, a, b, c);
    }
}

/// Sizes of a matrix product `[m, k]·[k, n]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MatrixSize {
    /// Rows of the left matrix and of the result.
    pub m: usize,
    /// Columns of the left matrix, rows of the right one.
    pub k: usize,
    /// Columns of the right matrix and of the result.
    pub n: usize,
}

impl MatrixSize {
    fn fits<T>(self, a: &[T], b: &[T], c: &[T]) -> bool {
        let product = |x: usize, y: usize| x.checked_mul(y);
        product(self.m, self.k) == Some(a.len())
            && product(self.k, self.n) == Some(b.len())
            && product(self.m, self.n) == Some(c.len())
    }
}

fn multiply_plainly<T: Number>(size: MatrixSize, a: &[T], b: &[T], c: &mut [T]) {
    if !size.fits(a, b, c) || a.is_empty() || b.is_empty() {
        return;
    }
    for (row, out) in a.chunks_exact(size.k).zip(c.chunks_exact_mut(size.n)) {
        for (&x, factors) in row.iter().zip(b.chunks_exact(size.n)) {
            for (sum, &y) in out.iter_mut().zip(factors) {
                *sum = sum.add(x.multiply(y));
            }
        }
    }
}

impl Number for bool {
    const ZERO: bool = false;
    fn order(self, other: bool) -> Option<Ordering> {
        Some(self.cmp(&other))
    }
    fn total_order(self, other: bool) -> Ordering {
        self.cmp(&other)
    }
    fn add(self, other: bool) -> bool {
        self | other
    }
    fn multiply(self, other: bool) -> bool {
        self & other
    }
    fn maximum(self, other: bool) -> bool {
        self | other
    }
    fn minimum(self, other: bool) -> bool {
        self & other
    }
    fn and(self, other: bool) -> bool {
        self & other
    }
    fn or(self, other: bool) -> bool {
        self | other
    }
}

macro_rules! integer {
    ($($int:ty),*) => {$(
        impl Number for $int {
            const ZERO: $int = 0;
            #[inline]
            fn order(self, other: $int) -> Option<Ordering> {
                Some(self.cmp(&other))
            }
            #[inline]
            fn total_order(self, other: $int) -> Ordering {
                self.cmp(&other)
            }
            #[inline]
            fn add(self, other: $int) -> $int {
                self.wrapping_add(other)
            }
            #[inline]
            fn multiply(self, other: $int) -> $int {
                self.wrapping_mul(other)
            }
            #[inline]
            fn maximum(self, other: $int) -> $int {
                self.max(other)
            }
            #[inline]
            fn minimum(self, other: $int) -> $int {
                self.min(other)
            }
            #[inline]
            fn and(self, other: $int) -> $int {
                self & other
            }
            #[inline]
            fn or(self, other: $int) -> $int {
                self | other
            }
        }
    )*};
}
integer!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! float {
    ($($float:ty, $gemm:path;)*) => {$(
        impl Number for $float {
            const ZERO: $float = 0.0;
            #[inline]
            fn order(self, other: $float) -> Option<Ordering> {
                self.partial_cmp(&other)
            }
            #[inline]
            fn total_order(self, other: $float) -> Ordering {
                self.total_cmp(&other)
            }
            #[inline]
            fn add(self, other: $float) -> $float {
                self + other
            }
            #[inline]
            fn multiply(self, other: $float) -> $float {
                self * other
            }
            #[inline]
            fn maximum(self, other: $float) -> $float {
                if self > other || self.is_nan() || (self == other && other.is_sign_negative()) { self } else { other }
            }
            #[inline]
            fn minimum(self, other: $float) -> $float {
                if self < other || self.is_nan() || (self == other && self.is_sign_negative()) { self } else { other }
            }
            fn and(self, _other: $float) -> $float {
                self
            }
            fn or(self, _other: $float) -> $float {
                self
            }
            #[allow(unsafe_code)] // matrixmultiply takes pointers; `fits` has checked all three lengths.
            fn multiply_matrices(size: MatrixSize, a: &[$float], b: &[$float], c: &mut [$float]) {
                if !size.fits(a, b, c) || a.is_empty() || b.is_empty() {
                    return;
                }
                let MatrixSize { m, k, n } = size;
                let (row, wide) = (k as isize, n as isize);
                // SAFETY: the matrices are dense and row-major with the lengths m·k, k·n and m·n; `c` is not shared.
                unsafe {
                    $gemm(m, k, n, 1.0, a.as_ptr(), row, 1, b.as_ptr(), wide, 1, 1.0, c.as_mut_ptr(), wide, 1);
                }
            }
        }
    )*};
}
float! {
    f32, matrixmultiply::sgemm;
    f64, matrixmultiply::dgemm;
}

macro_rules! half_float {
    ($($half:ty),*) => {$(
        /// Every step is computed in `f32` and rounded.
        impl Number for $half {
            const ZERO: $half = <$half>::ZERO;
            fn order(self, other: $half) -> Option<Ordering> {
                self.partial_cmp(&other)
            }
            fn total_order(self, other: $half) -> Ordering {
                self.total_cmp(&other)
            }
            fn add(self, other: $half) -> $half {
                <$half>::from_f32(self.to_f32() + other.to_f32())
            }
            fn multiply(self, other: $half) -> $half {
                <$half>::from_f32(self.to_f32() * other.to_f32())
            }
            fn maximum(self, other: $half) -> $half {
                <$half>::from_f32(Number::maximum(self.to_f32(), other.to_f32()))
            }
            fn minimum(self, other: $half) -> $half {
                <$half>::from_f32(Number::minimum(self.to_f32(), other.to_f32()))
            }
            fn and(self, _other: $half) -> $half {
                self
            }
            fn or(self, _other: $half) -> $half {
                self
            }
        }
    )*};
}
half_float!(f16, bf16);

macro_rules! complex {
    ($($part:ty),*) => {$(
        impl Number for Complex<$part> {
            const ZERO: Self = Complex::new(0.0, 0.0);
            fn order(self, _other: Self) -> Option<Ordering> {
                None
            }
            fn total_order(self, _other: Self) -> Ordering {
                Ordering::Equal
            }
            #[inline]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            fn maximum(self, _other: Self) -> Self {
                self
            }
            fn minimum(self, _other: Self) -> Self {
                self
            }
            fn and(self, _other: Self) -> Self {
                self
            }
            fn or(self, _other: Self) -> Self {
                self
            }
        }
    )*};
}
complex!(f32, f64);

/// Runs `$body` with `$T` standing for the machine type of a compute type (see [`compute_type`]).
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            hlo_ir::DType::Pred => {
                type $T = bool;
                $body
            }
            hlo_ir::DType::S64 => {
                type $T = i64;
                $body
            }
            hlo_ir::DType::U64 => {
                type $T = u64;
                $body
            }
            hlo_ir::DType::F32 => {
                type $T = f32;
                $body
            }
            hlo_ir::DType::F64 => {
                type $T = f64;
                $body
            }
            hlo_ir::DType::C64 => {
                type $T = hlo_ir::float::Complex<f32>;
                $body
            }
            hlo_ir::DType::C128 => {
                type $T = hlo_ir::float::Complex<f64>;
                $body
            }
            other => Err($crate::EvalError::unsupported(format!("computing in {other}"))),
        }
    };
}
pub(crate) use with_number;

/// Runs `$body` with `$T` standing for the type that elements of `$dtype` are stored as; `$otherwise` for the types
/// below 16 bits that have no arithmetic of their own.
macro_rules! with_stored {
    ($dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        match $dtype {
            hlo_ir::DType::Pred => {
                type $T = bool;
                $body
            }
            hlo_ir::DType::S1 | hlo_ir::DType::S2 | hlo_ir::DType::S4 | hlo_ir::DType::S8 => {
                type $T = i8;
                $body
            }
            hlo_ir::DType::U1 | hlo_ir::DType::U2 | hlo_ir::DType::U4 | hlo_ir::DType::U8 => {
                type $T = u8;
                $body
            }
            hlo_ir::DType::S16 => {
                type $T = i16;
                $body
            }
            hlo_ir::DType::U16 => {
                type $T = u16;
                $body
            }
            hlo_ir::DType::S32 => {
                type $T = i32;
                $body
            }
            hlo_ir::DType::U32 => {
                type $T = u32;
                $body
            }
            hlo_ir::DType::S64 => {
                type $T = i64;
                $body
            }
            hlo_ir::DType::U64 => {
                type $T = u64;
                $body
            }
            hlo_ir::DType::F16 => {
                type $T = half::f16;
                $body
            }
            hlo_ir::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            hlo_ir::DType::F32 => {
                type $T = f32;
                $body
            }
            hlo_ir::DType::F64 => {
                type $T = f64;
                $body
            }
            hlo_ir::DType::C64 => {
                type $T = hlo_ir::float::Complex<f32>;
                $body
            }
            hlo_ir::DType::C128 => {
                type $T = hlo_ir::float::Complex<f64>;
                $body
            }
            hlo_ir::DType::F4E2M1FN
            | hlo_ir::DType::F6E2M3FN
            | hlo_ir::DType::F6E3M2FN
            | hlo_ir::DType::F8E3M4
            | hlo_ir::DType::F8E4M3
            | hlo_ir::DType::F8E4M3FN
            | hlo_ir::DType::F8E4M3B11FNUZ
            | hlo_ir::DType::F8E4M3FNUZ
            | hlo_ir::DType::F8E5M2
            | hlo_ir::DType::F8E5M2FNUZ
            | hlo_ir::DType::F8E8M0FNU => $otherwise,
        }
    };
}
pub(crate) use with_stored;

/// The type in which a kernel computes a result of `result` from operands of `operands`: one of `pred`, `s64`, `u64`,
/// `f32`, `f64`, `c64`, `c128`.
pub(crate) fn compute_type(result: DType, operands: &[DType]) -> DType {
    let is_double = |dtype: &DType| matches!(dtype, DType::F64 | DType::C128);
    let is_wide = is_double(&result) || operands.iter().any(is_double);
    match result.class() {
        NumberClass::Pred => DType::Pred,
        NumberClass::Signed => DType::S64,
        NumberClass::Unsigned => DType::U64,
        NumberClass::Float if is_wide => DType::F64,
        NumberClass::Float => DType::F32,
        NumberClass::Complex if is_wide => DType::C128,
        NumberClass::Complex => DType::C64,
    }
}

/// All elements, widened.
pub(crate) fn scalars(literal: &Literal) -> Vec<Scalar> {
    (0..literal.n_elems()).filter_map(|i| literal.get(i)).collect()
}

/// The array of `dtype` with these elements, each converted to it.
pub(crate) fn from_scalars(dtype: DType, dims: &[i64], scalars: &[Scalar]) -> Result<Literal, EvalError> {
    let int = |x: &Scalar| match *x {
        Scalar::Pred(x) => i64::from(x),
        Scalar::Int(x) => x,
        Scalar::Uint(x) => x as i64,
        Scalar::Float(x) | Scalar::Complex(x, _) => x as i64,
    };
    let real = |x: &Scalar| match *x {
        Scalar::Float(x) | Scalar::Complex(x, _) => x,
        Scalar::Uint(x) => x as f64,
        Scalar::Pred(_) | Scalar::Int(_) => int(x) as f64,
    };
    match dtype.class() {
        NumberClass::Pred => finished(dims, scalars.iter().map(|x| real(x) != 0.0).collect(), dtype),
        NumberClass::Signed => finished(dims, scalars.iter().map(int).collect(), dtype),
        NumberClass::Unsigned => finished(dims, scalars.iter().map(|x| int(x) as u64).collect(), dtype),
        NumberClass::Float => finished(dims, scalars.iter().map(real).collect(), dtype),
        NumberClass::Complex => {
            let complex = |x: &Scalar| match *x {
                Scalar::Complex(re, im) => Complex::new(re, im),
                Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_) | Scalar::Float(_) => Complex::new(real(x), 0.0),
            };
            finished(dims, scalars.iter().map(complex).collect(), dtype)
        }
    }
}

/// The literal in `dtype`, converted only if it is of another type.
pub(crate) fn converted(literal: &Literal, dtype: DType) -> Cow<'_, Literal> {
    if literal.dtype() == dtype { Cow::Borrowed(literal) } else { Cow::Owned(literal.convert(dtype)) }
}

/// The elements of a literal that must be stored as `T`.
pub(crate) fn typed<T: Element>(literal: &Literal) -> Result<&[T], EvalError> {
    literal.elems::<T>().ok_or_else(|| {
        EvalError::invalid(format!("expected elements stored as {}, found {}", T::DTYPE, literal.dtype()))
    })
}

/// A literal of computed elements, brought to the element type `dtype`.
pub(crate) fn finished<T: Element>(dims: &[i64], elems: Vec<T>, dtype: DType) -> Result<Literal, EvalError> {
    let literal = Literal::from_elems(dims, elems).map_err(|error| EvalError::invalid(error.to_string()))?;
    Ok(if literal.dtype() == dtype { literal } else { literal.convert(dtype) })
}
