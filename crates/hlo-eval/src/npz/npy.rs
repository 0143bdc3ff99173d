//! The `.npy` format: a magic string, a header that is a Python dict in text, the elements.
//!
//! Reference: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use super::buffer_of;
use crate::error::EvalError;
use hlo_ir::{DType, Literal};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Numpy's names of the types that can be stored, little-endian.
const DESCR: [(&str, DType); 15] = [
    ("|b1", DType::Pred),
    ("|i1", DType::S8),
    ("<i2", DType::S16),
    ("<i4", DType::S32),
    ("<i8", DType::S64),
    ("|u1", DType::U8),
    ("<u2", DType::U16),
    ("<u4", DType::U32),
    ("<u8", DType::U64),
    ("<f2", DType::F16),
    ("<f4", DType::F32),
    ("<f8", DType::F64),
    ("<c8", DType::C64),
    ("<c16", DType::C128),
    ("|V2", DType::BF16),
];

/// The bytes of an array of a type that numpy has (see [`super::savable`]; others are written as raw bytes).
pub fn write_npy(array: &Literal) -> Vec<u8> {
    let descr = DESCR.iter().find(|(_, dtype)| *dtype == array.dtype()).map_or("|V1", |(descr, _)| *descr);
    let mut shape = String::new();
    for dim in array.dims() {
        shape.push_str(&format!("{dim},"));
    }
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements start at a multiple of 64 bytes.
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.push_str(&" ".repeat(unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');
    let mut out = MAGIC.to_vec();
    out.extend([1, 0]);
    out.extend((header.len() as u16).to_le_bytes());
    out.extend(header.as_bytes());
    out.extend(array.data().to_packed_bytes(array.dtype()));
    out
}

/// The array of an `.npy` file.
///
/// # Errors
/// The header is damaged, the type is unknown, the array is not in row-major order, or elements are missing.
pub fn read_npy(bytes: &[u8]) -> Result<Literal, EvalError> {
    let damaged = |what: &str| EvalError::invalid(format!("npy: {what}"));
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("expected the magic string `\\x93NUMPY`"))?;
    let (len, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(damaged("expected version 1, 2 or 3")),
    };
    let (header, data) = rest.split_at_checked(len).ok_or_else(|| damaged("the header is cut off"))?;
    let header = std::str::from_utf8(header).map_err(|_| damaged("the header is not text"))?;
    let field = |key: &str| {
        let (_, after) = header.split_once(&format!("'{key}':"))?;
        Some(after.trim_start())
    };
    let descr = field("descr").and_then(|f| f.strip_prefix('\'')?.split('\'').next());
    let descr = descr.ok_or_else(|| damaged("expected a plain element type"))?;
    // Types of other packages, as bf16 of ml_dtypes, are named with and without an order of bytes.
    let name = |n: &str| n.replace('=', "<").replace("<V", "|V");
    let dtype = DESCR.iter().find(|(known, _)| *known == name(descr)).map(|(_, dtype)| *dtype);
    let dtype = dtype.ok_or_else(|| damaged(&format!("element type `{descr}` is not supported")))?;
    let dims = field("shape").and_then(|f| f.strip_prefix('(')?.split(')').next());
    let dims = dims.ok_or_else(|| damaged("expected a shape"))?;
    let dims: Result<Vec<i64>, _> =
        dims.split(',').map(str::trim).filter(|d| !d.is_empty()).map(str::parse::<i64>).collect();
    let dims = dims.map_err(|_| damaged("expected integer dims"))?;
    let is_fortran = field("fortran_order").is_some_and(|f| f.starts_with("True"));
    let n_elems = hlo_ir::literal::element_count(&dims).ok_or_else(|| damaged("dims out of range"))?;
    if dtype.bytes_of(n_elems as u64) != data.len() as u64 {
        let expected = dtype.bytes_of(n_elems as u64);
        return Err(damaged(&format!("expected {expected} bytes of elements, found {}", data.len())));
    }
    let array = |dims: &[i64]| Ok(Literal::new(dtype, dims, buffer_of(dtype, data, n_elems))?);
    if !is_fortran || dims.len() < 2 {
        return array(&dims);
    }
    // Column-major elements are the row-major ones of the transposed array.
    let reversed: Vec<i64> = dims.iter().rev().copied().collect();
    let order: Vec<i64> = (0..dims.len() as i64).rev().collect();
    crate::kernels::shape_ops::transpose(&array(&reversed)?, &order)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_as_numpy_writes_them() {
        let array = Literal::from_elems(&[2, 1], vec![1.0f32, 2.0]).unwrap();
        let bytes = write_npy(&array);
        assert_eq!(bytes.len() % 64, 8);
        let text = String::from_utf8_lossy(&bytes[10..]);
        assert!(text.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2,1,), }"), "{text}");
        assert_eq!(read_npy(&bytes).unwrap(), array);
    }

    #[test]
    fn column_major_arrays_are_transposed() {
        let array = Literal::from_elems(&[2, 3], vec![1i32, 2, 3, 4, 5, 6]).unwrap();
        let mut bytes = write_npy(&array);
        let at = bytes.windows(5).position(|w| w == b"False").unwrap();
        bytes[at..at + 5].copy_from_slice(b"True ");
        assert_eq!(read_npy(&bytes).unwrap().elems::<i32>().unwrap(), [1, 3, 5, 2, 4, 6]);
    }
}
