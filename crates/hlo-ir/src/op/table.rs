//! The rows. To add an op, add a row here and a sample `ir-samples/ops/<name>.hlo`; an elementwise one needs no more.
//!
//! A row says what the op gives, then its opcode, its name in HLO text, its operands and its attributes. What follows
//! has one of three forms:
//! - `=> unary!(…)` or `=> binary!(…)`: a scalar function gives the other columns, and the code of kernels;
//! - `=> DESCRIPTOR.columns()`: the descriptor of a collective gives the other columns;
//! - `, cost, effects, flow; shape, factors, eval, signs`: the columns, for an op that needs code of its own. An op without
//!   effects is pure, one without a flow has [`Flow::All`], and one without signs has [`Signs::UNKNOWN`].
//!
//! The first two forms add signs by `.with_signs(…)`.

use super::StartResult::{OperandsAndOutcome, OperandsOutcomeAndContext, Outcome};
use super::collective::*;
use super::formula::{Choice, Integer, OperandType, Real};
use super::*;
use Arity::{AtLeast, Exactly};
use CostRule::{Called, Communication, Free, Moves, PerElement};
use ElementwiseRoutine as E;
use EvalRule::{NotEvaluated, Routine};
use FactorRule::{Elementwise, Structural, Whole};
use LockstepRoutine as L;
use Numbers as N;
use OneArrayRoutine as A;
use SeveralArraysRoutine as M;
use ShapingRoutine as S;
use StructureRoutine as T;

/// Declares [`Opcode`], [`SpecialOp`] and [`ROWS`] from one list.
macro_rules! op_table {
    ($(
        #[doc = $doc:literal]
        $op:ident $name:literal $arity:expr, $format:ident
        $(, $cost:expr $(, $effects:ident $(, $flow:ident $(($begun:ident))?)?)?;
            $shape:expr, $factors:expr, $eval:expr $(, $signs:expr)?)?
        $(=> $columns:expr)?;
    )*) => {
        /// Every opcode of HLO.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = $doc] $op),*
        }

        /// The ops that neither a scalar function nor the descriptor of a collective describes. Who makes code of ops
        /// has code of its own for each of these.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum SpecialOp {
            $($(#[doc = concat!("`", $name, "`, which the evaluator computes by `", stringify!($eval), "`.")] $op,)?)*
        }

        impl Opcode {
            /// Every opcode, in the table's order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$op),*];

            /// The opcode of a text name.
            pub fn from_name(name: &str) -> Option<Opcode> {
                match name { $($name => Some(Opcode::$op),)* _ => None }
            }
        }

        pub(super) static ROWS: &[OpRow] = &[$({
            $(let columns = RuleColumns {
                shape: $shape, factors: $factors, eval: $eval, cost: $cost,
                effects: or_default!(Effects::Pure $(, Effects::$effects)?),
                flow: or_default!(Flow::All $($(, Flow::$flow $((Begun::$begun))?)?)?),
                kind: OpKind::Special(SpecialOp::$op), collective: None,
                signs: or_default!(Signs::UNKNOWN $(, $signs)?),
            };)?
            $(let columns = $columns;)?
            OpRow::new(Opcode::$op, $name, $arity, AttrFormat::$format, columns)
        }),*];
    };
}

/// A column that a row may leave out.
macro_rules! or_default {
    ($default:expr) => {
        $default
    };
    ($default:expr, $stated:expr) => {
        $stated
    };
}

const INT_PRED: N = N::INT.or(N::PRED);
const REAL: N = N::FLOAT.or(N::COMPLEX);
const ARITH: N = N::INT.or(N::FLOAT).or(N::COMPLEX).or(N::PRED);
const NO_PRED: N = N::INT.or(N::FLOAT).or(N::COMPLEX);
const ORDERED: N = N::INT.or(N::FLOAT).or(N::PRED).or(N::COMPLEX);
const NO_DIMS: FactorRule = Structural("holds a token, a tuple or a scalar: its leaves follow their producers");
const LEAFWISE: FactorRule = Structural("each leaf is sharded as in the called computation");

const fn elem(routine: E) -> EvalRule {
    Routine(EvalRoutine::Elementwise(routine))
}
const fn shaping(routine: S) -> EvalRule {
    Routine(EvalRoutine::Shaping(routine))
}
const fn one_array(routine: A) -> EvalRule {
    Routine(EvalRoutine::OneArray(routine))
}
const fn several_arrays(routine: M) -> EvalRule {
    Routine(EvalRoutine::SeveralArrays(routine))
}
const fn structure(routine: T) -> EvalRule {
    Routine(EvalRoutine::Structure(routine))
}
const fn lockstep(routine: L) -> EvalRule {
    Routine(EvalRoutine::Lockstep(routine))
}

/// The columns of an elementwise op that costs `n_flops` for each element.
const fn elementwise(shape: ShapeRule, n_flops: u32, eval: EvalRule, formulas: Formulas) -> RuleColumns {
    RuleColumns {
        shape,
        factors: FactorRule::Elementwise,
        eval,
        cost: CostRule::PerElement(n_flops),
        effects: Effects::Pure,
        flow: Flow::All,
        kind: OpKind::Scalar(formulas),
        collective: None,
        signs: Signs::UNKNOWN,
    }
}

const HOST: EvalRule = NotEvaluated("exchanges data with the host, which the evaluator does not have");

op_table! {
    // Elementwise, one operand.
    /// The magnitude; of a complex number, a real one.
    Abs "abs" Exactly(1), Plain, PerElement(1);
        ShapeRule::Abs, Elementwise, elem(E::Abs), Signs::NOT_NEGATIVE;
    /// The inverse of the cosine.
    Acos "acos" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.acos()).with_signs(Signs::UNKNOWN.on(0, Domain::Fraction));
    /// The inverse of the hyperbolic cosine.
    Acosh "acosh" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.inverse_cosh());
    /// The inverse of the sine.
    Asin "asin" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.asin()).with_signs(Signs::UNKNOWN.on(0, Domain::Fraction));
    /// The inverse of the hyperbolic sine.
    Asinh "asinh" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.inverse_sinh());
    /// The inverse of the hyperbolic tangent.
    Atanh "atanh" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.atanh()).with_signs(Signs::UNKNOWN.on(0, Domain::Fraction));
    /// The cube root.
    Cbrt "cbrt" Exactly(1), Plain => unary!(N::FLOAT, 8, real: |x| x.cbrt()).with_signs(Signs::KEPT);
    /// The smallest whole number that is not below the operand.
    Ceil "ceil" Exactly(1), Plain => unary!(N::FLOAT, 1, real: |x| x.ceil()).with_signs(Signs::KEPT);
    /// How many zero bits stand above the highest one, within the type's width.
    CountLeadingZeros "count-leading-zeros" Exactly(1), Plain => unary!(N::INT, 1,
        int: |x, t| x.count_leading_zeros(t)).with_signs(Signs::NOT_NEGATIVE);
    /// The cosine.
    Cosine "cosine" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.cos(), complex: C64::cos);
    /// The hyperbolic cosine.
    Cosh "cosh" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.cosh(), complex: |z| C64::new(-z.im, z.re).cos()).with_signs(Signs::NOT_NEGATIVE);
    /// The error function.
    Erf "erf" Exactly(1), Plain => unary!(N::FLOAT, 8, real: |x| x.error_function());
    /// The exponential, `e^x`.
    Exponential "exponential" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.exp(), complex: C64::exp).with_signs(Signs::NOT_NEGATIVE);
    /// `e^x - 1`, exact for small operands as well.
    ExponentialMinusOne "exponential-minus-one" Exactly(1), Plain => unary!(REAL, 8,
        real: |x| x.exp_m1(), complex: C64::exp_m1);
    /// The largest whole number that is not above the operand.
    Floor "floor" Exactly(1), Plain => unary!(N::FLOAT, 1, real: |x| x.floor()).with_signs(Signs::KEPT);
    /// The imaginary part.
    Imag "imag" Exactly(1), Plain, Moves;
        ShapeRule::ComplexPart, Elementwise, elem(E::Imag);
    /// Whether the operand is neither infinite nor a NaN.
    IsFinite "is-finite" Exactly(1), Plain, PerElement(1);
        ShapeRule::IsFinite, Elementwise, elem(E::IsFinite);
    /// The natural logarithm.
    Log "log" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.ln(), complex: C64::ln).with_signs(Signs::UNKNOWN.on(0, Domain::Positive));
    /// The natural logarithm of `1 + x`, exact for small operands as well.
    LogPlusOne "log-plus-one" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.ln_1p(), complex: C64::ln_1p).with_signs(Signs::UNKNOWN.on(0, Domain::Positive));
    /// The logistic function, `1 / (1 + e^-x)`.
    Logistic "logistic" Exactly(1), Plain => unary!(REAL, 10,
        real: |x| 1.0 / (1.0 + (-x).exp()), complex: C64::logistic).with_signs(Signs::NOT_NEGATIVE);
    /// The operand with the other sign; integers wrap.
    Negate "negate" Exactly(1), Plain => unary!(N::INT.or(REAL), 1,
        real: |x| -x, int: |x, _| x.wrapping_neg(), complex: |z| -z);
    /// The bits of an integer, or a `pred`, the other way round.
    Not "not" Exactly(1), Plain => unary!(INT_PRED, 1, int: |x, _| !x, pred: |x| !x);
    /// How many bits are one.
    PopulationCount "popcnt" Exactly(1), Plain => unary!(N::INT, 1, int: |x, t| x.population_count(t)).with_signs(Signs::NOT_NEGATIVE);
    /// The real part.
    Real "real" Exactly(1), Plain, Moves;
        ShapeRule::ComplexPart, Elementwise, elem(E::Real);
    /// The operand rounded to fewer bits of exponent and mantissa, in its own type.
    ReducePrecision "reduce-precision" Exactly(1), ReducePrecision, PerElement(1);
        ShapeRule::Unary(N::FLOAT), Elementwise, elem(E::ReducePrecision), Signs::KEPT;
    /// The nearest whole number; of two as near, the one away from zero.
    RoundNearestAfz "round-nearest-afz" Exactly(1), Plain => unary!(N::FLOAT, 1, real: |x| x.round()).with_signs(Signs::KEPT);
    /// The nearest whole number; of two as near, the even one.
    RoundNearestEven "round-nearest-even" Exactly(1), Plain => unary!(N::FLOAT, 1, real: |x| x.round_ties_even()).with_signs(Signs::KEPT);
    /// One over the square root.
    Rsqrt "rsqrt" Exactly(1), Plain => unary!(REAL, 2, real: |x| x.reciprocal_sqrt(), complex: C64::rsqrt).with_signs(Signs::NOT_NEGATIVE.on(0, Domain::Positive));
    /// -1, 0 or 1; a floating-point zero keeps its sign and a NaN stays.
    Sign "sign" Exactly(1), Plain => unary!(N::SIGNED_OR_FLOAT.or(N::COMPLEX), 1,
        real: |x| x.above(0.0).choose(1.0, x.below(0.0).choose(-1.0, x)), int: |x, t| x.sign(t), complex: C64::sign);
    /// The sine.
    Sine "sine" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.sin(), complex: C64::sin);
    /// The hyperbolic sine.
    Sinh "sinh" Exactly(1), Plain => unary!(REAL, 8,
        real: |x| x.sinh(), complex: |z| { let s = C64::new(-z.im, z.re).sin(); C64::new(s.im, -s.re) });
    /// The square root.
    Sqrt "sqrt" Exactly(1), Plain => unary!(REAL, 1, real: |x| x.sqrt(), complex: C64::sqrt).with_signs(Signs::NOT_NEGATIVE.on(0, Domain::Positive));
    /// The tangent.
    Tan "tan" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.tan(), complex: C64::tan);
    /// The hyperbolic tangent.
    Tanh "tanh" Exactly(1), Plain => unary!(REAL, 8, real: |x| x.tanh(), complex: C64::tanh);

    // Elementwise, two or three operands.
    /// The sum; integers wrap, and `pred` is or-ed.
    Add "add" Exactly(2), Plain => binary!(ARITH, 1,
        real: |a, b| a + b, int: |a, b, _| a.wrapping_add(b), pred: |a, b| a | b, complex: |a, b| a + b).with_signs(Signs::KEPT);
    /// The bits that both operands have.
    And "and" Exactly(2), Plain => binary!(INT_PRED, 1, int: |a, b, _| a & b, pred: |a, b| a & b);
    /// The angle of the point whose coordinates are the second and the first operand.
    Atan2 "atan2" Exactly(2), Plain => binary!(REAL, 8, real: |a, b| a.atan2(b));
    /// A complex number from its real and imaginary part.
    Complex "complex" Exactly(2), Plain, Moves;
        ShapeRule::Complex, Elementwise, elem(E::Complex);
    /// Whether the operands compare as the attribute `direction` says.
    Compare "compare" Exactly(2), Compare, PerElement(1);
        ShapeRule::Compare, Elementwise, elem(E::Compare);
    /// The quotient; integers are truncated, and one divided by zero has all bits set.
    Divide "divide" Exactly(2), Plain => binary!(NO_PRED, 1,
        real: |a, b| a / b, int: |a, b, t| a.divide(b, t), complex: |a, b| a / b).with_signs(Signs::KEPT.on(1, Domain::NotZero));
    /// The larger operand; a NaN if either is one, and 0 is above -0.
    Maximum "maximum" Exactly(2), Plain => binary!(ORDERED, 1,
        real: |a, b| a.larger(b), int: |a, b, t| a.larger_as(b, t), pred: |a, b| a | b).with_signs(Signs::of(ResultSign::AnyOperand));
    /// The smaller operand; a NaN if either is one, and -0 is below 0.
    Minimum "minimum" Exactly(2), Plain => binary!(ORDERED, 1,
        real: |a, b| a.smaller(b), int: |a, b, t| a.smaller_as(b, t), pred: |a, b| a & b).with_signs(Signs::KEPT);
    /// The product; integers wrap, and `pred` is and-ed.
    Multiply "multiply" Exactly(2), Plain => binary!(ARITH, 1,
        real: |a, b| a * b, int: |a, b, _| a.wrapping_mul(b), pred: |a, b| a & b, complex: |a, b| a * b).with_signs(Signs::of(ResultSign::Product));
    /// The upper half of the product of two integers.
    MultiplyHigh "mulhi" Exactly(2), Plain => binary!(N::INT, 1, int: |a, b, t| a.multiply_high(b, t));
    /// The bits that either operand has.
    Or "or" Exactly(2), Plain => binary!(INT_PRED, 1, int: |a, b, _| a | b, pred: |a, b| a | b);
    /// The first operand to the power of the second; integers wrap.
    Power "power" Exactly(2), Plain => binary!(NO_PRED, 16,
        real: |a, b| a.powf(b), int: |a, b, t| a.power(b, t), complex: C64::pow).with_signs(Signs::NOT_NEGATIVE.on(0, Domain::Positive));
    /// What truncating division leaves, with the sign of the dividend.
    Remainder "remainder" Exactly(2), Plain => binary!(NO_PRED, 2,
        real: |a, b| a % b, int: |a, b, t| a.remainder(b, t)).with_signs(Signs::KEPT.on(1, Domain::NotZero));
    /// The bits moved up, with zeros coming in; 0 if the amount is not below the width.
    ShiftLeft "shift-left" Exactly(2), Plain => binary!(N::INT, 1, int: |a, b, t| a.shift_left(b, t));
    /// The bits moved down, with copies of the top bit coming in.
    ShiftRightArithmetic "shift-right-arithmetic" Exactly(2), Plain => binary!(N::INT, 1,
        int: |a, b, t| a.shift_right_arithmetic(b, t));
    /// The bits moved down, with zeros coming in; 0 if the amount is not below the width.
    ShiftRightLogical "shift-right-logical" Exactly(2), Plain => binary!(N::INT, 1,
        int: |a, b, t| a.shift_right_logical(b, t));
    /// A conversion that rounds up or down by the random bits of the second operand.
    StochasticConvert "stochastic-convert" Exactly(2), Plain, PerElement(2);
        ShapeRule::StochasticConvert, Elementwise, elem(E::StochasticConvert), Signs::KEPT;
    /// The difference; integers wrap.
    Subtract "subtract" Exactly(2), Plain => binary!(NO_PRED, 1,
        real: |a, b| a - b, int: |a, b, _| a.wrapping_sub(b), complex: |a, b| a - b).with_signs(Signs::of(ResultSign::Difference));
    /// The bits that exactly one operand has.
    Xor "xor" Exactly(2), Plain => binary!(INT_PRED, 1, int: |a, b, _| a ^ b, pred: |a, b| a ^ b);
    /// The second operand, no lower than the first and no higher than the third.
    Clamp "clamp" Exactly(3), Plain, PerElement(2);
        ShapeRule::Clamp, Elementwise, elem(E::Clamp), Signs::KEPT;
    /// The second operand where the first is true, the third elsewhere.
    Select "select" Exactly(3), Plain, PerElement(1);
        ShapeRule::Select, Elementwise, elem(E::Select), Signs::KEPT;
    /// A computation applied to the operands' elements.
    Map "map" AtLeast(1), Reduce, Called(Runs::Elements), OfCallees;
        ShapeRule::Map, Elementwise, one_array(A::Map);

    // Element type and layout.
    /// The same bits as another element type; widths that differ add or drop a last dim.
    BitcastConvert "bitcast-convert" Exactly(1), Plain, Moves;
        ShapeRule::BitcastConvert, FactorRule::BitcastConvert, elem(E::BitcastConvert);
    /// The operand's values as another element type.
    Convert "convert" Exactly(1), Plain, PerElement(1);
        ShapeRule::Convert, Elementwise, elem(E::Convert), Signs::KEPT;
    /// The operand, in memory of its own.
    Copy "copy" Exactly(1), Plain, Moves, Pure, Identity;
        ShapeRule::FirstOperand, Elementwise, structure(T::Identity), Signs::KEPT;
    /// The operand's memory seen as another shape.
    Bitcast "bitcast" Exactly(1), Plain, Free;
        ShapeRule::Bitcast, FactorRule::Bitcast, shaping(S::Reshape), Signs::KEPT;

    // Shape.
    /// The operand repeated along new dims.
    Broadcast "broadcast" Exactly(1), Dims, Moves;
        ShapeRule::Broadcast, FactorRule::Broadcast, shaping(S::Broadcast), Signs::KEPT;
    /// The operands one after the other along a dim.
    Concatenate "concatenate" AtLeast(1), Dims, Moves;
        ShapeRule::Concatenate, FactorRule::Concatenate, shaping(S::Concatenate), Signs::KEPT;
    /// The operand's elements under dims that operands give at run time.
    DynamicReshape "dynamic-reshape" AtLeast(1), Plain, Moves;
        ShapeRule::DynamicReshape, Whole("its result dims are run-time values"),
        NotEvaluated("its result dims are run-time values");
    /// A part of fixed size that begins where operands say.
    DynamicSlice "dynamic-slice" AtLeast(1), DynamicSlice, Moves;
        ShapeRule::DynamicSlice, FactorRule::DynamicSlice, shaping(S::DynamicSlice), Signs::KEPT;
    /// The first operand with a part, which begins where operands say, replaced by the second.
    DynamicUpdateSlice "dynamic-update-slice" AtLeast(2), Plain, Moves;
        ShapeRule::DynamicUpdateSlice, FactorRule::DynamicUpdateSlice, shaping(S::DynamicUpdateSlice), Signs::KEPT;
    /// The size of a dim, as a scalar.
    GetDimensionSize "get-dimension-size" Exactly(1), Dims, Free;
        ShapeRule::GetDimensionSize, Whole("asks for the whole size"), shaping(S::GetDimensionSize);
    /// The operand with a dim whose size is known only at run time.
    SetDimensionSize "set-dimension-size" Exactly(2), Dims, Free;
        ShapeRule::SetDimensionSize, Whole("sets the whole size"),
        NotEvaluated("makes a dim dynamic, and the evaluator's arrays have static dims");
    /// Each element's index along a dim.
    Iota "iota" Exactly(0), Iota, Moves;
        ShapeRule::Iota, FactorRule::Iota, shaping(S::Iota), Signs::NOT_NEGATIVE;
    /// The operand with a border around it and gaps between its elements; negative borders cut.
    Pad "pad" Exactly(2), Pad, Moves;
        ShapeRule::Pad, FactorRule::Pad, shaping(S::Pad), Signs::KEPT;
    /// The operand's elements in the same row-major order under other dims.
    Reshape "reshape" Exactly(1), Reshape, Moves;
        ShapeRule::Reshape, FactorRule::Reshape, shaping(S::Reshape), Signs::KEPT;
    /// The operand with the order of elements turned round along dims.
    Reverse "reverse" Exactly(1), Dims, Moves;
        ShapeRule::Reverse, FactorRule::Reverse, shaping(S::Reverse), Signs::KEPT;
    /// A part of the operand with fixed bounds and strides.
    Slice "slice" Exactly(1), Slice, Moves;
        ShapeRule::Slice, FactorRule::Slice, shaping(S::Slice), Signs::KEPT;
    /// The operand with its dims permuted.
    Transpose "transpose" Exactly(1), Dims, Moves;
        ShapeRule::Transpose, FactorRule::Transpose, shaping(S::Transpose), Signs::KEPT;

    // Contractions, windows, sorting, indexing.
    /// The gradients of a normalization over a batch.
    BatchNormGrad "batch-norm-grad" Exactly(5), BatchNorm, PerElement(16);
        ShapeRule::BatchNormGrad, FactorRule::BatchNorm, several_arrays(M::BatchNormGrad), Signs::UNKNOWN.on(3, Domain::Positive);
    /// The operand normalized by a mean and a variance that are given.
    BatchNormInference "batch-norm-inference" Exactly(5), BatchNorm, PerElement(8);
        ShapeRule::BatchNormInference, FactorRule::BatchNorm, one_array(A::BatchNormInference), Signs::UNKNOWN.on(4, Domain::Positive);
    /// The operand normalized over a batch, with the batch's mean and variance.
    BatchNormTraining "batch-norm-training" Exactly(3), BatchNorm, PerElement(10);
        ShapeRule::BatchNormTraining, FactorRule::BatchNorm, several_arrays(M::BatchNormTraining);
    /// The triangular factor of symmetric positive definite matrices.
    Cholesky "cholesky" Exactly(1), Cholesky, CostRule::Cholesky;
        ShapeRule::Cholesky, FactorRule::Cholesky, one_array(A::Cholesky);
    /// A window's sums of products of an image with a filter.
    Convolution "convolution" Exactly(2), Conv, CostRule::Convolution;
        ShapeRule::Convolution, FactorRule::Convolution, one_array(A::Convolution);
    /// Sums of products over contracted dims, for each index of batch dims and free dims.
    Dot "dot" AtLeast(2), Dot, CostRule::Dot;
        ShapeRule::Dot, FactorRule::Dot, one_array(A::Dot);
    /// The Fourier transform of the last dims.
    Fft "fft" Exactly(1), Fft, CostRule::Fft;
        ShapeRule::Fft, FactorRule::Fft, one_array(A::Fft);
    /// Slices of the first operand, at the places that the second one lists.
    Gather "gather" Exactly(2), Gather, Moves;
        ShapeRule::Gather, FactorRule::Gather, one_array(A::Gather), Signs::KEPT;
    /// A dot one of whose dims falls into groups of sizes known only at run time.
    RaggedDot "ragged-dot" Exactly(3), Dot, CostRule::Dot;
        ShapeRule::RaggedDot, Whole("group sizes are run-time values"), one_array(A::RaggedDot);
    /// The elements along dims combined by a computation.
    Reduce "reduce" AtLeast(2), Reduce, CostRule::Reduce, OfCallees;
        ShapeRule::Reduce, FactorRule::Reduce, several_arrays(M::Reduce);
    /// The elements of a window that moves over the operand combined by a computation.
    ReduceWindow "reduce-window" AtLeast(2), ReduceWindow, CostRule::Window, OfCallees;
        ShapeRule::ReduceWindow, FactorRule::ReduceWindow, several_arrays(M::ReduceWindow);
    /// A dot whose operands have a scale for each block of elements.
    ScaledDot "scaled-dot" Exactly(4), Dot, CostRule::Dot;
        ShapeRule::ScaledDot, Whole("block scales tie dims of four operands together"),
        NotEvaluated("block scales follow the backend's conventions, which HLO does not pin down");
    /// A computation applied along a dim, which carries a value from step to step.
    Scan "scan" AtLeast(1), Scan, Called(Runs::Steps), OfCallees;
        ShapeRule::Scan, Whole("a loop over one dim"), lockstep(L::Scan);
    /// The operand with updates combined into it at the places that indices list.
    Scatter "scatter" AtLeast(3), Scatter, CostRule::Scatter, OfCallees;
        ShapeRule::Scatter, FactorRule::Scatter, several_arrays(M::Scatter);
    /// Each window's source value, added where a computation selects an element of the window.
    SelectAndScatter "select-and-scatter" Exactly(3), SelectAndScatter, CostRule::Window, OfCallees;
        ShapeRule::SelectAndScatter, FactorRule::SelectAndScatter, one_array(A::SelectAndScatter);
    /// The operands sorted together along a dim by a comparator.
    Sort "sort" AtLeast(1), Sort, CostRule::Sort, OfCallees;
        ShapeRule::Sort, FactorRule::Sort, several_arrays(M::Sort);
    /// The largest elements along the last dim, and their indices.
    TopK "topk" Exactly(1), TopK, CostRule::Sort;
        ShapeRule::TopK, FactorRule::Sort, several_arrays(M::TopK);
    /// The solution of linear equations with triangular matrices.
    TriangularSolve "triangular-solve" Exactly(2), TriangularSolve, CostRule::TriangularSolve;
        ShapeRule::TriangularSolve, FactorRule::TriangularSolve, one_array(A::TriangularSolve);

    // Random numbers.
    /// Random numbers from a distribution, drawn from hidden state.
    Rng "rng" AtLeast(2), Rng, PerElement(16), Random;
        ShapeRule::Rng, Whole("every device draws from its own hidden state"),
        NotEvaluated("draws from hidden state: no two backends agree on the numbers");
    /// Random bits and the next state, from a state and an algorithm.
    RngBitGenerator "rng-bit-generator" Exactly(1), RngBits, PerElement(16);
        ShapeRule::RngBitGenerator, Whole("the counter runs over the whole result"), structure(T::RngBitGenerator);
    /// The state of the process's random numbers, before it moves on by a number.
    RngGetAndUpdateState "rng-get-and-update-state" Exactly(0), RngState, Free, SideEffect;
        ShapeRule::RngState, Whole("hidden state"), NotEvaluated("reads hidden state of the process");

    // Structure.
    /// The first operand, once the second, a token, is there.
    AddDependency "add-dependency" Exactly(2), Plain, Free, Pure, Identity;
        ShapeRule::FirstOperand, NO_DIMS, structure(T::Identity), Signs::KEPT;
    /// A token that is there once all operands are.
    AfterAll "after-all" AtLeast(0), Plain, Free;
        ShapeRule::AfterAll, NO_DIMS, structure(T::AfterAll);
    /// The result of a computation on the operands.
    Call "call" AtLeast(0), Call, Called(Runs::Once), OfCallees, Call;
        ShapeRule::Call, LEAFWISE, lockstep(L::Call);
    /// The result of one of several computations, chosen by the first operand.
    Conditional "conditional" AtLeast(1), Conditional, Called(Runs::Choice), OfCallees, Conditional;
        ShapeRule::Conditional, LEAFWISE, lockstep(L::Conditional);
    /// A literal.
    Constant "constant" Exactly(0), Constant, Free, Pure, Constant;
        ShapeRule::Constant, NO_DIMS, Routine(EvalRoutine::Constant);
    /// What code outside of HLO makes of the operands.
    CustomCall "custom-call" AtLeast(0), Custom, CostRule::Unknown("only the callee knows"), ByAttribute;
        ShapeRule::Stated("only the callee knows"), FactorRule::CustomCall, lockstep(L::CustomCall);
    /// The operand, at a border between places that differ in an attribute such as sharding.
    Domain "domain" Exactly(1), Domain, Free, Pure, Identity;
        ShapeRule::FirstOperand, NO_DIMS, structure(T::Identity), Signs::KEPT;
    /// The result of a computation that a backend runs as one kernel.
    Fusion "fusion" AtLeast(0), Fusion, Called(Runs::Fused), OfCallees, Call;
        ShapeRule::Call, LEAFWISE, lockstep(L::Call);
    /// One element of a tuple.
    GetTupleElement "get-tuple-element" Exactly(1), TupleIndex, Free, Pure, GetTupleElement;
        ShapeRule::GetTupleElement, NO_DIMS, structure(T::GetTupleElement);
    /// The operand, which no optimization may look through.
    OptimizationBarrier "opt-barrier" Exactly(1), Plain, Free, Pure, Identity;
        ShapeRule::FirstOperand, NO_DIMS, structure(T::Identity), Signs::KEPT;
    /// An argument of the computation.
    Parameter "parameter" Exactly(0), Parameter, Free, Pure, Parameter;
        ShapeRule::Stated("given from outside"), NO_DIMS, Routine(EvalRoutine::Parameter);
    /// The operands as one value.
    Tuple "tuple" AtLeast(0), Plain, Free, Pure, Tuple;
        ShapeRule::Tuple, NO_DIMS, structure(T::Tuple);
    /// The operand after runs of a body for as long as a condition holds.
    While "while" Exactly(1), While, Called(Runs::Loop), OfCallees, While;
        ShapeRule::While, LEAFWISE, lockstep(L::While);

    // Devices and collectives. The descriptor of a collective gives the remaining columns.
    /// The operands of all members of a group, joined along a dim.
    AllGather "all-gather" AtLeast(1), Gathering => ALL_GATHER.columns();
    /// The outcome of an all-gather-start.
    AllGatherDone "all-gather-done" Exactly(1), Plain =>
        ALL_GATHER.done(Opcode::AllGatherStart, OperandsAndOutcome).columns();
    /// Begins an all-gather.
    AllGatherStart "all-gather-start" AtLeast(1), Gathering => ALL_GATHER.start(OperandsAndOutcome).columns();
    /// The operands of all members of a group, reduced.
    AllReduce "all-reduce" AtLeast(1), Combining => ALL_REDUCE.columns();
    /// The outcome of an all-reduce-start.
    AllReduceDone "all-reduce-done" Exactly(1), Plain => ALL_REDUCE.done(Opcode::AllReduceStart, Outcome).columns();
    /// Begins an all-reduce.
    AllReduceStart "all-reduce-start" AtLeast(1), Combining => ALL_REDUCE.start(Outcome).columns();
    /// A part of each member's operand: the k-th member of a group gets the k-th parts.
    AllToAll "all-to-all" AtLeast(1), Exchanging => ALL_TO_ALL.columns();
    /// The operand of a group's first member.
    CollectiveBroadcast "collective-broadcast" AtLeast(1), Exchanging => COLLECTIVE_BROADCAST.columns();
    /// The operand of the device that sends to this one.
    CollectivePermute "collective-permute" AtLeast(1), Permuting => COLLECTIVE_PERMUTE.columns();
    /// The outcome of a collective-permute-start.
    CollectivePermuteDone "collective-permute-done" Exactly(1), Plain =>
        COLLECTIVE_PERMUTE.done(Opcode::CollectivePermuteStart, OperandsOutcomeAndContext).columns();
    /// Begins a collective-permute.
    CollectivePermuteStart "collective-permute-start" AtLeast(1), Permuting =>
        COLLECTIVE_PERMUTE.start(OperandsOutcomeAndContext).columns();
    /// The number of the partition that the device computes.
    PartitionId "partition-id" Exactly(0), Plain, Free, Pure, PartitionId;
        ShapeRule::DeviceId, NO_DIMS, lockstep(L::PartitionId);
    /// Rows of each member's operand, at offsets and in numbers that operands give.
    RaggedAllToAll "ragged-all-to-all" Exactly(6), Exchanging => RAGGED_ALL_TO_ALL.columns();
    /// A part of the reduced operands of all members: the k-th member of a group gets the k-th part.
    ReduceScatter "reduce-scatter" AtLeast(1), Combining => REDUCE_SCATTER.columns();
    /// The number of the replica that the device computes.
    ReplicaId "replica-id" Exactly(0), Plain, Free, Pure, ReplicaId;
        ShapeRule::DeviceId, NO_DIMS, lockstep(L::ReplicaId);

    // Asynchrony and the host.
    /// The outcome of an async-start.
    AsyncDone "async-done" Exactly(1), Async, Free, OfCallees, AsyncDone;
        ShapeRule::AsyncDone, NO_DIMS, lockstep(L::AsyncDone);
    /// Begins a computation that runs beside others.
    AsyncStart "async-start" AtLeast(0), Async, Called(Runs::Once), OfCallees, AsyncStart(Call);
        ShapeRule::AsyncStart, NO_DIMS, lockstep(L::AsyncStart);
    /// A computation that was begun, at a later point of the program.
    AsyncUpdate "async-update" AtLeast(1), Async, Free, OfCallees, AsyncUpdate;
        ShapeRule::AsyncUpdate, NO_DIMS, lockstep(L::AsyncUpdate);
    /// The outcome of a copy-start.
    CopyDone "copy-done" Exactly(1), Plain, Free, Pure, AsyncDone;
        ShapeRule::CopyDone, NO_DIMS, structure(T::CopyDone);
    /// Begins a copy.
    CopyStart "copy-start" Exactly(1), CopyStart, Moves, Pure, AsyncStart(Copy);
        ShapeRule::CopyStart, NO_DIMS, structure(T::CopyStart);
    /// What the host feeds.
    Infeed "infeed" Exactly(1), Infeed, Moves, SideEffect;
        ShapeRule::Stated("what the host feeds"), NO_DIMS, HOST;
    /// Gives the first operand to the host.
    Outfeed "outfeed" Exactly(2), Outfeed, Moves, SideEffect;
        ShapeRule::Outfeed, NO_DIMS, HOST;
    /// Begins to receive from another device or the host.
    Recv "recv" Exactly(1), Transfer, Communication, SideEffect;
        ShapeRule::Recv, NO_DIMS, HOST;
    /// What a recv received.
    RecvDone "recv-done" Exactly(1), Transfer, Free, SideEffect;
        ShapeRule::RecvDone, NO_DIMS, HOST;
    /// Begins to send the first operand to another device or the host.
    Send "send" Exactly(2), Transfer, Communication, SideEffect;
        ShapeRule::Send, NO_DIMS, HOST;
    /// A token that is there once what a send sent is on its way.
    SendDone "send-done" Exactly(1), Transfer, Free, SideEffect;
        ShapeRule::SendDone, NO_DIMS, HOST;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_has_its_own_row_and_name() {
        for &op in Opcode::ALL {
            assert_eq!(op.row().opcode, op);
            assert_eq!(Opcode::from_name(op.name()), Some(op), "{op}");
        }
        assert_eq!(Opcode::from_name("frobnicate"), None);
    }
}
