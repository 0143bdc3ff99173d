//! Arrays between literals (row-major) and memory (in the order of their layout).

use hlo_ir::literal::Buffer;
use hlo_ir::{ArrayShape, DType, Literal, NumberClass};

use crate::ExecutionError;

/// For every element in memory order, its row-major position. `None` if both orders are the same.
fn row_major_positions(shape: &ArrayShape) -> Option<Vec<usize>> {
    if shape.is_row_major() {
        return None;
    }
    let mut strides = vec![1usize; shape.rank()];
    for dim in (1..shape.rank()).rev() {
        strides[dim - 1] = strides[dim] * shape.dims[dim].max(0) as usize;
    }
    let mut positions = vec![0usize];
    for &dim in shape.long_dims_major_to_minor().iter().rev() {
        let n = shape.dims[dim].max(0) as usize;
        positions =
            (0..n).flat_map(|i| positions.iter().map(move |p| (i, *p))).map(|(i, p)| p + i * strides[dim]).collect();
    }
    Some(positions)
}

/// The type as whose elements those of `dtype` lie in memory: what is below 8 bits has a byte, not a part of one.
fn in_bytes(dtype: DType) -> DType {
    match dtype.class() {
        _ if dtype.bits() >= 8 => dtype,
        NumberClass::Signed => DType::S8,
        NumberClass::Unsigned | NumberClass::Pred => DType::U8,
        // Any of the 8-bit floats: their codes stay as they are.
        NumberClass::Float | NumberClass::Complex => DType::F8E5M2,
    }
}

fn misfit(expected: &ArrayShape, found: &Literal) -> ExecutionError {
    ExecutionError::Host {
        what: "array".to_string(),
        reason: format!(
            "expected {}{:?}, found {}{:?}",
            expected.dtype,
            expected.dims.as_slice(),
            found.dtype(),
            found.dims()
        ),
    }
}

/// A literal's bytes in the layout of `shape`.
pub(crate) fn to_memory(literal: &Literal, shape: &ArrayShape) -> Result<Vec<u8>, ExecutionError> {
    if literal.dtype() != shape.dtype || literal.dims() != shape.dims.as_slice() {
        return Err(misfit(shape, literal));
    }
    let bytes = literal.data().to_packed_bytes(in_bytes(shape.dtype));
    let size = shape.dtype.bits().div_ceil(8) as usize;
    Ok(match row_major_positions(shape) {
        Some(positions) if size > 0 => {
            positions.iter().flat_map(|&p| &bytes[p * size..(p + 1) * size]).copied().collect()
        }
        _ => bytes,
    })
}

/// An array from bytes in the layout of `shape`.
pub(crate) fn from_memory(bytes: &[u8], shape: &ArrayShape) -> Result<Literal, ExecutionError> {
    let size = shape.dtype.bits().div_ceil(8) as usize;
    let n_elems = shape.n_elems() as usize;
    let data = match row_major_positions(shape) {
        Some(positions) if size > 0 => {
            let mut sorted = vec![0u8; bytes.len()];
            for (element, &p) in bytes.chunks_exact(size).zip(&positions) {
                sorted[p * size..(p + 1) * size].copy_from_slice(element);
            }
            Buffer::from_packed_bytes(in_bytes(shape.dtype), &sorted, n_elems)
        }
        _ => Buffer::from_packed_bytes(in_bytes(shape.dtype), bytes, n_elems),
    };
    Literal::new(shape.dtype, &shape.dims, data)
        .map_err(|e| ExecutionError::Host { what: "array".to_string(), reason: e.to_string() })
}
