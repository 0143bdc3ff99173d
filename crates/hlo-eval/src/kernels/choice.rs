//! Comparisons, selections and parts of numbers: compare, select, clamp, is-finite, abs, complex, reduce-precision.

use super::elementwise::{binary, check_pair};
use super::shape_ops::broadcast;
use super::typed::zip_elems;
use crate::error::EvalError;
use hlo_ir::attrs::{CompareAttrs, Comparison};
use hlo_ir::literal::{Buffer, Element};
use hlo_ir::op::EvalRule;
use hlo_ir::{ArrayShape, DType, Literal, Opcode, Scalar};
use std::cmp::Ordering;
use std::sync::Arc;

fn holds(direction: Comparison, order: Option<Ordering>) -> bool {
    match direction {
        Comparison::Eq => order == Some(Ordering::Equal),
        Comparison::Ne => order != Some(Ordering::Equal),
        Comparison::Ge => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
        Comparison::Gt => order == Some(Ordering::Greater),
        Comparison::Le => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Lt => order == Some(Ordering::Less),
    }
}

fn pairs<T: Element>(
    a: &Literal,
    b: &Literal,
    direction: Comparison,
    order: impl Fn(&T, &T) -> Option<Ordering>,
) -> Result<Vec<bool>, EvalError> {
    let (Some(x), Some(y)) = (a.elems::<T>(), b.elems::<T>()) else {
        return Err(EvalError::invalid("expected operands of one element type"));
    };
    Ok(x.iter().zip(y).map(|(x, y)| holds(direction, order(x, y))).collect())
}

fn ordered<T: Element + PartialOrd>(a: &Literal, b: &Literal, d: Comparison) -> Result<Vec<bool>, EvalError> {
    let (Some(x), Some(y)) = (a.elems::<T>(), b.elems::<T>()) else {
        return Err(EvalError::invalid("expected operands of one element type"));
    };
    let zip = x.iter().zip(y);
    Ok(match d {
        Comparison::Eq => zip.map(|(x, y)| x == y).collect(),
        Comparison::Ne => zip.map(|(x, y)| x != y).collect(),
        Comparison::Ge => zip.map(|(x, y)| x >= y).collect(),
        Comparison::Gt => zip.map(|(x, y)| x > y).collect(),
        Comparison::Le => zip.map(|(x, y)| x <= y).collect(),
        Comparison::Lt => zip.map(|(x, y)| x < y).collect(),
    })
}

fn is_total(attrs: &CompareAttrs, dtype: DType) -> bool {
    attrs.order.as_str() == "TOTALORDER" && dtype.is_float()
}

/// `compare`: elementwise, to `pred`.
pub(crate) fn compare(a: &Literal, b: &Literal, attrs: &CompareAttrs) -> Result<Literal, EvalError> {
    check_pair(a, b)?;
    let d = attrs.direction;
    let out = match a.dtype() {
        DType::Pred => ordered::<bool>(a, b, d)?,
        DType::S1 | DType::S2 | DType::S4 | DType::S8 => ordered::<i8>(a, b, d)?,
        DType::S16 => ordered::<i16>(a, b, d)?,
        DType::S32 => ordered::<i32>(a, b, d)?,
        DType::S64 => ordered::<i64>(a, b, d)?,
        DType::U1 | DType::U2 | DType::U4 | DType::U8 => ordered::<u8>(a, b, d)?,
        DType::U16 => ordered::<u16>(a, b, d)?,
        DType::U32 => ordered::<u32>(a, b, d)?,
        DType::U64 => ordered::<u64>(a, b, d)?,
        DType::F32 if is_total(attrs, a.dtype()) => pairs::<f32>(a, b, d, |x, y| Some(x.total_cmp(y)))?,
        DType::F64 if is_total(attrs, a.dtype()) => pairs::<f64>(a, b, d, |x, y| Some(x.total_cmp(y)))?,
        DType::F32 => ordered::<f32>(a, b, d)?,
        DType::F64 => ordered::<f64>(a, b, d)?,
        DType::C64 | DType::C128 => {
            let same = |i| a.get(i) == b.get(i);
            match d {
                Comparison::Eq => (0..a.n_elems()).map(same).collect(),
                Comparison::Ne => (0..a.n_elems()).map(|i| !same(i)).collect(),
                Comparison::Ge | Comparison::Gt | Comparison::Le | Comparison::Lt => {
                    return Err(EvalError::unsupported("complex numbers have no order, only EQ and NE"));
                }
            }
        }
        // The small floats widen exactly, signs and NaNs included.
        _ => return compare(&a.convert(DType::F32), &b.convert(DType::F32), attrs),
    };
    Ok(Literal::new(DType::Pred, a.dims(), Buffer::Pred(out))?)
}

/// `compare` of two scalars of one type.
pub(crate) fn compare_scalars(attrs: &CompareAttrs, dtype: DType, a: Scalar, b: Scalar) -> Result<bool, EvalError> {
    let order = match (a, b) {
        (Scalar::Pred(a), Scalar::Pred(b)) => Some(a.cmp(&b)),
        (Scalar::Int(a), Scalar::Int(b)) => Some(a.cmp(&b)),
        (Scalar::Uint(a), Scalar::Uint(b)) => Some(a.cmp(&b)),
        (Scalar::Float(a), Scalar::Float(b)) if is_total(attrs, dtype) => Some(a.total_cmp(&b)),
        (Scalar::Float(a), Scalar::Float(b)) => a.partial_cmp(&b),
        (Scalar::Complex(..), Scalar::Complex(..)) => (a == b).then_some(Ordering::Equal),
        _ => return Err(EvalError::invalid("expected two scalars of one type to compare")),
    };
    Ok(holds(attrs.direction, order))
}

/// `select`: where `pred` is true from `on_true`; a scalar `pred` picks a whole array.
pub(crate) fn select(pred: &Literal, on_true: Arc<Literal>, on_false: Arc<Literal>) -> Result<Arc<Literal>, EvalError> {
    check_pair(&on_true, &on_false)?;
    let flags = pred.elems::<bool>().ok_or_else(|| EvalError::invalid("expected a pred operand"))?;
    if pred.dims().is_empty() {
        return Ok(if flags.first() == Some(&true) { on_true } else { on_false });
    }
    if pred.dims() != on_true.dims() {
        let text = format!("expected a scalar pred or dims {:?}, found {:?}", on_true.dims(), pred.dims());
        return Err(EvalError::invalid(text));
    }
    let (dtype, dims): (DType, Vec<i64>) = (on_true.dtype(), on_true.dims().to_vec());
    let data = Arc::unwrap_or_clone(on_true).into_data();
    let data = zip_elems!(data, on_false.data(), (yes, no) => {
        let mut yes = yes;
        for ((slot, &other), &flag) in yes.iter_mut().zip(no).zip(flags) {
            *slot = if flag { *slot } else { other };
        }
        yes
    })?;
    Ok(Arc::new(Literal::new(dtype, &dims, data)?))
}

/// `clamp`: `minimum(maximum(low, x), high)`; the bounds are scalars or have the dims of `x`.
pub(crate) fn clamp(low: Arc<Literal>, x: Arc<Literal>, high: Arc<Literal>) -> Result<Literal, EvalError> {
    let shape = ArrayShape::new(x.dtype(), x.dims().iter().copied());
    let spread = |bound: Arc<Literal>| {
        if bound.dims().is_empty() && !x.dims().is_empty() {
            broadcast(&bound, &[], &shape).map(Arc::new)
        } else {
            Ok(bound)
        }
    };
    let (low, high) = (spread(low)?, spread(high)?);
    let (EvalRule::Binary(max), EvalRule::Binary(min)) = (&Opcode::Maximum.row().eval, &Opcode::Minimum.row().eval)
    else {
        return Err(EvalError::unsupported("clamp needs maximum and minimum as scalar functions"));
    };
    let above = binary(Opcode::Maximum, max, low, x)?;
    binary(Opcode::Minimum, min, Arc::new(above), high)
}

/// `is-finite`.
pub(crate) fn is_finite(x: &Literal) -> Result<Literal, EvalError> {
    let out: Vec<bool> = match x.data() {
        Buffer::F32(v) => v.iter().map(|x| x.is_finite()).collect(),
        Buffer::F64(v) => v.iter().map(|x| x.is_finite()).collect(),
        _ if x.dtype().is_float() => return is_finite(&x.convert(DType::F32)),
        _ => return Err(EvalError::unsupported(format!("is-finite has no meaning on {}", x.dtype()))),
    };
    Ok(Literal::new(DType::Pred, x.dims(), Buffer::Pred(out))?)
}

/// `abs`: of a complex number the real modulus; of the smallest integer itself.
pub(crate) fn abs(x: &Literal) -> Result<Literal, EvalError> {
    let data = match x.data() {
        Buffer::S8(v) => Buffer::S8(v.iter().map(|x| x.wrapping_abs()).collect()),
        Buffer::S16(v) => Buffer::S16(v.iter().map(|x| x.wrapping_abs()).collect()),
        Buffer::S32(v) => Buffer::S32(v.iter().map(|x| x.wrapping_abs()).collect()),
        Buffer::S64(v) => Buffer::S64(v.iter().map(|x| x.wrapping_abs()).collect()),
        Buffer::F32(v) => Buffer::F32(v.iter().map(|x| x.abs()).collect()),
        Buffer::F64(v) => Buffer::F64(v.iter().map(|x| x.abs()).collect()),
        Buffer::C64(v) => Buffer::F32(v.iter().map(|z| hlo_ir::float::Complex::<f64>::from(*z).abs() as f32).collect()),
        Buffer::C128(v) => Buffer::F64(v.iter().map(|z| z.abs()).collect()),
        Buffer::F8(_) | Buffer::F16(_) | Buffer::BF16(_) => {
            return Ok(abs(&x.convert(DType::F32))?.convert(x.dtype()));
        }
        Buffer::Pred(_) | Buffer::U8(_) | Buffer::U16(_) | Buffer::U32(_) | Buffer::U64(_) => {
            return Ok(x.clone());
        }
    };
    Ok(Literal::new(x.dtype().real_part(), x.dims(), data)?)
}

/// `complex` from two real parts.
pub(crate) fn complex(re: &Literal, im: &Literal) -> Result<Literal, EvalError> {
    use hlo_ir::float::Complex;
    check_pair(re, im)?;
    let (dtype, data) = match (re.data(), im.data()) {
        (Buffer::F32(a), Buffer::F32(b)) => {
            (DType::C64, Buffer::C64(a.iter().zip(b).map(|(&a, &b)| Complex::new(a, b)).collect()))
        }
        (Buffer::F64(a), Buffer::F64(b)) => {
            (DType::C128, Buffer::C128(a.iter().zip(b).map(|(&a, &b)| Complex::new(a, b)).collect()))
        }
        _ => return Err(EvalError::unsupported(format!("complex numbers with parts of {}", re.dtype()))),
    };
    Ok(Literal::new(dtype, re.dims(), data)?)
}

/// `real` or `imag`; of a real number itself or 0.
pub(crate) fn complex_part(x: &Literal, is_imag: bool) -> Result<Literal, EvalError> {
    let data = match x.data() {
        Buffer::C64(v) => Buffer::F32(v.iter().map(|z| if is_imag { z.im } else { z.re }).collect()),
        Buffer::C128(v) => Buffer::F64(v.iter().map(|z| if is_imag { z.im } else { z.re }).collect()),
        _ if is_imag => return Ok(Literal::zeros(x.dtype(), x.dims())?),
        _ => return Ok(x.clone()),
    };
    Ok(Literal::new(x.dtype().real_part(), x.dims(), data)?)
}

/// `reduce-precision`: rounds to fewer exponent and mantissa bits, the type stays.
pub(crate) fn reduce_precision(x: &Literal, exponent_bits: i64, mantissa_bits: i64) -> Result<Literal, EvalError> {
    use hlo_ir::float::scalar_fn::{reduce_precision_bits, reduce_precision_f32, reduce_precision_f64};
    let (Ok(e), Ok(m)) = (u32::try_from(exponent_bits), u32::try_from(mantissa_bits)) else {
        return Err(EvalError::invalid("expected exponent and mantissa bits of 0 or more"));
    };
    if !(1..=11).contains(&e) || m > 52 {
        return Err(EvalError::invalid(format!(
            "expected 1..=11 exponent and 0..=52 mantissa bits, found {e} and {m}"
        )));
    }
    let data = match x.data() {
        Buffer::F32(v) => Buffer::F32(v.iter().map(|&x| reduce_precision_f32(x, e, m)).collect()),
        Buffer::F64(v) => Buffer::F64(v.iter().map(|&x| reduce_precision_f64(x, e, m)).collect()),
        Buffer::BF16(v) => Buffer::BF16(
            v.iter()
                .map(|x| half::bf16::from_bits(reduce_precision_bits(x.to_bits().into(), (8, 7), e, m) as u16))
                .collect(),
        ),
        Buffer::F16(v) => Buffer::F16(
            v.iter()
                .map(|x| half::f16::from_bits(reduce_precision_bits(x.to_bits().into(), (5, 10), e, m) as u16))
                .collect(),
        ),
        _ => return Err(EvalError::unsupported(format!("reduce-precision on {}", x.dtype()))),
    };
    Ok(Literal::new(x.dtype(), x.dims(), data)?)
}

/// `stochastic-convert` of floats to signed integers: a number between two integers becomes the one away from zero with
/// the probability of its fraction, by comparing the fraction's leading bits with `random`. NaN gives 0 and numbers out
/// of range the nearest limit.
pub(crate) fn stochastic_convert(x: &Literal, random: &Literal, dtype: DType) -> Result<Literal, EvalError> {
    let is_known = x.dtype().is_float()
        && dtype.class() == hlo_ir::NumberClass::Signed
        && random.dtype().class() == hlo_ir::NumberClass::Unsigned
        && random.dims() == x.dims();
    if !is_known {
        let text = format!("stochastic-convert from {} to {dtype} with {} bits", x.dtype(), random.dtype());
        return Err(EvalError::unsupported(text));
    }
    let scale = f64::from(random.dtype().bits()).exp2();
    let convert = |(x, random): (Scalar, Scalar)| {
        let (Scalar::Float(x), Scalar::Uint(random)) = (x, random) else { return 0 };
        let whole = x.abs().trunc();
        let threshold = ((x.abs() - whole) * scale) as u64;
        let rounded = whole + f64::from(u8::from(random < threshold));
        rounded.copysign(x) as i64
    };
    let pairs = (0..x.n_elems()).filter_map(|i| Some((x.get(i)?, random.get(i)?)));
    let (low, high) = (i64::MIN >> (64 - dtype.bits()), i64::MAX >> (64 - dtype.bits()));
    let values: Vec<i64> = pairs.map(|pair| convert(pair).clamp(low, high)).collect();
    Ok(Literal::from_elems(x.dims(), values)?.convert(dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(v: &[f32]) -> Literal {
        Literal::from_elems(&[v.len() as i64], v.to_vec()).unwrap()
    }

    fn compared(a: &Literal, b: &Literal, direction: Comparison, order: &str) -> Vec<bool> {
        let attrs = CompareAttrs { direction, order: order.into() };
        let out = compare(a, b, &attrs).unwrap();
        for i in 0..a.n_elems() {
            let one = compare_scalars(&attrs, a.dtype(), a.get(i).unwrap(), b.get(i).unwrap()).unwrap();
            assert_eq!(out.get(i), Some(Scalar::Pred(one)), "{direction:?} {order} {i}");
        }
        out.elems::<bool>().unwrap().to_vec()
    }

    #[test]
    fn nan_and_zero_compare_by_the_order_asked_for() {
        let (a, b) = (floats(&[f32::NAN, -0.0, 1.0, f32::INFINITY]), floats(&[f32::NAN, 0.0, 2.0, f32::NAN]));
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16, DType::F8E5M2] {
            let (a, b) = (a.convert(dtype), b.convert(dtype));
            assert_eq!(compared(&a, &b, Comparison::Eq, ""), [false, true, false, false]);
            assert_eq!(compared(&a, &b, Comparison::Ne, "FLOAT"), [true, false, true, true]);
            assert_eq!(compared(&a, &b, Comparison::Ge, ""), [false, true, false, false]);
            assert_eq!(compared(&a, &b, Comparison::Lt, "TOTALORDER"), [false, true, true, true]);
            assert_eq!(compared(&a, &b, Comparison::Eq, "TOTALORDER"), [true, false, false, false]);
        }
        let c = floats(&[1.0]).convert(DType::C64);
        assert!(compare(&c, &c, &CompareAttrs { direction: Comparison::Lt, order: "".into() }).is_err());
        assert_eq!(compared(&c, &c, Comparison::Eq, ""), [true]);
    }

    #[test]
    fn selections_and_clamps() {
        let pred = Literal::from_elems(&[2], vec![true, false]).unwrap();
        let (a, b) = (Arc::new(floats(&[1.0, 2.0])), Arc::new(floats(&[3.0, 4.0])));
        assert_eq!(*select(&pred, a.clone(), b.clone()).unwrap(), floats(&[1.0, 4.0]));
        let picked = select(&Literal::from_elem(false), a.clone(), b.clone()).unwrap();
        assert!(Arc::ptr_eq(&picked, &b));
        let bound = |x: f32| Arc::new(Literal::from_elem(x));
        let x = Arc::new(floats(&[-5.0, 0.5, 9.0, f32::NAN]));
        let clamped = clamp(bound(0.0), x, bound(1.0)).unwrap();
        let got = clamped.elems::<f32>().unwrap();
        assert_eq!(&got[..3], [0.0, 0.5, 1.0]);
        assert!(got[3].is_nan());
    }

    #[test]
    fn stochastic_rounding_follows_the_random_bits() {
        let x = floats(&[1.25, 1.25, -1.25, 3e9, f32::NAN, 2.0]);
        let random = Literal::from_elems(&[6], vec![0x3fff_ffffu32, 0x4000_0000, 0, 0, 0, 0]).unwrap();
        let got = stochastic_convert(&x, &random, DType::S32).unwrap();
        assert_eq!(got.elems::<i32>().unwrap(), [2, 1, -2, i32::MAX, 0, 2]);
        assert!(stochastic_convert(&x, &random, DType::BF16).is_err());
    }

    #[test]
    fn parts_of_numbers() {
        let z = complex(&floats(&[3.0, -0.0]), &floats(&[-4.0, 0.0])).unwrap();
        assert_eq!(abs(&z).unwrap(), floats(&[5.0, 0.0]));
        assert_eq!(complex_part(&z, true).unwrap(), floats(&[-4.0, 0.0]));
        assert_eq!(complex_part(&z, false).unwrap(), floats(&[3.0, -0.0]));
        assert_eq!(complex_part(&floats(&[2.0]), true).unwrap(), floats(&[0.0]));
        let min = Literal::from_elem(i32::MIN);
        assert_eq!(abs(&min).unwrap(), min);
        let finite = is_finite(&floats(&[1.0, f32::INFINITY, f32::NAN])).unwrap();
        assert_eq!(finite.elems::<bool>().unwrap(), [true, false, false]);
        assert_eq!(reduce_precision(&floats(&[1.01]), 8, 7).unwrap(), floats(&[1.0078125]));
    }
}
