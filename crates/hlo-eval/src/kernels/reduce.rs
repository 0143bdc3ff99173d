//! `reduce` and `map`: computations of scalars applied to whole arrays.

use super::reducer::{Reducer, fold};
use super::rounding::Rounding;
use super::shape_ops::{dim_index, transpose};
use super::shortened::shortened;
use crate::error::EvalError;
use hlo_ir::literal::element_count;
use hlo_ir::{DType, Literal, Scalar};
use smallvec::SmallVec;
use std::sync::Arc;

/// `reduce` of one or more operands over `dims`; the results in operand order.
///
/// A plain known reduction of integers, `f32` or wider floats is exact and rounded once. Smaller floats are rounded after
/// every step, and any other computation is called for every element; both go in row-major order, dims above 32 elements
/// in rounds as [`super::rounding`] describes. An initial value that is not neutral counts once for each round's window
/// there, as in XLA. It counts once where the result is exact; XLA counts it more often when a dim is above 32.
pub(crate) fn reduce(
    operands: &[Arc<Literal>],
    inits: &[Arc<Literal>],
    dims: &[i64],
    reducer: &mut dyn Reducer,
) -> Result<Vec<Literal>, EvalError> {
    let (Some(first), true) = (operands.first(), operands.len() == inits.len()) else {
        return Err(EvalError::invalid(format!("expected as many initial values as operands, {}", operands.len())));
    };
    let known = reducer.known().filter(|known| known.is_defined_on(first.dtype()));
    let shorter;
    let operands = match (operands, inits) {
        ([operand], [init]) if known.is_none() || Rounding::of(operand.dtype()).is_some() => {
            shorter = [shortened(operand, init, dims, reducer)?];
            &shorter
        }
        _ => operands,
    };
    if let ([operand], [init], Some(known)) = (operands, inits, known) {
        return Ok(vec![fold(known, operand, init, dims)?]);
    }
    let first = operands.first().ok_or_else(|| EvalError::invalid("expected at least one operand"))?;
    if operands.iter().any(|o| o.dims() != first.dims()) {
        return Err(EvalError::invalid("expected operands of equal dims"));
    }
    let rank = first.dims().len();
    let mut order: Vec<i64> = (0..rank as i64).filter(|d| !dims.contains(d)).collect();
    let result_dims: Result<Vec<i64>, EvalError> =
        order.iter().map(|&d| Ok(first.dims()[dim_index(d, rank)?])).collect();
    let result_dims = result_dims?;
    order.extend(dims);
    let rows: Result<Vec<Literal>, EvalError> = operands.iter().map(|o| transpose(o, &order)).collect();
    let rows = rows?;
    let n_results = element_count(&result_dims).ok_or_else(|| EvalError::invalid("dims out of range"))?;
    let row_len = first.n_elems().checked_div(n_results).unwrap_or(0);
    let mut results: Result<Vec<Literal>, EvalError> =
        inits.iter().map(|init| Ok(Literal::zeros(init.dtype(), &result_dims)?)).collect();
    let results_mut = results.as_mut().map_err(|e| e.clone())?;
    let missing = || EvalError::invalid("an operand is too short");
    for i in 0..n_results {
        let mut args: SmallVec<[Scalar; 4]> = SmallVec::new();
        for init in inits {
            args.push(init.get(0).ok_or_else(missing)?);
        }
        for k in i * row_len..(i + 1) * row_len {
            for row in &rows {
                args.push(row.get(k).ok_or_else(missing)?);
            }
            let next = reducer.apply(&args)?;
            if next.len() != inits.len() {
                let text = format!("expected {} results from the reducer, found {}", inits.len(), next.len());
                return Err(EvalError::invalid(text));
            }
            args.clear();
            args.extend(next);
        }
        for (result, value) in results_mut.iter_mut().zip(args) {
            result.set(i, value);
        }
    }
    results
}

/// `map`: the computation on each set of elements at the same place.
pub(crate) fn map(
    operands: &[Arc<Literal>],
    dtype: DType,
    computation: &mut dyn Reducer,
) -> Result<Literal, EvalError> {
    let first = operands.first().ok_or_else(|| EvalError::invalid("expected at least one operand"))?;
    let mut out = Literal::zeros(dtype, first.dims())?;
    for i in 0..first.n_elems() {
        let args: Option<SmallVec<[Scalar; 4]>> = operands.iter().map(|o| o.get(i)).collect();
        let args = args.ok_or_else(|| EvalError::invalid("expected operands of equal dims"))?;
        let value = computation.apply(&args)?;
        out.set(i, *value.first().ok_or_else(|| EvalError::invalid("the computation returns nothing"))?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::reducer::ScalarReducer;
    use hlo_ir::monoid::Monoid;

    /// The same reduction, but not recognised: takes the slow way.
    struct Unknown(ScalarReducer);

    impl Reducer for Unknown {
        fn known(&self) -> Option<Monoid> {
            None
        }
        fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
            self.0.apply(args)
        }
    }

    #[test]
    fn known_and_called_reductions_agree() {
        let elems: Vec<f32> = (0..2 * 3 * 4).map(|i| (i * 5 % 7 - 3) as f32).collect();
        let x = Literal::from_elems(&[2, 3, 4], elems).unwrap();
        for dtype in [DType::F32, DType::S32, DType::F64, DType::BF16] {
            let x = Arc::new(x.convert(dtype));
            for known in [Monoid::Add, Monoid::Maximum, Monoid::Minimum] {
                let init = Arc::new(Literal::scalar(dtype, Scalar::Float(1.0)));
                for dims in [&[0][..], &[1], &[2], &[0, 2], &[2, 1], &[], &[0, 1, 2]] {
                    let run = |reducer: &mut dyn Reducer| {
                        reduce(std::slice::from_ref(&x), std::slice::from_ref(&init), dims, reducer).unwrap()
                    };
                    let mut plain = ScalarReducer { known, dtype };
                    let want = run(&mut Unknown(plain));
                    assert_eq!(run(&mut plain), want, "{dtype} {known:?} {dims:?}");
                }
            }
        }
    }

    /// The largest value and its index, the first of equals: a reduction of two operands.
    struct ArgMax;

    impl Reducer for ArgMax {
        fn known(&self) -> Option<Monoid> {
            None
        }
        fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
            let &[Scalar::Float(a), i, Scalar::Float(b), j] = args else {
                return Err(EvalError::invalid("expected two pairs"));
            };
            Ok(if b > a { SmallVec::from_buf([args[2], j]) } else { SmallVec::from_buf([args[0], i]) })
        }
    }

    #[test]
    fn several_operands_reduce_together() {
        let x = Arc::new(Literal::from_elems(&[2, 3], vec![1.0f32, 5.0, 5.0, 9.0, 2.0, 3.0]).unwrap());
        let i = Arc::new(Literal::from_elems(&[2, 3], vec![0i32, 1, 2, 0, 1, 2]).unwrap());
        let inits = [Arc::new(Literal::from_elem(f32::NEG_INFINITY)), Arc::new(Literal::from_elem(-1i32))];
        let out = reduce(&[x, i], &inits, &[1], &mut ArgMax).unwrap();
        assert_eq!(out[0].elems::<f32>().unwrap(), [5.0, 9.0]);
        assert_eq!(out[1].elems::<i32>().unwrap(), [1, 0]);
    }
}
