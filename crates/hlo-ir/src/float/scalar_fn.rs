//! Scalar functions whose HLO meaning differs from Rust's, or that the standard library lacks.
//!
//! Integers of every width are carried in an `i64`: signed types sign-extended, unsigned types zero-extended (so a large
//! `u64` appears negative). Results are extended the same way unless the doc says that the caller wraps them.

use std::f64::consts::{FRAC_2_SQRT_PI, LN_2};
use std::sync::LazyLock;

/// Integer element type of a value carried as `i64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntType {
    /// Width.
    pub bits: u32,
    /// Two's complement or unsigned.
    pub is_signed: bool,
}

/// `maximum`: NaN if either is NaN; 0 is above -0.
pub fn max(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if a == b {
        return if a.is_sign_negative() { b } else { a };
    }
    if a > b { a } else { b }
}

/// `minimum`: NaN if either is NaN; -0 is below 0.
pub fn min(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    if a == b {
        return if a.is_sign_negative() { a } else { b };
    }
    if a < b { a } else { b }
}

/// One over the square root.
pub fn rsqrt(x: f64) -> f64 {
    1.0 / x.sqrt()
}

/// From here on `asinh x` and `acosh x` are `ln 2x` to double precision: what they differ by is below `1 / x²`.
const INVERSE_HYPERBOLIC_IS_LOG: f64 = 1e9;

/// The inverse of the hyperbolic sine. That of the standard library overflows for operands near the largest number.
pub fn asinh(x: f64) -> f64 {
    if x.abs() < INVERSE_HYPERBOLIC_IS_LOG { x.asinh() } else { (x.abs().ln() + LN_2).copysign(x) }
}

/// The inverse of the hyperbolic cosine. That of the standard library overflows for operands near the largest number.
pub fn acosh(x: f64) -> f64 {
    if x < INVERSE_HYPERBOLIC_IS_LOG { x.acosh() } else { x.ln() + LN_2 }
}

/// Wraps a result to the type: sign- or zero-extends its low bits.
pub fn wrap(x: i64, int: IntType) -> i64 {
    let unused = 64 - int.bits;
    if int.is_signed { x << unused >> unused } else { ((x as u64) << unused >> unused) as i64 }
}

/// `divide`: truncates; `x / 0` has all bits set; the smallest value by -1 is itself.
pub fn int_divide(a: i64, b: i64, int: IntType) -> i64 {
    match (b, int.is_signed) {
        (0, _) => wrap(-1, int),
        (_, true) => wrap(a.wrapping_div(b), int),
        (_, false) => (a as u64 / b as u64) as i64,
    }
}

/// `remainder`: has the sign of the dividend; `x % 0` is `x`.
pub fn int_remainder(a: i64, b: i64, int: IntType) -> i64 {
    match (b, int.is_signed) {
        (0, _) => a,
        (_, true) => a.wrapping_rem(b),
        (_, false) => (a as u64 % b as u64) as i64,
    }
}

/// `power`, wrapping. A negative exponent gives 0, except for the bases 1 and -1.
///
/// XLA's CPU code looks at the low six bits of an exponent only; this is the power for every exponent.
pub fn int_power(base: i64, exponent: i64, int: IntType) -> i64 {
    if int.is_signed && exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1i64, base, exponent as u64);
    while rest != 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    wrap(result, int)
}

/// The amount of a shift, or `None` if it is not below the width (a negative amount counts as a large one).
fn shift_amount(amount: i64, int: IntType) -> Option<u32> {
    u32::try_from(amount).ok().filter(|&amount| amount < int.bits)
}

/// `shift-left`: 0 if the amount is out of range.
pub fn shift_left(a: i64, amount: i64, int: IntType) -> i64 {
    shift_amount(amount, int).map_or(0, |amount| wrap(a << amount, int))
}

/// `shift-right-arithmetic`: copies of the type's top bit come in, for unsigned types too; only they are left if the
/// amount is out of range.
pub fn shift_right_arithmetic(a: i64, amount: i64, int: IntType) -> i64 {
    let extended = wrap(a, IntType { is_signed: true, ..int });
    wrap(extended >> shift_amount(amount, int).unwrap_or(int.bits - 1), int)
}

/// `shift-right-logical`: zeros come in; 0 if the amount is out of range.
pub fn shift_right_logical(a: i64, amount: i64, int: IntType) -> i64 {
    let extended = wrap(a, IntType { is_signed: false, ..int }) as u64;
    shift_amount(amount, int).map_or(0, |amount| wrap((extended >> amount) as i64, int))
}

/// `maximum` of integers.
pub fn int_max(a: i64, b: i64, int: IntType) -> i64 {
    if int.is_signed { a.max(b) } else { (a as u64).max(b as u64) as i64 }
}

/// `minimum` of integers.
pub fn int_min(a: i64, b: i64, int: IntType) -> i64 {
    if int.is_signed { a.min(b) } else { (a as u64).min(b as u64) as i64 }
}

/// `sign` of integers: -1, 0 or 1.
pub fn int_sign(x: i64, int: IntType) -> i64 {
    if int.is_signed { x.signum() } else { i64::from(x != 0) }
}

/// `mulhi`: the upper half of the product; the caller wraps it.
pub fn multiply_high(a: i64, b: i64, int: IntType) -> i64 {
    match int.is_signed {
        true => ((i128::from(a) * i128::from(b)) >> int.bits) as i64,
        false => ((u128::from(a as u64) * u128::from(b as u64)) >> int.bits) as i64,
    }
}

/// `count-leading-zeros` within the type's width.
pub fn count_leading_zeros(a: i64, int: IntType) -> i64 {
    let unsigned = wrap(a, IntType { is_signed: false, ..int }) as u64;
    i64::from(unsigned.leading_zeros()) - i64::from(64 - int.bits)
}

/// `popcnt` within the type's width.
pub fn population_count(a: i64, int: IntType) -> i64 {
    i64::from((wrap(a, IntType { is_signed: false, ..int }) as u64).count_ones())
}

/// `reduce-precision` of an `f32`: rounds to nearest even to `mantissa_bits`, then values outside the range that
/// `exponent_bits` spans become infinities or zeros (there are no subnormals). NaNs stay NaN.
pub fn reduce_precision_f32(value: f32, exponent_bits: u32, mantissa_bits: u32) -> f32 {
    let bits = u64::from(value.to_bits());
    f32::from_bits(reduce_precision_bits(bits, (8, 23), exponent_bits, mantissa_bits) as u32)
}

/// `reduce-precision` of an `f64`; see [`reduce_precision_f32`].
pub fn reduce_precision_f64(value: f64, exponent_bits: u32, mantissa_bits: u32) -> f64 {
    f64::from_bits(reduce_precision_bits(value.to_bits(), (11, 52), exponent_bits, mantissa_bits))
}

/// `reduce-precision` of the bits of an IEEE format with `(exponent, mantissa)` bits.
pub fn reduce_precision_bits(bits: u64, format: (u32, u32), exponent_bits: u32, mantissa_bits: u32) -> u64 {
    let (own_exponent_bits, own_mantissa_bits) = format;
    let sign = bits & 1 << (own_exponent_bits + own_mantissa_bits);
    let mut magnitude = bits ^ sign;
    let infinity = ((1u64 << own_exponent_bits) - 1) << own_mantissa_bits;
    if magnitude > infinity {
        return bits;
    }
    if mantissa_bits < own_mantissa_bits {
        let n_dropped = own_mantissa_bits - mantissa_bits;
        let last_kept = magnitude >> n_dropped & 1;
        // The carry may run into the exponent, which is what rounding up to a power of two is.
        magnitude += (1 << (n_dropped - 1)) - 1 + last_kept;
        magnitude &= !((1 << n_dropped) - 1);
    }
    if exponent_bits < own_exponent_bits {
        let own_bias = (1u64 << (own_exponent_bits - 1)) - 1;
        let bias = (1u64 << exponent_bits.saturating_sub(1)) - 1;
        let exponent = magnitude >> own_mantissa_bits;
        if exponent > own_bias + bias {
            magnitude = infinity;
        } else if exponent <= own_bias - bias {
            magnitude = 0;
        }
    }
    sign | magnitude
}

const ERF_STEP: f64 = 0.25;
const N_ERF_NODES: usize = 25;
const N_ERF_TERMS: usize = 16;

/// Taylor coefficients of `erf` about `k · ERF_STEP`, lowest power first.
static ERF_TAYLOR: LazyLock<[[f64; N_ERF_TERMS]; N_ERF_NODES]> = LazyLock::new(|| {
    std::array::from_fn(|node| {
        let x = node as f64 * ERF_STEP;
        // erf' = c · e^(-x²) =: g, and g' = -2x · g gives the recurrence of the coefficients g_n of g:
        // (n + 1) g_(n+1) = -2 (x g_n + g_(n-1)).
        let mut coefficients = [0.0; N_ERF_TERMS];
        coefficients[0] = if x < 2.0 { erf_by_series(x) } else { 1.0 - erfc_by_fraction(x) };
        let (mut before, mut current) = (0.0, FRAC_2_SQRT_PI * (-x * x).exp());
        for (n, coefficient) in coefficients.iter_mut().enumerate().skip(1) {
            *coefficient = current / n as f64;
            let next = -2.0 * (x * current + before) / n as f64;
            (before, current) = (current, next);
        }
        coefficients
    })
});

/// `2/√π · e^(-x²) · Σ 2^n x^(2n+1) / (1·3·…·(2n+1))`: all terms are positive, so nothing cancels.
fn erf_by_series(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 1.0);
    while term > sum * 1e-18 {
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `1 - erf(x)` for `x >= 2`: `e^(-x²) / √π` times the continued fraction `1/(x + (1/2)/(x + (2/2)/(x + (3/2)/(x + …`.
fn erfc_by_fraction(x: f64) -> f64 {
    let fraction = (1..200).rev().fold(x, |tail, k| x + f64::from(k) / 2.0 / tail);
    FRAC_2_SQRT_PI / 2.0 * (-x * x).exp() / fraction
}

/// The error function, to within a few units in the last place of an `f64`.
pub fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let magnitude = x.abs();
    let node = (magnitude / ERF_STEP).round();
    let Some(coefficients) = ERF_TAYLOR.get(node as usize) else { return 1f64.copysign(x) };
    let offset = magnitude - node * ERF_STEP;
    let value = coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * offset + coefficient);
    value.copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{EvalRule, Opcode};

    const S8: IntType = IntType { bits: 8, is_signed: true };
    const U8: IntType = IntType { bits: 8, is_signed: false };
    const S64: IntType = IntType { bits: 64, is_signed: true };
    const U64: IntType = IntType { bits: 64, is_signed: false };

    #[test]
    fn division_by_zero_and_overflow_are_defined() {
        for int in [S8, S64] {
            let smallest = i64::MIN >> (64 - int.bits);
            assert_eq!(int_divide(7, 0, int), -1);
            assert_eq!(int_remainder(7, 0, int), 7);
            assert_eq!(int_divide(smallest, -1, int), smallest);
            assert_eq!(int_remainder(smallest, -1, int), 0);
            assert_eq!((int_divide(-7, 2, int), int_remainder(-7, 2, int)), (-3, -1));
        }
        assert_eq!((int_divide(7, 0, U8), int_remainder(7, 0, U8)), (255, 7));
        assert_eq!(int_divide(-1, 2, U64), i64::MAX);
    }

    #[test]
    fn powers_wrap_and_negative_exponents_truncate() {
        assert_eq!(int_power(3, 5, S8), -13);
        assert_eq!(int_power(2, 8, U8), 0);
        assert_eq!(int_power(0, 0, S64), 1);
        assert_eq!([2, 1, -1, 0].map(|base| int_power(base, -3, S64)), [0, 1, -1, 0]);
        assert_eq!(int_power(-1, -2, S64), 1);
        assert_eq!(int_power(1, -1, U64), 1, "the exponent is a large unsigned number");
    }

    #[test]
    fn shifts_out_of_range_are_defined() {
        for amount in [8, 100, -1] {
            assert_eq!(shift_left(-1, amount, S8), 0);
            assert_eq!(shift_right_logical(-1, amount, S8), 0);
            assert_eq!(shift_right_arithmetic(-128, amount, S8), -1);
            assert_eq!(shift_right_arithmetic(127, amount, S8), 0);
            assert_eq!(shift_right_arithmetic(128, amount, U8), 255);
        }
        assert_eq!(shift_left(0x41, 2, S8), 4);
        assert_eq!(shift_left(0x60, 1, S8), -64);
        assert_eq!(shift_right_logical(-128, 1, S8), 64);
        assert_eq!(shift_right_arithmetic(-128, 1, S8), -64);
        assert_eq!(shift_right_logical(-1, 63, U64), 1);
    }

    #[test]
    fn bit_counts_look_at_the_width_only() {
        assert_eq!([0, 1, -1].map(|a| count_leading_zeros(a, S8)), [8, 7, 0]);
        assert_eq!([0, 1, -1].map(|a| population_count(a, S8)), [0, 1, 8]);
        assert_eq!((count_leading_zeros(0, U64), population_count(-1, S64)), (64, 64));
    }

    #[test]
    fn extrema_propagate_nan_and_order_zeros() {
        assert!(max(f64::NAN, 1.0).is_nan() && min(1.0, f64::NAN).is_nan());
        assert!(max(-0.0, 0.0).is_sign_positive() && max(0.0, -0.0).is_sign_positive());
        assert!(min(-0.0, 0.0).is_sign_negative() && min(0.0, -0.0).is_sign_negative());
        assert_eq!((max(1.0, 2.0), min(1.0, 2.0)), (2.0, 1.0));
    }

    #[test]
    fn inverse_hyperbolic_functions_do_not_overflow() {
        for (opcode, f) in [(Opcode::Asinh, f64::asinh as fn(f64) -> f64), (Opcode::Acosh, f64::acosh)] {
            let ours = row_fn(opcode);
            // ln(2 · largest), where largest = 2^1024 (1 - 2^-53).
            assert_eq!(ours(f64::MAX), 1025.0 * LN_2, "{opcode}");
            assert_eq!(ours(f64::INFINITY), f64::INFINITY);
            assert!(ours(f64::NAN).is_nan());
            for x in [1.0, 1.5, 1e8, 0.999e9, 1e9, 1e15, 1e150] {
                assert!((ours(x) - f(x)).abs() <= 2.0 * f64::EPSILON * f(x), "{opcode} {x}: {} {}", ours(x), f(x));
            }
        }
        assert_eq!(row_fn(Opcode::Asinh)(-f64::MAX), -1025.0 * LN_2);
        assert_eq!(row_fn(Opcode::Asinh)(-0.0).to_bits(), (-0.0f64).to_bits());
        assert!(row_fn(Opcode::Acosh)(0.5).is_nan() && row_fn(Opcode::Acosh)(-1e300).is_nan());
    }

    #[test]
    fn erf_has_its_known_values() {
        // Values of Abramowitz and Stegun's table 7.1 and of its tail, to double precision.
        for (x, want) in [
            (0.0, 0.0),
            (1e-10, 1.128_379_167_095_512_6e-10),
            (0.1, 0.112_462_916_018_284_89),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
            (7.0, 1.0),
        ] {
            assert!((erf(x) - want).abs() <= want * 4.0 * f64::EPSILON, "{x}: {:e}", erf(x) - want);
            assert_eq!(erf(-x), -erf(x));
        }
        for i in 0..600 {
            let x = f64::from(i) / 100.0;
            let want = if x < 2.0 { erf_by_series(x) } else { 1.0 - erfc_by_fraction(x) };
            assert!((erf(x) - want).abs() <= 8.0 * f64::EPSILON * want, "{x}");
        }
        assert!(erf(f64::NAN).is_nan() && erf(f64::INFINITY) == 1.0 && erf(-0.0).is_sign_negative());
    }

    #[test]
    fn reduce_precision_rounds_then_bounds_the_exponent() {
        assert_eq!(reduce_precision_f32(1.0 + 1.0 / 256.0, 8, 7), 1.0, "a tie goes to even");
        assert_eq!(reduce_precision_f32(1.0 + 3.0 / 256.0, 8, 7), 1.0 + 4.0 / 256.0);
        assert_eq!(reduce_precision_f32(65504.0, 5, 10), 65504.0);
        assert_eq!(reduce_precision_f32(65520.0, 5, 10), f32::INFINITY);
        assert_eq!(reduce_precision_f32(6.0e-5, 5, 10), 0.0, "subnormals of the target are flushed");
        assert!(reduce_precision_f32(-6.0e-5, 5, 10).is_sign_negative());
        assert!(reduce_precision_f32(f32::NAN, 5, 10).is_nan());
        assert_eq!(reduce_precision_f64(1.0 + 1e-10, 11, 23), 1.0);
    }

    /// Computed by XLA on the CPU: `op type operands results`, numbers comma-separated; results of a binary op are for
    /// every pair of operands, the first operand varying slowest. Floats are hexadecimal bits.
    const FIXTURE: &str = include_str!("../../tests/data/scalar_fn.txt");

    fn int_fn(op: &str) -> Option<fn(i64, i64, IntType) -> i64> {
        Some(match op {
            "divide" => int_divide,
            "remainder" => int_remainder,
            "power" => int_power,
            "shift-left" => shift_left,
            "shift-right-arithmetic" => shift_right_arithmetic,
            "shift-right-logical" => shift_right_logical,
            "count-leading-zeros" => |a, _, int| count_leading_zeros(a, int),
            "popcnt" => |a, _, int| population_count(a, int),
            _ => return None,
        })
    }

    fn check_integers(op: &str, int: IntType, operands: &str, results: &str) -> usize {
        let read = |list: &str| -> Vec<i64> { list.split(',').map(|x| x.parse::<i128>().unwrap() as i64).collect() };
        let (operands, results) = (read(operands), read(results));
        let f = int_fn(op).unwrap();
        let is_unary = results.len() == operands.len();
        let second = if is_unary { &operands[..1] } else { &operands[..] };
        let mut n_compared = 0;
        for (i, &a) in operands.iter().enumerate() {
            for (k, &b) in second.iter().enumerate() {
                if op == "power" && (b > 63 || !int.is_signed && wrap(b, IntType { is_signed: true, ..int }) < 0) {
                    continue; // XLA's CPU code differs there; see `int_power`.
                }
                assert_eq!(f(a, b, int), results[i * second.len() + k], "{op} {int:?} {a} {b}");
                n_compared += 1;
            }
        }
        n_compared
    }

    fn row_fn(opcode: Opcode) -> fn(f64) -> f64 {
        match opcode.row().eval {
            EvalRule::Unary(fns) => fns.real.unwrap(),
            rule => panic!("{opcode}: {rule:?}"),
        }
    }

    fn check_floats(op: &str, is_f32: bool, operands: &str, results: &str) -> usize {
        let read = |list: &str| -> Vec<f64> {
            let value = |bits: u64| if is_f32 { f32::from_bits(bits as u32).into() } else { f64::from_bits(bits) };
            list.split(',').map(|x| value(u64::from_str_radix(x, 16).unwrap())).collect()
        };
        let (operands, results) = (read(operands), read(results));
        let is_unary = results.len() == operands.len();
        let second = if is_unary { &operands[..1] } else { &operands[..] };
        let format = op.strip_prefix("reduce-precision:").and_then(|bits| bits.split_once(','));
        for (i, &a) in operands.iter().enumerate() {
            for (k, &b) in second.iter().enumerate() {
                let want = results[i * second.len() + k];
                let got = match (op, format) {
                    ("maximum", _) => max(a, b),
                    ("minimum", _) => min(a, b),
                    ("sign", _) => row_fn(Opcode::Sign)(a),
                    ("erf", _) => erf(a),
                    (_, Some((exponent, mantissa))) => {
                        let (exponent, mantissa) = (exponent.parse().unwrap(), mantissa.parse().unwrap());
                        match is_f32 {
                            true => reduce_precision_f32(a as f32, exponent, mantissa).into(),
                            false => reduce_precision_f64(a, exponent, mantissa),
                        }
                    }
                    _ => panic!("{op}"),
                };
                // XLA's erf is an approximation of a few units in the last place.
                let tolerance = if op == "erf" { want.abs() * if is_f32 { 5e-7 } else { 1e-14 } } else { 0.0 };
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same || (got - want).abs() <= tolerance, "{op} {a:e} {b:e}: {got:e}, XLA {want:e}");
            }
        }
        results.len()
    }

    #[test]
    fn scalars_agree_with_xla() {
        let mut n_compared = 0;
        for line in FIXTURE.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let (class, bits) = words[1].split_at(1);
            n_compared += match class {
                "f" => check_floats(words[0], bits == "32", words[2], words[3]),
                _ => {
                    let int = IntType { bits: bits.parse().unwrap(), is_signed: class == "s" };
                    check_integers(words[0], int, words[2], words[3])
                }
            };
        }
        assert!(n_compared > 9000, "{n_compared}");
    }
}
