//! `fft`: every kind, any length, over the last dims; computed in `f64` by splitting off one prime factor at a time.

use hlo_ir::attrs::FftAttrs;
use hlo_ir::float::Complex;
use hlo_ir::{DType, Literal};

use super::index::{n_elems, strides};
use super::number::{converted, finished, typed};
use crate::EvalError;

type C = Complex<f64>;

/// `FFT`, `IFFT`, `RFFT` (real to the first half of the spectrum) and `IRFFT` (back) over the last `fft_length.len()`
/// dims, whose transformed sizes `fft_length` gives; the inverse ones divide by their product.
///
/// # Errors
/// An operand whose type or dims do not fit, or an unknown kind.
pub(crate) fn fft(operand: &Literal, attrs: &FftAttrs) -> Result<Literal, EvalError> {
    let lengths = &attrs.fft_length[..];
    let dims = operand.dims();
    let misfit = || {
        EvalError::invalid(format!(
            "fft: {} of length {lengths:?} does not fit {}{dims:?}",
            attrs.fft_type.as_str(),
            operand.dtype()
        ))
    };
    let n_outer = dims.len().checked_sub(lengths.len()).ok_or_else(misfit)?;
    let Some((&last, others)) = lengths.split_last() else { return Ok(operand.clone()) };
    let half = last / 2 + 1;
    let (is_real_in, is_inverse, is_real_out) = match attrs.fft_type.as_str() {
        "FFT" => (false, false, false),
        "IFFT" => (false, true, false),
        "RFFT" => (true, false, false),
        "IRFFT" => (false, true, true),
        _ => return Err(misfit()),
    };
    let last_in = if is_real_out && last > 0 { half } else { last };
    let fits = dims[n_outer..].split_last() == Some((&last_in, others));
    let has_right_type = if is_real_in { operand.dtype().is_float() } else { operand.dtype().is_complex() };
    if !fits || !has_right_type {
        return Err(misfit());
    }
    let wide = converted(operand, DType::C128);
    let mut data = Signal { dims: dims.to_vec(), elems: typed::<C>(&wide)?.to_vec() };
    // The real side is the last dim: transformed first on the way there, last on the way back.
    let rank = dims.len();
    if is_real_out {
        for dim_idx in n_outer..rank - 1 {
            data.transform(dim_idx, true);
        }
        data.mirror(last)?;
        data.transform(rank - 1, true);
    } else {
        data.transform(rank - 1, is_inverse);
        if is_real_in {
            data.truncate(if last > 0 { half } else { 0 });
        }
        for dim_idx in n_outer..rank - 1 {
            data.transform(dim_idx, is_inverse);
        }
    }
    let is_double = matches!(operand.dtype(), DType::F64 | DType::C128);
    match (is_real_out, is_double) {
        (true, true) => finished(&data.dims, data.elems.iter().map(|x| x.re).collect(), DType::F64),
        (true, false) => finished(&data.dims, data.elems.iter().map(|x| x.re).collect(), DType::F32),
        (false, true) => finished(&data.dims, data.elems, DType::C128),
        (false, false) => finished(&data.dims, data.elems, DType::C64),
    }
}

/// A complex array in row-major order.
struct Signal {
    dims: Vec<i64>,
    elems: Vec<C>,
}

impl Signal {
    /// Transforms every line along a dim in place; the inverse divides by the length.
    fn transform(&mut self, dim_idx: usize, is_inverse: bool) {
        let (n, stride) = (self.dims[dim_idx] as usize, strides(&self.dims)[dim_idx]);
        if self.elems.is_empty() || n <= 1 {
            return;
        }
        let plan = Plan::new(n, is_inverse);
        let scale = if is_inverse { 1.0 / n as f64 } else { 1.0 };
        let (mut line, mut out) = (vec![Complex::new(0.0, 0.0); n], vec![Complex::new(0.0, 0.0); n]);
        for block in self.elems.chunks_exact_mut(n * stride) {
            for start in 0..stride {
                for (slot, &x) in line.iter_mut().zip(block[start..].iter().step_by(stride)) {
                    *slot = x;
                }
                plan.run(&line, 1, &mut out);
                for (slot, x) in block[start..].iter_mut().step_by(stride).zip(&out) {
                    *slot = Complex::new(x.re * scale, x.im * scale);
                }
            }
        }
    }

    /// Keeps the first `n` of every line of the last dim.
    fn truncate(&mut self, n: i64) {
        let Some(last) = self.dims.last_mut() else { return };
        let old = (*last).max(1) as usize;
        *last = n;
        self.elems = self.elems.chunks_exact(old).flat_map(|line| &line[..(n as usize).min(old)]).copied().collect();
    }

    /// Extends every line of the last dim, the first half of a spectrum, to the `n` values of a real signal's.
    fn mirror(&mut self, n: i64) -> Result<(), EvalError> {
        let Some(last) = self.dims.last_mut() else { return Ok(()) };
        let old = (*last).max(1) as usize;
        *last = n;
        let n = n as usize;
        let mut elems = Vec::with_capacity(n_elems(&self.dims)?);
        for line in self.elems.chunks_exact(old) {
            elems.extend((0..n).map(|k| if k < old { line[k] } else { Complex::new(line[n - k].re, -line[n - k].im) }));
        }
        self.elems = elems;
        Ok(())
    }
}

/// Roots of unity and prime factors of one length.
struct Plan {
    /// `e^(∓2πik/n)`.
    roots: Vec<C>,
    factors: Vec<usize>,
}

impl Plan {
    fn new(n: usize, is_inverse: bool) -> Plan {
        let sign = if is_inverse { 1.0 } else { -1.0 };
        let root = |k: usize| {
            let (sin, cos) = (2.0 * std::f64::consts::PI * k as f64 / n as f64).sin_cos();
            Complex::new(cos, sign * sin)
        };
        let (mut factors, mut rest, mut p) = (Vec::new(), n, 2);
        while rest > 1 {
            if p * p > rest {
                p = rest;
            }
            if rest.is_multiple_of(p) {
                factors.push(p);
                rest /= p;
            } else {
                p += 1;
            }
        }
        Plan { roots: (0..n).map(root).collect(), factors }
    }

    /// Transforms the elements of `input` that lie `stride` apart into `out`.
    fn run(&self, input: &[C], stride: usize, out: &mut [C]) {
        self.split(&self.factors, input, stride, out, &mut Vec::new());
    }

    fn split(&self, factors: &[usize], input: &[C], stride: usize, out: &mut [C], terms: &mut Vec<C>) {
        let Some((&p, rest)) = factors.split_first() else {
            out[0] = input[0];
            return;
        };
        let (n, n_all) = (out.len(), self.roots.len());
        let part = n / p;
        for (r, piece) in out.chunks_exact_mut(part).enumerate() {
            self.split(rest, &input[r * stride..], stride * p, piece, terms);
        }
        // x[q·part + k] = Σ_r w_n^(r·k) · w_p^(r·q) · piece_r[k]
        for k in 0..part {
            terms.clear();
            terms.extend((0..p).map(|r| out[r * part + k] * self.roots[r * k * (n_all / n) % n_all]));
            for q in 0..p {
                let turned = |(r, &x): (usize, &C)| x * self.roots[r * q % p * (n_all / p)];
                out[q * part + k] = terms.iter().enumerate().map(turned).fold(Complex::new(0.0, 0.0), |sum, x| sum + x);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::attrs::Word;

    fn signal(n: usize) -> Vec<C> {
        (0..n).map(|i| Complex::new((i * i % 7) as f64 - 3.0, (i * 5 % 11) as f64 / 4.0)).collect()
    }

    /// The definition over the last two dims.
    fn naive(x: &[C], rows: usize, columns: usize, sign: f64) -> Vec<C> {
        let mut out = Vec::new();
        for (u, v) in (0..rows * columns).map(|at| (at / columns, at % columns)) {
            let mut sum = Complex::new(0.0, 0.0);
            for (i, j) in (0..rows * columns).map(|at| (at / columns, at % columns)) {
                let turns = (u * i) as f64 / rows as f64 + (v * j) as f64 / columns as f64;
                sum = sum + x[i * columns + j] * Complex::new(0.0, sign * 2.0 * std::f64::consts::PI * turns).exp();
            }
            out.push(sum);
        }
        out
    }

    fn assert_close(got: &[C], want: &[C]) {
        assert_eq!(got.len(), want.len());
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            assert!((got - want).abs() < 1e-10, "{i}: {got:?}, expected {want:?}");
        }
    }

    fn run(operand: &Literal, kind: &str, length: &[i64]) -> Result<Literal, EvalError> {
        fft(operand, &FftAttrs { fft_type: Word::from(kind), fft_length: length.iter().copied().collect() })
    }

    #[test]
    fn every_length_agrees_with_the_definition() {
        for n in [1usize, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 30, 49, 60, 64] {
            let x = Literal::from_elems(&[n as i64], signal(n)).unwrap();
            let out = run(&x, "FFT", &[n as i64]).unwrap();
            assert_close(out.elems::<C>().unwrap(), &naive(&signal(n), 1, n, -1.0));
            let back = run(&out, "IFFT", &[n as i64]).unwrap();
            assert_close(back.elems::<C>().unwrap(), &signal(n));
        }
    }

    #[test]
    fn real_transforms_over_two_dims() {
        for columns in [4usize, 5] {
            let reals: Vec<f64> = signal(2 * 3 * columns).iter().map(|x| x.re).collect();
            let x = Literal::from_elems(&[2, 3, columns as i64], reals.clone()).unwrap();
            let length = [3, columns as i64];
            let out = run(&x, "RFFT", &length).unwrap();
            let half = columns / 2 + 1;
            assert_eq!(out.dims(), [2, 3, half as i64]);
            for (batch, got) in out.elems::<C>().unwrap().chunks(3 * half).enumerate() {
                let x: Vec<C> =
                    reals[batch * 3 * columns..][..3 * columns].iter().map(|&x| Complex::new(x, 0.0)).collect();
                let full = naive(&x, 3, columns, -1.0);
                let want: Vec<C> = full.chunks(columns).flat_map(|row| row[..half].to_vec()).collect();
                assert_close(got, &want);
            }
            let back = run(&out, "IRFFT", &length).unwrap();
            let back: Vec<C> = back.elems::<f64>().unwrap().iter().map(|&x| Complex::new(x, 0.0)).collect();
            assert_close(&back, &reals.iter().map(|&x| Complex::new(x, 0.0)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_inverse_to_reals_ignores_what_a_real_signal_cannot_have() {
        let x = vec![Complex::new(1f32, 2.0), Complex::new(3.0, 4.0), Complex::new(5.0, 6.0)];
        let x = Literal::from_elems(&[3], x).unwrap();
        let close = |got: &Literal, want: &[f32]| {
            got.elems::<f32>().unwrap().iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6)
                && got.n_elems() == want.len()
        };
        // Both computed by XLA.
        assert!(close(&run(&x, "IRFFT", &[4]).unwrap(), &[3.0, -3.0, 0.0, 1.0]));
        let odd = [3.4, -3.979_588_3, 1.189_292_9, -1.494_865_8, 1.885_161_4];
        assert!(close(&run(&x, "IRFFT", &[5]).unwrap(), &odd));
    }

    #[test]
    fn empty_and_misfitting_operands() {
        let none = Literal::zeros(DType::C64, &[0, 4]).unwrap();
        assert_eq!(run(&none, "FFT", &[4]).unwrap(), none);
        assert_eq!(run(&none, "FFT", &[0, 4]).unwrap(), none);
        assert_eq!(run(&Literal::zeros(DType::F32, &[3, 0]).unwrap(), "RFFT", &[0]).unwrap().dims(), [3, 0]);
        for (kind, length) in [("FFT", &[5][..]), ("RFFT", &[4]), ("FFT", &[1, 0, 4]), ("DCT", &[4]), ("IRFFT", &[4])] {
            assert!(run(&none, kind, length).is_err(), "{kind}");
        }
    }
}
