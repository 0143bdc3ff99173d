//! Reducer and comparator computations: callbacks, the ones that are recognised, and folds by a recognised one.

use hlo_ir::attrs::{Attrs, Comparison};
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, DType, Literal, Module, NumberClass, Scalar};
use smallvec::SmallVec;

use super::index::{advance, check_dims, n_elems, other_dims, strides};
use super::number::{Number, compute_type, converted, finished, typed, with_number};
use super::rounding::Rounding;
use crate::EvalError;

/// A computation of scalars: the accumulators first, then as many values; it returns the new accumulators.
pub(crate) trait Reducer {
    /// Which plain reduction it is, if it is one.
    fn known(&self) -> Option<Monoid>;
    /// Whether it just returns its second half, the values (see [`is_replace`]).
    fn replaces(&self) -> bool {
        false
    }
    /// Runs it on scalars.
    fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError>;
}

/// A computation of scalars `(a0, b0, a1, b1, …)` that answers yes or no.
pub(crate) trait Comparator {
    /// Which plain comparison it is, if it is one.
    fn known(&self) -> Option<KnownComparison>;
    /// Runs it on scalars.
    fn apply(&mut self, args: &[Scalar]) -> Result<bool, EvalError>;
}

/// `compare(a_k, b_k)` of one pair of parameters.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct KnownComparison {
    /// Which pair, `k`.
    pub operand: usize,
    /// Of `a_k` with `b_k`.
    pub direction: Comparison,
    /// Floats in the order -NaN < -inf < … < -0 < 0 < … < inf < NaN.
    pub is_total_order: bool,
}

/// An error that says so if the op of a reduction does not exist on this element type.
pub(crate) fn check(known: Monoid, dtype: DType) -> Result<(), EvalError> {
    if known.is_defined_on(dtype) {
        return Ok(());
    }
    Err(EvalError::invalid(format!("{known:?} does not exist on {dtype}")))
}

/// The op of a reduction on two scalars of element type `dtype`, rounded or wrapped to it.
#[cfg(test)]
pub(crate) fn combine(known: Monoid, dtype: DType, a: Scalar, b: Scalar) -> Result<Scalar, EvalError> {
    check(known, dtype)?;
    let (a, b) = (Literal::scalar(dtype, a), Literal::scalar(dtype, b));
    let out = fold(known, &a.with_dims(&[1]).map_err(|e| EvalError::invalid(e.to_string()))?, &b, &[0])?;
    out.get(0).ok_or_else(|| EvalError::invalid("a fold gave no scalar"))
}

/// A recognised reduction as a [`Reducer`] of one scalar of a given element type.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarReducer {
    /// The reduction.
    pub known: Monoid,
    /// The element type of accumulator and value.
    pub dtype: DType,
}

#[cfg(test)]
impl Reducer for ScalarReducer {
    fn known(&self) -> Option<Monoid> {
        Some(self.known)
    }

    fn apply(&mut self, args: &[Scalar]) -> Result<SmallVec<[Scalar; 2]>, EvalError> {
        let &[a, b] = args else {
            return Err(EvalError::invalid(format!("expected two scalars, found {}", args.len())));
        };
        Ok(SmallVec::from_elem(combine(self.known, self.dtype, a, b)?, 1))
    }
}

/// A recognised comparison as a [`Comparator`].
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScalarComparator(pub KnownComparison);

#[cfg(test)]
impl Comparator for ScalarComparator {
    fn known(&self) -> Option<KnownComparison> {
        Some(self.0)
    }

    fn apply(&mut self, args: &[Scalar]) -> Result<bool, EvalError> {
        let (a, b) = (args.get(2 * self.0.operand), args.get(2 * self.0.operand + 1));
        let (Some(&a), Some(&b)) = (a, b) else {
            return Err(EvalError::invalid(format!("expected scalars in pairs, found {}", args.len())));
        };
        self.0.compare(a, b)
    }
}

#[cfg(test)]
impl KnownComparison {
    /// The comparison of two scalars of one class.
    pub(crate) fn compare(self, a: Scalar, b: Scalar) -> Result<bool, EvalError> {
        let order = match (a, b) {
            (Scalar::Pred(a), Scalar::Pred(b)) => Some(a.cmp(&b)),
            (Scalar::Int(a), Scalar::Int(b)) => Some(a.cmp(&b)),
            (Scalar::Uint(a), Scalar::Uint(b)) => Some(a.cmp(&b)),
            (Scalar::Float(a), Scalar::Float(b)) if self.is_total_order => Some(a.total_cmp(&b)),
            (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(&b),
            (Scalar::Complex(a, b), Scalar::Complex(c, d)) => match self.direction {
                Comparison::Eq => return Ok(a == c && b == d),
                Comparison::Ne => return Ok(a != c || b != d),
                Comparison::Ge | Comparison::Gt | Comparison::Le | Comparison::Lt => {
                    return Err(EvalError::invalid("complex numbers have no order"));
                }
            },
            (a, b) => return Err(EvalError::invalid(format!("expected scalars of one class, found {a:?} and {b:?}"))),
        };
        Ok(holds(self.direction, order))
    }
}

/// Whether a comparison holds for two values in this order; `None` when one is a NaN.
pub(crate) fn holds(direction: Comparison, order: Option<std::cmp::Ordering>) -> bool {
    match direction {
        Comparison::Eq => order.is_some_and(|o| o.is_eq()),
        Comparison::Ne => order.is_none_or(|o| o.is_ne()),
        Comparison::Ge => order.is_some_and(|o| o.is_ge()),
        Comparison::Gt => order.is_some_and(|o| o.is_gt()),
        Comparison::Le => order.is_some_and(|o| o.is_le()),
        Comparison::Lt => order.is_some_and(|o| o.is_lt()),
    }
}

/// The comparison of a computation that only compares parameters `2k` and `2k + 1`, in either order; `None` for any
/// other, and for floats whose order is stated as another than theirs.
pub(crate) fn recognise_comparison(module: &Module, comp: CompId) -> Option<KnownComparison> {
    let computation = module.comp(comp);
    let root = module.inst(computation.root.expand()?);
    let Attrs::Compare(attrs) = &root.attrs else { return None };
    let [x, y] = root.operands.as_slice() else { return None };
    let number = |id| computation.params.iter().position(|&param| param == id);
    let (first, second) = (number(*x)?, number(*y)?);
    if first / 2 != second / 2 || first == second {
        return None;
    }
    let dtype = module.shape(*x).as_array()?.dtype;
    let is_total_order = match (attrs.order.as_str(), dtype.class()) {
        ("", _) | ("FLOAT", NumberClass::Float | NumberClass::Complex) => false,
        ("TOTALORDER", NumberClass::Float) => true,
        ("SIGNED", NumberClass::Signed) => false,
        ("UNSIGNED", NumberClass::Unsigned | NumberClass::Pred) => false,
        _ => return None,
    };
    let direction = if first < second { attrs.direction } else { attrs.direction.swapped() };
    Some(KnownComparison { operand: first / 2, direction, is_total_order })
}

/// Runs `$body` with `$op` standing for the function of a known reduction; each gets its own copy of the loop.
macro_rules! with_op {
    ($known:expr, $op:ident => $body:expr) => {
        match $known {
            hlo_ir::monoid::Monoid::Add => {
                let $op = $crate::kernels::number::Number::add;
                $body
            }
            hlo_ir::monoid::Monoid::Multiply => {
                let $op = $crate::kernels::number::Number::multiply;
                $body
            }
            hlo_ir::monoid::Monoid::Maximum => {
                let $op = $crate::kernels::number::Number::maximum;
                $body
            }
            hlo_ir::monoid::Monoid::Minimum => {
                let $op = $crate::kernels::number::Number::minimum;
                $body
            }
            hlo_ir::monoid::Monoid::And => {
                let $op = $crate::kernels::number::Number::and;
                $body
            }
            hlo_ir::monoid::Monoid::Or => {
                let $op = $crate::kernels::number::Number::or;
                $body
            }
        }
    };
}
pub(crate) use with_op;

/// The type in which a fold accumulates: that of the kernels, but `f64` for sums and products of `f32`. HLO leaves the
/// order of a reduction open, so the exact sum rounded once is the fairest answer. Smaller floats accumulate in `f32` and
/// are rounded after every step (see [`super::rounding`]), as the reducer says and XLA does.
pub(crate) fn fold_type(known: Monoid, dtype: DType) -> DType {
    match (known, dtype) {
        (Monoid::Add | Monoid::Multiply, DType::F32) => DType::F64,
        (Monoid::Add | Monoid::Multiply, DType::C64) => DType::C128,
        (_, other) => compute_type(other, &[]),
    }
}

/// `reduce` of one operand by a known reduction over `dims`, from the scalar `init`.
pub(crate) fn fold(known: Monoid, operand: &Literal, init: &Literal, dims: &[i64]) -> Result<Literal, EvalError> {
    check(known, operand.dtype())?;
    check_dims("reduce", dims, operand.dims().len())?;
    let kept = other_dims(operand.dims().len(), &[dims]);
    let result_dims: Vec<i64> = kept.iter().map(|&dim| operand.dims()[dim as usize]).collect();
    let mut steps = vec![0usize; operand.dims().len()];
    for (&dim, stride) in kept.iter().zip(strides(&result_dims)) {
        steps[dim as usize] = stride;
    }
    let dtype = fold_type(known, operand.dtype());
    let wide = converted(operand, compute_type(operand.dtype(), &[]));
    let init = converted(init, dtype);
    if let Some(rounding) = Rounding::of(operand.dtype()) {
        let (elems, init) = (typed::<f32>(&wide)?, typed::<f32>(&init)?);
        let round = |x: f32| rounding.round(x);
        let out = with_op!(known, op => fold_rows(elems, operand.dims(), &steps, &result_dims, init, |a, x| round(op(a, x)))?);
        return finished(&result_dims, out, operand.dtype());
    }
    match (wide.dtype(), dtype) {
        (DType::F32, DType::F64) => {
            let widen = |x: f32| f64::from(x);
            let out = with_op!(known, op => fold_rows(typed(&wide)?, operand.dims(), &steps, &result_dims, typed(&init)?, |a, x| op(a, widen(x)))?);
            finished(&result_dims, out, operand.dtype())
        }
        (DType::C64, DType::C128) => {
            let wide = converted(&wide, dtype);
            fold_same::<hlo_ir::float::Complex<f64>>(known, &wide, &steps, &result_dims, &init, operand.dtype())
        }
        _ => with_number!(dtype, T => fold_same::<T>(known, &wide, &steps, &result_dims, &init, operand.dtype())),
    }
}

fn fold_same<T: Number>(
    known: Monoid,
    operand: &Literal,
    steps: &[usize],
    result_dims: &[i64],
    init: &Literal,
    dtype: DType,
) -> Result<Literal, EvalError> {
    let elems = typed::<T>(operand)?;
    let out = with_op!(known, op => fold_rows(elems, operand.dims(), steps, result_dims, typed::<T>(init)?, op)?);
    finished(result_dims, out, dtype)
}

/// Folds rows of `elems` (its last dim) into the result; `steps` is the result's stride along each dim of the operand,
/// 0 where it is reduced.
fn fold_rows<S: Copy, T: Number>(
    elems: &[S],
    dims: &[i64],
    steps: &[usize],
    result_dims: &[i64],
    init: &[T],
    op: impl Fn(T, S) -> T,
) -> Result<Vec<T>, EvalError> {
    let &[init] = init else {
        return Err(EvalError::invalid(format!("expected a scalar to start from, found {} elements", init.len())));
    };
    let mut out = vec![init; n_elems(result_dims)?];
    let (Some((&row, outer)), Some((&step, outer_steps))) = (dims.split_last(), steps.split_last()) else {
        return Ok(elems.iter().map(|&x| op(init, x)).collect());
    };
    if elems.is_empty() || row <= 0 {
        return Ok(out);
    }
    let mut index = vec![0i64; outer.len()];
    for row in elems.chunks_exact(row as usize) {
        let at: usize = index.iter().zip(outer_steps).map(|(&i, &step)| i as usize * step).sum();
        if step == 0 {
            out[at] = row.iter().fold(out[at], |sum, &x| op(sum, x));
        } else {
            for (slot, &x) in out[at..].iter_mut().step_by(step).zip(row) {
                *slot = op(*slot, x);
            }
        }
        advance(&mut index, outer);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folds_agree_with_adding_one_at_a_time() {
        let operand = Literal::from_elems(&[2, 3, 5], (0..30i32).map(|i| i * i).collect()).unwrap();
        let init = Literal::from_elem(7i32);
        let at = |i: i32, j: i32, k: i32| ((i * 3 + j) * 5 + k) * ((i * 3 + j) * 5 + k);
        let out = fold(Monoid::Add, &operand, &init, &[2, 0]).unwrap();
        let want: Vec<i32> =
            (0..3).map(|j| 7 + (0..2).flat_map(|i| (0..5).map(move |k| at(i, j, k))).sum::<i32>()).collect();
        assert_eq!(out.elems::<i32>().unwrap(), want);
        let out = fold(Monoid::Maximum, &operand, &init, &[1]).unwrap();
        let want: Vec<i32> =
            (0..2).flat_map(|i| (0..5).map(move |k| (0..3).map(|j| at(i, j, k)).fold(7, i32::max))).collect();
        assert_eq!(out.elems::<i32>().unwrap(), want);
        let out = fold(Monoid::Minimum, &operand, &init, &[]).unwrap();
        assert_eq!(out.elems::<i32>().unwrap()[3], 7);
        assert_eq!(out.dims(), [2, 3, 5]);
    }

    #[test]
    fn small_types_wrap_and_round() {
        let ones = Literal::splat(DType::BF16, &[5000], Scalar::Float(1.0)).unwrap();
        let zero = Literal::scalar(DType::BF16, Scalar::Float(0.0));
        assert_eq!(fold(Monoid::Add, &ones, &zero, &[0]).unwrap().get(0), Some(Scalar::Float(256.0)));
        let bytes = Literal::splat(DType::S8, &[3], Scalar::Int(100)).unwrap();
        let zero = Literal::scalar(DType::S8, Scalar::Int(0));
        assert_eq!(fold(Monoid::Add, &bytes, &zero, &[0]).unwrap().get(0), Some(Scalar::Int(44)));
        let flags = Literal::from_elems(&[2], vec![false, true]).unwrap();
        let no = Literal::from_elem(false);
        assert_eq!(fold(Monoid::Or, &flags, &no, &[0]).unwrap().get(0), Some(Scalar::Pred(true)));
        assert!(fold(Monoid::And, &ones, &zero, &[0]).is_err());
    }

    #[test]
    fn maximum_and_minimum_treat_nan_and_zeros_as_hlo() {
        let get = |known: Monoid, a: f32, b: f32| match combine(
            known,
            DType::F32,
            Scalar::Float(a.into()),
            Scalar::Float(b.into()),
        ) {
            Ok(Scalar::Float(x)) => x,
            other => panic!("{other:?}"),
        };
        for known in [Monoid::Maximum, Monoid::Minimum] {
            assert!(get(known, f32::NAN, 1.0).is_nan() && get(known, 1.0, f32::NAN).is_nan());
            let is_minus = known == Monoid::Minimum;
            assert_eq!(get(known, -0.0, 0.0).is_sign_negative(), is_minus);
            assert_eq!(get(known, 0.0, -0.0).is_sign_negative(), is_minus);
        }
    }

    #[test]
    fn bad_dims_and_empty_arrays() {
        let empty = Literal::zeros(DType::F32, &[0, 3]).unwrap();
        let init = Literal::from_elem(2f32);
        assert_eq!(fold(Monoid::Add, &empty, &init, &[0]).unwrap().elems::<f32>().unwrap(), [2.0; 3]);
        assert_eq!(fold(Monoid::Add, &empty, &init, &[1]).unwrap().n_elems(), 0);
        assert_eq!(fold(Monoid::Add, &init, &init, &[]).unwrap().elems::<f32>().unwrap(), [4.0]);
        assert!(fold(Monoid::Add, &empty, &init, &[2]).is_err());
        assert!(fold(Monoid::Add, &empty, &empty, &[1]).is_err());
    }
}
