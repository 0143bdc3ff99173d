//! Layouts as strides: which views of an array are the same bytes, and which dims lie as one.

use hlo_ir::shape::DimOrder;
use hlo_ir::{ArrayShape, Layout};

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

/// Whether transposing `from` to `to` by `permutation` (result dim `i` is operand dim `permutation[i]`) moves no byte.
pub fn is_transpose_free(from: &ArrayShape, to: &ArrayShape, permutation: &[i64]) -> bool {
    let source = |dim: usize| permutation.get(dim).map(|&d| d as usize);
    let sources: Option<DimOrder> = to.long_dims_major_to_minor().into_iter().map(source).collect();
    from.n_elems() <= 1 || sources.is_some_and(|sources| sources == from.long_dims_major_to_minor())
}

/// Whether reshaping `from` to `to` moves no byte: dims fall into groups of equal products, each group lies row-major in
/// one piece on both sides, and the groups lie in the same order.
pub fn is_reshape_free(from: &ArrayShape, to: &ArrayShape) -> bool {
    if from.n_elems() <= 1 {
        return true;
    }
    let Some(groups) = dim_groups(&from.dims, &to.dims) else { return false };
    match (group_order(from, &groups, 0), group_order(to, &groups, 1)) {
        (Some(a), Some(b)) => a == b,
        (_, _) => false,
    }
}

/// The groups in the order in which they lie, slowest first; `None` if one does not lie row-major in one piece.
fn group_order(shape: &ArrayShape, groups: &[[Vec<usize>; 2]], side: usize) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = Vec::new();
    let mut last_dim = 0;
    for dim in shape.long_dims_major_to_minor() {
        let group = groups.iter().position(|g| g[side].contains(&dim))?;
        if order.last() == Some(&group) {
            if dim < last_dim {
                return None;
            }
        } else if order.contains(&group) {
            return None;
        } else {
            order.push(group);
        }
        last_dim = dim;
    }
    Some(order)
}

/// The smallest runs of dims of `from` and of `to` with equal products, dims of size 1 left out: `[of from, of to]`.
/// `None` for empty arrays and for unequal products.
pub fn dim_groups(from: &[i64], to: &[i64]) -> Option<Vec<[Vec<usize>; 2]>> {
    let long = |dims: &[i64]| (0..dims.len()).filter(|&dim| dims[dim] != 1).collect::<Vec<usize>>();
    let (mut from_dims, mut to_dims) = (long(from).into_iter(), long(to).into_iter());
    let mut groups = Vec::new();
    while let Some(first) = from_dims.next() {
        let mut group = [vec![first], vec![to_dims.next()?]];
        let (mut a, mut b) = (from[first], to[group[1][0]]);
        while a != b {
            if a < b {
                let dim = from_dims.next()?;
                a = a.checked_mul(from[dim])?;
                group[0].push(dim);
            } else {
                let dim = to_dims.next()?;
                b = b.checked_mul(to[dim])?;
                group[1].push(dim);
            }
        }
        if a <= 0 {
            return None;
        }
        groups.push(group);
    }
    to_dims.next().is_none().then_some(groups)
}

/// The layout whose dims, slowest first, are `order`.
pub fn layout_of(order: impl DoubleEndedIterator<Item = usize>) -> Layout {
    Layout::new(order.rev().map(|dim| dim as i64).collect())
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
    use hlo_ir::{DType, Dims};

    fn array(dims: &[i64], minor_to_major: &[i64]) -> ArrayShape {
        let mut shape = ArrayShape::new(DType::F32, dims.iter().copied());
        shape.layout = Some(Box::new(Layout::new(Dims::from_slice(minor_to_major))));
        shape
    }

    /// Walks every element of both arrays in logical order and compares where they lie.
    fn lies_equally(from: &ArrayShape, to: &ArrayShape) -> bool {
        let place = |shape: &ArrayShape, mut linear: u64| {
            let strides = strides(shape);
            let mut at = 0;
            for dim in (0..shape.rank()).rev() {
                at += linear % shape.dims[dim] as u64 * strides[dim];
                linear /= shape.dims[dim] as u64;
            }
            at
        };
        (0..from.n_elems()).all(|i| place(from, i) == place(to, i))
    }

    fn permutations(n: i64) -> Vec<Vec<i64>> {
        if n == 0 {
            return vec![vec![]];
        }
        let shorter = permutations(n - 1);
        shorter.iter().flat_map(|p| (0..=p.len()).map(|at| [&p[..at], &[n - 1], &p[at..]].concat())).collect()
    }

    #[test]
    fn a_free_reshape_moves_no_element() {
        let dims: [&[i64]; 9] =
            [&[12], &[2, 6], &[6, 2], &[2, 3, 2], &[1, 12], &[3, 1, 4], &[4, 3], &[2, 2, 3], &[2, 1, 3, 2]];
        for from_dims in dims {
            for to_dims in dims {
                for a in permutations(from_dims.len() as i64) {
                    for b in permutations(to_dims.len() as i64) {
                        let (from, to) = (array(from_dims, &a), array(to_dims, &b));
                        let (found, expected) = (is_reshape_free(&from, &to), lies_equally(&from, &to));
                        assert_eq!(found, expected, "{from:?} {to:?}");
                    }
                }
            }
        }
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

    #[test]
    fn a_transpose_is_free_where_the_layout_follows() {
        let from = array(&[3, 4], &[1, 0]);
        assert!(is_transpose_free(&from, &array(&[4, 3], &[0, 1]), &[1, 0]));
        assert!(!is_transpose_free(&from, &array(&[4, 3], &[1, 0]), &[1, 0]));
    }
}
