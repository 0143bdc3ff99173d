//! Estimates of numbers: how large they are, and whether they may be zero or no finite numbers.

use hlo_ir::literal::Scalar;
use hlo_ir::{DType, Literal, NumberClass};

/// Facts about a term as a factor.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Estimate {
    /// This number; it is the same whatever the inputs are.
    Known(f64),
    /// A number that depends on inputs.
    Finite(Magnitude),
    /// A number that depends on inputs, and in some places one far below zero, as masked scores are.
    Masked,
    /// Infinite or a NaN for some inputs that are neither, or nothing is known of it.
    Unfit,
}

/// The size of a number that depends on inputs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Magnitude {
    /// The power of two that it is near.
    pub exponent: i32,
    /// Whether it may be zero for inputs that are not.
    pub may_be_zero: bool,
    /// Whether it takes whole numbers alone, so that it may meet a constant.
    pub is_whole: bool,
}

/// How many numbers stand in the place of each input.
pub(crate) const N_DRAWS: usize = 32;

/// A term's numbers for some ordinary inputs. Of truth values the true ones are positive; a NaN is not known.
pub(crate) type Ordinary = [f64; N_DRAWS];

/// Inputs, and what is made of them by ops that keep numbers near one.
pub(crate) const GENERIC: Magnitude = Magnitude { exponent: 0, may_be_zero: false, is_whole: false };

/// Integers and truth values.
pub(crate) const WHOLE: Magnitude = Magnitude { exponent: 0, may_be_zero: true, is_whole: true };

/// A chosen constant below minus two to this power masks: exponentials of it are next to zero.
const MASK_EXPONENT: i32 = 6;

/// The least and the greatest power of two of normal numbers of a type; `None` for integers, which wrap.
pub(crate) fn range_of(dtype: DType) -> Option<(i32, i32)> {
    let dtype = match dtype.class() {
        NumberClass::Float => dtype,
        NumberClass::Complex => dtype.real_part(),
        NumberClass::Pred | NumberClass::Signed | NumberClass::Unsigned => return None,
    };
    let holds = |exponent: &i32| {
        let power = f64::exp2(f64::from(*exponent));
        rounded(power, dtype) == power
    };
    let greatest = match dtype {
        DType::F64 => 1023,
        DType::F32 | DType::BF16 | DType::F8E8M0FNU => 127,
        _ => (1..=16).take_while(holds).last().unwrap_or(0),
    };
    Some((1 - greatest, greatest))
}

/// A number in a type.
pub(crate) fn rounded(value: f64, dtype: DType) -> f64 {
    if dtype == DType::F64 {
        return value;
    }
    if dtype == DType::F32 {
        return f64::from(value as f32);
    }
    match Literal::scalar(DType::F64, Scalar::Float(value)).convert(dtype).get(0) {
        Some(Scalar::Float(value)) => value,
        Some(Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_) | Scalar::Complex(..)) | None => f64::NAN,
    }
}

pub(crate) fn exponent_of(value: f64) -> i32 {
    value.abs().log2().floor() as i32
}

impl Estimate {
    /// A number that is near this power of two.
    pub(crate) fn near(exponent: i32) -> Estimate {
        Estimate::Finite(Magnitude { exponent, ..GENERIC })
    }

    /// As one that depends on inputs; `None` if it is no finite number.
    pub(crate) fn magnitude(self) -> Option<Magnitude> {
        match self {
            Estimate::Known(0.0) => Some(WHOLE),
            Estimate::Known(value) if value.is_finite() => {
                Some(Magnitude { exponent: exponent_of(value), is_whole: value.fract() == 0.0, ..GENERIC })
            }
            Estimate::Finite(magnitude) => Some(magnitude),
            Estimate::Known(_) | Estimate::Masked | Estimate::Unfit => None,
        }
    }

    pub(crate) fn is_finite(self) -> bool {
        self.magnitude().is_some()
    }

    /// Either of two.
    pub(crate) fn or(self, other: Estimate) -> Estimate {
        if self == other {
            return self;
        }
        let is_mask = |estimate: Estimate| match estimate {
            Estimate::Known(value) => value < -f64::exp2(f64::from(MASK_EXPONENT)),
            Estimate::Finite(_) | Estimate::Unfit => false,
            Estimate::Masked => true,
        };
        match (self.magnitude(), other.magnitude()) {
            _ if is_mask(self) && (other.is_finite() || is_mask(other)) => Estimate::Masked,
            _ if is_mask(other) && self.is_finite() => Estimate::Masked,
            (Some(a), Some(b)) => Estimate::Finite(Magnitude {
                exponent: if a.exponent.abs() > b.exponent.abs() { a.exponent } else { b.exponent },
                may_be_zero: a.may_be_zero || b.may_be_zero,
                is_whole: a.is_whole && b.is_whole,
            }),
            (_, _) => Estimate::Unfit,
        }
    }

    /// The estimate of a result, unless it leaves the range of its type.
    pub(crate) fn within(self, dtype: DType) -> Estimate {
        match (self, range_of(dtype)) {
            (Estimate::Known(value), Some(_)) => Estimate::Known(rounded(value, real_type(dtype))),
            (Estimate::Finite(m), Some((least, greatest)))
                if !m.is_whole && !(least..=greatest).contains(&m.exponent) =>
            {
                Estimate::Unfit
            }
            (estimate, _) => estimate,
        }
    }

    pub(crate) fn or_unfit_if(self, is_unfit: bool) -> Estimate {
        if is_unfit { Estimate::Unfit } else { self }
    }
}

fn real_type(dtype: DType) -> DType {
    if dtype.is_complex() { dtype.real_part() } else { dtype }
}
