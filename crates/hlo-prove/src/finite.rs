//! Whether sums may change places with a product or a quotient: the one check of every rule that moves a factor.
//!
//! `Σ c·x = c·Σx` holds for exact numbers. It fails by more than rounding where `c` is zero, infinite or a NaN, and
//! where `c` is so large or so small that one side leaves the range of the type. So the check estimates the factor:
//! constants and ops on constants are computed, and what depends on inputs counts as a finite number near one that is
//! not zero. Constants that such a number is multiplied with, added to or divided by move the estimate.

use crate::elementwise::{Elementwise, ElementwiseOp, Linear};
use crate::estimate::{Estimate, GENERIC, Magnitude, WHOLE, exponent_of, range_of};
use crate::settle::settle;
use crate::term::{Arg, Head, Node, TermId, Terms};
use hlo_ir::literal::Scalar;
use hlo_ir::monoid::Monoid;
use hlo_ir::op::{ElementwiseRoutine, EvalRoutine, EvalRule};
use hlo_ir::{DType, Literal, Opcode};
use smallvec::SmallVec;

impl Elementwise {
    /// Whether sums of what an op multiplies by, or divides by, the term may change places with the op.
    pub(crate) fn is_a_factor(&self, terms: &mut Terms, op: &ElementwiseOp, factor: TermId) -> bool {
        // Sums and products of integers wrap alike.
        let Some((least, greatest)) = range_of(op.dtype) else { return true };
        let estimate = self.estimate(terms, factor);
        let (Some(m), false) = (estimate.magnitude(), estimate == Estimate::Known(0.0)) else { return false };
        // Half of the range is left to what is multiplied. Inputs have no bounds: many are much smaller than one, few much larger.
        let (smaller, larger) =
            if matches!(estimate, Estimate::Known(_)) { (0, 0) } else { (MUCH_SMALLER, MUCH_LARGER) };
        let is_near_one = match op.linear() {
            Linear::Product | Linear::DotProduct => (least..=greatest / 2 - larger).contains(&m.exponent),
            Linear::Quotient => !m.may_be_zero && (smaller - greatest / 2..=greatest).contains(&m.exponent),
            Linear::RoundedProduct | Linear::No => false,
        };
        is_near_one && (matches!(estimate, Estimate::Known(_)) || self.stays_in_range(terms, op, factor))
    }

    /// Whether a product of the term with zero is zero, as far as constants tell.
    pub(crate) fn is_finite(&self, terms: &mut Terms, term: TermId) -> bool {
        !terms.holds_unknowns(term) && self.estimate(terms, term).is_finite()
    }

    pub(crate) fn estimate(&self, terms: &mut Terms, term: TermId) -> Estimate {
        let make = |terms: &mut Terms, term: TermId| self.estimate_of(terms, term);
        settle(terms, term, |terms| &mut terms.estimates, make).unwrap_or(Estimate::Unfit)
    }

    /// The estimate of a term from those of its arguments.
    fn estimate_of(&self, terms: &Terms, term: TermId) -> Estimate {
        let known = |term: TermId| terms.estimates.get(&term).copied().unwrap_or(Estimate::Unfit);
        match terms.node(term) {
            Node::Constant(_) | Node::Table(_) => terms.literal(term).map_or(Estimate::Unfit, of_literal),
            Node::Iota(_) => Estimate::Finite(WHOLE),
            Node::Input(_) | Node::Carry(..) | Node::LoopResult(..) | Node::Whole(..) | Node::Unique(_) => {
                Estimate::Finite(GENERIC)
            }
            Node::Element(of, _) => known(*of),
            Node::Apply(head, args) => {
                let of_args: SmallVec<[Estimate; 4]> = args.iter().map(|arg| known(arg.term)).collect();
                match head {
                    Head::Elementwise(word) => match self.op(*word) {
                        Some(op) => of_op(op, args, &of_args).within(op.dtype),
                        None => Estimate::Unfit,
                    },
                    Head::Sum(monoid, dtype) => self.of_sum(terms, *monoid, args, &of_args).within(*dtype),
                    Head::Moved | Head::From(_) | Head::LoopSum(_) => {
                        of_args.first().copied().unwrap_or(Estimate::Unfit)
                    }
                    // The first argument says where a unit's result stands.
                    Head::Unit(_) => joined(of_args.get(1..).unwrap_or_default()),
                    // The row that is written last, and zeros.
                    Head::LoopStack(_) => of_args.last().copied().unwrap_or(Estimate::Unfit).or(Estimate::Known(0.0)),
                }
            }
        }
    }

    fn of_sum(&self, terms: &Terms, monoid: Monoid, args: &[Arg], of_args: &[Estimate]) -> Estimate {
        let is_zero = |estimate: &Estimate| *estimate == Estimate::Known(0.0);
        match monoid {
            Monoid::Add if of_args.iter().all(is_zero) => Estimate::Known(0.0),
            Monoid::Add => match summed(of_args) {
                Estimate::Finite(sum) => {
                    let cancels = args
                        .iter()
                        .any(|arg| self.negated(terms, arg).is_some_and(|of| args.iter().any(|a| a.term == of)));
                    Estimate::Finite(Magnitude { may_be_zero: sum.may_be_zero || cancels, ..sum })
                }
                other => other,
            },
            Monoid::Multiply => of_args.iter().copied().reduce(product).unwrap_or(Estimate::Unfit),
            Monoid::Maximum | Monoid::Minimum | Monoid::And | Monoid::Or => joined(of_args),
        }
    }

    /// The term whose negation an argument is.
    fn negated(&self, terms: &Terms, arg: &Arg) -> Option<TermId> {
        let Node::Apply(Head::Elementwise(word), args) = terms.node(arg.term) else { return None };
        let is_negation = self.op(*word)?.opcode == Opcode::Negate;
        args.first().map(|inner| inner.term).filter(|_| is_negation)
    }
}

fn of_literal(literal: &Literal) -> Estimate {
    let of_scalar = |scalar: Scalar| match scalar {
        Scalar::Pred(value) => Estimate::Known(f64::from(u8::from(value))),
        Scalar::Int(value) => Estimate::Known(value as f64),
        Scalar::Uint(value) => Estimate::Known(value as f64),
        Scalar::Float(value) => Estimate::Known(value),
        Scalar::Complex(re, 0.0) => Estimate::Known(re),
        Scalar::Complex(re, im) if re.hypot(im).is_finite() => Estimate::near(exponent_of(re.hypot(im))),
        Scalar::Complex(..) => Estimate::Unfit,
    };
    let elements = (0..literal.n_elems()).filter_map(|k| literal.get(k)).map(of_scalar);
    elements.reduce(Estimate::or).unwrap_or(Estimate::Unfit)
}

fn joined(estimates: &[Estimate]) -> Estimate {
    estimates.iter().copied().reduce(Estimate::or).unwrap_or(Estimate::Unfit)
}

/// The estimate of an op's result, before it is rounded to its type.
fn of_op(op: &ElementwiseOp, args: &[Arg], of_args: &[Estimate]) -> Estimate {
    let number = |estimate: &Estimate| match estimate {
        Estimate::Known(value) => Some(*value),
        Estimate::Finite(_) | Estimate::Masked | Estimate::Unfit => None,
    };
    let numbers: Option<SmallVec<[f64; 3]>> = of_args.iter().map(number).collect();
    let numbers = numbers.filter(|_| op.dtype.is_float() && op.operand_dtype.is_float());
    match op.opcode.row().eval {
        EvalRule::Unary(fns) => match (fns.real, numbers.as_deref(), of_args) {
            (Some(real), Some(&[x]), _) => Estimate::Known(real(x)),
            (_, _, &[x]) => of_unary(op, x),
            (_, _, _) => Estimate::Unfit,
        },
        EvalRule::Binary(fns) => match (fns.real, numbers.as_deref(), of_args) {
            (Some(real), Some(&[x, y]), _) => Estimate::Known(real(x, y)),
            (_, _, &[x, y]) => of_binary(op, args, (x, y)),
            (_, _, _) => Estimate::Unfit,
        },
        EvalRule::Routine(EvalRoutine::Elementwise(routine)) => of_routine(routine, op, of_args),
        // A product within a dot or a convolution, or a row that is written into others.
        EvalRule::Routine(
            EvalRoutine::Parameter
            | EvalRoutine::Constant
            | EvalRoutine::Shaping(_)
            | EvalRoutine::OneArray(_)
            | EvalRoutine::SeveralArrays(_)
            | EvalRoutine::Structure(_)
            | EvalRoutine::Lockstep(_),
        )
        | EvalRule::NotEvaluated(_) => match op.linear() {
            Linear::No => joined(of_args),
            Linear::Product | Linear::Quotient | Linear::DotProduct | Linear::RoundedProduct => joined_product(of_args),
        },
    }
}

fn joined_product(of_args: &[Estimate]) -> Estimate {
    of_args.iter().copied().reduce(product).unwrap_or(Estimate::Unfit)
}

fn product(a: Estimate, b: Estimate) -> Estimate {
    let (Some(x), Some(y)) = (a.magnitude(), b.magnitude()) else { return Estimate::Unfit };
    match (a, b) {
        (Estimate::Known(x), Estimate::Known(y)) => Estimate::Known(x * y),
        (Estimate::Known(0.0), _) | (_, Estimate::Known(0.0)) => Estimate::Known(0.0),
        (_, _) => Estimate::Finite(Magnitude {
            exponent: x.exponent.saturating_add(y.exponent),
            may_be_zero: x.may_be_zero || y.may_be_zero,
            is_whole: x.is_whole && y.is_whole,
        }),
    }
}

fn quotient(a: Estimate, b: Estimate) -> Estimate {
    let (Some(x), Some(y)) = (a.magnitude(), b.magnitude()) else { return Estimate::Unfit };
    match (a, b) {
        (_, _) if y.may_be_zero => Estimate::Unfit,
        (Estimate::Known(0.0), _) => Estimate::Known(0.0),
        (_, _) => Estimate::Finite(Magnitude {
            exponent: x.exponent.saturating_sub(y.exponent),
            may_be_zero: x.may_be_zero,
            is_whole: false,
        }),
    }
}

/// A sum of several. Whole numbers may add up to zero; others do so for few inputs alone.
fn summed(of_args: &[Estimate]) -> Estimate {
    if of_args.contains(&Estimate::Masked) && of_args.iter().all(|e| *e == Estimate::Masked || e.is_finite()) {
        return Estimate::Masked;
    }
    let magnitudes: Option<SmallVec<[Magnitude; 4]>> = of_args.iter().map(|estimate| estimate.magnitude()).collect();
    let Some(magnitudes) = magnitudes else { return Estimate::Unfit };
    let is_whole = magnitudes.iter().all(|m| m.is_whole);
    let added = magnitudes.iter().zip(of_args).filter(|(_, estimate)| **estimate != Estimate::Known(0.0));
    Estimate::Finite(Magnitude {
        exponent: added.map(|(m, _)| m.exponent).max().unwrap_or(0),
        may_be_zero: is_whole || magnitudes.iter().all(|m| m.may_be_zero),
        is_whole,
    })
}

fn of_unary(op: &ElementwiseOp, x: Estimate) -> Estimate {
    if op.dtype.is_integer() || op.dtype == DType::Pred {
        return Estimate::Finite(WHOLE);
    }
    let is = |opcodes: &[Opcode]| opcodes.contains(&op.opcode);
    if is(&[Opcode::Exponential, Opcode::ExponentialMinusOne, Opcode::Sinh, Opcode::Cosh]) {
        return exponential(op, x);
    }
    let Some(m) = x.magnitude() else { return Estimate::Unfit };
    if is(&[Opcode::Negate, Opcode::Abs]) {
        x
    } else if is(&[Opcode::Sqrt, Opcode::Cbrt]) {
        Estimate::Finite(Magnitude { exponent: m.exponent / 2, is_whole: false, ..m })
    } else if is(&[Opcode::Rsqrt]) && m.may_be_zero {
        Estimate::Unfit
    } else if is(&[Opcode::Rsqrt]) {
        Estimate::near(-m.exponent / 2)
    } else if is(&[Opcode::Log]) && m.may_be_zero {
        Estimate::Unfit
    } else if is(&[Opcode::Floor, Opcode::Ceil, Opcode::RoundNearestAfz, Opcode::RoundNearestEven]) {
        Estimate::Finite(Magnitude { may_be_zero: true, is_whole: true, ..m })
    } else if is(&[Opcode::Sign]) {
        Estimate::Finite(Magnitude { exponent: 0, is_whole: true, ..m })
    } else {
        Estimate::Finite(Magnitude { exponent: 0, is_whole: false, ..m })
    }
}

/// An exponential is finite where the operand is no power of two that overflows.
fn exponential(op: &ElementwiseOp, x: Estimate) -> Estimate {
    let Some((_, greatest)) = range_of(op.dtype) else { return Estimate::Unfit };
    let most = exponent_of(f64::from(greatest) * std::f64::consts::LN_2);
    match x {
        Estimate::Masked if op.opcode == Opcode::Exponential => {
            Estimate::Finite(Magnitude { may_be_zero: true, ..GENERIC })
        }
        // Numbers near a power of two are often four times as large.
        Estimate::Finite(m) if m.exponent <= most - 3 => {
            let exponent = (f64::exp2(f64::from(m.exponent)) * std::f64::consts::LOG2_E).ceil() as i32;
            let may_be_zero = op.opcode != Opcode::Exponential && m.may_be_zero;
            Estimate::Finite(Magnitude { exponent, may_be_zero, is_whole: false })
        }
        Estimate::Known(_) | Estimate::Finite(_) | Estimate::Masked | Estimate::Unfit => Estimate::Unfit,
    }
}

fn of_binary(op: &ElementwiseOp, args: &[Arg], (x, y): (Estimate, Estimate)) -> Estimate {
    if op.dtype.is_integer() || op.dtype == DType::Pred {
        return Estimate::Finite(WHOLE);
    }
    let is_same = matches!(args, [a, b] if a.term == b.term && a.map == b.map);
    if op.opcode == Opcode::Multiply {
        product(x, y)
    } else if op.opcode == Opcode::Divide {
        quotient(x, y)
    } else if op.opcode == Opcode::Subtract && is_same && x.is_finite() {
        Estimate::Known(0.0)
    } else if op.opcode == Opcode::Add || op.opcode == Opcode::Subtract {
        summed(&[x, y])
    } else if op.opcode == Opcode::Maximum || op.opcode == Opcode::Minimum {
        extremum(op.opcode == Opcode::Maximum, x, y)
    } else if op.opcode == Opcode::Power {
        power(x, y)
    } else if op.opcode == Opcode::Remainder {
        let whole = |m: Magnitude| Estimate::Finite(Magnitude { may_be_zero: true, ..m });
        quotient(x, y).magnitude().and(y.magnitude()).map_or(Estimate::Unfit, whole)
    } else {
        joined(&[x, y])
    }
}

/// The larger or the smaller of two.
fn extremum(is_maximum: bool, x: Estimate, y: Estimate) -> Estimate {
    let (bound, other) = match (x, y) {
        (Estimate::Known(bound), other) | (other, Estimate::Known(bound)) => (bound, other),
        (_, _) => return x.or(y),
    };
    // Counted from where the bound holds: a maximum as it is, a minimum with the other sign.
    let above = if is_maximum { bound } else { -bound };
    match other.magnitude() {
        _ if above == f64::NEG_INFINITY => other,
        Some(m) if above > 0.0 && above.is_finite() => Estimate::Finite(Magnitude {
            exponent: m.exponent.max(exponent_of(above)),
            may_be_zero: false,
            is_whole: false,
        }),
        Some(m) => Estimate::Finite(Magnitude { may_be_zero: m.may_be_zero || above == 0.0, ..m }),
        None if other == Estimate::Masked && is_maximum && above.is_finite() => {
            Estimate::Finite(Magnitude { may_be_zero: above <= 0.0, ..GENERIC })
        }
        None => Estimate::Unfit,
    }
    .or_unfit_if(!above.is_finite() && above != f64::NEG_INFINITY)
}

/// Powers up to this keep numbers near one.
const MOST_POWER: f64 = 8.0;

/// Numbers near a power of two are often so many powers of two larger.
const SPREAD: f64 = 2.0;

fn power(x: Estimate, y: Estimate) -> Estimate {
    let (Some(base), Some(exponent)) = (x.magnitude(), y.magnitude()) else { return Estimate::Unfit };
    match y {
        Estimate::Known(k) if k < 0.0 && base.may_be_zero => Estimate::Unfit,
        Estimate::Known(k) => {
            // High powers take numbers near one far away from it, up and down.
            let spread = if k.abs() > MOST_POWER { SPREAD * k.abs() } else { 0.0 };
            let exponent = (f64::from(base.exponent) * k).round() + spread;
            let may_be_zero = base.may_be_zero || spread > 0.0;
            Estimate::Finite(Magnitude { exponent: exponent.clamp(-1e6, 1e6) as i32, may_be_zero, ..base })
        }
        _ => Estimate::Finite(Magnitude { exponent: 0, may_be_zero: base.may_be_zero, is_whole: exponent.is_whole }),
    }
}

fn of_routine(routine: ElementwiseRoutine, op: &ElementwiseOp, of_args: &[Estimate]) -> Estimate {
    match (routine, of_args) {
        (ElementwiseRoutine::Abs, &[Estimate::Known(value)]) => Estimate::Known(value.abs()),
        (ElementwiseRoutine::Abs | ElementwiseRoutine::Real, &[x]) => x,
        (ElementwiseRoutine::Convert | ElementwiseRoutine::StochasticConvert, &[x, ..]) => converted(op, x),
        (ElementwiseRoutine::Select, &[Estimate::Known(p), x, y]) => {
            if p != 0.0 {
                x
            } else {
                y
            }
        }
        (ElementwiseRoutine::Select, &[_, x, y]) => x.or(y),
        (ElementwiseRoutine::Clamp, &[low, x, high]) => extremum(false, extremum(true, x, low), high),
        // Fewer bits of exponent make infinities of large numbers, and zeros of small ones.
        (ElementwiseRoutine::ReducePrecision, &[x]) if op.attributes.contains("exponent_bits=Int(8)") => x,
        (ElementwiseRoutine::Compare | ElementwiseRoutine::IsFinite, _) => Estimate::Finite(WHOLE),
        (ElementwiseRoutine::Complex, &[re, im]) if re.is_finite() && im.is_finite() => Estimate::Finite(GENERIC),
        (ElementwiseRoutine::Imag, &[x]) if x.is_finite() => {
            Estimate::Finite(Magnitude { may_be_zero: true, ..GENERIC })
        }
        // Bits may be those of any number.
        (
            ElementwiseRoutine::Abs
            | ElementwiseRoutine::Real
            | ElementwiseRoutine::Convert
            | ElementwiseRoutine::StochasticConvert
            | ElementwiseRoutine::Select
            | ElementwiseRoutine::Clamp
            | ElementwiseRoutine::ReducePrecision
            | ElementwiseRoutine::Complex
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::BitcastConvert,
            _,
        ) => Estimate::Unfit,
    }
}

fn converted(op: &ElementwiseOp, x: Estimate) -> Estimate {
    let is_whole = |dtype: DType| dtype.is_integer() || dtype == DType::Pred;
    match x {
        Estimate::Known(value) if is_whole(op.dtype) => Estimate::Known(value.trunc()),
        _ if is_whole(op.dtype) || is_whole(op.operand_dtype) && x == Estimate::Finite(GENERIC) => {
            Estimate::Finite(WHOLE)
        }
        Estimate::Finite(m) => narrowed(op.dtype, m),
        Estimate::Known(_) | Estimate::Masked | Estimate::Unfit => x,
    }
}

/// A number that depends on inputs in another type of floats. Near the ends of its range numbers become infinite and zero: many are
/// much smaller than the power of two that they are near, few much larger.
fn narrowed(dtype: DType, m: Magnitude) -> Estimate {
    let Some((least, greatest)) = range_of(dtype) else { return Estimate::Finite(m) };
    if !m.is_whole && m.exponent + MUCH_LARGER > greatest {
        return Estimate::Unfit;
    }
    Estimate::Finite(Magnitude { may_be_zero: m.may_be_zero || m.exponent - MUCH_SMALLER < least, ..m })
}

/// How many powers of two inputs are often smaller than what they are near.
const MUCH_SMALLER: i32 = 8;

/// How many powers of two inputs are sometimes larger than what they are near.
const MUCH_LARGER: i32 = 4;
