//! Scalar functions of elementwise ops: what the evaluator calls, and the formulas that code is made of.

use super::Formula;
use crate::float::scalar_fn::IntType;

/// A complex number in double precision.
pub type C64 = crate::float::Complex<f64>;

/// Scalar meaning of a unary op, by number class; `None` where HLO does not allow the class.
///
/// Reals are computed in `f64` and rounded once to `f32` and then to the element type. For the exact ops (add, multiply,
/// divide, sqrt …) this is the correctly rounded `f32` result. For narrower types it is what XLA computes, because XLA
/// widens them to `f32`.
#[derive(Clone, Copy, Debug)]
pub struct UnaryFns {
    /// On real floating point.
    pub real: Option<fn(f64) -> f64>,
    /// On integers; the result is wrapped to the type.
    pub int: Option<fn(i64, IntType) -> i64>,
    /// On complex numbers.
    pub complex: Option<fn(C64) -> C64>,
    /// On `pred`.
    pub pred: Option<fn(bool) -> bool>,
}

/// Scalar meaning of a binary op, by number class; see [`UnaryFns`].
#[derive(Clone, Copy, Debug)]
pub struct BinaryFns {
    /// On real floating point.
    pub real: Option<fn(f64, f64) -> f64>,
    /// On integers; the result is wrapped to the type.
    pub int: Option<fn(i64, i64, IntType) -> i64>,
    /// On complex numbers.
    pub complex: Option<fn(C64, C64) -> C64>,
    /// On `pred`.
    pub pred: Option<fn(bool, bool) -> bool>,
}

/// The scalar functions of an op, written down; complex ones are not.
#[derive(Clone, Copy, Debug)]
pub struct Formulas {
    /// On real floating point.
    pub real: Option<fn() -> Formula>,
    /// On integers.
    pub int: Option<fn() -> Formula>,
    /// On `pred`.
    pub pred: Option<fn() -> Formula>,
}

/// An expression that a row may leave out.
macro_rules! optional {
    () => {
        None
    };
    ($some:expr) => {
        Some($some)
    };
}

/// `unary!(numbers, flops, real: |x| …, int: |x, t| …, pred: |x| …, complex: f)`: the columns of an elementwise op with
/// one operand, for the number classes that HLO allows. Each expression for `real`, `int` and `pred` is compiled twice:
/// as a function of the number and as a [`Formula`].
macro_rules! unary {
    ($numbers:expr, $n_flops:literal
        $(, real: |$x:ident| $real:expr)?
        $(, int: |$i:ident, $t:pat_param| $int:expr)?
        $(, pred: |$p:ident| $pred:expr)?
        $(, complex: $complex:expr)?
    ) => {{
        let fns = UnaryFns {
            real: optional!($(|$x| $real)?),
            int: optional!($(|$i, $t| $int)?),
            complex: optional!($($complex)?),
            pred: optional!($(|$p| $pred)?),
        };
        let formulas = Formulas {
            real: optional!($(|| {
                let $x = &Formula::Operand(0);
                Formula::from($real)
            })?),
            int: optional!($(|| {
                let ($i, $t) = (&Formula::Operand(0), OperandType);
                Formula::from($int)
            })?),
            pred: optional!($(|| {
                let $p = &Formula::Operand(0);
                Formula::from($pred)
            })?),
        };
        elementwise(ShapeRule::Unary($numbers), $n_flops, EvalRule::Unary(fns), formulas)
    }};
}

/// As `unary!`, with two operands.
macro_rules! binary {
    ($numbers:expr, $n_flops:literal
        $(, real: |$x:ident, $y:ident| $real:expr)?
        $(, int: |$i:ident, $j:ident, $t:pat_param| $int:expr)?
        $(, pred: |$p:ident, $q:ident| $pred:expr)?
        $(, complex: $complex:expr)?
    ) => {{
        let fns = BinaryFns {
            real: optional!($(|$x, $y| $real)?),
            int: optional!($(|$i, $j, $t| $int)?),
            complex: optional!($($complex)?),
            pred: optional!($(|$p, $q| $pred)?),
        };
        let formulas = Formulas {
            real: optional!($(|| {
                let ($x, $y) = (&Formula::Operand(0), &Formula::Operand(1));
                Formula::from($real)
            })?),
            int: optional!($(|| {
                let ($i, $j, $t) = (&Formula::Operand(0), &Formula::Operand(1), OperandType);
                Formula::from($int)
            })?),
            pred: optional!($(|| {
                let ($p, $q) = (&Formula::Operand(0), &Formula::Operand(1));
                Formula::from($pred)
            })?),
        };
        elementwise(ShapeRule::Binary($numbers), $n_flops, EvalRule::Binary(fns), formulas)
    }};
}
