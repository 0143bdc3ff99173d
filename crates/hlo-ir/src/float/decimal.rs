//! Decimal text of floats as XLA prints it: C's `%g`, with the fewest of two digit counts that reads back the same.
//!
//! `f32` is printed with 6 digits if they round-trip and with 9 otherwise, `f64` with 15 or 17, and every smaller format
//! with its own `max_digits10`. The digits come from one 64 × 64-bit multiplication with a table of powers of ten whose
//! error is known; when that error leaves a rounding undecided (about one value in a hundred), the exact formatting of
//! the standard library decides.

use std::fmt::Write as _;

/// Powers of ten from `10^MIN_POWER` on, each as `(g, s)` with `10^k = (g + d) · 2^s`, `g` of 64 bits and `0 <= d < 1.5`.
static POWERS: [(u64, i32); N_POWERS] = build_powers();
const MIN_POWER: i32 = -308;
const N_POWERS: usize = 660;

const fn build_powers() -> [(u64, i32); N_POWERS] {
    let mut table = [(0u64, 0i32); N_POWERS];
    // Each power is kept with 128 bits and multiplied or divided by ten; 330 truncations lose less than 2^-50 of the
    // 64-bit result.
    let mut power: u128 = 1 << 127;
    let mut exponent: i32 = -127;
    let mut k = 0;
    while k <= N_POWERS as i32 - 1 + MIN_POWER {
        table[(k - MIN_POWER) as usize] = ((power >> 64) as u64, exponent + 64);
        // power · 10 = power · 5/4 · 8, and 5/4 · power overflows 128 bits only when power >= 4/5 · 2^128.
        let quarter = power >> 2;
        match power.checked_add(quarter) {
            Some(sum) => {
                power = sum;
                exponent += 3;
            }
            None => {
                power = (power >> 1) + (power >> 3);
                exponent += 4;
            }
        }
        k += 1;
    }
    let mut power: u128 = 1 << 127;
    let mut exponent: i32 = -127;
    let mut k = -1;
    while k >= MIN_POWER {
        // power / 10 = power · 8/10 / 8; the quotient is normalised again.
        let mut quotient = power / 5 * 4 + power % 5 * 4 / 5;
        exponent -= 3;
        if quotient >> 127 == 0 {
            // The low bit lost here is the remainder's, far below the 64 bits that are kept.
            quotient <<= 1;
            exponent -= 1;
        }
        power = quotient;
        table[(k - MIN_POWER) as usize] = ((power >> 64) as u64, exponent + 64);
        k -= 1;
    }
    table
}

/// A positive finite value as `significand · 2^exponent`.
#[derive(Clone, Copy)]
struct Binary {
    significand: u64,
    exponent: i32,
}

impl Binary {
    fn of(value: f64) -> Binary {
        let bits = value.to_bits();
        let stored = (bits >> 52 & 0x7ff) as i32;
        let fraction = bits & ((1 << 52) - 1);
        match stored {
            0 => Binary { significand: fraction, exponent: -1074 },
            _ => Binary { significand: fraction | 1 << 52, exponent: stored - 1075 },
        }
    }
}

/// `n_digits` decimal digits of a value: `digits · 10^(exponent - n_digits + 1)`, so `exponent` is that of the first digit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Decimal {
    digits: u64,
    exponent: i32,
}

const POW10: [u64; 18] = {
    let mut table = [1u64; 18];
    let mut i = 1;
    while i < 18 {
        table[i] = table[i - 1] * 10;
        i += 1;
    }
    table
};

/// The correctly rounded `n_digits` (1 to 17) digits of a positive finite value.
fn round_digits(value: f64, n_digits: usize) -> Decimal {
    round_digits_fast(value, n_digits).unwrap_or_else(|| round_digits_exact(value, n_digits))
}

/// The digits by one multiplication, or `None` where its error could change them.
fn round_digits_fast(value: f64, n_digits: usize) -> Option<Decimal> {
    let binary = Binary::of(value);
    let shift_up = binary.significand.leading_zeros();
    let significand = binary.significand << shift_up;
    let exponent2 = binary.exponent - shift_up as i32;
    // floor(log10) of the value, or one less than it: 2^(exponent2 + 63) <= value.
    let mut exponent10 = (((i64::from(exponent2) + 63) * 1_292_913_986) >> 32) as i32;
    for _ in 0..2 {
        let k = n_digits as i32 - 1 - exponent10;
        let &(power, power_exponent) = POWERS.get(usize::try_from(k - MIN_POWER).ok()?)?;
        let product = u128::from(significand) * u128::from(power);
        let shift = u32::try_from(-(exponent2 + power_exponent)).ok()?;
        if !(66..=127).contains(&shift) {
            return None;
        }
        let whole = (product >> shift) as u64;
        let rest = product & ((1 << shift) - 1);
        // The product is short by less than 1.5 · significand < 2^65.
        let error = 1u128 << 65;
        let half = 1u128 << (shift - 1);
        if rest + error >= 1 << shift {
            return None;
        }
        let up = if rest > half {
            1
        } else if rest + error < half {
            0
        } else {
            return None;
        };
        if whole >= POW10.get(n_digits).copied().unwrap_or(u64::MAX) {
            exponent10 += 1;
            continue;
        }
        let digits = whole + up;
        return match digits == POW10.get(n_digits).copied().unwrap_or(u64::MAX) {
            true => Some(Decimal { digits: digits / 10, exponent: exponent10 + 1 }),
            false => Some(Decimal { digits, exponent: exponent10 }),
        };
    }
    None
}

/// The digits by the standard library's exact formatting.
fn round_digits_exact(value: f64, n_digits: usize) -> Decimal {
    let mut text = StackText::default();
    // Writing to the stack buffer cannot fail: 17 digits, a point and an exponent fit.
    let _ = write!(text, "{:.*e}", n_digits - 1, value);
    let mut digits = 0;
    let bytes = text.as_bytes();
    let split = bytes.iter().position(|&b| b == b'e').unwrap_or(bytes.len());
    for &byte in &bytes[..split] {
        if byte.is_ascii_digit() {
            digits = digits * 10 + u64::from(byte - b'0');
        }
    }
    let exponent = std::str::from_utf8(bytes.get(split + 1..).unwrap_or_default()).unwrap_or_default();
    Decimal { digits, exponent: exponent.parse().unwrap_or(0) }
}

/// A short text on the stack.
struct StackText {
    bytes: [u8; 40],
    len: usize,
}

impl Default for StackText {
    fn default() -> Self {
        StackText { bytes: [0; 40], len: 0 }
    }
}

impl StackText {
    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, byte: u8) {
        if let Some(slot) = self.bytes.get_mut(self.len) {
            *slot = byte;
            self.len += 1;
        }
    }
}

impl std::fmt::Write for StackText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        text.bytes().for_each(|byte| self.push(byte));
        Ok(())
    }
}

/// Writes the digits as C's `%g` lays them out: trailing zeros dropped, an exponent of at least two digits where the
/// first digit's exponent is below -4 or not below `n_digits`.
fn write_general(decimal: Decimal, n_digits: usize, out: &mut String) {
    let mut buffer = [b'0'; 20];
    let mut rest = decimal.digits;
    for slot in buffer[..n_digits].iter_mut().rev() {
        *slot = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let n_kept = buffer[..n_digits].iter().rposition(|&b| b != b'0').map_or(1, |last| last + 1);
    let digits = std::str::from_utf8(&buffer[..n_kept]).unwrap_or_default();
    let exponent = decimal.exponent;
    if exponent < -4 || exponent >= n_digits as i32 {
        out.push_str(&digits[..1]);
        if n_kept > 1 {
            out.push('.');
            out.push_str(&digits[1..]);
        }
        let magnitude = exponent.unsigned_abs();
        out.push_str(if exponent < 0 { "e-" } else { "e+" });
        if magnitude < 10 {
            out.push('0');
        }
        write_u64(u64::from(magnitude), out);
    } else if exponent < 0 {
        out.push_str("0.");
        out.push_str(&"000"[..(-exponent - 1) as usize]);
        out.push_str(digits);
    } else {
        let n_whole = exponent as usize + 1;
        if n_kept > n_whole {
            out.push_str(&digits[..n_whole]);
            out.push('.');
            out.push_str(&digits[n_whole..]);
        } else {
            out.push_str(digits);
            out.extend(std::iter::repeat_n('0', n_whole - n_kept));
        }
    }
}

/// Writes a decimal integer.
pub fn write_u64(mut value: u64, out: &mut String) {
    let mut buffer = [0u8; 20];
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.push_str(std::str::from_utf8(&buffer[start..]).unwrap_or_default());
}

/// Writes a signed decimal integer.
pub fn write_i64(value: i64, out: &mut String) {
    if value < 0 {
        out.push('-');
    }
    write_u64(value.unsigned_abs(), out);
}

/// Writes what all formats share — sign, zero, infinity, small integers — and gives the magnitude if digits are needed.
fn write_simple(value: f64, integer_limit: f64, out: &mut String) -> Option<f64> {
    if value.is_sign_negative() {
        out.push('-');
    }
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        out.push_str("inf");
        return None;
    }
    if magnitude < integer_limit && magnitude == magnitude.trunc() {
        write_u64(magnitude as u64, out);
        return None;
    }
    Some(magnitude)
}

/// Writes a value that is not NaN with exactly `n_digits` significant digits (C's `%.{n}g`).
pub fn write_digits(value: f64, n_digits: usize, out: &mut String) {
    // A value below 10^n that is whole has at most n digits, so %g prints it as an integer.
    let limit = POW10.get(n_digits).copied().unwrap_or(u64::MAX) as f64;
    if let Some(magnitude) = write_simple(value, limit, out) {
        write_general(round_digits(magnitude, n_digits), n_digits, out);
    }
}

/// Writes an `f32` that is not NaN as XLA does: 6 digits if they read back as the same value, else 9.
pub fn write_f32(value: f32, out: &mut String) {
    let Some(magnitude) = write_simple(f64::from(value), 1e6, out) else { return };
    let short = round_digits(magnitude, 6);
    // The product or quotient of two exact doubles is rounded once; a clear distance from the rounding limits decides.
    let parsed = decimal_to_f64(short, 6).map(|near| near as f32).unwrap_or_else(|| parse_back(short, 6) as f32);
    if parsed == magnitude as f32 {
        write_general(short, 6, out);
    } else {
        write_general(round_digits(magnitude, 9), 9, out);
    }
}

/// Writes an `f64` that is not NaN as XLA does: 15 digits if they read back as the same value, else 17.
pub fn write_f64(value: f64, out: &mut String) {
    let Some(magnitude) = write_simple(value, 1e15, out) else { return };
    let short = round_digits(magnitude, 15);
    let parsed = decimal_to_f64(short, 15).unwrap_or_else(|| parse_back(short, 15));
    if parsed == magnitude {
        write_general(short, 15, out);
    } else {
        write_general(round_digits(magnitude, 17), 17, out);
    }
}

/// The decimal as the nearest `f64` where that takes one exact operation: digits below 2^53 and a power of at most 22.
fn decimal_to_f64(decimal: Decimal, n_digits: usize) -> Option<f64> {
    let power = decimal.exponent + 1 - n_digits as i32;
    let scale = |power: i32| (power <= 17).then(|| POW10[power as usize] as f64);
    match power {
        0..=17 => Some(decimal.digits as f64 * scale(power)?),
        -17..0 => Some(decimal.digits as f64 / scale(-power)?),
        _ => None,
    }
}

fn parse_back(decimal: Decimal, n_digits: usize) -> f64 {
    let mut text = StackText::default();
    let _ = write!(text, "{}e{}", decimal.digits, decimal.exponent + 1 - n_digits as i32);
    std::str::from_utf8(text.as_bytes()).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut String)) -> String {
        let mut out = String::new();
        write(&mut out);
        out
    }

    /// A small deterministic generator, so that failures repeat.
    fn random_bits(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state ^ *state >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    #[test]
    fn fast_digits_are_the_exact_digits() {
        let mut state = 1;
        let mut n_fast = 0;
        for i in 0..300_000 {
            let bits = random_bits(&mut state);
            let value = match i % 3 {
                0 => f64::from_bits(bits & !(1 << 63)),
                1 => f64::from(f32::from_bits(bits as u32 & 0x7fff_ffff)),
                _ => (bits % 100_000) as f64 / 8.0,
            };
            if !value.is_finite() || value == 0.0 {
                continue;
            }
            for n_digits in [2, 4, 6, 9, 15, 17] {
                if let Some(fast) = round_digits_fast(value, n_digits) {
                    n_fast += 1;
                    assert_eq!(fast, round_digits_exact(value, n_digits), "{value:e} {n_digits}");
                }
            }
        }
        assert!(n_fast > 1_000_000, "the fast path was taken only {n_fast} times");
    }

    #[test]
    fn floats_are_written_as_c_writes_them() {
        for (value, want) in [
            (0.1, "0.1"),
            (1e6, "1e+06"),
            (100_000.0, "100000"),
            (123_456_789.0, "123456792"),
            (1e10, "1e+10"),
            (std::f32::consts::PI, "3.14159274"),
            (1e-45, "1.4013e-45"),
            (0.0001, "0.0001"),
            (1e-5, "1e-05"),
            (-0.0, "-0"),
            (f32::MAX, "3.40282347e+38"),
            (f32::NEG_INFINITY, "-inf"),
            (16_777_216.0, "16777216"),
        ] {
            assert_eq!(text(|out| write_f32(value, out)), want);
        }
        for (value, want) in [
            (0.1, "0.1"),
            (1e22, "1e+22"),
            (1e-320, "9.99988867182683e-321"),
            (1.0 / 3.0, "0.33333333333333331"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "4.94065645841247e-324"),
        ] {
            assert_eq!(text(|out| write_f64(value, out)), want);
        }
        assert_eq!(text(|out| write_digits(57344.0, 2, out)), "5.7e+04");
        assert_eq!(text(|out| write_digits(2.5, 1, out)), "2");
        assert_eq!(text(|out| write_digits(0.000_244_140_625, 3, out)), "0.000244");
    }

    #[test]
    fn random_values_read_back_the_same_and_take_the_shorter_form() {
        let mut state = 7;
        for _ in 0..200_000 {
            let bits = random_bits(&mut state);
            let single = f32::from_bits(bits as u32);
            if single.is_finite() {
                let written = text(|out| write_f32(single, out));
                assert_eq!(written.parse::<f32>().unwrap().to_bits(), single.to_bits(), "{written}");
                let short: f32 = format!("{single:.5e}").parse().unwrap();
                let n_digits = written.split('e').next().unwrap().trim_matches(['-', '0', '.']).replace('.', "").len();
                assert!(short == single && n_digits <= 6 || short != single && n_digits > 6, "{written}");
            }
            let double = f64::from_bits(bits);
            if double.is_finite() {
                let written = text(|out| write_f64(double, out));
                assert_eq!(written.parse::<f64>().unwrap().to_bits(), bits, "{written}");
            }
        }
    }
}
