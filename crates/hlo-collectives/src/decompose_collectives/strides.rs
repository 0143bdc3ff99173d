//! Permutations that are a transpose of a box.

/// A box of these sizes, row-major, whose dims are permuted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transpose {
    /// Sizes before.
    pub sizes: Vec<usize>,
    /// For each dim after, which one it was.
    pub permutation: Vec<usize>,
}

/// The transpose that moves `order[i]` to `i`, if there is one.
pub(crate) fn find_transpose(order: &[usize]) -> Option<Transpose> {
    // Sizes and strides of the dims after, the innermost first.
    let mut dims: Vec<(usize, usize)> = Vec::new();
    let mut n = 1;
    while n < order.len() {
        let stride = *order.get(n)?;
        let is_next = |i: &usize| order.get(i * n) == Some(&(i * stride));
        let size = (1..).find(|i| !is_next(i))?;
        dims.push((size, stride));
        n *= size;
    }
    dims.reverse();
    let mut by_stride: Vec<usize> = (0..dims.len()).collect();
    by_stride.sort_by_key(|&dim| std::cmp::Reverse(dims[dim].1));
    let index = |i: usize| {
        let mut rest = i;
        dims.iter().rev().fold(0, |sum, &(size, stride)| {
            let at = rest % size;
            rest /= size;
            sum + at * stride
        })
    };
    let mut stride = 1;
    let is_box = by_stride.iter().rev().all(|&dim| {
        let fits = dims[dim].1 == stride;
        stride *= dims[dim].0;
        fits
    });
    if !is_box || n != order.len() || order.iter().enumerate().any(|(i, &from)| index(i) != from) {
        return None;
    }
    let mut permutation = vec![0; dims.len()];
    by_stride.iter().enumerate().for_each(|(before, &after)| permutation[after] = before);
    Some(Transpose { sizes: by_stride.iter().map(|&dim| dims[dim].0).collect(), permutation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boxes_are_found_and_others_are_not() {
        let found = |order: &[usize]| find_transpose(order).map(|t| (t.sizes, t.permutation));
        assert_eq!(found(&[0, 4, 1, 5, 2, 6, 3, 7]), Some((vec![2, 4], vec![1, 0])));
        assert_eq!(found(&[0, 2, 4, 6, 1, 3, 5, 7]), Some((vec![4, 2], vec![1, 0])));
        assert_eq!(found(&[0, 1, 4, 5, 2, 3, 6, 7]), Some((vec![2, 2, 2], vec![1, 0, 2])));
        assert_eq!(found(&[0, 1, 2]), Some((vec![3], vec![0])));
        assert_eq!(found(&[1, 0]), None);
        assert_eq!(found(&[0, 2, 1]), None);
        assert_eq!(found(&[0, 4, 1, 5, 2, 6, 7, 3]), None);
    }
}
