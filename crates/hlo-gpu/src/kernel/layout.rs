//! How the dims of an array follow each other in memory.

use hlo_ir::ArrayShape;
use smallvec::SmallVec;

/// The dims of an array, the fastest first. Without a layout the last dim is fastest.
pub(crate) fn physical_order(shape: &ArrayShape) -> SmallVec<[usize; 4]> {
    match &shape.layout {
        Some(layout) if layout.minor_to_major.len() == shape.rank() => {
            layout.minor_to_major.iter().map(|&dim| dim as usize).collect()
        }
        _ => (0..shape.rank()).rev().collect(),
    }
}

/// Whether the elements of two arrays of the same dims lie in the same order.
pub(super) fn is_same_layout(a: &ArrayShape, b: &ArrayShape) -> bool {
    let wide = |shape: &ArrayShape| -> SmallVec<[usize; 4]> {
        physical_order(shape).into_iter().filter(|&dim| shape.dims[dim] != 1).collect()
    };
    a.dims == b.dims && wide(a) == wide(b)
}

/// Whether dims of more than one element lie in descending order, the last one fastest.
pub(super) fn is_row_major(shape: &ArrayShape) -> bool {
    let order: SmallVec<[usize; 4]> = physical_order(shape).into_iter().filter(|&dim| shape.dims[dim] != 1).collect();
    order.windows(2).all(|pair| pair[0] > pair[1])
}
