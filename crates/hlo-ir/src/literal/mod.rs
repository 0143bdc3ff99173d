//! Constant array values: typed storage in logical row-major order, conversions, and the text that XLA prints.

mod buffer;
mod convert;
mod parse;
mod print;

use smallvec::SmallVec;
use std::fmt;

use crate::dtype::DType;
use crate::float::Complex;
pub use buffer::{Buffer, Element, Scalar};
pub use parse::{LiteralError, parse_constant, parse_literal, parse_scalar};

/// A dense array of one element type; the elements are in row-major order of the logical dims, whatever the layout.
///
/// Equality and hash are bitwise: `-0` and `0` differ, a NaN equals the NaN with the same bits.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Literal {
    dtype: DType,
    dims: SmallVec<[i64; 4]>,
    data: Buffer,
}

/// The value of a `constant` instruction.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ConstantValue {
    /// An array with all its elements.
    Array(Literal),
    /// One value for each tuple element.
    Tuple(Vec<ConstantValue>),
    /// `{...}`: the elements were left out when the text was printed.
    Elided,
}

/// Why a [`Literal`] could not be made of the given parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiteralShapeError {
    /// The element type asked for.
    pub dtype: DType,
    /// The number of elements the dims ask for; `None` if a dim is negative or the product overflows.
    pub n_expected: Option<usize>,
    /// The number of elements given.
    pub n_found: usize,
}

impl fmt::Display for LiteralShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.n_expected {
            Some(n) => write!(f, "expected {n} elements stored as {}, found {} elements", self.dtype, self.n_found),
            None => write!(f, "expected dims whose product is an element count, found dims out of range"),
        }
    }
}

impl std::error::Error for LiteralShapeError {}

/// The product of the dims; `None` if one is negative or if that many elements cannot be addressed.
pub fn element_count(dims: &[i64]) -> Option<usize> {
    const MAX_ELEMS: usize = isize::MAX as usize / size_of::<Complex<f64>>();
    if dims.contains(&0) && dims.iter().all(|&dim| dim >= 0) {
        return Some(0);
    }
    let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))?;
    (count <= MAX_ELEMS).then_some(count)
}

impl Literal {
    /// An array of the elements in `data`, which must have the storage of `dtype` and as many elements as `dims` say.
    /// Elements of integer types below 8 bits are wrapped into their range.
    pub fn new(dtype: DType, dims: &[i64], mut data: Buffer) -> Result<Literal, LiteralShapeError> {
        let n_expected = element_count(dims);
        if n_expected != Some(data.len()) || !data.stores(dtype) {
            return Err(LiteralShapeError { dtype, n_expected, n_found: data.len() });
        }
        data.wrap_narrow(dtype);
        Ok(Literal { dtype, dims: SmallVec::from_slice(dims), data })
    }

    /// An array of the natural element type of `T`, e.g. `f32` for `Vec<f32>`.
    pub fn from_elems<T: Element>(dims: &[i64], elems: Vec<T>) -> Result<Literal, LiteralShapeError> {
        Literal::new(T::DTYPE, dims, T::into_buffer(elems))
    }

    /// A rank-0 array; the value is converted as HLO's `convert` does.
    pub fn scalar(dtype: DType, value: Scalar) -> Literal {
        Literal { dtype, dims: SmallVec::new(), data: Buffer::splat(dtype, value, 1) }
    }

    /// A rank-0 array of the natural element type of `T`.
    pub fn from_elem<T: Element>(elem: T) -> Literal {
        Literal { dtype: T::DTYPE, dims: SmallVec::new(), data: T::into_buffer(vec![elem]) }
    }

    /// An array with the same value everywhere. The memory is taken at once: check dims that a user gave before.
    pub fn splat(dtype: DType, dims: &[i64], value: Scalar) -> Result<Literal, LiteralShapeError> {
        let Some(n_elems) = element_count(dims) else {
            return Err(LiteralShapeError { dtype, n_expected: None, n_found: 0 });
        };
        Ok(Literal { dtype, dims: SmallVec::from_slice(dims), data: Buffer::splat(dtype, value, n_elems) })
    }

    /// An array of zeros (of the value nearest to zero for `f8e8m0fnu`, which has none).
    pub fn zeros(dtype: DType, dims: &[i64]) -> Result<Literal, LiteralShapeError> {
        let zero = if dtype == DType::F8E8M0FNU { Scalar::Float(f64::MIN_POSITIVE) } else { Scalar::Pred(false) };
        Literal::splat(dtype, dims, zero)
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The logical dims.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// The elements in logical row-major order.
    pub fn data(&self) -> &Buffer {
        &self.data
    }

    /// The elements, given away.
    pub fn into_data(self) -> Buffer {
        self.data
    }

    /// The number of elements.
    pub fn n_elems(&self) -> usize {
        self.data.len()
    }

    /// Bytes of the array in memory, whole ones for each element.
    pub fn memory_bytes(&self) -> u64 {
        (self.data.len() as u64).saturating_mul(u64::from(self.dtype.bits().div_ceil(8)))
    }

    /// The elements as a typed slice; `None` if they are stored as another type. `f4` and `f8` codes are not `u8` elements:
    /// match on [`Literal::data`] for them.
    pub fn elems<T: Element>(&self) -> Option<&[T]> {
        T::slice(&self.data)
    }

    /// The elements as a typed mutable slice. Values of integer types below 8 bits must be kept in range by the caller.
    pub fn elems_mut<T: Element>(&mut self) -> Option<&mut [T]> {
        T::slice_mut(&mut self.data)
    }

    /// The element at a row-major index.
    pub fn get(&self, index: usize) -> Option<Scalar> {
        self.data.get(self.dtype, index)
    }

    /// Stores `value`, converted as HLO's `convert` does; `false` if the index is out of range.
    pub fn set(&mut self, index: usize, value: Scalar) -> bool {
        self.data.set(self.dtype, index, value)
    }

    /// The same elements under other dims of the same product.
    pub fn with_dims(self, dims: &[i64]) -> Result<Literal, LiteralShapeError> {
        Literal::new(self.dtype, dims, self.data)
    }

    /// HLO's `convert`: see [`Scalar`] for the rules.
    pub fn convert(&self, dtype: DType) -> Literal {
        let data = if dtype == self.dtype { self.data.clone() } else { self.data.convert(self.dtype, dtype) };
        Literal { dtype, dims: self.dims.clone(), data }
    }

    /// HLO's `bitcast-convert`: the same bits as elements of `dtype` with `dims`, low-order parts first.
    pub fn bitcast_convert(&self, dtype: DType, dims: &[i64]) -> Result<Literal, LiteralShapeError> {
        let n_expected = element_count(dims);
        let n_bits = |n_elems: usize, dtype: DType| n_elems as u128 * u128::from(dtype.bits());
        let n_found = self.n_elems();
        match n_expected {
            Some(n_elems) if n_bits(n_elems, dtype) == n_bits(n_found, self.dtype) => {
                let bytes = self.data.to_packed_bytes(self.dtype);
                let data = Buffer::from_packed_bytes(dtype, &bytes, n_elems);
                Ok(Literal { dtype, dims: SmallVec::from_slice(dims), data })
            }
            _ => Err(LiteralShapeError { dtype, n_expected, n_found }),
        }
    }

    /// Whether every element has the same bits as the first; true for an empty array.
    pub fn is_splat(&self) -> bool {
        self.data.is_splat()
    }
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.write_text(&mut text);
        write!(f, "{}{:?} {text}", self.dtype, self.dims.as_slice())
    }
}

#[cfg(test)]
mod tests;
