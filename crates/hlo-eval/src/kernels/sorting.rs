//! `sort` and `topk`: a stable merge sort of positions, which no odd comparator can break.

use hlo_ir::attrs::{Comparison, TopKAttrs};
use hlo_ir::{DType, Literal, Scalar};

use super::index::take;
use super::number::{Number, compute_type, converted, typed, with_number};
use super::reducer::{Comparator, KnownComparison, holds};
use crate::EvalError;

/// `sort` of one or more operands of the same dims along `dim`; `less` gets `(a0, b0, a1, b1, …)` and says whether the
/// first elements come first. Always stable, so that `is_stable` asks for nothing more.
///
/// # Errors
/// Operands that do not fit each other, or an error of the comparator.
pub(crate) fn sort(
    operands: &[&Literal],
    dim: i64,
    _is_stable: bool,
    less: &mut dyn Comparator,
) -> Result<Vec<Literal>, EvalError> {
    let first = operands.first().ok_or_else(|| EvalError::invalid("sort: expected an operand"))?;
    if operands.iter().any(|operand| operand.dims() != first.dims()) {
        return Err(EvalError::invalid("sort: expected operands of equal dims"));
    }
    let from = match less.known() {
        Some(known) => {
            let key = operands
                .get(known.operand)
                .ok_or_else(|| EvalError::invalid(format!("sort: expected more than {} operands", known.operand)))?;
            sorted_by_key(key, dim, known)?
        }
        None => {
            let mut args: Vec<Scalar> = Vec::with_capacity(2 * operands.len());
            let mut call = |a: usize, b: usize| {
                args.clear();
                for operand in operands {
                    args.extend([operand.get(a), operand.get(b)].into_iter().flatten());
                }
                less.apply(&args)
            };
            sorted_positions(first.dims(), dim, &mut call)?
        }
    };
    operands.iter().map(|operand| take(operand, first.dims(), from.iter().copied())).collect()
}

/// `topk` along the last dim: values and their `s32` positions, in total order (so NaN is the largest and -NaN the
/// smallest, as in XLA), equal ones by position.
///
/// # Errors
/// A scalar operand, or a `k` that is not within the dim.
pub(crate) fn topk(operand: &Literal, attrs: &TopKAttrs) -> Result<(Literal, Literal), EvalError> {
    let Some((&n, outer)) = operand.dims().split_last() else {
        return Err(EvalError::invalid("topk: expected an operand with a dim"));
    };
    if !(0..=n).contains(&attrs.k) {
        return Err(EvalError::invalid(format!("topk: expected k from 0 to {n}, found {}", attrs.k)));
    }
    let direction = if attrs.largest { Comparison::Gt } else { Comparison::Lt };
    let known = KnownComparison { operand: 0, direction, is_total_order: true };
    let sorted = sorted_by_key(operand, outer.len() as i64, known)?;
    let mut dims = outer.to_vec();
    dims.push(attrs.k);
    let (row, kept) = (n.max(1) as usize, attrs.k as usize);
    let from: Vec<usize> = sorted.chunks_exact(row).flat_map(|line| line[..kept].iter().copied()).collect();
    let values = take(operand, &dims, from.iter().copied())?;
    let positions = from.iter().map(|&at| (at % row) as i32).collect();
    let positions = Literal::from_elems(&dims, positions).map_err(|error| EvalError::invalid(error.to_string()))?;
    Ok((values, positions))
}

fn sorted_by_key(key: &Literal, dim: i64, known: KnownComparison) -> Result<Vec<usize>, EvalError> {
    if key.dtype().is_complex() {
        return Err(EvalError::invalid(format!("sort: {} has no order", key.dtype())));
    }
    let dtype: DType = compute_type(key.dtype(), &[]);
    let wide = converted(key, dtype);
    with_number!(dtype, T => {
        let keys = typed::<T>(&wide)?;
        match (known.is_total_order, known.direction) {
            (false, Comparison::Lt) => sorted_positions(key.dims(), dim, &mut |a, b| Ok(holds(Comparison::Lt, keys[a].order(keys[b])))),
            (false, direction) => sorted_positions(key.dims(), dim, &mut |a, b| Ok(holds(direction, keys[a].order(keys[b])))),
            (true, direction) => {
                sorted_positions(key.dims(), dim, &mut |a, b| Ok(holds(direction, Some(keys[a].total_order(keys[b])))))
            }
        }
    })
}

/// For every place of the result, the element that goes there.
fn sorted_positions(
    dims: &[i64],
    dim: i64,
    less: &mut impl FnMut(usize, usize) -> Result<bool, EvalError>,
) -> Result<Vec<usize>, EvalError> {
    let dim_idx = usize::try_from(dim).ok().filter(|&i| i < dims.len());
    let dim_idx =
        dim_idx.ok_or_else(|| EvalError::invalid(format!("sort: expected a dim below {}, found {dim}", dims.len())))?;
    let n_all: usize = super::index::n_elems(dims)?;
    let n = dims[dim_idx] as usize;
    let inner: usize = dims[dim_idx + 1..].iter().map(|&size| size as usize).product();
    let mut out = vec![0usize; n_all];
    if n_all == 0 {
        return Ok(out);
    }
    let (mut line, mut spare) = (Vec::with_capacity(n), Vec::with_capacity(n));
    for block in (0..n_all).step_by(n * inner) {
        for start in block..block + inner {
            line.clear();
            line.extend((0..n).map(|i| start + i * inner));
            merge_sort(&mut line, &mut spare, less)?;
            for (i, &from) in line.iter().enumerate() {
                out[start + i * inner] = from;
            }
        }
    }
    Ok(out)
}

/// Bottom-up and stable: of two runs the later element goes first only if it is less. Ends for any answers of `less`.
fn merge_sort(
    items: &mut Vec<usize>,
    spare: &mut Vec<usize>,
    less: &mut impl FnMut(usize, usize) -> Result<bool, EvalError>,
) -> Result<(), EvalError> {
    let mut width = 1;
    while width < items.len() {
        spare.clear();
        for pair in items.chunks(2 * width) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let (Some((&a, rest_left)), Some((&b, rest_right))) = (left.split_first(), right.split_first()) {
                if less(b, a)? {
                    spare.push(b);
                    right = rest_right;
                } else {
                    spare.push(a);
                    left = rest_left;
                }
            }
            spare.extend_from_slice(left);
            spare.extend_from_slice(right);
        }
        std::mem::swap(items, spare);
        width *= 2;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::reducer::ScalarComparator;
    use super::*;

    fn comparator(direction: Comparison, is_total_order: bool) -> ScalarComparator {
        ScalarComparator(KnownComparison { operand: 0, direction, is_total_order })
    }

    /// Hides that a comparison is known, so that the general path runs.
    struct Opaque(ScalarComparator);

    impl Comparator for Opaque {
        fn known(&self) -> Option<KnownComparison> {
            None
        }
        fn apply(&mut self, args: &[Scalar]) -> Result<bool, EvalError> {
            self.0.apply(args)
        }
    }

    #[test]
    fn every_dim_is_sorted_stably_with_its_payload() {
        let elems: Vec<f32> = (0..105).map(|i| (i * i % 11) as f32).collect();
        let key = Literal::from_elems(&[3, 7, 5], elems.clone()).unwrap();
        let payload = Literal::from_elems(&[3, 7, 5], (0..105i32).collect()).unwrap();
        for (dim, n, inner) in [(0, 3, 35), (1, 7, 5), (2, 5, 1)] {
            let mut want = vec![0i32; 105];
            for line in 0..105 / n {
                let start = line / inner * inner * n + line % inner;
                let mut positions: Vec<usize> = (0..n).map(|i| start + i * inner).collect();
                positions.sort_by(|&a, &b| elems[b].total_cmp(&elems[a]));
                for (i, &from) in positions.iter().enumerate() {
                    want[start + i * inner] = from as i32;
                }
            }
            let greater = comparator(Comparison::Gt, false);
            let out = sort(&[&key, &payload], dim, true, &mut { greater }).unwrap();
            assert_eq!(out[1].elems::<i32>().unwrap(), want);
            assert_eq!(out[0].elems::<f32>().unwrap(), want.iter().map(|&i| elems[i as usize]).collect::<Vec<_>>());
            assert_eq!(sort(&[&key, &payload], dim, true, &mut Opaque(greater)).unwrap(), out);
        }
    }

    #[test]
    fn total_order_puts_nans_at_the_ends() {
        let elems = vec![1.0, f32::NAN, -0.0, 0.0, -f32::NAN, f32::NEG_INFINITY];
        let key = Literal::from_elems(&[6], elems).unwrap();
        let position = Literal::from_elems(&[6], (0..6i32).collect()).unwrap();
        let out = sort(&[&key, &position], 0, false, &mut comparator(Comparison::Lt, true)).unwrap();
        assert_eq!(out[1].elems::<i32>().unwrap(), [4, 5, 2, 3, 0, 1]);
    }

    #[test]
    fn odd_comparators_and_operands_do_not_panic() {
        struct Always(bool);
        impl Comparator for Always {
            fn known(&self) -> Option<KnownComparison> {
                None
            }
            fn apply(&mut self, _args: &[Scalar]) -> Result<bool, EvalError> {
                Ok(self.0)
            }
        }
        let key = Literal::from_elems(&[100], (0..100i32).collect()).unwrap();
        for answer in [false, true] {
            let out = sort(&[&key], 0, true, &mut Always(answer)).unwrap();
            let mut elems = out[0].elems::<i32>().unwrap().to_vec();
            elems.sort();
            assert_eq!(elems, key.elems::<i32>().unwrap());
        }
        let empty = Literal::zeros(DType::F32, &[3, 0]).unwrap();
        let mut less = comparator(Comparison::Lt, false);
        assert_eq!(sort(&[&empty], 0, true, &mut less).unwrap(), std::slice::from_ref(&empty));
        assert_eq!(sort(&[&empty], 1, true, &mut less).unwrap(), std::slice::from_ref(&empty));
        for dim in [-1, 2] {
            assert!(sort(&[&empty], dim, true, &mut less).is_err());
        }
        assert!(sort(&[], 0, true, &mut less).is_err());
        assert!(sort(&[&empty, &key], 0, true, &mut less).is_err());
    }

    #[test]
    fn topk_agrees_with_xla() {
        let elems = vec![1.0, f32::NAN, 0.0, 0.0, -f32::NAN, f32::INFINITY, 1.0, f32::NEG_INFINITY];
        let operand = Literal::from_elems(&[1, 8], elems).unwrap();
        let of = |k, largest| {
            topk(&operand, &TopKAttrs { k, largest, is_stable: false })
                .map(|(_, at)| at.elems::<i32>().unwrap().to_vec())
        };
        assert_eq!(of(6, true).unwrap(), [1, 5, 0, 6, 2, 3]); // both computed by XLA
        assert_eq!(of(6, false).unwrap(), [4, 7, 2, 3, 0, 6]);
        assert_eq!(of(0, true).unwrap(), [0i32; 0]);
        assert!(of(9, true).is_err());
        let (values, _) = topk(&operand, &TopKAttrs { k: 2, largest: false, is_stable: false }).unwrap();
        assert_eq!((values.dims(), values.elems::<f32>().unwrap()[1]), (&[1i64, 2][..], f32::NEG_INFINITY));
    }
}
