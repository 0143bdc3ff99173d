//! `cholesky` and `triangular-solve`, batched; computed in `f64` (or its complex form) and rounded once.

use hlo_ir::attrs::{CholeskyAttrs, TriangularSolveAttrs};
use hlo_ir::float::Complex;
use hlo_ir::{DType, Literal};

use super::number::{Number, compute_type, converted, finished, typed};
use crate::EvalError;

/// Numbers that can be divided.
trait Field: Number {
    const NAN: Self;
    fn minus(self, other: Self) -> Self;
    fn over(self, other: Self) -> Self;
    fn conjugate(self) -> Self;
    /// The square root of the real part, if that is positive.
    fn pivot(self) -> Option<Self>;
}

impl Field for f64 {
    const NAN: f64 = f64::NAN;
    fn minus(self, other: f64) -> f64 {
        self - other
    }
    fn over(self, other: f64) -> f64 {
        self / other
    }
    fn conjugate(self) -> f64 {
        self
    }
    fn pivot(self) -> Option<f64> {
        (self > 0.0).then(|| self.sqrt())
    }
}

impl Field for Complex<f64> {
    const NAN: Self = Complex::new(f64::NAN, f64::NAN);
    fn minus(self, other: Self) -> Self {
        self - other
    }
    fn over(self, other: Self) -> Self {
        self / other
    }
    fn conjugate(self) -> Self {
        Complex::new(self.re, -self.im)
    }
    fn pivot(self) -> Option<Self> {
        Some(Complex::new(self.re.pivot()?, 0.0))
    }
}

/// Rows and columns of the last two dims.
fn matrix_dims(what: &str, literal: &Literal) -> Result<(usize, usize), EvalError> {
    match *literal.dims() {
        [.., rows, columns] => Ok((rows as usize, columns as usize)),
        _ => Err(EvalError::invalid(format!("{what}: expected matrices, found dims {:?}", literal.dims()))),
    }
}

/// The wide type of a real or complex element type.
fn field_type(what: &str, dtype: DType) -> Result<DType, EvalError> {
    match compute_type(dtype, &[]) {
        DType::F32 | DType::F64 => Ok(DType::F64),
        DType::C64 | DType::C128 => Ok(DType::C128),
        _ => Err(EvalError::invalid(format!("{what}: expected real or complex elements, found {dtype}"))),
    }
}

/// `cholesky`: `a = l·lᴴ` (`lower`) or `a = uᴴ·u` of `[batch…, n, n]`. Only the triangle asked for is read; the other one
/// is 0 in the result, and a matrix that is not positive definite gives NaN everywhere, as in XLA.
///
/// # Errors
/// An operand that is no batch of square matrices.
pub(crate) fn cholesky(operand: &Literal, attrs: &CholeskyAttrs) -> Result<Literal, EvalError> {
    let (n, columns) = matrix_dims("cholesky", operand)?;
    if n != columns {
        return Err(EvalError::invalid(format!("cholesky: expected square matrices, found {:?}", operand.dims())));
    }
    let dtype = field_type("cholesky", operand.dtype())?;
    let wide = converted(operand, dtype);
    match dtype {
        DType::C128 => {
            let out = factors::<Complex<f64>>(typed(&wide)?, n, attrs.lower);
            finished(operand.dims(), out, operand.dtype())
        }
        _ => finished(operand.dims(), factors::<f64>(typed(&wide)?, n, attrs.lower), operand.dtype()),
    }
}

fn factors<T: Field>(elems: &[T], n: usize, is_lower: bool) -> Vec<T> {
    let mut out = vec![T::ZERO; elems.len()];
    for (a, l) in elems.chunks_exact((n * n).max(1)).zip(out.chunks_exact_mut((n * n).max(1))) {
        // The upper factor is the conjugate transpose of the lower one, so one recurrence serves both.
        let at = |i: usize, j: usize| if is_lower { i * n + j } else { j * n + i };
        if !factor(n, |i, j| if is_lower { a[at(i, j)] } else { a[at(i, j)].conjugate() }, l) {
            l.fill(T::NAN);
        } else if !is_lower {
            for i in 0..n {
                for j in 0..=i {
                    let x = l[i * n + j];
                    l[i * n + j] = T::ZERO;
                    l[j * n + i] = x.conjugate();
                }
            }
        }
    }
    out
}

/// Fills the lower triangle of `l`; false if a pivot is not positive.
fn factor<T: Field>(n: usize, a: impl Fn(usize, usize) -> T, l: &mut [T]) -> bool {
    for j in 0..n {
        for i in j..n {
            let known = (0..j).fold(T::ZERO, |sum, k| sum.add(l[i * n + k].multiply(l[j * n + k].conjugate())));
            let rest = a(i, j).minus(known);
            l[i * n + j] = if i > j {
                rest.over(l[j * n + j])
            } else {
                match rest.pivot() {
                    Some(pivot) => pivot,
                    None => return false,
                }
            };
        }
    }
    true
}

/// `triangular-solve`: `op(a)·x = b` (`left_side`) or `x·op(a) = b` for `a: [batch…, n, n]`. Only the triangle that
/// `lower` names is read, and of a `unit_diagonal` nothing.
///
/// # Errors
/// Operands that do not fit each other, or an unknown `transpose_a`.
pub(crate) fn triangular_solve(a: &Literal, b: &Literal, attrs: &TriangularSolveAttrs) -> Result<Literal, EvalError> {
    let ((n, columns), (b_rows, b_columns)) =
        (matrix_dims("triangular-solve", a)?, matrix_dims("triangular-solve", b)?);
    let solved = if attrs.left_side { b_rows } else { b_columns };
    let same_batch = a.dims()[..a.dims().len() - 2] == b.dims()[..b.dims().len() - 2];
    if n != columns || solved != n || !same_batch || a.dtype() != b.dtype() {
        return Err(EvalError::invalid(format!("triangular-solve: {:?} and {:?} do not fit", a.dims(), b.dims())));
    }
    let (is_transposed, is_conjugate) = match attrs.transpose_a.as_str() {
        "" | "NO_TRANSPOSE" => (false, false),
        "TRANSPOSE" => (true, false),
        "ADJOINT" => (true, true),
        other => return Err(EvalError::invalid(format!("triangular-solve: unknown transpose_a {other}"))),
    };
    // x·op(a) = b is op(a)ᵀ·xᵀ = bᵀ: what is solved is always a left side, with `a` turned or not.
    let is_turned = is_transposed == attrs.left_side;
    let system = System {
        n,
        n_right: if attrs.left_side { b_columns } else { b_rows },
        is_turned,
        is_conjugate,
        is_lower: attrs.lower != is_turned,
        unit_diagonal: attrs.unit_diagonal,
        strides: if attrs.left_side { (b_columns, 1) } else { (1, b_columns) },
    };
    let dtype = field_type("triangular-solve", b.dtype())?;
    let (wide_a, wide_b) = (converted(a, dtype), converted(b, dtype));
    match dtype {
        DType::C128 => finished(b.dims(), system.solve::<Complex<f64>>(typed(&wide_a)?, typed(&wide_b)?), b.dtype()),
        _ => finished(b.dims(), system.solve::<f64>(typed(&wide_a)?, typed(&wide_b)?), b.dtype()),
    }
}

/// `m·x = b` with `m` triangular and made of `a`.
struct System {
    n: usize,
    n_right: usize,
    /// `m` is the transpose of `a`.
    is_turned: bool,
    is_conjugate: bool,
    /// `m` is lower triangular.
    is_lower: bool,
    unit_diagonal: bool,
    /// Of `x` and `b`: from one unknown to the next, from one right side to the next.
    strides: (usize, usize),
}

impl System {
    fn solve<T: Field>(&self, a: &[T], b: &[T]) -> Vec<T> {
        let n = self.n;
        let mut out = b.to_vec();
        if n == 0 || self.n_right == 0 {
            return out;
        }
        for (a, x) in a.chunks_exact(n * n).zip(out.chunks_exact_mut(n * self.n_right)) {
            let m = |i: usize, j: usize| {
                let x = if self.is_turned { a[j * n + i] } else { a[i * n + j] };
                if self.is_conjugate { x.conjugate() } else { x }
            };
            for right in 0..self.n_right {
                let at = |i: usize| i * self.strides.0 + right * self.strides.1;
                for step in 0..n {
                    let i = if self.is_lower { step } else { n - 1 - step };
                    let known = if self.is_lower { 0..i } else { i + 1..n };
                    let rest = known.fold(x[at(i)], |rest, k| rest.minus(m(i, k).multiply(x[at(k)])));
                    x[at(i)] = if self.unit_diagonal { rest } else { rest.over(m(i, i)) };
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::attrs::Word;

    type C = Complex<f64>;

    fn matrices(dims: &[i64]) -> Literal {
        let n = dims.iter().product::<i64>();
        let part = |i: i64, seed: i64| ((i * 7919 + seed) % 17 - 8) as f64 / 8.0;
        Literal::from_elems(dims, (0..n).map(|i| Complex::new(part(i, 3), part(i, 11))).collect()).unwrap()
    }

    fn get(literal: &Literal, batch: usize, rows: usize, columns: usize, i: usize, j: usize) -> C {
        literal.elems::<C>().unwrap()[(batch * rows + i) * columns + j]
    }

    #[test]
    fn cholesky_factors_multiply_to_the_operand_of_the_triangle_read() {
        let r = matrices(&[2, 5, 5]);
        let mut a = matrices(&[2, 5, 5]);
        let elems = a.elems_mut::<C>().unwrap();
        for (b, i, j) in (0..50).map(|at| (at / 25, at / 5 % 5, at % 5)) {
            let dot = (0..5).fold(C::ZERO, |sum, k| sum + get(&r, b, 5, 5, i, k) * get(&r, b, 5, 5, j, k).conjugate());
            elems[(b * 5 + i) * 5 + j] = if i == j { dot + Complex::new(3.0, 0.0) } else { dot };
        }
        for is_lower in [true, false] {
            let mut read = a.clone();
            for (b, i, j) in (0..50).map(|at| (at / 25, at / 5 % 5, at % 5)) {
                if (is_lower && i < j) || (!is_lower && i > j) {
                    read.elems_mut::<C>().unwrap()[(b * 5 + i) * 5 + j] = Complex::new(99.0, 9.0);
                }
            }
            let f = cholesky(&read, &CholeskyAttrs { lower: is_lower }).unwrap();
            for (b, i, j) in (0..50).map(|at| (at / 25, at / 5 % 5, at % 5)) {
                let term = |k: usize| match is_lower {
                    true => get(&f, b, 5, 5, i, k) * get(&f, b, 5, 5, j, k).conjugate(),
                    false => get(&f, b, 5, 5, k, i).conjugate() * get(&f, b, 5, 5, k, j),
                };
                let product = (0..5).fold(C::ZERO, |sum, k| sum + term(k));
                assert!((product - get(&a, b, 5, 5, i, j)).abs() < 1e-12, "{is_lower} {i} {j}");
                if (is_lower && i < j) || (!is_lower && i > j) {
                    assert_eq!(get(&f, b, 5, 5, i, j), C::ZERO);
                }
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_gives_nan_alone() {
        let elems = vec![1f32, 0.0, 0.0, -1.0, 4.0, 0.0, 2.0, 10.0];
        let a = Literal::from_elems(&[2, 2, 2], elems).unwrap();
        let out = cholesky(&a, &CholeskyAttrs { lower: true }).unwrap();
        let out = out.elems::<f32>().unwrap();
        assert!(out[..4].iter().all(|x| x.is_nan()));
        assert_eq!(out[4..], [2.0, 0.0, 1.0, 3.0]);
    }

    #[test]
    fn solutions_satisfy_their_equations() {
        for case in 0..24 {
            let (left_side, lower, unit_diagonal) = (case & 1 == 0, case & 2 == 0, case & 4 == 0);
            let transpose = ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"][case / 8];
            let mut a = matrices(&[2, 4, 4]);
            for (b, i) in (0..8).map(|at| (at / 4, at % 4)) {
                a.elems_mut::<C>().unwrap()[(b * 4 + i) * 4 + i] = Complex::new(2.0, 0.5);
            }
            let (rows, columns) = if left_side { (4, 3) } else { (3, 4) };
            let b = matrices(&[2, rows as i64, columns as i64]);
            let attrs = TriangularSolveAttrs { left_side, lower, unit_diagonal, transpose_a: Word::from(transpose) };
            let x = triangular_solve(&a, &b, &attrs).unwrap();
            let triangle = |n: usize, i: usize, j: usize| match () {
                () if i == j && unit_diagonal => C::new(1.0, 0.0),
                () if (lower && i < j) || (!lower && i > j) => C::ZERO,
                () => get(&a, n, 4, 4, i, j),
            };
            let op = |n: usize, i: usize, j: usize| match transpose {
                "TRANSPOSE" => triangle(n, j, i),
                "ADJOINT" => triangle(n, j, i).conjugate(),
                _ => triangle(n, i, j),
            };
            for (n, i, j) in (0..24).map(|at| (at / 12, at / columns % rows, at % columns)) {
                let term = |k: usize| match left_side {
                    true => op(n, i, k) * get(&x, n, rows, columns, k, j),
                    false => get(&x, n, rows, columns, i, k) * op(n, k, j),
                };
                let product = (0..4).fold(C::ZERO, |sum, k| sum + term(k));
                assert!((product - get(&b, n, rows, columns, i, j)).abs() < 1e-12, "{attrs:?}");
            }
        }
    }

    #[test]
    fn empty_and_misfitting_operands() {
        let empty = Literal::zeros(DType::F32, &[2, 0, 0]).unwrap();
        assert_eq!(cholesky(&empty, &CholeskyAttrs { lower: true }).unwrap(), empty);
        let attrs = TriangularSolveAttrs { left_side: true, lower: true, ..TriangularSolveAttrs::default() };
        let none = Literal::zeros(DType::F32, &[2, 0, 3]).unwrap();
        assert_eq!(triangular_solve(&empty, &none, &attrs).unwrap(), none);
        assert!(cholesky(&none, &CholeskyAttrs { lower: true }).is_err());
        assert!(cholesky(&Literal::from_elem(1f32), &CholeskyAttrs { lower: true }).is_err());
        assert!(cholesky(&empty.convert(DType::S32), &CholeskyAttrs { lower: true }).is_err());
        assert!(triangular_solve(&none, &empty, &attrs).is_err());
    }
}
