//! The text of a literal, byte for byte as XLA prints a constant on one line, but for negative zero: XLA prints it as `-0`
//! and reads that as +0, so it is `-0.0` here, which XLA reads as it should.
//!
//! Rank 0 is the bare element, rank 1 `{1, 2}`, higher ranks `{ { 1, 2 }, { 3, 4 } }`; from rank 4 on every inner brace
//! but the last names its index: `{ { /*i0=0*/ { /*i1=0*/ { 1, 2 } } } }`.

use half::{bf16, f16};
use std::fmt::Write as _;

use super::{Buffer, ConstantValue, Literal};
use crate::dtype::DType;
use crate::float::complex::Complex;
use crate::float::decimal::{write_digits, write_f32, write_f64, write_i64, write_u64};
use crate::float::minifloat::{Format, Specials};
use crate::infer::add_default_layouts;
use crate::shape::Shape;

impl Literal {
    /// Appends the literal as XLA prints it inside `constant(…)`, all elements included.
    pub fn write_text(&self, out: &mut String) {
        let dims = self.dims();
        match self.data() {
            Buffer::Pred(elems) if dims.is_empty() => write_all(dims, elems, out, |&x, out| {
                out.push_str(if x { "true" } else { "false" });
            }),
            Buffer::Pred(elems) => write_all(dims, elems, out, |&x, out| out.push(if x { '1' } else { '0' })),
            Buffer::S8(elems) => write_all(dims, elems, out, |&x, out| write_i64(x.into(), out)),
            Buffer::S16(elems) => write_all(dims, elems, out, |&x, out| write_i64(x.into(), out)),
            Buffer::S32(elems) => write_all(dims, elems, out, |&x, out| write_i64(x.into(), out)),
            Buffer::S64(elems) => write_all(dims, elems, out, |&x, out| write_i64(x, out)),
            Buffer::U8(elems) => write_all(dims, elems, out, |&x, out| write_u64(x.into(), out)),
            Buffer::U16(elems) => write_all(dims, elems, out, |&x, out| write_u64(x.into(), out)),
            Buffer::U32(elems) => write_all(dims, elems, out, |&x, out| write_u64(x.into(), out)),
            Buffer::U64(elems) => write_all(dims, elems, out, |&x, out| write_u64(x, out)),
            Buffer::F8(codes) => {
                let Some(format) = Format::of(self.dtype()) else { return };
                write_all(dims, codes, out, |&code, out| write_small(format, code.into(), out));
            }
            Buffer::F16(elems) => {
                let Some(format) = Format::of(DType::F16) else { return };
                write_all(dims, elems, out, |x: &f16, out| write_small(format, x.to_bits(), out));
            }
            Buffer::BF16(elems) => {
                let Some(format) = Format::of(DType::BF16) else { return };
                write_all(dims, elems, out, |x: &bf16, out| write_small(format, x.to_bits(), out));
            }
            Buffer::F32(elems) => write_all(dims, elems, out, |&x, out| write_single(x, out)),
            Buffer::F64(elems) => write_all(dims, elems, out, |&x, out| write_double(x, out)),
            Buffer::C64(elems) => {
                write_all(dims, elems, out, |&x, out| write_complex(x, out, write_single));
            }
            Buffer::C128(elems) => {
                write_all(dims, elems, out, |&x, out| write_complex(x, out, write_double));
            }
        }
    }
}

impl ConstantValue {
    /// Appends the value with its shape as XLA prints the literal of a custom call: a tuple is a list of such literals.
    pub fn write_with_shape(&self, shape: &Shape, out: &mut String) {
        if let (Shape::Tuple(shapes), ConstantValue::Tuple(values)) = (shape, self) {
            out.push_str("( ");
            for (i, (shape, value)) in shapes.iter().zip(values).enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                value.write_with_shape(shape, out);
            }
            out.push_str(" )");
            return;
        }
        let mut shape = shape.clone();
        add_default_layouts(&mut shape);
        let _ = write!(out, "{shape} ");
        self.write_text(out);
    }

    /// Appends the value as XLA prints it inside `constant(…)`.
    pub fn write_text(&self, out: &mut String) {
        match self {
            ConstantValue::Array(literal) => literal.write_text(out),
            ConstantValue::Elided => out.push_str("{...}"),
            ConstantValue::Tuple(values) => {
                out.push_str("( ");
                for (i, value) in values.iter().enumerate() {
                    if i > 0 {
                        out.push_str(", ");
                    }
                    value.write_text(out);
                }
                out.push_str(" )");
            }
        }
    }
}

/// Of an array without elements, `f32[1000000,0]`, the text is as long as the dims say, and says nothing. With more rows it is `{...}`,
/// which is read as that array, here and by XLA.
const MOST_EMPTY_ROWS: u64 = 1 << 16;

/// The rows of an array without elements; 0 for one that has some.
fn empty_rows(dims: &[i64]) -> u64 {
    let before = dims.iter().position(|&dim| dim == 0).and_then(|zero| dims.get(..zero));
    before.map_or(0, |dims| dims.iter().fold(1, |rows, &dim| rows.saturating_mul(dim.max(0) as u64)))
}

/// Writes all elements with the braces of `dims`.
fn write_all<T>(dims: &[i64], elems: &[T], out: &mut String, mut write_elem: impl FnMut(&T, &mut String)) {
    match dims {
        [] => elems.iter().for_each(|elem| write_elem(elem, out)),
        [_] => {
            out.push('{');
            write_row(elems, out, &mut write_elem);
            out.push('}');
        }
        _ if empty_rows(dims) > MOST_EMPTY_ROWS => out.push_str("{...}"),
        _ => write_nested(dims, 0, elems, out, &mut write_elem),
    }
}

fn write_row<T>(elems: &[T], out: &mut String, write_elem: &mut impl FnMut(&T, &mut String)) {
    // At least "0, " for each element.
    out.reserve(elems.len().saturating_mul(3));
    for (i, elem) in elems.iter().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_elem(elem, out);
    }
}

/// Writes the elements of one index of the dims before `depth`. The recursion is as deep as the rank.
fn write_nested<T>(
    dims: &[i64],
    depth: usize,
    elems: &[T],
    out: &mut String,
    write_elem: &mut impl FnMut(&T, &mut String),
) {
    if depth + 1 == dims.len() {
        let pad = if elems.len() > 1 { " " } else { "" };
        out.push('{');
        out.push_str(pad);
        write_row(elems, out, write_elem);
        out.push_str(pad);
        out.push('}');
        return;
    }
    out.push_str(if depth == 0 { "{ " } else { "" });
    let n_parts = dims.get(depth).map_or(0, |&dim| dim.max(0));
    let part_len = elems.len() / (n_parts as usize).max(1);
    let has_braces_inside = depth + 2 < dims.len();
    for i in 0..n_parts {
        if i > 0 {
            out.push_str(", ");
        }
        if has_braces_inside {
            out.push_str("{ ");
            if dims.len() > 3 {
                let _ = write!(out, "/*i{depth}={i}*/");
                // An empty brace has one space after its comment.
                if dims.get(depth + 1) != Some(&0) {
                    out.push(' ');
                }
            }
        }
        let start = part_len * i as usize;
        write_nested(dims, depth + 1, elems.get(start..start + part_len).unwrap_or_default(), out, write_elem);
    }
    out.push_str(" }");
}

const NEGATIVE_ZERO: &str = "-0.0";

fn write_single(value: f32, out: &mut String) {
    if value == 0.0 && value.is_sign_negative() {
        out.push_str(NEGATIVE_ZERO);
    } else if value.is_nan() {
        let bits = value.to_bits();
        write_nan(bits >> 31 != 0, u64::from(bits & 0x7f_ffff), 1 << 22, out);
    } else {
        write_f32(value, out);
    }
}

fn write_double(value: f64, out: &mut String) {
    if value == 0.0 && value.is_sign_negative() {
        out.push_str(NEGATIVE_ZERO);
    } else if value.is_nan() {
        let bits = value.to_bits();
        write_nan(bits >> 63 != 0, bits & ((1 << 52) - 1), 1 << 51, out);
    } else {
        write_f64(value, out);
    }
}

fn write_complex<T: Copy>(value: Complex<T>, out: &mut String, write_part: fn(T, &mut String)) {
    out.push('(');
    write_part(value.re, out);
    out.push_str(", ");
    write_part(value.im, out);
    out.push(')');
}

/// Writes a value of at most 16 bits with the digits that tell all its codes apart.
fn write_small(format: Format, code: u16, out: &mut String) {
    let value = format.decode(code);
    if value == 0.0 && value.is_sign_negative() {
        out.push_str(NEGATIVE_ZERO);
    } else if !value.is_nan() {
        write_digits(value, format.round_trip_digits(), out);
    } else if format.specials == Specials::Ieee {
        let payload = u64::from(code) & ((1 << format.mantissa_bits) - 1);
        write_nan(value.is_sign_negative(), payload, 1 << (format.mantissa_bits - 1), out);
    } else {
        out.push_str(if value.is_sign_negative() { "-nan" } else { "nan" });
    }
}

/// Writes a NaN; the payload is named unless it is the quiet NaN's own.
fn write_nan(negative: bool, payload: u64, quiet_payload: u64, out: &mut String) {
    out.push_str(if negative { "-nan" } else { "nan" });
    if payload != quiet_payload {
        let _ = write!(out, "(0x{payload:x})");
    }
}
