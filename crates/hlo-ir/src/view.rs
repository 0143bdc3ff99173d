//! Views: which reshapes and transposes give the bytes of their operand another shape and move none.

use crate::attrs::DimsAttrs;
use crate::module::{InstId, Module};
use crate::op::Relabelling;
use crate::shape::{ArrayShape, DimOrder};

/// Whether an array-shaped result is its first operand's bytes under another shape.
pub fn is_view(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let operand = instruction.operands.first().and_then(|&o| module.shape(o).as_array());
    let (Some(from), Some(to)) = (operand, module.shape(inst).as_array()) else { return false };
    match instruction.opcode.row().factors.relabelling() {
        Some(Relabelling::Bitcast) => true,
        Some(Relabelling::Reshape) => from.dtype == to.dtype && is_reshape_free(from, to),
        Some(Relabelling::Transpose) => {
            DimsAttrs::of(&instruction.attrs).is_some_and(|attrs| is_transpose_free(from, to, &attrs.dimensions))
        }
        None => false,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Dims, Layout};

    fn array(dims: &[i64], minor_to_major: &[i64]) -> ArrayShape {
        let mut shape = ArrayShape::new(DType::F32, dims.iter().copied());
        shape.layout = Some(Box::new(Layout::new(Dims::from_slice(minor_to_major))));
        shape
    }

    fn strides(shape: &ArrayShape) -> Vec<u64> {
        let mut strides = vec![1; shape.rank()];
        let mut stride = 1;
        for dim in shape.minor_to_major() {
            strides[dim as usize] = stride;
            stride *= shape.dims[dim as usize] as u64;
        }
        strides
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
    fn a_transpose_is_free_where_the_layout_follows() {
        let from = array(&[3, 4], &[1, 0]);
        assert!(is_transpose_free(&from, &array(&[4, 3], &[0, 1]), &[1, 0]));
        assert!(!is_transpose_free(&from, &array(&[4, 3], &[1, 0]), &[1, 0]));
    }
}
