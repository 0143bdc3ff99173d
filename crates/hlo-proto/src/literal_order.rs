//! The order of a literal's elements: that of the memory of an array with the literal's layout. Modules have row-major ones.

use hlo_ir::literal::{Buffer, element_count};

/// Where each of `n_elems` elements stands in memory, by row-major index, for a layout given by its dims, fastest first. `None` where
/// the order is the same, and for what is no layout of `n_elems` elements.
pub(crate) fn memory_places(minor_first: &[i64], dims: &[i64], n_elems: usize) -> Option<Vec<usize>> {
    let rank = dims.len();
    let mut sorted = minor_first.to_vec();
    sorted.sort();
    let is_order = sorted.iter().copied().eq(0..rank as i64);
    if !is_order || minor_first.iter().rev().is_sorted() || element_count(dims) != Some(n_elems) {
        return None;
    }
    let mut strides = vec![0usize; rank];
    let mut stride = 1usize;
    for &dim in minor_first {
        strides[dim as usize] = stride;
        stride = stride.saturating_mul(dims[dim as usize] as usize);
    }
    let mut places = Vec::with_capacity(n_elems);
    let mut index = vec![0i64; rank];
    for _ in 0..n_elems {
        places.push(index.iter().zip(&strides).map(|(&i, &stride)| i as usize * stride).sum());
        for dim in (0..rank).rev() {
            index[dim] += 1;
            if index[dim] < dims[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
    Some(places)
}

/// The way back: which row-major index stands at each place.
pub(crate) fn inverted(places: &[usize]) -> Vec<usize> {
    let mut indices = vec![0; places.len()];
    for (index, &place) in places.iter().enumerate() {
        if let Some(slot) = indices.get_mut(place) {
            *slot = index;
        }
    }
    indices
}

/// The elements at these places.
pub(crate) fn gathered(data: &Buffer, places: &[usize]) -> Buffer {
    fn gather<T: Copy>(elems: &[T], places: &[usize]) -> Vec<T> {
        places.iter().filter_map(|&place| elems.get(place)).copied().collect()
    }
    match data {
        Buffer::Pred(elems) => Buffer::Pred(gather(elems, places)),
        Buffer::S8(elems) => Buffer::S8(gather(elems, places)),
        Buffer::S16(elems) => Buffer::S16(gather(elems, places)),
        Buffer::S32(elems) => Buffer::S32(gather(elems, places)),
        Buffer::S64(elems) => Buffer::S64(gather(elems, places)),
        Buffer::U8(elems) => Buffer::U8(gather(elems, places)),
        Buffer::U16(elems) => Buffer::U16(gather(elems, places)),
        Buffer::U32(elems) => Buffer::U32(gather(elems, places)),
        Buffer::U64(elems) => Buffer::U64(gather(elems, places)),
        Buffer::F8(elems) => Buffer::F8(gather(elems, places)),
        Buffer::F16(elems) => Buffer::F16(gather(elems, places)),
        Buffer::BF16(elems) => Buffer::BF16(gather(elems, places)),
        Buffer::F32(elems) => Buffer::F32(gather(elems, places)),
        Buffer::F64(elems) => Buffer::F64(gather(elems, places)),
        Buffer::C64(elems) => Buffer::C64(gather(elems, places)),
        Buffer::C128(elems) => Buffer::C128(gather(elems, places)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_major_and_back() {
        let places = memory_places(&[0, 1], &[2, 3], 6).unwrap();
        assert_eq!(places, [0, 2, 4, 1, 3, 5]);
        let memory = Buffer::U8(vec![1, 4, 2, 5, 3, 6]);
        let rows = gathered(&memory, &places);
        assert_eq!(rows, Buffer::U8(vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(gathered(&rows, &inverted(&places)), memory);
        assert_eq!(memory_places(&[1, 0], &[2, 3], 6), None);
        assert_eq!(memory_places(&[0, 1], &[1 << 40, 1 << 40], 6), None);
    }
}
