//! `dot`: both operands are brought to matrices `[batch, m, k]` and `[batch, k, n]` and multiplied.

use super::number::{MatrixSize, Number, compute_type, converted, finished, typed, with_number};
use super::rounding::stored;
use super::shape_ops::{dim_index, transpose};
use crate::error::EvalError;
use hlo_ir::attrs::DotAttrs;
use hlo_ir::{ArrayShape, Literal};
use smallvec::SmallVec;
use std::borrow::Cow;

/// Dim numbers, four inline.
type DimList = SmallVec<[i64; 6]>;

/// The dims of an operand that are neither batch nor contracted, in order.
fn free_dims(rank: usize, batch: &[i64], contracted: &[i64]) -> DimList {
    (0..rank as i64).filter(|d| !batch.contains(d) && !contracted.contains(d)).collect()
}

fn sizes(x: &Literal, dims: &[i64]) -> Result<DimList, EvalError> {
    dims.iter().map(|&d| Ok(x.dims()[dim_index(d, x.dims().len())?])).collect()
}

/// `x` with its dims in the order of the three lists.
fn arranged<'a>(x: Cow<'a, Literal>, lists: [&[i64]; 3]) -> Result<Cow<'a, Literal>, EvalError> {
    let order: DimList = lists.concat().into_iter().collect();
    if order.iter().enumerate().all(|(i, &d)| d == i as i64) {
        return Ok(x);
    }
    Ok(Cow::Owned(transpose(&x, &order)?))
}

/// The operand as the named algorithm first rounds it.
fn rounded_operand<'a>(x: &'a Literal, attrs: &DotAttrs) -> Cow<'a, Literal> {
    match attrs.operand_rounding() {
        Some(to) if to != x.dtype() => Cow::Owned(x.convert(to)),
        Some(_) | None => Cow::Borrowed(x),
    }
}

fn product(dims: &[i64]) -> Result<usize, EvalError> {
    hlo_ir::literal::element_count(dims).ok_or_else(|| EvalError::invalid("dims out of range"))
}

/// `dot` of any batch and contracted dims; the result's dims are batch, free ones of `lhs`, free ones of `rhs`. Types
/// narrower than `f32` are multiplied and summed in `f32`, integers in 64 bits, and brought to the result's type once: 8-bit floats
/// through `f16`, as XLA does it.
pub(crate) fn dot(lhs: &Literal, rhs: &Literal, attrs: &DotAttrs, result: &ArrayShape) -> Result<Literal, EvalError> {
    let DotAttrs {
        lhs_batch_dims: lb,
        lhs_contracting_dims: lc,
        rhs_batch_dims: rb,
        rhs_contracting_dims: rc,
        // Only `ragged-dot` has groups.
        lhs_ragged_dims: _,
        rhs_group_dims: _,
        // Products are exact as far as the types go, which satisfies every precision.
        operand_precision: _,
        // `rounded_operand` follows it.
        algorithm: _,
    } = attrs;
    let (lf, rf) = (free_dims(lhs.dims().len(), lb, lc), free_dims(rhs.dims().len(), rb, rc));
    let (batch, contracted) = (sizes(lhs, lb)?, sizes(lhs, lc)?);
    let (rows, columns) = (sizes(lhs, &lf)?, sizes(rhs, &rf)?);
    if batch != sizes(rhs, rb)? || contracted != sizes(rhs, rc)? {
        return Err(EvalError::invalid("expected batch and contracted dims of equal sizes in both operands"));
    }
    let dims: DimList = [&batch[..], &rows, &columns].concat().into_iter().collect();
    let dtype = compute_type(result.dtype, &[lhs.dtype(), rhs.dtype()]);
    let prepared = |x| match rounded_operand(x, attrs) {
        Cow::Borrowed(x) => converted(x, dtype),
        Cow::Owned(x) => Cow::Owned(x.convert(dtype)),
    };
    let a = arranged(prepared(lhs), [lb, &lf, lc])?;
    let b = arranged(prepared(rhs), [rb, rc, &rf])?;
    let size = MatrixSize { m: product(&rows)?, k: product(&contracted)?, n: product(&columns)? };
    with_number!(dtype, T => {
        let out = multiply_batches::<T>(typed(&a)?, typed(&b)?, product(&batch)?, size)?;
        Ok(stored(finished(&dims, out, dtype)?, result.dtype))
    })
}

fn multiply_batches<T: Number>(a: &[T], b: &[T], n_batches: usize, size: MatrixSize) -> Result<Vec<T>, EvalError> {
    let MatrixSize { m, k, n } = size;
    let n_elems = n_batches.checked_mul(m).and_then(|x| x.checked_mul(n));
    let mut out = vec![T::ZERO; n_elems.ok_or_else(|| EvalError::invalid("dims out of range"))?];
    if m == 0 || k == 0 || n == 0 {
        return Ok(out);
    }
    for ((a, b), c) in a.chunks_exact(m * k).zip(b.chunks_exact(k * n)).zip(out.chunks_exact_mut(m * n)) {
        T::multiply_matrices(size, a, b, c);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::DType;
    use hlo_ir::Scalar;

    fn array(dtype: DType, dims: &[i64]) -> Literal {
        let n: i64 = dims.iter().product();
        Literal::from_elems(dims, (0..n).map(|i| (i * 7 % 11 - 5) as f32).collect()).unwrap().convert(dtype)
    }

    fn as_f64(x: Scalar) -> f64 {
        match x {
            Scalar::Int(v) => v as f64,
            Scalar::Uint(v) => v as f64,
            Scalar::Float(v) | Scalar::Complex(v, _) => v,
            Scalar::Pred(v) => f64::from(u8::from(v)),
        }
    }

    /// The obvious twin: sums over all indices.
    fn slow_dot(lhs: &Literal, rhs: &Literal, attrs: &DotAttrs) -> Vec<f64> {
        let at = |x: &Literal, index: &[i64]| {
            let flat = x.dims().iter().zip(index).fold(0, |flat, (d, i)| flat * d + i);
            as_f64(x.get(flat as usize).unwrap())
        };
        let each = |dims: &[i64]| -> Vec<Vec<i64>> {
            dims.iter().fold(vec![vec![]], |all, &d| {
                all.iter().flat_map(|p| (0..d).map(move |i| [&p[..], &[i]].concat())).collect()
            })
        };
        let size = |x: &Literal, dims: &[i64]| dims.iter().map(|&d| x.dims()[d as usize]).collect::<Vec<_>>();
        let lf = free_dims(lhs.dims().len(), &attrs.lhs_batch_dims, &attrs.lhs_contracting_dims);
        let rf = free_dims(rhs.dims().len(), &attrs.rhs_batch_dims, &attrs.rhs_contracting_dims);
        let place = |rank: usize, lists: [(&[i64], &[i64]); 3]| {
            let mut index = vec![0; rank];
            for (dims, values) in lists {
                dims.iter().zip(values).for_each(|(&d, &v)| index[d as usize] = v);
            }
            index
        };
        let mut out = Vec::new();
        for b in each(&size(lhs, &attrs.lhs_batch_dims)) {
            for i in each(&size(lhs, &lf)) {
                for j in each(&size(rhs, &rf)) {
                    let terms = each(&size(lhs, &attrs.lhs_contracting_dims)).into_iter().map(|k| {
                        let l = [(&attrs.lhs_batch_dims[..], &b[..]), (&lf, &i), (&attrs.lhs_contracting_dims, &k)];
                        let r = [(&attrs.rhs_batch_dims[..], &b[..]), (&rf, &j), (&attrs.rhs_contracting_dims, &k)];
                        at(lhs, &place(lhs.dims().len(), l)) * at(rhs, &place(rhs.dims().len(), r))
                    });
                    out.push(terms.sum());
                }
            }
        }
        out
    }

    #[test]
    fn any_batch_and_contracted_dims_agree_with_the_obvious_loop() {
        type Case = ([&'static [i64]; 2], [&'static [i64]; 4]);
        let cases: [Case; 6] = [
            ([&[3, 4], &[4, 5]], [&[], &[1], &[], &[0]]),
            ([&[4, 3], &[5, 4]], [&[], &[0], &[], &[1]]),
            ([&[2, 3, 4, 5], &[2, 6, 4, 5]], [&[0, 2], &[3], &[0, 2], &[3]]),
            ([&[2, 3, 4], &[4, 3, 5, 2]], [&[0], &[1, 2], &[3], &[1, 0]]),
            ([&[2, 3], &[4]], [&[], &[], &[], &[]]),
            ([&[7], &[7]], [&[], &[0], &[], &[0]]),
        ];
        for (dims, [lb, lc, rb, rc]) in cases {
            for dtype in [DType::F32, DType::F64, DType::BF16, DType::S32, DType::S8, DType::C64] {
                let list = |d: &[i64]| d.iter().copied().collect();
                let attrs = DotAttrs {
                    lhs_batch_dims: list(lb),
                    lhs_contracting_dims: list(lc),
                    rhs_batch_dims: list(rb),
                    rhs_contracting_dims: list(rc),
                    ..DotAttrs::default()
                };
                let (lhs, rhs) = (array(dtype, dims[0]), array(dtype, dims[1]));
                let wide = if dtype == DType::BF16 || dtype == DType::S8 { DType::F32 } else { dtype };
                let got = dot(&lhs, &rhs, &attrs, &ArrayShape::new(wide, [])).unwrap();
                let want = slow_dot(&lhs, &rhs, &attrs);
                assert_eq!(got.n_elems(), want.len());
                for (i, want) in want.into_iter().enumerate() {
                    assert_eq!(as_f64(got.get(i).unwrap()), want, "{dtype} {dims:?} {i}");
                }
            }
        }
    }

    #[test]
    fn a_sum_becomes_an_8_bit_float_through_f16() {
        let attrs = DotAttrs {
            lhs_contracting_dims: [0].into_iter().collect(),
            rhs_contracting_dims: [0].into_iter().collect(),
            ..DotAttrs::default()
        };
        let side = |elems: [f32; 3]| Literal::from_elems(&[3], elems.to_vec()).unwrap().convert(DType::F8E4M3FN);
        // The sum is 6.75 - 1/1024. It is 6.75 as f16, which lies half way between 6.5 and 7: the even mantissa is that of 7.
        let (lhs, rhs) = (side([6.5, 0.25, -1.0 / 64.0]), side([1.0, 1.0, 1.0 / 16.0]));
        let got = dot(&lhs, &rhs, &attrs, &ArrayShape::new(DType::F8E4M3FN, [])).unwrap();
        assert_eq!(got.get(0), Some(Scalar::Float(7.0)));
    }

    #[test]
    fn empty_contractions_are_zero_and_mismatches_errors() {
        let attrs = DotAttrs {
            lhs_contracting_dims: [1].into_iter().collect(),
            rhs_contracting_dims: [0].into_iter().collect(),
            ..DotAttrs::default()
        };
        let shape = ArrayShape::new(DType::F32, []);
        let got = dot(&array(DType::F32, &[2, 0]), &array(DType::F32, &[0, 3]), &attrs, &shape).unwrap();
        assert_eq!(got, Literal::zeros(DType::F32, &[2, 3]).unwrap());
        assert!(dot(&array(DType::F32, &[2, 3]), &array(DType::F32, &[2, 3]), &attrs, &shape).is_err());
    }
}
