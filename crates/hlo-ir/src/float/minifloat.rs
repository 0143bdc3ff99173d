//! Small floating-point formats (f4, the f8 family, and the 16-bit ones) described by one table of parameters.
//!
//! Every format is decoded to and encoded from `f64` by one routine, so a value is rounded exactly once: going through
//! `f32` first would round twice and give a different code for some inputs.

use crate::dtype::DType;

/// What a format does with the codes that IEEE 754 spends on infinities and NaNs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Specials {
    /// The top exponent holds infinities and NaNs with payloads; overflow gives an infinity.
    Ieee,
    /// No infinity; the all-ones code of each sign is the NaN; overflow gives NaN.
    NanOnly,
    /// No infinity and no negative zero, whose code is the one NaN; overflow gives NaN.
    UnsignedZero,
    /// Neither infinity nor NaN; overflow gives the largest value.
    Finite,
    /// No sign, no zero, no mantissa: a power of two, with the all-ones code as the NaN.
    Exponent,
}

/// The parameters of one format; see [`Format::of`] for the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// Stored mantissa bits, without the implicit one.
    pub mantissa_bits: u32,
    /// Exponent bits.
    pub exponent_bits: u32,
    /// What is subtracted from the stored exponent.
    pub bias: i32,
    /// Treatment of infinities, NaNs and overflow.
    pub specials: Specials,
}

const F64_MANTISSA_BITS: u32 = 52;

impl Format {
    /// The format of a float type of at most 16 bits; `None` for all others.
    pub const fn of(dtype: DType) -> Option<Format> {
        let (exponent_bits, mantissa_bits, bias, specials) = match dtype {
            DType::F4E2M1FN => (2, 1, 1, Specials::Finite),
            DType::F6E2M3FN => (2, 3, 1, Specials::Finite),
            DType::F6E3M2FN => (3, 2, 3, Specials::Finite),
            DType::F8E3M4 => (3, 4, 3, Specials::Ieee),
            DType::F8E4M3 => (4, 3, 7, Specials::Ieee),
            DType::F8E4M3FN => (4, 3, 7, Specials::NanOnly),
            DType::F8E4M3B11FNUZ => (4, 3, 11, Specials::UnsignedZero),
            DType::F8E4M3FNUZ => (4, 3, 8, Specials::UnsignedZero),
            DType::F8E5M2 => (5, 2, 15, Specials::Ieee),
            DType::F8E5M2FNUZ => (5, 2, 16, Specials::UnsignedZero),
            DType::F8E8M0FNU => (8, 0, 127, Specials::Exponent),
            DType::F16 => (5, 10, 15, Specials::Ieee),
            DType::BF16 => (8, 7, 127, Specials::Ieee),
            _ => return None,
        };
        Some(Format { mantissa_bits, exponent_bits, bias, specials })
    }

    /// The bit of the sign, or 0 for the unsigned format.
    const fn sign_bit(self) -> u16 {
        match self.specials {
            Specials::Exponent => 0,
            _ => 1 << (self.exponent_bits + self.mantissa_bits),
        }
    }

    /// The largest code (without sign) of a finite value.
    const fn max_finite_code(self) -> u16 {
        let all_ones = ((1u32 << (self.exponent_bits + self.mantissa_bits)) - 1) as u16;
        match self.specials {
            Specials::Ieee => all_ones - (1 << self.mantissa_bits),
            Specials::NanOnly | Specials::Exponent => all_ones - 1,
            Specials::UnsignedZero | Specials::Finite => all_ones,
        }
    }

    /// Decimal digits that tell every two values of the format apart (C's `max_digits10`).
    pub const fn round_trip_digits(self) -> usize {
        // ceil(1 + p * log10(2)) with p the precision including the implicit bit.
        let precision = self.mantissa_bits as usize + 1;
        1 + (precision * 30_103).div_ceil(100_000)
    }

    /// The value of a code, exactly. NaN payloads move to the top of the `f64` mantissa. Bits above the format are ignored.
    pub fn decode(self, code: u16) -> f64 {
        if self.specials == Specials::Exponent {
            return if code & 0xff == 0xff { f64::NAN } else { power_of_two(i32::from(code & 0xff) - self.bias) };
        }
        let sign_bit = self.sign_bit();
        let magnitude = code & (sign_bit - 1);
        let negative = code & sign_bit != 0;
        if self.specials == Specials::UnsignedZero && negative && magnitude == 0 {
            return -f64::NAN;
        }
        let sign = if negative { 1u64 << 63 } else { 0 };
        if magnitude > self.max_finite_code() {
            let mantissa = u64::from(magnitude) & ((1 << self.mantissa_bits) - 1);
            let bits = match self.specials {
                Specials::Ieee => mantissa << (F64_MANTISSA_BITS - self.mantissa_bits),
                _ => 1 << (F64_MANTISSA_BITS - 1),
            };
            return f64::from_bits(sign | 0x7ff << F64_MANTISSA_BITS | bits);
        }
        let stored_exponent = i32::from(magnitude >> self.mantissa_bits);
        let fraction = magnitude & ((1 << self.mantissa_bits) - 1);
        let significand = if stored_exponent == 0 { fraction } else { fraction | 1 << self.mantissa_bits };
        let exponent = stored_exponent.max(1) - self.bias - self.mantissa_bits as i32;
        let value = f64::from(significand) * power_of_two(exponent);
        if negative { -value } else { value }
    }

    /// The code nearest to `value`, ties to even, with the format's own overflow rule.
    pub fn encode(self, value: f64) -> u16 {
        let negative = value.is_sign_negative();
        if self.specials == Specials::Exponent && (negative || value == 0.0) {
            return 0xff;
        }
        let sign = if negative { self.sign_bit() } else { 0 };
        if value.is_nan() {
            return self.encode_nan(value.to_bits(), sign);
        }
        if value == 0.0 {
            return if self.specials == Specials::UnsignedZero { 0 } else { sign };
        }
        let magnitude = if value.is_infinite() { u64::MAX } else { self.round_magnitude(value.to_bits()) };
        if magnitude > u64::from(self.max_finite_code()) {
            return self.overflow_code(sign);
        }
        match (self.specials, magnitude) {
            (Specials::UnsignedZero, 0) => 0,
            _ => sign | magnitude as u16,
        }
    }

    /// Rounds a finite non-zero value to the code of its magnitude, which may lie beyond the largest finite code.
    fn round_magnitude(self, bits: u64) -> u64 {
        let stored = (bits >> F64_MANTISSA_BITS & 0x7ff) as i32;
        let fraction = bits & ((1 << F64_MANTISSA_BITS) - 1);
        if stored == 0 {
            // An f64 subnormal is far below half of any format's smallest value.
            return 0;
        }
        let significand = fraction | 1 << F64_MANTISSA_BITS;
        let exponent = stored - 1023;
        // The unsigned format's code 0 is a value like all others, so its smallest exponent is one lower.
        let min_exponent = if self.specials == Specials::Exponent { -self.bias } else { 1 - self.bias };
        let scale_exponent = exponent.max(min_exponent);
        let shift = (F64_MANTISSA_BITS - self.mantissa_bits) as i64 + i64::from(scale_exponent - exponent);
        let rounded = if shift > 62 { 0 } else { shift_right_to_even(significand, shift as u32) };
        let steps = ((scale_exponent - min_exponent) as u64) << self.mantissa_bits;
        match self.specials {
            Specials::Exponent => (steps + rounded).saturating_sub(1),
            _ => steps + rounded,
        }
    }

    fn overflow_code(self, sign: u16) -> u16 {
        match self.specials {
            Specials::Ieee => sign | (self.max_finite_code() + 1),
            Specials::NanOnly => sign | (self.max_finite_code() + 1),
            Specials::UnsignedZero => self.sign_bit(),
            Specials::Finite => sign | self.max_finite_code(),
            Specials::Exponent => 0xff,
        }
    }

    fn encode_nan(self, bits: u64, sign: u16) -> u16 {
        match self.specials {
            Specials::Ieee => {
                let kept = (bits >> (F64_MANTISSA_BITS - self.mantissa_bits)) & ((1 << self.mantissa_bits) - 1);
                let payload = if kept == 0 { 1 << (self.mantissa_bits - 1) } else { kept };
                sign | ((self.max_finite_code() + 1) | payload as u16)
            }
            // A format without NaN gives the zero of the other sign, as XLA does.
            Specials::Finite => sign ^ self.sign_bit(),
            Specials::NanOnly | Specials::UnsignedZero | Specials::Exponent => self.overflow_code(sign),
        }
    }
}

/// `2^exponent`, exact, for exponents of normal `f64` values.
fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << F64_MANTISSA_BITS)
}

/// `value / 2^shift`, to nearest, ties to even; `shift` is 1 to 62.
fn shift_right_to_even(value: u64, shift: u32) -> u64 {
    let quotient = value >> shift;
    let rest = value & ((1 << shift) - 1);
    let half = 1u64 << (shift - 1);
    quotient + u64::from(rest > half || (rest == half && quotient & 1 == 1))
}

/// The `f64` with the same value, or the same sign and payload if it is a NaN (a cast would quiet a signalling NaN).
pub fn widen_f32(value: f32) -> f64 {
    if !value.is_nan() {
        return f64::from(value);
    }
    let bits = u64::from(value.to_bits());
    f64::from_bits((bits >> 31) << 63 | 0x7ff << F64_MANTISSA_BITS | (bits & 0x7f_ffff) << 29)
}

/// The nearest `f32`; a NaN keeps its sign and the top of its payload, and stays a NaN.
pub fn narrow_f64(value: f64) -> f32 {
    if !value.is_nan() {
        return value as f32;
    }
    let bits = value.to_bits();
    let kept = (bits >> 29 & 0x7f_ffff) as u32;
    let payload = if kept == 0 { 1 << 22 } else { kept };
    f32::from_bits(((bits >> 63) as u32) << 31 | 0xff << 23 | payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines written by `ml_dtypes`: `= name`, `d code f32bits` (decode) and `e f32bits code` (encode).
    const FIXTURE: &str = include_str!("../../tests/data/minifloat.txt");

    #[test]
    fn agrees_with_ml_dtypes_on_the_fixture() {
        let mut format = None;
        let (mut n_decoded, mut n_encoded) = (0, 0);
        for line in FIXTURE.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let hex = |i: usize| u64::from_str_radix(words[i], 16).unwrap();
            match (words[0], format) {
                ("=", _) => format = Format::of(DType::from_name(words[1]).unwrap()),
                ("d", Some(format)) => {
                    let (got, want) = (format.decode(hex(1) as u16), widen_f32(f32::from_bits(hex(2) as u32)));
                    assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{line}: {got}");
                    n_decoded += 1;
                }
                ("e", Some(format)) => {
                    let value = widen_f32(f32::from_bits(hex(1) as u32));
                    assert_eq!(u64::from(format.encode(value)), hex(2), "{format:?} {line}");
                    n_encoded += 1;
                }
                _ => panic!("bad fixture line {line}"),
            }
        }
        assert_eq!(n_decoded, 16 + 8 * 256);
        assert!(n_encoded > 5000, "{n_encoded}");
    }

    #[test]
    fn sixteen_bit_formats_agree_with_the_half_crate_and_round_once() {
        for (dtype, is_bf16) in [(DType::F16, false), (DType::BF16, true)] {
            let format = Format::of(dtype).unwrap();
            for code in 0..=u16::MAX {
                let want =
                    if is_bf16 { half::bf16::from_bits(code).to_f64() } else { half::f16::from_bits(code).to_f64() };
                let got = format.decode(code);
                assert!(got == want || (got.is_nan() && want.is_nan()), "{dtype} {code:x}");
                assert_eq!(format.encode(got), code, "{dtype}");
            }
        }
        // Just above a tie, by less than an f32 can hold: rounding through f32 would give 1.0.
        let above_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(Format::of(DType::F16).unwrap().encode(above_tie), 0x3c01);
    }

    #[test]
    fn nan_payloads_survive_widening_and_narrowing() {
        for bits in [0x7f80_0001u32, 0xffa0_0003, 0x7fc0_0000, 0xffff_ffff] {
            assert_eq!(narrow_f64(widen_f32(f32::from_bits(bits))).to_bits(), bits);
        }
        assert!(narrow_f64(f64::from_bits(0x7ff0_0000_0000_0001)).is_nan());
    }
}
