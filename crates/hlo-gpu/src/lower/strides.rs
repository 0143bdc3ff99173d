//! Layouts as strides: which dims lie as one.

use hlo_ir::ArrayShape;

/// Elements from one index to the next along each dim.
pub fn strides(shape: &ArrayShape) -> Vec<u64> {
    let mut strides = vec![1u64; shape.rank()];
    let mut stride = 1u64;
    for dim in shape.minor_to_major() {
        strides[dim as usize] = stride;
        stride = stride.saturating_mul(shape.dims[dim as usize].max(0) as u64);
    }
    strides
}

/// Whether two arrays of equal dims lie equally in memory.
pub fn is_same_layout(a: &ArrayShape, b: &ArrayShape) -> bool {
    a.same_type(b) && (a.n_elems() == 0 || a.is_same_order(b))
}

/// The stride of several dims taken as one dim, the last of them fastest, if they lie so; dims of size 1 do not count.
/// `Some(None)`: all have size 1, any stride is right.
pub fn merged_stride(shape: &ArrayShape, strides: &[u64], dims: &[usize]) -> Option<Option<u64>> {
    let mut merged: Option<(u64, u64)> = None;
    for &dim in dims.iter().rev() {
        let size = shape.dims[dim] as u64;
        if size == 1 {
            continue;
        }
        match &mut merged {
            None => merged = Some((strides[dim], strides[dim] * size)),
            Some((_, end)) if strides[dim] == *end => *end = strides[dim] * size,
            Some(_) => return None,
        }
    }
    Some(merged.map(|(stride, _)| stride))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::{DType, Dims, Layout};

    fn array(dims: &[i64], minor_to_major: &[i64]) -> ArrayShape {
        let mut shape = ArrayShape::new(DType::F32, dims.iter().copied());
        shape.layout = Some(Box::new(Layout::new(Dims::from_slice(minor_to_major))));
        shape
    }

    #[test]
    fn merged_strides_are_those_of_adjacent_dims() {
        let shape = array(&[2, 64, 4, 32], &[3, 2, 1, 0]);
        let s = strides(&shape);
        assert_eq!(s, [8192, 128, 32, 1]);
        assert_eq!(merged_stride(&shape, &s, &[0, 1]), Some(Some(128)));
        assert_eq!(merged_stride(&shape, &s, &[0, 2]), None);
        assert_eq!(merged_stride(&shape, &s, &[]), Some(None));
    }
}
