//! Elementwise operations: the scalar functions of the op table applied to whole arrays.
//!
//! Reals are computed in `f64` and rounded once to `f32` (types narrower than that once more), which for the exact
//! operations is what the hardware does. The commonest operations have loops of their own that the compiler can vectorise;
//! a test compares each with the table's function.

use super::rounding::Rounding;
use crate::error::EvalError;
use half::{bf16, f16};
use hlo_ir::literal::{Buffer, Element};
use hlo_ir::op::{BinaryFns, IntType, UnaryFns};
use hlo_ir::{DType, Literal, NumberClass, Opcode, Scalar};
use std::sync::Arc;

use hlo_ir::float::Complex;
use hlo_ir::float::scalar_fn::wrap;

/// The width and sign of an integer type.
pub(crate) fn int_type(dtype: DType) -> IntType {
    IntType { bits: dtype.bits(), is_signed: dtype.class() == NumberClass::Signed }
}

fn storage_error(dtype: DType) -> EvalError {
    EvalError::invalid(format!("the elements are not stored as {dtype}"))
}

fn no_class(op: Opcode, dtype: DType) -> EvalError {
    EvalError::unsupported(format!("{op} is not evaluated on {dtype}"))
}

/// `f` on every element, in place where `x` has no other holder.
pub(crate) fn map1<T: Element>(x: Arc<Literal>, f: impl Fn(T) -> T) -> Result<Literal, EvalError> {
    match Arc::try_unwrap(x) {
        Ok(mut owned) => {
            let dtype = owned.dtype();
            let elems = owned.elems_mut::<T>().ok_or_else(|| storage_error(dtype))?;
            elems.iter_mut().for_each(|e| *e = f(*e));
            Ok(owned)
        }
        Err(shared) => {
            let elems = shared.elems::<T>().ok_or_else(|| storage_error(shared.dtype()))?;
            let out = elems.iter().map(|&e| f(e)).collect();
            Ok(Literal::new(shared.dtype(), shared.dims(), T::into_buffer(out))?)
        }
    }
}

/// `f` on every pair of elements, in place where `a` or `b` has no other holder.
pub(crate) fn map2<T: Element>(a: Arc<Literal>, b: Arc<Literal>, f: impl Fn(T, T) -> T) -> Result<Literal, EvalError> {
    check_pair(&a, &b)?;
    let dtype = a.dtype();
    let error = || storage_error(dtype);
    match Arc::try_unwrap(a) {
        Ok(mut owned) => {
            let other = b.elems::<T>().ok_or_else(error)?;
            let elems = owned.elems_mut::<T>().ok_or_else(error)?;
            elems.iter_mut().zip(other).for_each(|(x, &y)| *x = f(*x, y));
            Ok(owned)
        }
        Err(a) => match Arc::try_unwrap(b) {
            Ok(mut owned) => {
                let other = a.elems::<T>().ok_or_else(error)?;
                let elems = owned.elems_mut::<T>().ok_or_else(error)?;
                elems.iter_mut().zip(other).for_each(|(y, &x)| *y = f(x, *y));
                Ok(owned)
            }
            Err(b) => {
                let (x, y) = (a.elems::<T>().ok_or_else(error)?, b.elems::<T>().ok_or_else(error)?);
                let out = x.iter().zip(y).map(|(&x, &y)| f(x, y)).collect();
                Ok(Literal::new(dtype, a.dims(), T::into_buffer(out))?)
            }
        },
    }
}

/// Checks that two operands have the same type.
pub(crate) fn check_pair(a: &Literal, b: &Literal) -> Result<(), EvalError> {
    if a.dtype() == b.dtype() && a.dims() == b.dims() {
        return Ok(());
    }
    let text =
        format!("expected operands of one type, found {}{:?} and {}{:?}", a.dtype(), a.dims(), b.dtype(), b.dims());
    Err(EvalError::invalid(text))
}

/// Every element through `f32` or `f64`.
fn wide(x: bf16) -> f64 {
    f64::from(x.to_f32())
}

/// A unary operation of the op table.
pub(crate) fn unary(op: Opcode, fns: &UnaryFns, x: Arc<Literal>) -> Result<Literal, EvalError> {
    let dtype = x.dtype();
    let missing = || no_class(op, dtype);
    match dtype.class() {
        NumberClass::Pred => {
            let f = fns.pred.ok_or_else(missing)?;
            map1::<bool>(x, f)
        }
        NumberClass::Signed | NumberClass::Unsigned => {
            let f = fns.int.ok_or_else(missing)?;
            unary_int(x, f)
        }
        NumberClass::Float => {
            let f = fns.real.ok_or_else(missing)?;
            unary_real(op, f, x)
        }
        NumberClass::Complex => {
            let f = fns.complex.ok_or_else(missing)?;
            if dtype == DType::C64 { map1::<Complex<f32>>(x, |z| f(z.into()).to_f32()) } else { map1(x, f) }
        }
    }
}

fn unary_real(op: Opcode, f: fn(f64) -> f64, x: Arc<Literal>) -> Result<Literal, EvalError> {
    match x.dtype() {
        DType::F32 if op == Opcode::Negate => map1::<f32>(x, |v| -v),
        DType::F32 if op == Opcode::Sqrt => map1::<f32>(x, f32::sqrt),
        DType::F32 => map1::<f32>(x, |v| f(f64::from(v)) as f32),
        DType::F64 => map1::<f64>(x, f),
        DType::BF16 => map1::<bf16>(x, |v| bf16::from_f32(f(wide(v)) as f32)),
        DType::F16 => map1::<f16>(x, |v| f16::from_f32(f(f64::from(v.to_f32())) as f32)),
        // Arrays of the f8 types are small enough to go through f32 as a whole.
        narrow => {
            let rounding = Rounding::of(narrow).ok_or_else(|| storage_error(narrow))?;
            let wide = Arc::new(x.convert(DType::F32));
            Ok(map1::<f32>(wide, |v| rounding.round(f(f64::from(v)) as f32))?.convert(narrow))
        }
    }
}

/// `$body(x as i64, type) as T` on every element of an integer array.
fn unary_int(x: Arc<Literal>, f: fn(i64, IntType) -> i64) -> Result<Literal, EvalError> {
    let t = int_type(x.dtype());
    let g = |v: i64| wrap(f(v, t), t);
    match x.data() {
        Buffer::S8(_) => map1::<i8>(x, |v| g(v.into()) as i8),
        Buffer::S16(_) => map1::<i16>(x, |v| g(v.into()) as i16),
        Buffer::S32(_) => map1::<i32>(x, |v| g(v.into()) as i32),
        Buffer::S64(_) => map1::<i64>(x, g),
        Buffer::U8(_) => map1::<u8>(x, |v| g(v.into()) as u8),
        Buffer::U16(_) => map1::<u16>(x, |v| g(v.into()) as u16),
        Buffer::U32(_) => map1::<u32>(x, |v| g(v.into()) as u32),
        Buffer::U64(_) => map1::<u64>(x, |v| g(v as i64) as u64),
        _ => Err(storage_error(x.dtype())),
    }
}

fn binary_int(a: Arc<Literal>, b: Arc<Literal>, f: fn(i64, i64, IntType) -> i64) -> Result<Literal, EvalError> {
    let t = int_type(a.dtype());
    let g = |x: i64, y: i64| wrap(f(x, y, t), t);
    match a.data() {
        Buffer::S8(_) => map2::<i8>(a, b, |x, y| g(x.into(), y.into()) as i8),
        Buffer::S16(_) => map2::<i16>(a, b, |x, y| g(x.into(), y.into()) as i16),
        Buffer::S32(_) => map2::<i32>(a, b, |x, y| g(x.into(), y.into()) as i32),
        Buffer::S64(_) => map2::<i64>(a, b, g),
        Buffer::U8(_) => map2::<u8>(a, b, |x, y| g(x.into(), y.into()) as u8),
        Buffer::U16(_) => map2::<u16>(a, b, |x, y| g(x.into(), y.into()) as u16),
        Buffer::U32(_) => map2::<u32>(a, b, |x, y| g(x.into(), y.into()) as u32),
        Buffer::U64(_) => map2::<u64>(a, b, |x, y| g(x as i64, y as i64) as u64),
        _ => Err(storage_error(a.dtype())),
    }
}

/// `maximum` of `f32`: NaN if either is NaN; 0 is above -0.
fn max_f32(a: f32, b: f32) -> f32 {
    if a > b {
        a
    } else if b > a {
        b
    } else if a == b {
        f32::from_bits(a.to_bits() & b.to_bits())
    } else {
        f32::NAN
    }
}

/// `minimum` of `f32`: NaN if either is NaN; -0 is below 0.
fn min_f32(a: f32, b: f32) -> f32 {
    if a < b {
        a
    } else if b < a {
        b
    } else if a == b {
        f32::from_bits(a.to_bits() | b.to_bits())
    } else {
        f32::NAN
    }
}

/// The operations that have their own loops on `f32`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fast {
    Add,
    Subtract,
    Multiply,
    Divide,
    Maximum,
    Minimum,
}

const FAST: [(Opcode, Fast); 6] = [
    (Opcode::Add, Fast::Add),
    (Opcode::Subtract, Fast::Subtract),
    (Opcode::Multiply, Fast::Multiply),
    (Opcode::Divide, Fast::Divide),
    (Opcode::Maximum, Fast::Maximum),
    (Opcode::Minimum, Fast::Minimum),
];

fn binary_f32(fast: Fast, a: Arc<Literal>, b: Arc<Literal>) -> Result<Literal, EvalError> {
    match fast {
        Fast::Add => map2::<f32>(a, b, |x, y| x + y),
        Fast::Subtract => map2::<f32>(a, b, |x, y| x - y),
        Fast::Multiply => map2::<f32>(a, b, |x, y| x * y),
        Fast::Divide => map2::<f32>(a, b, |x, y| x / y),
        Fast::Maximum => map2::<f32>(a, b, max_f32),
        Fast::Minimum => map2::<f32>(a, b, min_f32),
    }
}

/// A binary operation of the op table.
pub(crate) fn binary(op: Opcode, fns: &BinaryFns, a: Arc<Literal>, b: Arc<Literal>) -> Result<Literal, EvalError> {
    let dtype = a.dtype();
    let missing = || no_class(op, dtype);
    match dtype.class() {
        NumberClass::Pred => {
            let f = fns.pred.ok_or_else(missing)?;
            map2::<bool>(a, b, f)
        }
        NumberClass::Signed | NumberClass::Unsigned => {
            let f = fns.int.ok_or_else(missing)?;
            binary_int(a, b, f)
        }
        NumberClass::Float => {
            let f = fns.real.ok_or_else(missing)?;
            binary_real(op, f, a, b)
        }
        NumberClass::Complex => {
            let f = fns.complex.ok_or_else(missing)?;
            if dtype == DType::C64 {
                map2::<Complex<f32>>(a, b, |x, y| f(x.into(), y.into()).to_f32())
            } else {
                map2(a, b, f)
            }
        }
    }
}

fn binary_real(op: Opcode, f: fn(f64, f64) -> f64, a: Arc<Literal>, b: Arc<Literal>) -> Result<Literal, EvalError> {
    let through_f32 = |x: f64, y: f64| f(x, y) as f32;
    match a.dtype() {
        DType::F32 => match FAST.iter().find(|(o, _)| *o == op) {
            Some(&(_, fast)) => binary_f32(fast, a, b),
            None => map2::<f32>(a, b, |x, y| through_f32(x.into(), y.into())),
        },
        DType::F64 => map2::<f64>(a, b, f),
        DType::BF16 => map2::<bf16>(a, b, |x, y| bf16::from_f32(through_f32(wide(x), wide(y)))),
        DType::F16 => map2::<f16>(a, b, |x, y| f16::from_f32(through_f32(x.to_f32().into(), y.to_f32().into()))),
        narrow => {
            check_pair(&a, &b)?;
            let rounding = Rounding::of(narrow).ok_or_else(|| storage_error(narrow))?;
            let (a, b) = (Arc::new(a.convert(DType::F32)), Arc::new(b.convert(DType::F32)));
            Ok(map2::<f32>(a, b, |x, y| rounding.round(through_f32(x.into(), y.into())))?.convert(narrow))
        }
    }
}

/// A scalar rounded or wrapped to `dtype`, as storing it in an array would.
pub(crate) fn rounded(dtype: DType, value: Scalar) -> Scalar {
    match (dtype, value) {
        (DType::F32, Scalar::Float(x)) => Scalar::Float(f64::from(x as f32)),
        (DType::F64, Scalar::Float(_)) | (DType::Pred, Scalar::Pred(_)) => value,
        (DType::BF16, Scalar::Float(x)) => Scalar::Float(wide(bf16::from_f32(x as f32))),
        (DType::S32, Scalar::Int(x)) => Scalar::Int(i64::from(x as i32)),
        _ => Literal::scalar(dtype, value).get(0).unwrap_or(value),
    }
}

/// A unary operation on one scalar of type `dtype`.
pub(crate) fn unary_scalar(op: Opcode, fns: &UnaryFns, dtype: DType, x: Scalar) -> Result<Scalar, EvalError> {
    let missing = || no_class(op, dtype);
    let value = match x {
        Scalar::Pred(x) => Scalar::Pred(fns.pred.ok_or_else(missing)?(x)),
        Scalar::Int(x) => Scalar::Int(wrap(fns.int.ok_or_else(missing)?(x, int_type(dtype)), int_type(dtype))),
        Scalar::Uint(x) => {
            Scalar::Uint(wrap(fns.int.ok_or_else(missing)?(x as i64, int_type(dtype)), int_type(dtype)) as u64)
        }
        Scalar::Float(x) => narrow(dtype, fns.real.ok_or_else(missing)?(x)),
        Scalar::Complex(re, im) => {
            let z = fns.complex.ok_or_else(missing)?(Complex::new(re, im));
            Scalar::Complex(z.re, z.im)
        }
    };
    Ok(rounded(dtype, value))
}

/// Types below `f32` are computed there first and rounded from it.
fn narrow(dtype: DType, x: f64) -> Scalar {
    Scalar::Float(match Rounding::of(dtype) {
        Some(rounding) => f64::from(rounding.round(x as f32)),
        None => x,
    })
}

/// A binary operation on two scalars of type `dtype`.
pub(crate) fn binary_scalar(
    op: Opcode,
    fns: &BinaryFns,
    dtype: DType,
    x: Scalar,
    y: Scalar,
) -> Result<Scalar, EvalError> {
    let missing = || no_class(op, dtype);
    let t = int_type(dtype);
    let value = match (x, y) {
        (Scalar::Pred(x), Scalar::Pred(y)) => Scalar::Pred(fns.pred.ok_or_else(missing)?(x, y)),
        (Scalar::Int(x), Scalar::Int(y)) => Scalar::Int(wrap(fns.int.ok_or_else(missing)?(x, y, t), t)),
        (Scalar::Uint(x), Scalar::Uint(y)) => {
            Scalar::Uint(wrap(fns.int.ok_or_else(missing)?(x as i64, y as i64, t), t) as u64)
        }
        (Scalar::Float(x), Scalar::Float(y)) => narrow(dtype, fns.real.ok_or_else(missing)?(x, y)),
        (Scalar::Complex(a, b), Scalar::Complex(c, d)) => {
            let z = fns.complex.ok_or_else(missing)?(Complex::new(a, b), Complex::new(c, d));
            Scalar::Complex(z.re, z.im)
        }
        _ => return Err(EvalError::invalid(format!("{op}: expected two scalars of {dtype}"))),
    };
    Ok(rounded(dtype, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_ir::op::EvalRule;

    fn binary_fns(op: Opcode) -> &'static BinaryFns {
        match &op.row().eval {
            EvalRule::Binary(fns) => fns,
            other => panic!("{op} is {other:?}"),
        }
    }

    const VALUES: [f32; 14] = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        3.0e38,
        -3.0e38,
        1.0e-38,
        7.0e-39,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        0.1,
        16_777_217.0,
        1.0 / 3.0,
    ];

    #[test]
    fn fast_loops_are_the_functions_of_the_table() {
        let pairs: Vec<(f32, f32)> = VALUES.iter().flat_map(|&a| VALUES.map(|b| (a, b))).collect();
        let side = |f: fn(&(f32, f32)) -> f32| {
            Arc::new(Literal::from_elems(&[pairs.len() as i64], pairs.iter().map(f).collect()).unwrap())
        };
        let (a, b) = (side(|p| p.0), side(|p| p.1));
        for (op, fast) in FAST {
            let f = binary_fns(op).real.unwrap();
            let got = binary_f32(fast, a.clone(), b.clone()).unwrap();
            for (&(x, y), &got) in pairs.iter().zip(got.elems::<f32>().unwrap()) {
                let want = f(x.into(), y.into()) as f32;
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{op} {x} {y}: {got} {want}");
            }
        }
        for op in [Opcode::Negate, Opcode::Sqrt] {
            let EvalRule::Unary(fns) = &op.row().eval else { panic!("{op}") };
            let got = unary(op, fns, a.clone()).unwrap();
            for (&(x, _), &got) in pairs.iter().zip(got.elems::<f32>().unwrap()) {
                let want = fns.real.unwrap()(x.into()) as f32;
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{op} {x}: {got} {want}");
            }
        }
    }

    #[test]
    fn narrow_types_round_each_operation_and_integers_wrap() {
        let one = |dtype, x| Arc::new(Literal::scalar(dtype, x));
        let add = binary_fns(Opcode::Add);
        let sum = |dtype, a, b| binary(Opcode::Add, add, one(dtype, a), one(dtype, b)).unwrap().get(0).unwrap();
        assert_eq!(sum(DType::BF16, Scalar::Float(256.0), Scalar::Float(1.0)), Scalar::Float(256.0));
        assert_eq!(sum(DType::F16, Scalar::Float(2048.0), Scalar::Float(3.0)), Scalar::Float(2052.0));
        assert_eq!(sum(DType::F8E4M3FN, Scalar::Float(16.0), Scalar::Float(1.0)), Scalar::Float(16.0));
        assert_eq!(sum(DType::S8, Scalar::Int(127), Scalar::Int(1)), Scalar::Int(-128));
        assert_eq!(sum(DType::S4, Scalar::Int(7), Scalar::Int(1)), Scalar::Int(-8));
        assert_eq!(sum(DType::U64, Scalar::Uint(u64::MAX), Scalar::Uint(2)), Scalar::Uint(1));
        assert_eq!(sum(DType::Pred, Scalar::Pred(true), Scalar::Pred(true)), Scalar::Pred(true));
        let mismatch = binary(Opcode::Add, add, one(DType::F32, Scalar::Float(1.0)), one(DType::S32, Scalar::Int(1)));
        assert!(mismatch.is_err());
    }

    #[test]
    fn scalars_compute_as_arrays_do() {
        let dtypes = [DType::F32, DType::BF16, DType::F16, DType::F8E5M2, DType::F64];
        for op in [Opcode::Add, Opcode::Divide, Opcode::Power, Opcode::Minimum] {
            for dtype in dtypes {
                for (a, b) in [(0.3, 1.7), (100.0, 3.0), (-2.0, 2.0)] {
                    let [x, y] = [a, b].map(|v| Literal::scalar(dtype, Scalar::Float(v)));
                    let (sx, sy) = (x.get(0).unwrap(), y.get(0).unwrap());
                    let array = binary(op, binary_fns(op), Arc::new(x), Arc::new(y)).unwrap().get(0).unwrap();
                    assert_eq!(binary_scalar(op, binary_fns(op), dtype, sx, sy).unwrap(), array, "{op} {dtype}");
                }
            }
        }
    }
}
