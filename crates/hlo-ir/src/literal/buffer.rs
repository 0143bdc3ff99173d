//! The storage of a literal: one vector per machine type, and access to single elements.

use half::{bf16, f16};
use std::hash::{Hash, Hasher};

use super::convert::{Source, build_buffer};
use crate::dtype::DType;
use crate::float::complex::Complex;
use crate::float::minifloat::{Format, widen_f32};

/// One element, widened to the largest type of its class. NaNs keep their sign and payload.
///
/// Storing a scalar converts it as HLO's `convert` does on XLA's CPU backend: integers wrap, floats round to nearest with
/// ties to even, float to integer truncates and saturates with NaN giving 0, to `pred` is "not zero", complex to real
/// takes the real part.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Scalar {
    /// Of `pred`.
    Pred(bool),
    /// Of a signed integer type.
    Int(i64),
    /// Of an unsigned integer type.
    Uint(u64),
    /// Of a real floating-point type.
    Float(f64),
    /// Real and imaginary part.
    Complex(f64, f64),
}

/// A type that elements are stored as.
pub trait Element: Copy + Sized + 'static {
    /// The element type that a vector of this type stands for by itself.
    const DTYPE: DType;

    /// The elements, if the buffer stores this type.
    fn slice(buffer: &Buffer) -> Option<&[Self]>;

    /// The elements, mutable, if the buffer stores this type.
    fn slice_mut(buffer: &mut Buffer) -> Option<&mut [Self]>;

    /// The elements as a buffer.
    fn into_buffer(elems: Vec<Self>) -> Buffer;
}

/// Rows: variant, stored type, natural dtype, dtypes stored so, and the bits that equality and hash compare.
macro_rules! buffers {
    ($($variant:ident $elem:ty, $natural:ident, [$($dtype:ident)|+], |$x:ident| $bits:expr, $doc:literal;)*) => {
        /// The elements of a literal, one vector type per storage.
        #[derive(Clone, Debug)]
        pub enum Buffer {
            $(#[doc = $doc] $variant(Vec<$elem>),)*
            /// Codes of `f4e2m1fn` and the `f8` types, one a byte.
            F8(Vec<u8>),
        }

        $(impl Element for $elem {
            const DTYPE: DType = DType::$natural;
            fn slice(buffer: &Buffer) -> Option<&[Self]> {
                match buffer { Buffer::$variant(elems) => Some(elems), _ => None }
            }
            fn slice_mut(buffer: &mut Buffer) -> Option<&mut [Self]> {
                match buffer { Buffer::$variant(elems) => Some(elems), _ => None }
            }
            fn into_buffer(elems: Vec<Self>) -> Buffer {
                Buffer::$variant(elems)
            }
        })*

        impl Buffer {
            /// The number of elements.
            pub fn len(&self) -> usize {
                match self { $(Buffer::$variant(elems) => elems.len(),)* Buffer::F8(codes) => codes.len() }
            }

            /// Whether elements of `dtype` are stored this way.
            pub fn stores(&self, dtype: DType) -> bool {
                match self {
                    $(Buffer::$variant(_) => matches!(dtype, $(DType::$dtype)|+),)*
                    Buffer::F8(_) => dtype.is_float() && dtype.bits() <= 8,
                }
            }

            /// Whether every element has the bits of the first.
            pub(super) fn is_splat(&self) -> bool {
                match self {
                    $(Buffer::$variant(elems) => {
                        let bits = |$x: $elem| $bits;
                        elems.first().is_none_or(|&first| elems.iter().all(|&x| bits(x) == bits(first)))
                    })*
                    Buffer::F8(codes) => codes.first().is_none_or(|first| codes.iter().all(|code| code == first)),
                }
            }
        }

        impl PartialEq for Buffer {
            fn eq(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Buffer::$variant(a), Buffer::$variant(b)) => {
                        let bits = |$x: $elem| $bits;
                        a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| bits(a) == bits(b))
                    })*
                    (Buffer::F8(a), Buffer::F8(b)) => a == b,
                    _ => false,
                }
            }
        }

        impl Hash for Buffer {
            fn hash<H: Hasher>(&self, state: &mut H) {
                std::mem::discriminant(self).hash(state);
                self.len().hash(state);
                match self {
                    $(Buffer::$variant(elems) => elems.iter().for_each(|&$x| $bits.hash(state)),)*
                    Buffer::F8(codes) => codes.hash(state),
                }
            }
        }
    };
}

buffers! {
    Pred bool, Pred, [Pred], |x| x, "`pred`.";
    S8 i8, S8, [S1 | S2 | S4 | S8], |x| x, "`s1` to `s8`, sign-extended.";
    S16 i16, S16, [S16], |x| x, "`s16`.";
    S32 i32, S32, [S32], |x| x, "`s32`.";
    S64 i64, S64, [S64], |x| x, "`s64`.";
    U8 u8, U8, [U1 | U2 | U4 | U8], |x| x, "`u1` to `u8`.";
    U16 u16, U16, [U16], |x| x, "`u16`.";
    U32 u32, U32, [U32], |x| x, "`u32`.";
    U64 u64, U64, [U64], |x| x, "`u64`.";
    F16 f16, F16, [F16], |x| x.to_bits(), "`f16`.";
    BF16 bf16, BF16, [BF16], |x| x.to_bits(), "`bf16`.";
    F32 f32, F32, [F32], |x| x.to_bits(), "`f32`.";
    F64 f64, F64, [F64], |x| x.to_bits(), "`f64`.";
    C64 Complex<f32>, C64, [C64], |x| (x.re.to_bits(), x.im.to_bits()), "`c64`.";
    C128 Complex<f64>, C128, [C128], |x| (x.re.to_bits(), x.im.to_bits()), "`c128`.";
}

impl Eq for Buffer {}

/// The exact value of a 16-bit float; NaNs keep sign and payload.
pub(super) fn widen_bits(dtype: DType, bits: u16) -> f64 {
    Format::of(dtype).map_or(f64::NAN, |format| format.decode(bits))
}

impl Buffer {
    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `n_elems` copies of one value.
    pub fn splat(dtype: DType, value: Scalar, n_elems: usize) -> Buffer {
        match value {
            Scalar::Pred(value) => splat_from(dtype, value, n_elems),
            Scalar::Int(value) => splat_from(dtype, value, n_elems),
            Scalar::Uint(value) => splat_from(dtype, value, n_elems),
            Scalar::Float(value) => splat_from(dtype, value, n_elems),
            Scalar::Complex(re, im) => splat_from(dtype, Complex::new(re, im), n_elems),
        }
    }

    /// The element at `index`, read as `dtype`, which must be the type the buffer was made for.
    pub fn get(&self, dtype: DType, index: usize) -> Option<Scalar> {
        Some(match self {
            Buffer::Pred(elems) => Scalar::Pred(*elems.get(index)?),
            Buffer::S8(elems) => Scalar::Int((*elems.get(index)?).into()),
            Buffer::S16(elems) => Scalar::Int((*elems.get(index)?).into()),
            Buffer::S32(elems) => Scalar::Int((*elems.get(index)?).into()),
            Buffer::S64(elems) => Scalar::Int(*elems.get(index)?),
            Buffer::U8(elems) => Scalar::Uint((*elems.get(index)?).into()),
            Buffer::U16(elems) => Scalar::Uint((*elems.get(index)?).into()),
            Buffer::U32(elems) => Scalar::Uint((*elems.get(index)?).into()),
            Buffer::U64(elems) => Scalar::Uint(*elems.get(index)?),
            Buffer::F8(codes) => Scalar::Float(widen_bits(dtype, u16::from(*codes.get(index)?))),
            Buffer::F16(elems) => Scalar::Float(widen_bits(DType::F16, elems.get(index)?.to_bits())),
            Buffer::BF16(elems) => Scalar::Float(widen_bits(DType::BF16, elems.get(index)?.to_bits())),
            Buffer::F32(elems) => Scalar::Float(widen_f32(*elems.get(index)?)),
            Buffer::F64(elems) => Scalar::Float(*elems.get(index)?),
            Buffer::C64(elems) => {
                let value = elems.get(index)?;
                Scalar::Complex(widen_f32(value.re), widen_f32(value.im))
            }
            Buffer::C128(elems) => {
                let value = elems.get(index)?;
                Scalar::Complex(value.re, value.im)
            }
        })
    }

    /// Stores `value` converted to `dtype`; `false` if the index is out of range or the buffer is not of `dtype`.
    pub fn set(&mut self, dtype: DType, index: usize, value: Scalar) -> bool {
        fn put<T: Copy>(to: &mut [T], index: usize, from: &[T]) -> bool {
            match (to.get_mut(index), from) {
                (Some(slot), &[value]) => {
                    *slot = value;
                    true
                }
                _ => false,
            }
        }
        let one = Buffer::splat(dtype, value, 1);
        match (self, &one) {
            (Buffer::Pred(to), Buffer::Pred(from)) => put(to, index, from),
            (Buffer::S8(to), Buffer::S8(from)) => put(to, index, from),
            (Buffer::S16(to), Buffer::S16(from)) => put(to, index, from),
            (Buffer::S32(to), Buffer::S32(from)) => put(to, index, from),
            (Buffer::S64(to), Buffer::S64(from)) => put(to, index, from),
            (Buffer::U8(to), Buffer::U8(from)) => put(to, index, from),
            (Buffer::U16(to), Buffer::U16(from)) => put(to, index, from),
            (Buffer::U32(to), Buffer::U32(from)) => put(to, index, from),
            (Buffer::U64(to), Buffer::U64(from)) => put(to, index, from),
            (Buffer::F8(to), Buffer::F8(from)) => put(to, index, from),
            (Buffer::F16(to), Buffer::F16(from)) => put(to, index, from),
            (Buffer::BF16(to), Buffer::BF16(from)) => put(to, index, from),
            (Buffer::F32(to), Buffer::F32(from)) => put(to, index, from),
            (Buffer::F64(to), Buffer::F64(from)) => put(to, index, from),
            (Buffer::C64(to), Buffer::C64(from)) => put(to, index, from),
            (Buffer::C128(to), Buffer::C128(from)) => put(to, index, from),
            _ => false,
        }
    }

    /// Brings elements of types below 8 bits into their range.
    pub(super) fn wrap_narrow(&mut self, dtype: DType) {
        let bits = dtype.bits();
        if bits >= 8 {
            return;
        }
        match self {
            Buffer::S8(elems) => elems.iter_mut().for_each(|x| *x = *x << (8 - bits) >> (8 - bits)),
            Buffer::U8(elems) | Buffer::F8(elems) => elems.iter_mut().for_each(|x| *x &= (1 << bits) - 1),
            _ => {}
        }
    }

    /// The bits of all elements, little-endian; elements below 8 bits are packed, the first in the lowest bits.
    pub fn to_packed_bytes(&self, dtype: DType) -> Vec<u8> {
        match self {
            Buffer::Pred(elems) => elems.iter().map(|&x| u8::from(x)).collect(),
            Buffer::S8(elems) => pack(dtype.bits(), elems.iter().map(|&x| x as u8)),
            Buffer::U8(elems) | Buffer::F8(elems) => pack(dtype.bits(), elems.iter().copied()),
            Buffer::S16(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::S32(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::S64(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::U16(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::U32(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::U64(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::F16(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::BF16(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::F32(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::F64(elems) => elems.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Buffer::C64(elems) => elems.iter().flat_map(|x| [x.re, x.im]).flat_map(f32::to_le_bytes).collect(),
            Buffer::C128(elems) => elems.iter().flat_map(|x| [x.re, x.im]).flat_map(f64::to_le_bytes).collect(),
        }
    }

    /// The inverse of [`Buffer::to_packed_bytes`]: `n_elems` elements of `dtype`; missing bytes read as 0.
    pub fn from_packed_bytes(dtype: DType, bytes: &[u8], n_elems: usize) -> Buffer {
        fn words<const N: usize, T>(bytes: &[u8], n_elems: usize, from: impl Fn([u8; N]) -> T) -> Vec<T> {
            let (chunks, _) = bytes.as_chunks::<N>();
            (0..n_elems).map(|i| from(chunks.get(i).copied().unwrap_or([0; N]))).collect()
        }
        let bits = dtype.bits();
        match dtype {
            DType::Pred => Buffer::Pred(words(bytes, n_elems, |[byte]: [u8; 1]| byte != 0)),
            DType::S1 | DType::S2 | DType::S4 | DType::S8 => {
                let extend = |x: u8| (x << (8 - bits)) as i8 >> (8 - bits);
                Buffer::S8(unpack(bits, bytes, n_elems).map(extend).collect())
            }
            DType::U1 | DType::U2 | DType::U4 | DType::U8 => Buffer::U8(unpack(bits, bytes, n_elems).collect()),
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
            | DType::F8E8M0FNU => Buffer::F8(unpack(bits, bytes, n_elems).collect()),
            DType::S16 => Buffer::S16(words(bytes, n_elems, i16::from_le_bytes)),
            DType::S32 => Buffer::S32(words(bytes, n_elems, i32::from_le_bytes)),
            DType::S64 => Buffer::S64(words(bytes, n_elems, i64::from_le_bytes)),
            DType::U16 => Buffer::U16(words(bytes, n_elems, u16::from_le_bytes)),
            DType::U32 => Buffer::U32(words(bytes, n_elems, u32::from_le_bytes)),
            DType::U64 => Buffer::U64(words(bytes, n_elems, u64::from_le_bytes)),
            DType::F16 => Buffer::F16(words(bytes, n_elems, f16::from_le_bytes)),
            DType::BF16 => Buffer::BF16(words(bytes, n_elems, bf16::from_le_bytes)),
            DType::F32 => Buffer::F32(words(bytes, n_elems, f32::from_le_bytes)),
            DType::F64 => Buffer::F64(words(bytes, n_elems, f64::from_le_bytes)),
            DType::C64 => {
                let parts = words(bytes, n_elems.saturating_mul(2), f32::from_le_bytes);
                Buffer::C64(parts.as_chunks().0.iter().map(|&[re, im]| Complex::new(re, im)).collect())
            }
            DType::C128 => {
                let parts = words(bytes, n_elems.saturating_mul(2), f64::from_le_bytes);
                Buffer::C128(parts.as_chunks().0.iter().map(|&[re, im]| Complex::new(re, im)).collect())
            }
        }
    }
}

fn splat_from<S: Source>(dtype: DType, value: S, n_elems: usize) -> Buffer {
    build_buffer(dtype, std::iter::repeat_n(value, n_elems))
}

/// Packs elements of `bits` (1, 2, 4 or 8) bits, the first in the lowest bits of a byte.
fn pack(bits: u32, elems: impl Iterator<Item = u8>) -> Vec<u8> {
    if bits == 8 {
        return elems.collect();
    }
    let per_byte = (8 / bits) as usize;
    let mut bytes = Vec::with_capacity(elems.size_hint().0 / per_byte + 1);
    for (i, elem) in elems.enumerate() {
        if i % per_byte == 0 {
            bytes.push(0);
        }
        if let Some(last) = bytes.last_mut() {
            *last |= (elem & ((1 << bits) - 1)) << ((i % per_byte) as u32 * bits);
        }
    }
    bytes
}

fn unpack(bits: u32, bytes: &[u8], n_elems: usize) -> impl Iterator<Item = u8> + '_ {
    let per_byte = (8 / bits) as usize;
    let mask = (0xffu16 >> (8 - bits)) as u8;
    (0..n_elems).map(move |i| {
        let byte = bytes.get(i / per_byte).copied().unwrap_or(0);
        byte >> ((i % per_byte) as u32 * bits) & mask
    })
}
