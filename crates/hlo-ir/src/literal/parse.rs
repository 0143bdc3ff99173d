//! Reading the text of literals: single numbers, and nested braces of them.
//!
//! A floating-point token is read as the nearest `f64` and rounded once more to its type, as XLA does; a finite token
//! whose value overflows the type is an error, and so is an integer out of range.
//!
//! XLA reads a token without point and exponent as an integer, so `-0` is +0 in a float too, and `-0.0` or `-0e0` is
//! negative zero; so do we, and print negative zero as `-0.0`. (XLA prints it as `-0`, which it then reads as +0: the one
//! value that its own text loses.)

use std::borrow::Cow;
use std::fmt;

use super::convert::build_buffer;
use super::{Buffer, ConstantValue, Element, Literal, Scalar, element_count};
use crate::dtype::{DType, NumberClass};
use crate::float::complex::Complex;
use crate::float::minifloat::{Format, Specials, narrow_f64, widen_f32};
use crate::shape::Shape;

/// What is wrong with the text of a literal, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiteralError {
    /// Byte offset in the text that was passed in.
    pub offset: usize,
    /// What the text should hold there.
    pub expected: Cow<'static, str>,
    /// What it holds.
    pub found: String,
}

impl fmt::Display for LiteralError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}, found {}", self.expected, self.found)
    }
}

impl std::error::Error for LiteralError {}

type Parsed<T> = Result<T, LiteralError>;

/// Reads one element of `dtype`, e.g. `-1.5`, `true`, `nan(0x1)` or `(1, -2)`, from the whole of `token`.
pub fn parse_scalar(dtype: DType, token: &str) -> Parsed<Scalar> {
    let mut cursor = Cursor { text: token.as_bytes(), pos: 0 };
    let value = cursor.scalar(dtype)?;
    match cursor.peek() {
        None => Ok(value),
        Some(_) => Err(cursor.error("the end of the number")),
    }
}

/// Reads an array of `dtype[dims]` from `text` at `*pos` and moves `*pos` behind it. Memory is bounded by the text read,
/// not by the dims, but for an array whose text is one number. `{...}` gives [`ConstantValue::Elided`], but for an array without elements.
pub fn parse_literal(text: &[u8], pos: &mut usize, dtype: DType, dims: &[i64]) -> Parsed<ConstantValue> {
    let mut cursor = Cursor { text, pos: *pos };
    let data = match dtype {
        DType::Pred => collect(&mut cursor, dims, |c| c.predicate()),
        DType::S1 | DType::S2 | DType::S4 | DType::S8 => collect(&mut cursor, dims, |c| Ok(c.signed(dtype)? as i8)),
        DType::S16 => collect(&mut cursor, dims, |c| Ok(c.signed(dtype)? as i16)),
        DType::S32 => collect(&mut cursor, dims, |c| Ok(c.signed(dtype)? as i32)),
        DType::S64 => collect(&mut cursor, dims, |c| c.signed(dtype)),
        DType::U1 | DType::U2 | DType::U4 | DType::U8 => collect(&mut cursor, dims, |c| Ok(c.unsigned(dtype)? as u8)),
        DType::U16 => collect(&mut cursor, dims, |c| Ok(c.unsigned(dtype)? as u16)),
        DType::U32 => collect(&mut cursor, dims, |c| Ok(c.unsigned(dtype)? as u32)),
        DType::U64 => collect(&mut cursor, dims, |c| c.unsigned(dtype)),
        DType::F32 => collect(&mut cursor, dims, |c| Ok(narrow_f64(c.float(dtype)?))),
        DType::F64 => collect(&mut cursor, dims, |c| c.float(dtype)),
        DType::C64 => collect(&mut cursor, dims, |c| {
            let (re, im) = c.complex(dtype)?;
            Ok(Complex::new(narrow_f64(re), narrow_f64(im)))
        }),
        DType::C128 => collect(&mut cursor, dims, |c| c.complex(dtype).map(|(re, im)| Complex::new(re, im))),
        DType::F4E2M1FN
        | DType::F6E2M3FN
        | DType::F6E3M2FN
        | DType::F8E3M4
        | DType::F8E4M3
        | DType::F8E4M3FN
        | DType::F8E4M3B11FNUZ
        | DType::F8E4M3FNUZ
        | DType::F8E5M2
        | DType::F8E5M2FNUZ
        | DType::F8E8M0FNU
        | DType::F16
        | DType::BF16 => collect_elems(&mut cursor, dims, zero_bits(dtype), |c| c.float(dtype))
            .map(|elems| elems.map(|elems| build_buffer(dtype, elems.into_iter()))),
    }?;
    *pos = cursor.pos;
    let literal = match data {
        Some(data) => Literal::new(dtype, dims, data),
        // What is left out of an array without elements is known.
        None if element_count(dims) == Some(0) => Literal::zeros(dtype, dims),
        None => return Ok(ConstantValue::Elided),
    };
    literal.map(ConstantValue::Array).map_err(|error| LiteralError {
        offset: *pos,
        expected: Cow::Borrowed("as many elements as the shape has"),
        found: error.to_string(),
    })
}

/// Reads the value of a constant of any shape: an array as [`parse_literal`] does, a tuple as `(1, {2, 3}, ({...}))`. The
/// recursion is as deep as the shape.
pub fn parse_constant(text: &[u8], pos: &mut usize, shape: &Shape) -> Parsed<ConstantValue> {
    match shape {
        Shape::Array(array) => parse_literal(text, pos, array.dtype, &array.dims),
        Shape::Tuple(parts) => {
            let mut cursor = Cursor { text, pos: *pos };
            cursor.expect(b'(', "`(` of a tuple")?;
            let mut values = Vec::with_capacity(parts.len());
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    cursor.expect(b',', "`,` between tuple elements")?;
                }
                values.push(parse_constant(text, &mut cursor.pos, part)?);
            }
            cursor.skip_blank();
            if cursor.peek() != Some(b')') {
                return Err(cursor.error(format!("`)` after {} tuple elements", parts.len())));
            }
            *pos = cursor.pos + 1;
            Ok(ConstantValue::Tuple(values))
        }
        Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
            let cursor = Cursor { text, pos: *pos };
            Err(cursor.error("a constant of array or tuple shape"))
        }
    }
}

fn collect<T: Element + Default>(
    cursor: &mut Cursor<'_>,
    dims: &[i64],
    elem: impl FnMut(&mut Cursor<'_>) -> Parsed<T>,
) -> Parsed<Option<Buffer>> {
    Ok(collect_elems(cursor, dims, T::default(), elem)?.map(T::into_buffer))
}

/// Walks the braces of `dims` and reads every element; `None` for `{...}`.
fn collect_elems<T: Clone>(
    cursor: &mut Cursor<'_>,
    dims: &[i64],
    zero: T,
    mut elem: impl FnMut(&mut Cursor<'_>) -> Parsed<T>,
) -> Parsed<Option<Vec<T>>> {
    cursor.skip_blank();
    let Some(&minor_dim) = dims.last() else { return Ok(Some(vec![elem(cursor)?])) };
    if cursor.peek().is_some_and(is_number_byte) && dims.iter().all(|&dim| dim > 0) {
        return first_of_zeros(cursor, dims, zero, elem).map(Some);
    }
    let mut elems = Vec::with_capacity(first_capacity(cursor, dims));
    // The number of parts seen so far at each open brace.
    let mut seen: Vec<i64> = Vec::with_capacity(dims.len());
    loop {
        match cursor.peek() {
            Some(b'{') => {
                if seen.len() == dims.len() {
                    return Err(cursor.error(format!("a number at nesting level {}", dims.len())));
                }
                cursor.count_part(dims, &mut seen)?;
                cursor.pos += 1;
                seen.push(0);
                cursor.skip_blank();
                if seen.len() == 1 && cursor.take_ellipsis()? {
                    return Ok(None);
                }
            }
            Some(b'}') => {
                let Some(n_found) = seen.pop() else { return Err(cursor.error("`{`")) };
                let n_expected = dims.get(seen.len()).copied().unwrap_or(0);
                if n_found != n_expected {
                    let expected = format!("{n_expected} elements in dimension {}", seen.len());
                    return Err(LiteralError {
                        offset: cursor.pos,
                        expected: expected.into(),
                        found: n_found.to_string(),
                    });
                }
                cursor.pos += 1;
                if seen.is_empty() {
                    return Ok(Some(elems));
                }
            }
            None => return Err(cursor.error("`}`")),
            Some(_) if seen.len() < dims.len() => {
                return Err(cursor.error(format!("`{{` at nesting level {}", seen.len())));
            }
            Some(_) => {
                let Some(count) = seen.last_mut() else { return Err(cursor.error("`{`")) };
                // The elements of one innermost brace.
                while cursor.peek().is_some_and(|byte| byte != b'}' && byte != b'{') {
                    if *count >= minor_dim {
                        return Err(cursor.error(format!("`}}` after {minor_dim} elements")));
                    }
                    elems.push(elem(cursor)?);
                    *count += 1;
                    cursor.skip_separators();
                }
                continue;
            }
        }
        cursor.skip_separators();
    }
}

/// What zero bits mean: zero, but in the type that has none, where it is the smallest power of two.
fn zero_bits(dtype: DType) -> f64 {
    if dtype == DType::F8E8M0FNU { 2f64.powi(-127) } else { 0.0 }
}

/// Most elements of an array whose text is one number.
const MOST_ZEROS: usize = 1 << 24;

/// A number in the place of an array is its first element, and the others are `zero`, as in XLA.
#[cold]
fn first_of_zeros<T: Clone>(
    cursor: &mut Cursor<'_>,
    dims: &[i64],
    zero: T,
    mut elem: impl FnMut(&mut Cursor<'_>) -> Parsed<T>,
) -> Parsed<Vec<T>> {
    let n_elems = element_count(dims).filter(|&n| n <= MOST_ZEROS);
    let Some(n_elems) = n_elems else {
        return Err(cursor.error(format!("`{{`, as an array of more than {MOST_ZEROS} elements is not one number")));
    };
    let mut elems = vec![elem(cursor)?];
    elems.resize(n_elems, zero);
    Ok(elems)
}

/// A capacity that neither the dims nor the text exceed: every element takes at least two bytes of text.
fn first_capacity(cursor: &Cursor<'_>, dims: &[i64]) -> usize {
    let n_elems = element_count(dims).unwrap_or(0);
    n_elems.min(cursor.text.len().saturating_sub(cursor.pos) / 2 + 1)
}

struct Cursor<'a> {
    text: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.pos).copied()
    }

    fn error(&self, expected: impl Into<Cow<'static, str>>) -> LiteralError {
        self.error_at(self.pos, expected)
    }

    fn error_at(&self, offset: usize, expected: impl Into<Cow<'static, str>>) -> LiteralError {
        LiteralError { offset, expected: expected.into(), found: self.describe(offset) }
    }

    /// The token at `offset` in back quotes, shortened, for a message.
    fn describe(&self, offset: usize) -> String {
        let rest = self.text.get(offset..).unwrap_or_default();
        let n_word = rest.iter().take(40).take_while(|&&byte| is_number_byte(byte)).count();
        match (n_word, rest) {
            (_, []) => "the end of the text".to_owned(),
            (0, _) => {
                // One character, which may take up to four bytes.
                let lossy = String::from_utf8_lossy(&rest[..rest.len().min(4)]);
                format!("`{}`", lossy.chars().next().unwrap_or_default().escape_debug())
            }
            (n, _) => format!("`{}`", String::from_utf8_lossy(&rest[..n])),
        }
    }

    /// Counts one more part in the innermost open brace.
    fn count_part(&self, dims: &[i64], seen: &mut [i64]) -> Parsed<()> {
        let depth = seen.len();
        let Some(count) = seen.last_mut() else { return Ok(()) };
        let n_expected = dims.get(depth - 1).copied().unwrap_or(0);
        if *count >= n_expected {
            return Err(self.error(format!("`}}` after {n_expected} elements in dimension {}", depth - 1)));
        }
        *count += 1;
        Ok(())
    }

    fn take_ellipsis(&mut self) -> Parsed<bool> {
        if !self.text.get(self.pos..).is_some_and(|rest| rest.starts_with(b"...")) {
            return Ok(false);
        }
        self.pos += 3;
        self.skip_blank();
        if self.peek() != Some(b'}') {
            return Err(self.error("`}`"));
        }
        self.pos += 1;
        Ok(true)
    }

    /// Skips blanks, `/*…*/` and `//…`.
    fn skip_blank(&mut self) {
        loop {
            let rest = self.text.get(self.pos..).unwrap_or_default();
            match rest {
                [b' ' | b'\t' | b'\n' | b'\r', ..] => self.pos += 1,
                [b'/', b'*', comment @ ..] => match comment.windows(2).position(|pair| pair == b"*/") {
                    Some(len) => self.pos += len + 4,
                    None => return,
                },
                [b'/', b'/', comment @ ..] => {
                    let is_end = |&byte: &u8| byte == b'\n' || byte == b'\r';
                    self.pos += 2 + comment.iter().position(is_end).unwrap_or(comment.len());
                }
                _ => return,
            }
        }
    }

    /// Skips blanks, comments and commas; XLA asks for no particular number of commas.
    fn skip_separators(&mut self) {
        // The usual ", " without a closer look.
        if let Some([b',', b' ', next, ..]) = self.text.get(self.pos..)
            && is_number_byte(*next)
        {
            self.pos += 2;
            return;
        }
        loop {
            self.skip_blank();
            if self.peek() != Some(b',') {
                return;
            }
            self.pos += 1;
        }
    }

    /// The longest run of bytes that can belong to a number or a name.
    fn word(&self) -> &'a [u8] {
        let rest = self.text.get(self.pos..).unwrap_or_default();
        let len = rest.iter().position(|&byte| !is_number_byte(byte)).unwrap_or(rest.len());
        &rest[..len]
    }

    fn scalar(&mut self, dtype: DType) -> Parsed<Scalar> {
        Ok(match dtype.class() {
            NumberClass::Pred => Scalar::Pred(self.predicate()?),
            NumberClass::Signed => Scalar::Int(self.signed(dtype)?),
            NumberClass::Unsigned => Scalar::Uint(self.unsigned(dtype)?),
            NumberClass::Float => Scalar::Float(match dtype {
                DType::F32 => widen_f32(narrow_f64(self.float(dtype)?)),
                _ => {
                    let value = self.float(dtype)?;
                    match build_buffer(dtype, std::iter::once(value)).get(dtype, 0) {
                        Some(Scalar::Float(rounded)) => rounded,
                        _ => value,
                    }
                }
            }),
            NumberClass::Complex => {
                let (re, im) = self.complex(dtype)?;
                match dtype {
                    DType::C64 => Scalar::Complex(widen_f32(narrow_f64(re)), widen_f32(narrow_f64(im))),
                    _ => Scalar::Complex(re, im),
                }
            }
        })
    }

    fn predicate(&mut self) -> Parsed<bool> {
        let word = self.word();
        let value = match word {
            b"true" => true,
            b"false" => false,
            _ => match read_integer(word) {
                Some((_, magnitude)) => magnitude != 0,
                None => return Err(self.error("`true`, `false` or an integer")),
            },
        };
        self.pos += word.len();
        Ok(value)
    }

    fn signed(&mut self, dtype: DType) -> Parsed<i64> {
        let bits = dtype.bits();
        let word = self.word();
        let limit = 1u64 << (bits - 1);
        match read_integer(word) {
            Some((false, magnitude)) if magnitude < limit => {
                self.pos += word.len();
                Ok(magnitude as i64)
            }
            Some((true, magnitude)) if magnitude <= limit => {
                self.pos += word.len();
                Ok((magnitude as i64).wrapping_neg())
            }
            _ => {
                let (min, max) = (i64::MIN >> (64 - bits), i64::MAX >> (64 - bits));
                Err(self.error(format!("an integer from {min} to {max} ({dtype})")))
            }
        }
    }

    fn unsigned(&mut self, dtype: DType) -> Parsed<u64> {
        let max = u64::MAX >> (64 - dtype.bits());
        let word = self.word();
        match read_integer(word) {
            // XLA wraps negative numbers of this one type.
            Some((true, magnitude)) if dtype == DType::U64 && magnitude <= 1 << 63 => {
                self.pos += word.len();
                Ok(magnitude.wrapping_neg())
            }
            Some((negative, magnitude)) if magnitude <= max && !(negative && magnitude > 0) => {
                self.pos += word.len();
                Ok(magnitude)
            }
            _ => Err(self.error(format!("an integer from 0 to {max} ({dtype})"))),
        }
    }

    /// Reads a float token; the result is the nearest `f64` and known not to overflow `dtype`, or an infinity or NaN that
    /// the text names. A NaN's payload is at the top of the mantissa.
    fn float(&mut self, dtype: DType) -> Parsed<f64> {
        let start = self.pos;
        let word = self.word();
        let value = match word {
            b"nan" | b"-nan" => {
                self.pos += word.len();
                return self.nan(start, dtype, word.first() == Some(&b'-'));
            }
            b"inf" => f64::INFINITY,
            b"-inf" => f64::NEG_INFINITY,
            _ => {
                let value =
                    read_float(word).ok_or_else(|| self.error(format!("a number, `inf` or `nan` ({dtype})")))?;
                if overflows(value, dtype) {
                    return Err(self.error(format!("a number in the range of {dtype}")));
                }
                value
            }
        };
        self.pos += word.len();
        Ok(value)
    }

    /// Reads the payload that may follow `nan`.
    fn nan(&mut self, start: usize, dtype: DType, negative: bool) -> Parsed<f64> {
        let mantissa_bits = match (dtype.real_part(), Format::of(dtype)) {
            (DType::F32, _) => 23,
            (DType::F64, _) => 52,
            (_, Some(format)) if format.specials == Specials::Ieee => format.mantissa_bits,
            _ => 0,
        };
        let sign = u64::from(negative) << 63;
        let quiet = f64::from_bits(sign | 0x7ff << 52 | 1 << 51);
        let rest = self.text.get(self.pos..).unwrap_or_default();
        let Some(digits) = rest.strip_prefix(b"(0x") else { return Ok(quiet) };
        let n_digits = digits.iter().take(17).take_while(|byte| byte.is_ascii_hexdigit()).count();
        let payload = std::str::from_utf8(&digits[..n_digits]).ok().and_then(|hex| u64::from_str_radix(hex, 16).ok());
        let end = self.pos + 3 + n_digits;
        match payload {
            Some(payload) if self.text.get(end) == Some(&b')') => {
                if mantissa_bits == 0 {
                    return Err(self.error_at(start, format!("`nan` without payload ({dtype} has none)")));
                }
                let max = u64::MAX >> (64 - mantissa_bits);
                if payload == 0 || payload > max {
                    return Err(self.error_at(self.pos, format!("a NaN payload from 0x1 to {max:#x} ({dtype})")));
                }
                self.pos = end + 1;
                Ok(f64::from_bits(sign | 0x7ff << 52 | payload << (52 - mantissa_bits)))
            }
            _ => Err(self.error_at(self.pos, "a NaN payload like `(0x1)`")),
        }
    }

    fn complex(&mut self, dtype: DType) -> Parsed<(f64, f64)> {
        let part = dtype.real_part();
        self.expect(b'(', "`(` of a complex number")?;
        let re = self.float(part)?;
        self.expect(b',', "`,` after the real part")?;
        let im = self.float(part)?;
        self.skip_blank();
        match self.peek() {
            Some(b')') => {
                self.pos += 1;
                Ok((re, im))
            }
            _ => Err(self.error("`)` after the imaginary part")),
        }
    }

    /// Takes `byte` and the blanks round it.
    fn expect(&mut self, byte: u8, expected: &'static str) -> Parsed<()> {
        self.skip_blank();
        if self.peek() != Some(byte) {
            return Err(self.error(expected));
        }
        self.pos += 1;
        self.skip_blank();
        Ok(())
    }
}

fn is_number_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

/// Sign and magnitude of `-?[0-9]+`; `None` if it is anything else or exceeds 64 bits.
fn read_integer(word: &[u8]) -> Option<(bool, u64)> {
    let (negative, digits) = match word {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some((negative, value))
}

/// The nearest `f64` of a decimal number: digits with an optional point and exponent. A leading point needs a minus sign
/// before it, as in XLA's grammar.
fn read_float(word: &[u8]) -> Option<f64> {
    if word.len() <= 9
        && let Some((negative, magnitude)) = read_integer(word)
    {
        let value = magnitude as f64;
        return Some(if negative && magnitude > 0 { -value } else { value });
    }
    let unsigned = word.strip_prefix(b"-").unwrap_or(word);
    let first_ok = match unsigned {
        [first, ..] if first.is_ascii_digit() => true,
        [b'.', ..] => unsigned.len() < word.len(),
        _ => false,
    };
    let is_decimal = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    if !first_ok || !unsigned.iter().all(is_decimal) {
        return None;
    }
    let value: f64 = std::str::from_utf8(word).ok()?.parse().ok()?;
    let is_integer = unsigned.iter().all(u8::is_ascii_digit);
    Some(if value == 0.0 && is_integer { 0.0 } else { value })
}

/// Whether a finite value read from text has no finite value of `dtype` near it. `f4e2m1fn` saturates instead.
fn overflows(value: f64, dtype: DType) -> bool {
    match dtype.real_part() {
        DType::F64 => value.is_infinite(),
        DType::F32 => (value as f32).is_infinite(),
        _ if value.is_infinite() => true,
        _ => Format::of(dtype).is_some_and(|format| !format.decode(format.encode(value)).is_finite()),
    }
}
