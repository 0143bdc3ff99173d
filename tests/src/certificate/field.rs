//! Numbers of the check: integers as their 64 bits, and real numbers as elements of a prime field.
//!
//! Sums, products and quotients are those of the field, so that what is equal for exact numbers is equal here. Every other
//! function is a hash of its arguments. Two expressions that are not equal for exact numbers are equal here by chance only.

use hlo_ir::op::IntType;
use hlo_ir::{DType, Literal, Scalar, dtype::NumberClass};

/// An element of the field, or the bits of an integer.
pub(super) type Number = u64;

/// A prime of which nothing else is known: of 2^61 - 1 it would be that doubling 61 times changes nothing.
pub(super) const P: u64 = 0x1f6b_8c3a_92d4_e581;
/// Integers that nothing is known of are below this, so that they serve as indices.
const MAX_DRAWN: u64 = 16;
/// What stands for the square root of -1.
const IMAGINARY: u64 = 0x1d2c_3b4a_5968_7716;

pub(super) fn add(a: Number, b: Number) -> Number {
    let sum = a + b;
    if sum >= P { sum - P } else { sum }
}

pub(super) fn negate(a: Number) -> Number {
    if a == 0 { 0 } else { P - a }
}

pub(super) fn multiply(a: Number, b: Number) -> Number {
    (u128::from(a) * u128::from(b) % u128::from(P)) as u64
}

/// What is divided by zero is no number of the field, and another one for each dividend.
pub(super) fn divide(a: Number, b: Number) -> Number {
    if b == 0 { hash([6, a]) } else { multiply(a, power(b, P - 2)) }
}

fn power(mut base: Number, mut exponent: u64) -> Number {
    let mut power = 1;
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = multiply(power, base);
        }
        base = multiply(base, base);
        exponent >>= 1;
    }
    power
}

/// `re + i im`.
pub(super) fn complex(re: Number, im: Number) -> Number {
    add(re, multiply(im, IMAGINARY % P))
}

/// A number for a list of numbers.
pub(super) fn hash(parts: impl IntoIterator<Item = u64>) -> Number {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for part in parts {
        state = (state ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state % P
}

pub(super) fn hash_text(text: &str) -> u64 {
    hash(text.bytes().map(u64::from))
}

pub(super) fn is_whole(dtype: DType) -> bool {
    !matches!(dtype.class(), NumberClass::Float | NumberClass::Complex)
}

/// An order of the field's elements that has nothing to do with sums and products; half of them come before zero.
pub(super) fn order(a: Number, b: Number) -> std::cmp::Ordering {
    let key = |x: Number| if x == 0 { P / 2 } else { hash([9, x]) };
    key(a).cmp(&key(b)).then(a.cmp(&b))
}

/// A hash as a number of a type.
pub(super) fn drawn(hash: Number, dtype: DType) -> Number {
    match dtype.class() {
        NumberClass::Pred => hash & 1,
        NumberClass::Signed | NumberClass::Unsigned => hash % MAX_DRAWN,
        NumberClass::Float | NumberClass::Complex => hash,
    }
}

/// An integer of a type that may have it.
pub(super) fn from_integer(value: i64) -> Number {
    value as u64
}

pub(super) fn to_integer(number: Number) -> i64 {
    number as i64
}

pub(super) fn int_type(dtype: DType) -> IntType {
    IntType { bits: dtype.bits(), is_signed: dtype.class() == NumberClass::Signed }
}

/// An integer wrapped to its type.
pub(super) fn wrapped(dtype: DType, number: Number) -> Number {
    match dtype.class() {
        NumberClass::Signed | NumberClass::Unsigned => {
            let wrapped = hlo_ir::float::scalar_fn::wrap(to_integer(number), int_type(dtype));
            from_integer(wrapped)
        }
        NumberClass::Pred => number & 1,
        NumberClass::Float | NumberClass::Complex => number,
    }
}

/// An integer of a type as an element of the field.
pub(super) fn real(dtype: DType, number: Number) -> Number {
    match dtype.class() {
        NumberClass::Signed => i128::from(number as i64).rem_euclid(i128::from(P)) as u64,
        NumberClass::Unsigned | NumberClass::Pred | NumberClass::Float | NumberClass::Complex => number % P,
    }
}

/// The order of two integers of a type.
pub(super) fn order_of_integers(dtype: DType, a: Number, b: Number) -> std::cmp::Ordering {
    match dtype.class() {
        NumberClass::Signed => (a as i64).cmp(&(b as i64)),
        NumberClass::Unsigned | NumberClass::Pred | NumberClass::Float | NumberClass::Complex => a.cmp(&b),
    }
}

fn from_real(value: f64) -> Number {
    if !value.is_finite() {
        return hash([2, value.is_nan() as u64, (value > 0.0) as u64]);
    }
    // value = mantissa * 2^exponent.
    let bits = value.to_bits();
    let (fraction, biased) = (bits & ((1 << 52) - 1), (bits >> 52) & 0x7ff);
    let mantissa = if biased == 0 { fraction } else { fraction | 1 << 52 };
    let exponent = biased.max(1) as i64 - 1075;
    let scale = power(2, exponent.unsigned_abs());
    let number = if exponent < 0 { divide(mantissa % P, scale) } else { multiply(mantissa % P, scale) };
    if value < 0.0 { negate(number) } else { number }
}

/// An element of a literal.
pub(super) fn element(literal: &Literal, place: i64) -> Option<Number> {
    Some(match literal.get(usize::try_from(place).ok()?)? {
        Scalar::Pred(value) => u64::from(value),
        Scalar::Int(value) => from_integer(value),
        Scalar::Uint(value) => value,
        Scalar::Float(value) => from_real(value),
        Scalar::Complex(re, im) => complex(from_real(re), from_real(im)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_numbers_are_exact() {
        let three_halves = from_real(1.5);
        assert_eq!(multiply(three_halves, from_real(2.0)), 3);
        assert_eq!(divide(3, 2), three_halves);
        assert_eq!(add(from_real(-0.1), from_real(0.1)), 0);
        assert_ne!(from_real(f64::from(0.1f32)), from_real(0.1));
        assert_eq!(to_integer(from_integer(-7)), -7);
        assert_eq!(real(DType::S64, from_integer(i64::MIN)), from_real(i64::MIN as f64));
        assert_eq!(real(DType::U64, from_integer(i64::MIN)), from_real(-(i64::MIN as f64)));
    }
}
