//! Scalar functions written down, so that who makes code of an op can print what the evaluator computes.
//!
//! A [`Formula`] has the methods and operators of the number that it stands for, by the same names. An expression such
//! as `1.0 / (1.0 + (-x).exp())` therefore is a function of an `f64` and a formula at once. A row of the op table states
//! it once, and the macros `unary` and `binary` make both of it.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use crate::float::scalar_fn::{self, IntType};

/// A function of the elements of an op's operands.
#[derive(Clone, PartialEq, Debug)]
pub enum Formula {
    /// The element of this operand.
    Operand(usize),
    /// A real constant.
    Real(f64),
    /// An integer constant.
    Integer(i64),
    /// A function of other formulas.
    Apply(ScalarFn, Vec<Formula>),
}

/// What formulas are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScalarFn {
    /// On reals, the function of C's `math.h` (C23) that has this name for `double`.
    Math(&'static str),
    /// The operand with the other sign; integers wrap.
    Negate,
    /// The sum; integers wrap.
    Add,
    /// The difference; integers wrap.
    Subtract,
    /// The product; integers wrap.
    Multiply,
    /// The quotient; integers as [`scalar_fn::int_divide`].
    Divide,
    /// All bits of an integer, or a `pred`, the other way round.
    Not,
    /// The bits that both have.
    And,
    /// The bits that either has.
    Or,
    /// The bits that one of the two has.
    Xor,
    /// Whether the first real is above the second.
    Above,
    /// Whether the first real is below the second.
    Below,
    /// The second operand where the first is true, the third elsewhere.
    Choose,
    /// The larger operand: [`scalar_fn::max`], [`scalar_fn::int_max`].
    Larger,
    /// The smaller operand: [`scalar_fn::min`], [`scalar_fn::int_min`].
    Smaller,
    /// [`scalar_fn::int_remainder`].
    Remainder,
    /// [`scalar_fn::int_power`].
    Power,
    /// [`scalar_fn::int_sign`].
    Sign,
    /// [`scalar_fn::multiply_high`].
    MultiplyHigh,
    /// [`scalar_fn::shift_left`].
    ShiftLeft,
    /// [`scalar_fn::shift_right_arithmetic`].
    ShiftRightArithmetic,
    /// [`scalar_fn::shift_right_logical`].
    ShiftRightLogical,
    /// [`scalar_fn::count_leading_zeros`].
    CountLeadingZeros,
    /// [`scalar_fn::population_count`].
    PopulationCount,
}

/// In a formula, the integer type of the operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct OperandType;

/// What a formula is in some of its operands, the others being constants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Degree {
    /// It does not depend on them.
    Constant,
    /// A sum of them with constant factors: f(x + y) = f(x) + f(y).
    Linear,
    /// Neither of these by the rules that are known.
    Other,
}

impl Formula {
    /// Whether the formula of sums of values of these operands (as bits) is the sum of its formulas, all other operands being the same:
    /// f(x + y) = f(x) + f(y). False for a formula that depends on none of them.
    pub fn is_linear_in(&self, operands: u8) -> bool {
        self.degree_in(operands) == Degree::Linear
    }

    fn degree_in(&self, operands: u8) -> Degree {
        let (function, of) = match self {
            Formula::Operand(k) if operands >> k & 1 == 1 => return Degree::Linear,
            Formula::Operand(_) | Formula::Real(_) | Formula::Integer(_) => return Degree::Constant,
            Formula::Apply(function, of) => (*function, of),
        };
        let degrees: Vec<Degree> = of.iter().map(|one| one.degree_in(operands)).collect();
        match (function, degrees.as_slice()) {
            (_, all) if all.iter().all(|&one| one == Degree::Constant) => Degree::Constant,
            (ScalarFn::Negate, &[one]) => one,
            (ScalarFn::Add | ScalarFn::Subtract, [Degree::Linear, Degree::Linear])
            | (ScalarFn::Multiply, [Degree::Linear, Degree::Constant] | [Degree::Constant, Degree::Linear])
            | (ScalarFn::Divide, [Degree::Linear, Degree::Constant]) => Degree::Linear,
            (_, _) => Degree::Other,
        }
    }
}

impl From<f64> for Formula {
    fn from(constant: f64) -> Formula {
        Formula::Real(constant)
    }
}

impl From<i64> for Formula {
    fn from(constant: i64) -> Formula {
        Formula::Integer(constant)
    }
}

impl From<&Formula> for Formula {
    fn from(formula: &Formula) -> Formula {
        formula.clone()
    }
}

fn apply<const N: usize>(function: ScalarFn, operands: [Formula; N]) -> Formula {
    Formula::Apply(function, operands.into())
}

/// Gives formulas an operator of Rust, with formulas and constants on either side.
macro_rules! binary_operators {
    ($($trait:ident $method:ident of $number:ty = $function:expr;)*) => {$(
        impl<R: Into<Formula>> $trait<R> for Formula {
            type Output = Formula;
            fn $method(self, right: R) -> Formula {
                apply($function, [self, right.into()])
            }
        }

        impl<R: Into<Formula>> $trait<R> for &Formula {
            type Output = Formula;
            fn $method(self, right: R) -> Formula {
                apply($function, [self.into(), right.into()])
            }
        }

        impl $trait<Formula> for $number {
            type Output = Formula;
            fn $method(self, right: Formula) -> Formula {
                apply($function, [self.into(), right])
            }
        }

        impl $trait<&Formula> for $number {
            type Output = Formula;
            fn $method(self, right: &Formula) -> Formula {
                apply($function, [self.into(), right.into()])
            }
        }
    )*};
}

binary_operators! {
    Add add of f64 = ScalarFn::Add;
    Sub sub of f64 = ScalarFn::Subtract;
    Mul mul of f64 = ScalarFn::Multiply;
    Div div of f64 = ScalarFn::Divide;
    Rem rem of f64 = ScalarFn::Math("fmod");
    BitAnd bitand of i64 = ScalarFn::And;
    BitOr bitor of i64 = ScalarFn::Or;
    BitXor bitxor of i64 = ScalarFn::Xor;
}

macro_rules! unary_operators {
    ($($trait:ident $method:ident $function:expr;)*) => {$(
        impl $trait for Formula {
            type Output = Formula;
            fn $method(self) -> Formula {
                apply($function, [self])
            }
        }

        impl $trait for &Formula {
            type Output = Formula;
            fn $method(self) -> Formula {
                apply($function, [self.into()])
            }
        }
    )*};
}

unary_operators! {
    Neg neg ScalarFn::Negate;
    Not not ScalarFn::Not;
}

/// Gives formulas a method that numbers have as well.
macro_rules! methods {
    ($($method:ident($($operand:ident),*) $(of $width:ident)? = $function:expr;)*) => {
        /// The methods of `f64`, of `i64`, of [`Real`], of [`Integer`] and of [`Choice`].
        #[allow(dead_code)] // What no row says yet.
        impl Formula {
            $(pub(super) fn $method(&self $(, $operand: impl Into<Formula>)* $(, _: $width)?) -> Formula {
                apply($function, [self.into() $(, $operand.into())*])
            })*
        }
    };
}

methods! {
    abs() = ScalarFn::Math("fabs");
    acos() = ScalarFn::Math("acos");
    inverse_cosh() = ScalarFn::Math("acosh");
    asin() = ScalarFn::Math("asin");
    inverse_sinh() = ScalarFn::Math("asinh");
    atan() = ScalarFn::Math("atan");
    atan2(x) = ScalarFn::Math("atan2");
    atanh() = ScalarFn::Math("atanh");
    cbrt() = ScalarFn::Math("cbrt");
    ceil() = ScalarFn::Math("ceil");
    cos() = ScalarFn::Math("cos");
    cosh() = ScalarFn::Math("cosh");
    error_function() = ScalarFn::Math("erf");
    exp() = ScalarFn::Math("exp");
    exp2() = ScalarFn::Math("exp2");
    exp_m1() = ScalarFn::Math("expm1");
    floor() = ScalarFn::Math("floor");
    ln() = ScalarFn::Math("log");
    ln_1p() = ScalarFn::Math("log1p");
    log10() = ScalarFn::Math("log10");
    log2() = ScalarFn::Math("log2");
    powf(exponent) = ScalarFn::Math("pow");
    reciprocal_sqrt() = ScalarFn::Math("rsqrt");
    round() = ScalarFn::Math("round");
    round_ties_even() = ScalarFn::Math("rint");
    sin() = ScalarFn::Math("sin");
    sinh() = ScalarFn::Math("sinh");
    sqrt() = ScalarFn::Math("sqrt");
    tan() = ScalarFn::Math("tan");
    tanh() = ScalarFn::Math("tanh");
    trunc() = ScalarFn::Math("trunc");
    larger(other) = ScalarFn::Larger;
    smaller(other) = ScalarFn::Smaller;
    above(other) = ScalarFn::Above;
    below(other) = ScalarFn::Below;
    choose(on_true, on_false) = ScalarFn::Choose;
    wrapping_neg() = ScalarFn::Negate;
    wrapping_add(other) = ScalarFn::Add;
    wrapping_sub(other) = ScalarFn::Subtract;
    wrapping_mul(other) = ScalarFn::Multiply;
    larger_as(other) of OperandType = ScalarFn::Larger;
    smaller_as(other) of OperandType = ScalarFn::Smaller;
    divide(divisor) of OperandType = ScalarFn::Divide;
    remainder(divisor) of OperandType = ScalarFn::Remainder;
    power(exponent) of OperandType = ScalarFn::Power;
    sign() of OperandType = ScalarFn::Sign;
    multiply_high(other) of OperandType = ScalarFn::MultiplyHigh;
    shift_left(amount) of OperandType = ScalarFn::ShiftLeft;
    shift_right_arithmetic(amount) of OperandType = ScalarFn::ShiftRightArithmetic;
    shift_right_logical(amount) of OperandType = ScalarFn::ShiftRightLogical;
    count_leading_zeros() of OperandType = ScalarFn::CountLeadingZeros;
    population_count() of OperandType = ScalarFn::PopulationCount;
}

/// Declares a trait with methods that a type of the standard library lacks, each with the function that computes it.
macro_rules! methods_of {
    ($(#[$doc:meta])* $trait:ident for $type:ty;
        $($method:ident($($operand:ident: $ty:ty),*) -> $result:ty = $function:expr;)*) => {
        $(#[$doc])*
        pub(super) trait $trait: Sized {
            $(fn $method(self, $($operand: $ty),*) -> $result;)*
        }

        impl $trait for $type {
            $(fn $method(self, $($operand: $ty),*) -> $result {
                $function(self, $($operand),*)
            })*
        }
    };
}

methods_of! {
    /// Functions of reals.
    Real for f64;
    error_function() -> f64 = scalar_fn::erf;
    inverse_cosh() -> f64 = scalar_fn::acosh;
    inverse_sinh() -> f64 = scalar_fn::asinh;
    reciprocal_sqrt() -> f64 = scalar_fn::rsqrt;
    larger(other: f64) -> f64 = scalar_fn::max;
    smaller(other: f64) -> f64 = scalar_fn::min;
    above(other: f64) -> bool = |x: f64, other| x > other;
    below(other: f64) -> bool = |x: f64, other| x < other;
}

methods_of! {
    /// Functions of integers of a type.
    Integer for i64;
    larger_as(other: i64, int: IntType) -> i64 = scalar_fn::int_max;
    smaller_as(other: i64, int: IntType) -> i64 = scalar_fn::int_min;
    divide(divisor: i64, int: IntType) -> i64 = scalar_fn::int_divide;
    remainder(divisor: i64, int: IntType) -> i64 = scalar_fn::int_remainder;
    power(exponent: i64, int: IntType) -> i64 = scalar_fn::int_power;
    sign(int: IntType) -> i64 = scalar_fn::int_sign;
    multiply_high(other: i64, int: IntType) -> i64 = scalar_fn::multiply_high;
    shift_left(amount: i64, int: IntType) -> i64 = scalar_fn::shift_left;
    shift_right_arithmetic(amount: i64, int: IntType) -> i64 = scalar_fn::shift_right_arithmetic;
    shift_right_logical(amount: i64, int: IntType) -> i64 = scalar_fn::shift_right_logical;
    count_leading_zeros(int: IntType) -> i64 = scalar_fn::count_leading_zeros;
    population_count(int: IntType) -> i64 = scalar_fn::population_count;
}

/// One of two values.
pub(super) trait Choice {
    /// The first value if true, else the second.
    fn choose(self, on_true: f64, on_false: f64) -> f64;
}

impl Choice for bool {
    fn choose(self, on_true: f64, on_false: f64) -> f64 {
        if self { on_true } else { on_false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{OpKind, Opcode};

    fn real(opcode: Opcode) -> Formula {
        let OpKind::Scalar(formulas) = opcode.row().kind else { panic!("{opcode}") };
        formulas.real.unwrap()()
    }

    #[test]
    fn rows_write_their_expressions_down() {
        let x = || Formula::Operand(0);
        let exp = apply(ScalarFn::Math("exp"), [apply(ScalarFn::Negate, [x()])]);
        let sum = apply(ScalarFn::Add, [Formula::Real(1.0), exp]);
        assert_eq!(real(Opcode::Logistic), apply(ScalarFn::Divide, [Formula::Real(1.0), sum]));
        assert_eq!(real(Opcode::Log), apply(ScalarFn::Math("log"), [x()]));
        assert_eq!(real(Opcode::Remainder), apply(ScalarFn::Math("fmod"), [x(), Formula::Operand(1)]));
    }

    #[test]
    fn a_formula_is_linear_where_sums_pass() {
        let linear = |opcode| (1..4).filter(|&set| real(opcode).is_linear_in(set)).collect::<Vec<u8>>();
        assert_eq!(linear(Opcode::Add), [0b11]);
        assert_eq!(linear(Opcode::Subtract), [0b11]);
        assert_eq!(linear(Opcode::Multiply), [0b01, 0b10]);
        assert_eq!(linear(Opcode::Divide), [0b01]);
        // One operand, so that the second bit changes nothing.
        assert_eq!(linear(Opcode::Negate), [0b01, 0b11]);
        assert_eq!(linear(Opcode::Maximum), []);
        assert_eq!(linear(Opcode::Exponential), []);
        assert_eq!(linear(Opcode::Remainder), []);
    }

    #[test]
    fn constants_may_stand_on_either_side() {
        let x = &Formula::Operand(0);
        let minus_one = Formula::Real(-1.0);
        assert_eq!(x - -1.0, apply(ScalarFn::Subtract, [x.into(), minus_one.clone()]));
        assert_eq!(-1.0 - x, apply(ScalarFn::Subtract, [minus_one, x.into()]));
    }
}
