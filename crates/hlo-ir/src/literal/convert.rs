//! HLO's `convert` between every two element types, as XLA's CPU backend does it.
// circle: a buffer stores a scalar by converting it, and a conversion builds a buffer

use half::{bf16, f16};

use super::buffer::{Buffer, widen_bits};
use crate::dtype::DType;
use crate::float::complex::Complex;
use crate::float::minifloat::{Format, narrow_f64, widen_f32};

/// A value that can be converted to every element type.
pub(super) trait Source: Copy {
    /// Not zero (a NaN is not zero).
    fn to_pred(self) -> bool;
    /// As a signed integer of `bits` bits.
    fn to_signed(self, bits: u32) -> i64;
    /// As an unsigned integer of `bits` bits.
    fn to_unsigned(self, bits: u32) -> u64;
    /// As the nearest `f32`.
    fn to_f32(self) -> f32;
    /// As the nearest `f64`.
    fn to_f64(self) -> f64;
    /// As the nearest `f16`.
    fn to_f16(self) -> f16;
    /// The imaginary part.
    fn imaginary(self) -> f64 {
        0.0
    }
}

fn f16_from_f64(value: f64) -> f16 {
    const FORMAT: Option<Format> = Format::of(DType::F16);
    f16::from_bits(FORMAT.map_or(0, |format| format.encode(value)))
}

fn f16_from_f32(value: f32) -> f16 {
    if value.is_nan() { f16_from_f64(widen_f32(value)) } else { f16::from_f32(value) }
}

/// XLA rounds to `bf16` from `f32`, so wider sources are rounded twice; so do we.
fn bf16_from_f32(value: f32) -> bf16 {
    if !value.is_nan() {
        return bf16::from_f32(value);
    }
    const FORMAT: Option<Format> = Format::of(DType::BF16);
    bf16::from_bits(FORMAT.map_or(0, |format| format.encode(widen_f32(value))))
}

impl Source for bool {
    fn to_pred(self) -> bool {
        self
    }
    fn to_signed(self, bits: u32) -> i64 {
        i64::from(self).to_signed(bits)
    }
    fn to_unsigned(self, _bits: u32) -> u64 {
        u64::from(self)
    }
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self))
    }
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn to_f16(self) -> f16 {
        f16_from_f32(self.to_f32())
    }
}

impl Source for i64 {
    fn to_pred(self) -> bool {
        self != 0
    }
    fn to_signed(self, bits: u32) -> i64 {
        self << (64 - bits) >> (64 - bits)
    }
    fn to_unsigned(self, bits: u32) -> u64 {
        (self as u64).to_unsigned(bits)
    }
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn to_f16(self) -> f16 {
        f16_from_f64(self as f64)
    }
}

impl Source for u64 {
    fn to_pred(self) -> bool {
        self != 0
    }
    fn to_signed(self, bits: u32) -> i64 {
        (self as i64).to_signed(bits)
    }
    fn to_unsigned(self, bits: u32) -> u64 {
        self << (64 - bits) >> (64 - bits)
    }
    fn to_f32(self) -> f32 {
        self as f32
    }
    fn to_f64(self) -> f64 {
        self as f64
    }
    fn to_f16(self) -> f16 {
        f16_from_f64(self as f64)
    }
}

impl Source for f64 {
    fn to_pred(self) -> bool {
        self != 0.0
    }
    fn to_signed(self, bits: u32) -> i64 {
        // A cast saturates at the limits of i64 and takes NaN to 0.
        (self as i64).clamp(i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
    }
    fn to_unsigned(self, bits: u32) -> u64 {
        (self as u64).min(u64::MAX >> (64 - bits))
    }
    fn to_f32(self) -> f32 {
        narrow_f64(self)
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn to_f16(self) -> f16 {
        f16_from_f64(self)
    }
}

impl Source for f32 {
    fn to_pred(self) -> bool {
        self != 0.0
    }
    fn to_signed(self, bits: u32) -> i64 {
        (self as i64).clamp(i64::MIN >> (64 - bits), i64::MAX >> (64 - bits))
    }
    fn to_unsigned(self, bits: u32) -> u64 {
        (self as u64).min(u64::MAX >> (64 - bits))
    }
    fn to_f32(self) -> f32 {
        self
    }
    fn to_f64(self) -> f64 {
        widen_f32(self)
    }
    fn to_f16(self) -> f16 {
        f16_from_f32(self)
    }
}

impl Source for Complex<f64> {
    fn to_pred(self) -> bool {
        self.re != 0.0 || self.im != 0.0
    }
    fn to_signed(self, bits: u32) -> i64 {
        self.re.to_signed(bits)
    }
    fn to_unsigned(self, bits: u32) -> u64 {
        self.re.to_unsigned(bits)
    }
    fn to_f32(self) -> f32 {
        self.re.to_f32()
    }
    fn to_f64(self) -> f64 {
        self.re
    }
    fn to_f16(self) -> f16 {
        self.re.to_f16()
    }
    fn imaginary(self) -> f64 {
        self.im
    }
}

/// Converts every value to `dtype`.
pub(super) fn build_buffer<S: Source>(dtype: DType, values: impl Iterator<Item = S>) -> Buffer {
    let bits = dtype.bits();
    match dtype {
        DType::Pred => Buffer::Pred(values.map(S::to_pred).collect()),
        DType::S1 | DType::S2 | DType::S4 | DType::S8 => Buffer::S8(values.map(|x| x.to_signed(bits) as i8).collect()),
        DType::S16 => Buffer::S16(values.map(|x| x.to_signed(16) as i16).collect()),
        DType::S32 => Buffer::S32(values.map(|x| x.to_signed(32) as i32).collect()),
        DType::S64 => Buffer::S64(values.map(|x| x.to_signed(64)).collect()),
        DType::U1 | DType::U2 | DType::U4 | DType::U8 => {
            Buffer::U8(values.map(|x| x.to_unsigned(bits) as u8).collect())
        }
        DType::U16 => Buffer::U16(values.map(|x| x.to_unsigned(16) as u16).collect()),
        DType::U32 => Buffer::U32(values.map(|x| x.to_unsigned(32) as u32).collect()),
        DType::U64 => Buffer::U64(values.map(|x| x.to_unsigned(64)).collect()),
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
        | DType::F8E8M0FNU => {
            let format = Format::of(dtype);
            Buffer::F8(values.map(|x| format.map_or(0, |format| format.encode(x.to_f64())) as u8).collect())
        }
        DType::F16 => Buffer::F16(values.map(S::to_f16).collect()),
        DType::BF16 => Buffer::BF16(values.map(|x| bf16_from_f32(x.to_f32())).collect()),
        DType::F32 => Buffer::F32(values.map(S::to_f32).collect()),
        DType::F64 => Buffer::F64(values.map(S::to_f64).collect()),
        DType::C64 => Buffer::C64(values.map(|x| Complex::new(x.to_f32(), x.imaginary().to_f32())).collect()),
        DType::C128 => Buffer::C128(values.map(|x| Complex::new(x.to_f64(), x.imaginary())).collect()),
    }
}

fn f32_from_f16(value: f16) -> f32 {
    if value.is_nan() { narrow_f64(widen_bits(DType::F16, value.to_bits())) } else { value.to_f32() }
}

impl Buffer {
    /// Every element of a buffer of type `from` converted to type `to`.
    pub(super) fn convert(&self, from: DType, to: DType) -> Buffer {
        match self {
            Buffer::Pred(elems) => build_buffer(to, elems.iter().copied()),
            Buffer::S8(elems) => build_buffer(to, elems.iter().map(|&x| i64::from(x))),
            Buffer::S16(elems) => build_buffer(to, elems.iter().map(|&x| i64::from(x))),
            Buffer::S32(elems) => build_buffer(to, elems.iter().map(|&x| i64::from(x))),
            Buffer::S64(elems) => build_buffer(to, elems.iter().copied()),
            Buffer::U8(elems) => build_buffer(to, elems.iter().map(|&x| u64::from(x))),
            Buffer::U16(elems) => build_buffer(to, elems.iter().map(|&x| u64::from(x))),
            Buffer::U32(elems) => build_buffer(to, elems.iter().map(|&x| u64::from(x))),
            Buffer::U64(elems) => build_buffer(to, elems.iter().copied()),
            Buffer::F8(codes) => build_buffer(to, codes.iter().map(|&code| widen_bits(from, u16::from(code)))),
            Buffer::F16(elems) => build_buffer(to, elems.iter().map(|&x| f32_from_f16(x))),
            Buffer::BF16(elems) => {
                build_buffer(to, elems.iter().map(|&x| f32::from_bits(u32::from(x.to_bits()) << 16)))
            }
            Buffer::F32(elems) => build_buffer(to, elems.iter().copied()),
            Buffer::F64(elems) => build_buffer(to, elems.iter().copied()),
            Buffer::C64(elems) => {
                build_buffer(to, elems.iter().map(|x| Complex::new(widen_f32(x.re), widen_f32(x.im))))
            }
            Buffer::C128(elems) => build_buffer(to, elems.iter().copied()),
        }
    }
}
