//! Computes terms for some ordinary inputs: the check behind the estimates of `finite`.
//!
//! Constants make a factor zero or infinite in as many ways as there are ops: `min(max(s, 3), 2) - 2` is zero, and so is
//! `1 - tanh(20·s)` for half of all `s`. Bounds op by op miss most of these ways. So the prover computes the factor for
//! [`N_DRAWS`] numbers near one in each leaf, rounded to the type of each op. A NaN means that the number is not known. It
//! does not speak against a factor, because the product with a NaN is a NaN on both sides of the rule.

use crate::elementwise::{Elementwise, ElementwiseOp, Linear};
use crate::estimate::{Estimate, N_DRAWS, Ordinary, range_of, rounded};
use crate::settle::settle;
use crate::term::{Arg, Extra, Head, Node, Source, TermId, Terms};
use hlo_ir::DType;
use hlo_ir::attrs::Comparison;
use hlo_ir::monoid::Monoid;
use hlo_ir::op::{BinaryFns, ElementwiseRoutine, EvalRoutine, EvalRule, UnaryFns};
use smallvec::SmallVec;

/// Elements that are computed of a sum over many: the others are taken to be like these.
const MOST_SUMMED: f64 = 16.0;

const UNKNOWN: Ordinary = [f64::NAN; N_DRAWS];

impl Elementwise {
    /// Whether no number of a factor leaves the type in a product with it, or in a quotient by it.
    pub(crate) fn stays_in_range(&self, terms: &mut Terms, op: &ElementwiseOp, factor: TermId) -> bool {
        let Some((_, greatest)) = range_of(op.dtype) else { return true };
        // Numbers near one are multiplied.
        let most = f64::exp2(f64::from(greatest / 2));
        let linear = op.linear();
        self.ordinary(terms, factor).iter().all(|x| match linear {
            Linear::Product | Linear::DotProduct => x.is_nan() || x.abs() <= most,
            // A quotient by infinity is zero, and so is the sum.
            Linear::Quotient => x.is_nan() || x.abs() >= 1.0 / most,
            Linear::RoundedProduct | Linear::No => false,
        })
    }

    fn ordinary(&self, terms: &mut Terms, term: TermId) -> Ordinary {
        let make = |terms: &mut Terms, term: TermId| self.ordinary_of(terms, term);
        settle(terms, term, |terms| &mut terms.ordinary, make).unwrap_or(UNKNOWN)
    }

    /// The numbers of a term, from those of its arguments.
    fn ordinary_of(&self, terms: &mut Terms, term: TermId) -> Ordinary {
        let estimate = self.estimate(terms, term);
        if let Estimate::Known(value) = estimate {
            return [value; N_DRAWS];
        }
        let exponent = estimate.magnitude().map_or(0, |m| m.exponent);
        let leaf = || numbers(term).map(|x| x * f64::exp2(f64::from(exponent)));
        let of = |term: TermId| terms.ordinary.get(&term).copied().unwrap_or(UNKNOWN);
        match terms.node(term) {
            Node::Input(_)
            | Node::Constant(_)
            | Node::Table(_)
            | Node::Iota(_)
            | Node::Carry(..)
            | Node::LoopResult(..)
            | Node::Whole(..)
            | Node::Unique(_)
            | Node::Apply(Head::Unit(_) | Head::LoopStack(_), _) => leaf(),
            Node::Element(term, at) => moved(of(*term), at.iter().copied()),
            Node::Apply(Head::Elementwise(word), args) => match self.op(*word) {
                Some(op) => {
                    let of_args: SmallVec<[Ordinary; 3]> = args.iter().map(|arg| turned(arg, of(arg.term))).collect();
                    let is_known: SmallVec<[bool; 3]> = args
                        .iter()
                        .map(|arg| matches!(terms.estimates.get(&arg.term), Some(Estimate::Known(_))))
                        .collect();
                    of_op(op, (term, args), &of_args, &is_known)
                }
                None => UNKNOWN,
            },
            Node::Apply(Head::Sum(monoid, dtype), args) => {
                let of_args: SmallVec<[Ordinary; 4]> = args
                    .iter()
                    .map(|arg| over_extent(*monoid, turned(arg, of(arg.term)), n_summed(terms, arg)))
                    .collect();
                sum(*monoid, *dtype, &of_args)
            }
            Node::Apply(Head::Moved | Head::From(_) | Head::LoopSum(_), args) => {
                args.first().map_or(UNKNOWN, |arg| turned(arg, of(arg.term)))
            }
        }
    }
}

/// Numbers of either sign near one, others for each term: quantiles of the logistic distribution of variance one, in an order
/// that is the term's.
fn numbers(term: TermId) -> Ordinary {
    let hash = hash_of(u64::from(term.0));
    let (step, from) = ((hash >> 8) as usize | 1, (hash >> 32) as usize);
    // So that no two leaves meet in one number.
    let size = 0.9 + 0.2 * (hash >> 40) as f64 / f64::exp2(24.0);
    std::array::from_fn(|k| {
        let at = k.wrapping_mul(step).wrapping_add(from) % N_DRAWS;
        let quantile = (at as f64 + 0.5) / N_DRAWS as f64;
        let number = size * 3f64.sqrt() / std::f64::consts::PI * (quantile / (1.0 - quantile)).ln();
        // Types of 16 bits hold it, too.
        f64::from(f32::from_bits((number as f32).to_bits() & 0xffff_0000))
    })
}

/// Whole numbers from one to eight.
fn whole_numbers(term: TermId) -> Ordinary {
    numbers(term).map(|x| (x.abs() * 4.0).ceil().clamp(1.0, 8.0))
}

/// The finalizer of SplitMix64.
fn hash_of(x: u64) -> u64 {
    let x = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

/// An argument at other coordinates has other numbers.
fn turned(arg: &Arg, of_term: Ordinary) -> Ordinary {
    let moves = arg.map.iter().filter_map(|source| match *source {
        Source::Variable(_, 0) => None,
        Source::Variable(_, at) | Source::Fixed(at) => Some(at),
    });
    moved(of_term, moves)
}

fn moved(of_term: Ordinary, by: impl Iterator<Item = i64>) -> Ordinary {
    let by = by.fold(0, |hash, at| hash_of(hash ^ at as u64)) as usize % N_DRAWS;
    std::array::from_fn(|k| of_term[(k + by) % N_DRAWS])
}

/// Returns how many numbers of an argument a sum adds up.
fn n_summed(terms: &Terms, arg: &Arg) -> f64 {
    let Extra::Extent(extent) = terms.extra_of(arg.extra) else { return 1.0 };
    let on_device: f64 = extent.reduce.iter().map(|(n_steps, _)| *n_steps as f64).product();
    let of_devices: f64 = terms.devices.members(extent.spread, 0).iter().map(|(_, n)| *n as f64).sum();
    on_device * of_devices
}

/// Sums so many numbers. Summands of both signs grow as a random walk does.
fn over_extent(monoid: Monoid, summand: Ordinary, n: f64) -> Ordinary {
    if n <= 1.0 {
        return summand;
    }
    let n_computed = n.min(MOST_SUMMED);
    let has_one_sign = summand.iter().all(|x| *x >= 0.0) || summand.iter().all(|x| *x <= 0.0);
    let growth = if has_one_sign { n / n_computed } else { (n / n_computed).sqrt() };
    std::array::from_fn(|k| {
        let computed = (0..n_computed as usize).map(|j| summand[(k + j) % N_DRAWS]);
        let of_computed = computed.reduce(|a, b| joined(monoid, a, b)).unwrap_or(f64::NAN);
        if monoid == Monoid::Add { of_computed * growth } else { of_computed }
    })
}

fn joined(monoid: Monoid, a: f64, b: f64) -> f64 {
    match monoid {
        Monoid::Add => a + b,
        Monoid::Multiply => a * b,
        _ if a.is_nan() || b.is_nan() => f64::NAN,
        Monoid::Maximum | Monoid::Or => a.max(b),
        Monoid::Minimum | Monoid::And => a.min(b),
    }
}

/// Adds summands in any order. A total below one rounding of the largest summand counts as zero.
fn sum(monoid: Monoid, dtype: DType, of_args: &[Ordinary]) -> Ordinary {
    std::array::from_fn(|k| {
        let parts = of_args.iter().map(|values| values[k]);
        let total = parts.clone().reduce(|a, b| joined(monoid, a, b)).unwrap_or(0.0);
        let largest = parts.fold(0f64, |largest, x| largest.max(x.abs()));
        let is_lost = monoid == Monoid::Add && rounded(largest + total.abs(), dtype) == rounded(largest, dtype);
        if is_lost && largest.is_finite() { 0.0 } else { finite(rounded(total, dtype)) }
    })
}

/// Drops an overflow that comes of the length of a sum: it says nothing of ordinary inputs.
fn finite(x: f64) -> f64 {
    if x.is_finite() { x } else { f64::NAN }
}

fn of_op(op: &ElementwiseOp, (term, args): (TermId, &[Arg]), of_args: &[Ordinary], is_known: &[bool]) -> Ordinary {
    let is_whole = |dtype: DType| dtype.is_integer();
    if is_whole(op.dtype) {
        return whole_numbers(term);
    }
    if op.dtype.is_complex() || op.operand_dtype.is_complex() {
        return UNKNOWN;
    }
    let Some(first) = args.first() else { return UNKNOWN };
    let is_operand_whole = is_whole(op.operand_dtype);
    let large = range_of(op.dtype).map_or(f64::INFINITY, |(_, greatest)| f64::exp2(f64::from(greatest / 2)));
    std::array::from_fn(|k| {
        let at: SmallVec<[f64; 3]> = of_args.iter().map(|values| values[k]).collect();
        let is_converted = matches!(
            op.opcode.row().eval,
            EvalRule::Routine(EvalRoutine::Elementwise(
                ElementwiseRoutine::Convert | ElementwiseRoutine::StochasticConvert
            ))
        );
        if op.dtype == DType::Pred {
            return if is_operand_whole { numbers(term)[k] } else { truth(op, &at) };
        }
        let result = if is_converted && op.operand_dtype == DType::Pred {
            at.first().map_or(f64::NAN, |x| f64::from(u8::from(*x > 0.0)))
        } else if is_converted && is_operand_whole && !is_known[0] {
            whole_numbers(first.term)[k]
        } else {
            number(op, &at)
        };
        let result = rounded(result, op.dtype);
        let is_of_large = at.iter().zip(is_known).any(|(x, is_known)| !is_known && x.is_finite() && x.abs() > large);
        if is_of_large { finite(result) } else { result }
    })
}

/// A truth value: one if it is true, minus one if not.
fn truth(op: &ElementwiseOp, at: &[f64]) -> f64 {
    if at.iter().any(|x| x.is_nan()) {
        return f64::NAN;
    }
    let holds = |k: usize| at.get(k).is_some_and(|x| *x > 0.0);
    let is_true = match function_of(op) {
        Function::Unary(fns) => fns.pred.map(|pred| pred(holds(0))),
        Function::Binary(fns) => fns.pred.map(|pred| pred(holds(0), holds(1))),
        Function::Routine(ElementwiseRoutine::Compare) => op.comparison.zip(at.first().zip(at.get(1))).map(compare),
        Function::Routine(ElementwiseRoutine::IsFinite) => at.first().map(|x| x.is_finite()),
        Function::Routine(ElementwiseRoutine::Select) => Some(if holds(0) { holds(1) } else { holds(2) }),
        Function::Routine(
            ElementwiseRoutine::Abs
            | ElementwiseRoutine::Real
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::Complex
            | ElementwiseRoutine::Convert
            | ElementwiseRoutine::StochasticConvert
            | ElementwiseRoutine::Clamp
            | ElementwiseRoutine::ReducePrecision
            | ElementwiseRoutine::BitcastConvert,
        )
        | Function::Other => None,
    };
    is_true.map_or(f64::NAN, |is_true| if is_true { 1.0 } else { -1.0 })
}

fn compare((comparison, (x, y)): (Comparison, (&f64, &f64))) -> bool {
    match comparison {
        Comparison::Eq => x == y,
        Comparison::Ne => x != y,
        Comparison::Ge => x >= y,
        Comparison::Gt => x > y,
        Comparison::Le => x <= y,
        Comparison::Lt => x < y,
    }
}

/// A real number, before it is rounded.
fn number(op: &ElementwiseOp, at: &[f64]) -> f64 {
    let x = |k: usize| at.get(k).copied().unwrap_or(f64::NAN);
    match function_of(op) {
        Function::Unary(fns) => fns.real.map_or(f64::NAN, |real| real(x(0))),
        Function::Binary(fns) => fns.real.map_or(f64::NAN, |real| real(x(0), x(1))),
        Function::Routine(ElementwiseRoutine::Abs) => x(0).abs(),
        Function::Routine(
            ElementwiseRoutine::Convert | ElementwiseRoutine::StochasticConvert | ElementwiseRoutine::ReducePrecision,
        ) => x(0),
        Function::Routine(ElementwiseRoutine::Select) if x(0).is_nan() => f64::NAN,
        Function::Routine(ElementwiseRoutine::Select) => x(if x(0) > 0.0 { 1 } else { 2 }),
        Function::Routine(ElementwiseRoutine::Clamp) if x(1).is_nan() => f64::NAN,
        Function::Routine(ElementwiseRoutine::Clamp) => x(1).max(x(0)).min(x(2)),
        Function::Other if op.linear() != Linear::No => x(0) * x(1),
        Function::Routine(
            ElementwiseRoutine::Real
            | ElementwiseRoutine::Imag
            | ElementwiseRoutine::Complex
            | ElementwiseRoutine::Compare
            | ElementwiseRoutine::IsFinite
            | ElementwiseRoutine::BitcastConvert,
        )
        | Function::Other => f64::NAN,
    }
}

/// An op's entry in the op table, as far as it says what the op makes of one element.
enum Function {
    Unary(UnaryFns),
    Binary(BinaryFns),
    Routine(ElementwiseRoutine),
    /// A product within a dot or a convolution, or nothing that is known here.
    Other,
}

fn function_of(op: &ElementwiseOp) -> Function {
    match op.opcode.row().eval {
        EvalRule::Unary(fns) => Function::Unary(fns),
        EvalRule::Binary(fns) => Function::Binary(fns),
        EvalRule::Routine(EvalRoutine::Elementwise(routine)) => Function::Routine(routine),
        EvalRule::Routine(
            EvalRoutine::Parameter
            | EvalRoutine::Constant
            | EvalRoutine::Shaping(_)
            | EvalRoutine::OneArray(_)
            | EvalRoutine::SeveralArrays(_)
            | EvalRoutine::Structure(_)
            | EvalRoutine::Lockstep(_),
        )
        | EvalRule::NotEvaluated(_) => Function::Other,
    }
}
