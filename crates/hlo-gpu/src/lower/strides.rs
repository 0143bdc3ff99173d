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
    fn strides_follow_the_layout() {
        assert_eq!(strides(&array(&[2, 64, 4, 32], &[3, 2, 1, 0])), [8192, 128, 32, 1]);
        assert_eq!(strides(&array(&[2, 3, 4], &[0, 2, 1])), [1, 8, 2]);
    }
}
