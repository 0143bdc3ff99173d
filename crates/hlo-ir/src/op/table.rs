//! The rows. To add an op, add a row here and a sample `ir-samples/ops/<name>.hlo`; an elementwise one needs no more.

use super::StartResult::{OperandsAndOutcome, OperandsOutcomeAndContext, Outcome};
use super::collective::*;
use super::*;
use crate::op::rules::{BinaryFns as B, UnaryFns as U};
use Arity::{AtLeast, Exactly};
use CostRule::{Called, Communication, Free, Moves, PerElement};
use Effects::{ByAttribute, Communicates, OfCallees, Pure, Random, SideEffect};
use ElementwiseRoutine as E;
use EvalRule::{Binary, NotEvaluated, Routine, Unary};
use FactorRule::{Elementwise, Structural, Whole};
use LockstepRoutine as L;
use Numbers as N;
use OneArrayRoutine as A;
use SeveralArraysRoutine as M;
use ShapingRoutine as S;
use StructureRoutine as T;

/// Declares [`Opcode`] and [`ROWS`] from one list.
macro_rules! op_table {
    ($($op:ident $name:literal $arity:expr, $format:ident,
        $($shape:expr, $factors:expr, $eval:expr, $cost:expr, $effects:expr, $flow:ident $(($begun:ident))?)? $(=> $collective:expr)?;)*) => {
        /// Every opcode of HLO.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[allow(missing_docs)]
        #[repr(u8)]
        pub enum Opcode { $($op),* }

        impl Opcode {
            /// Every opcode, in the table's order.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$op),*];

            /// The opcode of a text name.
            pub fn from_name(name: &str) -> Option<Opcode> {
                match name { $($name => Some(Opcode::$op),)* _ => None }
            }
        }

        pub(super) static ROWS: &[OpRow] = &[$(OpRow {
            opcode: Opcode::$op, name: $name, arity: $arity, format: AttrFormat::$format,
            $(shape: $shape, factors: $factors, eval: $eval, cost: $cost, effects: $effects, flow: Flow::$flow $((Begun::$begun))?, collective: None,)?
            $(shape: $collective.shape_rule(), factors: Whole("already a collective"), eval: lockstep($collective.eval_routine()),
            cost: $collective.cost_rule(), effects: Communicates, flow: $collective.flow(), collective: Some($collective),)?
        }),*];
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

const HOST: EvalRule = NotEvaluated("exchanges data with the host, which the evaluator does not have");

op_table! {
    // Elementwise, one operand.
    Abs "abs"                                   Exactly(1), Plain, ShapeRule::Abs, Elementwise, elem(E::Abs), PerElement(1), Pure, All;
    Acos "acos"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::acos)), PerElement(8), Pure, All;
    Acosh "acosh"                               Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::acosh)), PerElement(8), Pure, All;
    Asin "asin"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::asin)), PerElement(8), Pure, All;
    Asinh "asinh"                               Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::asinh)), PerElement(8), Pure, All;
    Atanh "atanh"                               Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::atanh)), PerElement(8), Pure, All;
    Cbrt "cbrt"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::cbrt).and_complex(C64::cbrt)), PerElement(8), Pure, All;
    Ceil "ceil"                                 Exactly(1), Plain, ShapeRule::Unary(N::FLOAT), Elementwise, Unary(U::real(f64::ceil)), PerElement(1), Pure, All;
    CountLeadingZeros "count-leading-zeros"     Exactly(1), Plain, ShapeRule::Unary(N::INT), Elementwise, Unary(U::int(|x, t| if t.bits == 64 { x.leading_zeros() as i64 } else { ((x as u64) << (64 - t.bits)).leading_zeros().min(t.bits) as i64 })), PerElement(1), Pure, All;
    Cosine "cosine"                             Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::cos).and_complex(C64::cos)), PerElement(8), Pure, All;
    Cosh "cosh"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::cosh).and_complex(|z| C64::new(-z.im, z.re).cos())), PerElement(8), Pure, All;
    Erf "erf"                                   Exactly(1), Plain, ShapeRule::Unary(N::FLOAT), Elementwise, Unary(U::real(crate::float::scalar_fn::erf)), PerElement(8), Pure, All;
    Exponential "exponential"                   Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::exp).and_complex(C64::exp)), PerElement(8), Pure, All;
    ExponentialMinusOne "exponential-minus-one" Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::exp_m1).and_complex(C64::exp_m1)), PerElement(8), Pure, All;
    Floor "floor"                               Exactly(1), Plain, ShapeRule::Unary(N::FLOAT), Elementwise, Unary(U::real(f64::floor)), PerElement(1), Pure, All;
    Imag "imag"                                 Exactly(1), Plain, ShapeRule::ComplexPart, Elementwise, elem(E::Imag), Moves, Pure, All;
    IsFinite "is-finite"                        Exactly(1), Plain, ShapeRule::IsFinite, Elementwise, elem(E::IsFinite), PerElement(1), Pure, All;
    Log "log"                                   Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::ln).and_complex(C64::ln)), PerElement(8), Pure, All;
    LogPlusOne "log-plus-one"                   Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::ln_1p).and_complex(C64::ln_1p)), PerElement(8), Pure, All;
    Logistic "logistic"                         Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(|x| 1.0 / (1.0 + (-x).exp())).and_complex(C64::logistic)), PerElement(10), Pure, All;
    Negate "negate"                             Exactly(1), Plain, ShapeRule::Unary(N::INT.or(REAL)), Elementwise, Unary(U::real(|x| -x).and_int(|x, _| x.wrapping_neg()).and_complex(|z| -z)), PerElement(1), Pure, All;
    Not "not"                                   Exactly(1), Plain, ShapeRule::Unary(INT_PRED), Elementwise, Unary(U::int(|x, _| !x).and_pred(|x| !x)), PerElement(1), Pure, All;
    PopulationCount "popcnt"                    Exactly(1), Plain, ShapeRule::Unary(N::INT), Elementwise, Unary(U::int(|x, t| if t.bits == 64 { x.count_ones() as i64 } else { ((x as u64) << (64 - t.bits)).count_ones() as i64 })), PerElement(1), Pure, All;
    Real "real"                                 Exactly(1), Plain, ShapeRule::ComplexPart, Elementwise, elem(E::Real), Moves, Pure, All;
    ReducePrecision "reduce-precision"          Exactly(1), ReducePrecision, ShapeRule::Unary(N::FLOAT), Elementwise, elem(E::ReducePrecision), PerElement(1), Pure, All;
    RoundNearestAfz "round-nearest-afz"         Exactly(1), Plain, ShapeRule::Unary(N::FLOAT), Elementwise, Unary(U::real(f64::round)), PerElement(1), Pure, All;
    RoundNearestEven "round-nearest-even"       Exactly(1), Plain, ShapeRule::Unary(N::FLOAT), Elementwise, Unary(U::real(f64::round_ties_even)), PerElement(1), Pure, All;
    Rsqrt "rsqrt"                               Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(|x| 1.0 / x.sqrt()).and_complex(C64::rsqrt)), PerElement(2), Pure, All;
    Sign "sign"                                 Exactly(1), Plain, ShapeRule::Unary(N::INT.or(REAL)), Elementwise, Unary(U::real(|x| if x.is_nan() || x == 0.0 { x } else { x.signum() }).and_int(|x, t| if t.is_signed { x.signum() } else { (x != 0) as i64 }).and_complex(C64::sign)), PerElement(1), Pure, All;
    Sine "sine"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::sin).and_complex(C64::sin)), PerElement(8), Pure, All;
    Sinh "sinh"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::sinh).and_complex(|z| { let s = C64::new(-z.im, z.re).sin(); C64::new(s.im, -s.re) })), PerElement(8), Pure, All;
    Sqrt "sqrt"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::sqrt).and_complex(C64::sqrt)), PerElement(1), Pure, All;
    Tan "tan"                                   Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::tan).and_complex(C64::tan)), PerElement(8), Pure, All;
    Tanh "tanh"                                 Exactly(1), Plain, ShapeRule::Unary(REAL), Elementwise, Unary(U::real(f64::tanh).and_complex(C64::tanh)), PerElement(8), Pure, All;

    // Elementwise, two or three operands.
    Add "add"                                   Exactly(2), Plain, ShapeRule::Binary(ARITH), Elementwise, Binary(B::real(|a, b| a + b).and_int(|a, b, _| a.wrapping_add(b)).and_pred(|a, b| a | b).and_complex(|a, b| a + b)), PerElement(1), Pure, All;
    And "and"                                   Exactly(2), Plain, ShapeRule::Binary(INT_PRED), Elementwise, Binary(B::int(|a, b, _| a & b).and_pred(|a, b| a & b)), PerElement(1), Pure, All;
    Atan2 "atan2"                               Exactly(2), Plain, ShapeRule::Binary(REAL), Elementwise, Binary(B::real(f64::atan2)), PerElement(8), Pure, All;
    Complex "complex"                           Exactly(2), Plain, ShapeRule::Complex, Elementwise, elem(E::Complex), Moves, Pure, All;
    Compare "compare"                           Exactly(2), Compare, ShapeRule::Compare, Elementwise, elem(E::Compare), PerElement(1), Pure, All;
    Divide "divide"                             Exactly(2), Plain, ShapeRule::Binary(NO_PRED), Elementwise, Binary(B::real(|a, b| a / b).and_int(crate::float::scalar_fn::int_divide).and_complex(|a, b| a / b)), PerElement(1), Pure, All;
    Maximum "maximum"                           Exactly(2), Plain, ShapeRule::Binary(ORDERED), Elementwise, Binary(B::real(crate::float::scalar_fn::max).and_int(|a, b, t| if t.is_signed { a.max(b) } else { (a as u64).max(b as u64) as i64 }).and_pred(|a, b| a | b)), PerElement(1), Pure, All;
    Minimum "minimum"                           Exactly(2), Plain, ShapeRule::Binary(ORDERED), Elementwise, Binary(B::real(crate::float::scalar_fn::min).and_int(|a, b, t| if t.is_signed { a.min(b) } else { (a as u64).min(b as u64) as i64 }).and_pred(|a, b| a & b)), PerElement(1), Pure, All;
    Multiply "multiply"                         Exactly(2), Plain, ShapeRule::Binary(ARITH), Elementwise, Binary(B::real(|a, b| a * b).and_int(|a, b, _| a.wrapping_mul(b)).and_pred(|a, b| a & b).and_complex(|a, b| a * b)), PerElement(1), Pure, All;
    MultiplyHigh "mulhi"                        Exactly(2), Plain, ShapeRule::Binary(N::INT), Elementwise, Binary(B::int(|a, b, t| if t.is_signed { ((a as i128 * b as i128) >> t.bits) as i64 } else { ((a as u64 as u128 * b as u64 as u128) >> t.bits) as i64 })), PerElement(1), Pure, All;
    Or "or"                                     Exactly(2), Plain, ShapeRule::Binary(INT_PRED), Elementwise, Binary(B::int(|a, b, _| a | b).and_pred(|a, b| a | b)), PerElement(1), Pure, All;
    Power "power"                               Exactly(2), Plain, ShapeRule::Binary(NO_PRED), Elementwise, Binary(B::real(f64::powf).and_int(crate::float::scalar_fn::int_power).and_complex(C64::pow)), PerElement(16), Pure, All;
    Remainder "remainder"                       Exactly(2), Plain, ShapeRule::Binary(NO_PRED), Elementwise, Binary(B::real(|a, b| a % b).and_int(crate::float::scalar_fn::int_remainder)), PerElement(2), Pure, All;
    ShiftLeft "shift-left"                      Exactly(2), Plain, ShapeRule::Binary(N::INT), Elementwise, Binary(B::int(crate::float::scalar_fn::shift_left)), PerElement(1), Pure, All;
    ShiftRightArithmetic "shift-right-arithmetic" Exactly(2), Plain, ShapeRule::Binary(N::INT), Elementwise, Binary(B::int(crate::float::scalar_fn::shift_right_arithmetic)), PerElement(1), Pure, All;
    ShiftRightLogical "shift-right-logical"     Exactly(2), Plain, ShapeRule::Binary(N::INT), Elementwise, Binary(B::int(crate::float::scalar_fn::shift_right_logical)), PerElement(1), Pure, All;
    StochasticConvert "stochastic-convert"      Exactly(2), Plain, ShapeRule::StochasticConvert, Elementwise, elem(E::StochasticConvert), PerElement(2), Pure, All;
    Subtract "subtract"                         Exactly(2), Plain, ShapeRule::Binary(NO_PRED), Elementwise, Binary(B::real(|a, b| a - b).and_int(|a, b, _| a.wrapping_sub(b)).and_complex(|a, b| a - b)), PerElement(1), Pure, All;
    Xor "xor"                                   Exactly(2), Plain, ShapeRule::Binary(INT_PRED), Elementwise, Binary(B::int(|a, b, _| a ^ b).and_pred(|a, b| a ^ b)), PerElement(1), Pure, All;
    Clamp "clamp"                               Exactly(3), Plain, ShapeRule::Clamp, Elementwise, elem(E::Clamp), PerElement(2), Pure, All;
    Select "select"                             Exactly(3), Plain, ShapeRule::Select, Elementwise, elem(E::Select), PerElement(1), Pure, All;
    Map "map"                                   AtLeast(1), Reduce, ShapeRule::Map, Elementwise, one_array(A::Map), Called, OfCallees, All;

    // Element type and layout.
    BitcastConvert "bitcast-convert"            Exactly(1), Plain, ShapeRule::BitcastConvert, FactorRule::BitcastConvert, elem(E::BitcastConvert), Moves, Pure, All;
    Convert "convert"                           Exactly(1), Plain, ShapeRule::Convert, Elementwise, elem(E::Convert), PerElement(1), Pure, All;
    Copy "copy"                                 Exactly(1), Plain, ShapeRule::FirstOperand, Elementwise, structure(T::Identity), Moves, Pure, Identity;
    Bitcast "bitcast"                           Exactly(1), Plain, ShapeRule::Bitcast, FactorRule::Bitcast, shaping(S::Reshape), Free, Pure, All;

    // Shape.
    Broadcast "broadcast"                       Exactly(1), Dims, ShapeRule::Broadcast, FactorRule::Broadcast, shaping(S::Broadcast), Moves, Pure, All;
    Concatenate "concatenate"                   AtLeast(1), Dims, ShapeRule::Concatenate, FactorRule::Concatenate, shaping(S::Concatenate), Moves, Pure, All;
    DynamicReshape "dynamic-reshape"            AtLeast(1), Plain, ShapeRule::DynamicReshape, Whole("its result dims are run-time values"), NotEvaluated("its result dims are run-time values"), Moves, Pure, All;
    DynamicSlice "dynamic-slice"                AtLeast(1), DynamicSlice, ShapeRule::DynamicSlice, FactorRule::DynamicSlice, shaping(S::DynamicSlice), Moves, Pure, All;
    DynamicUpdateSlice "dynamic-update-slice"   AtLeast(2), Plain, ShapeRule::DynamicUpdateSlice, FactorRule::DynamicUpdateSlice, shaping(S::DynamicUpdateSlice), Moves, Pure, All;
    GetDimensionSize "get-dimension-size"       Exactly(1), Dims, ShapeRule::GetDimensionSize, Whole("asks for the whole size"), shaping(S::GetDimensionSize), Free, Pure, All;
    SetDimensionSize "set-dimension-size"       Exactly(2), Dims, ShapeRule::SetDimensionSize, Whole("sets the whole size"), NotEvaluated("makes a dim dynamic, and the evaluator's arrays have static dims"), Free, Pure, All;
    Iota "iota"                                 Exactly(0), Iota, ShapeRule::Iota, FactorRule::Iota, shaping(S::Iota), Moves, Pure, All;
    Pad "pad"                                   Exactly(2), Pad, ShapeRule::Pad, FactorRule::Pad, shaping(S::Pad), Moves, Pure, All;
    Reshape "reshape"                           Exactly(1), Reshape, ShapeRule::Reshape, FactorRule::Reshape, shaping(S::Reshape), Moves, Pure, All;
    Reverse "reverse"                           Exactly(1), Dims, ShapeRule::Reverse, FactorRule::Reverse, shaping(S::Reverse), Moves, Pure, All;
    Slice "slice"                               Exactly(1), Slice, ShapeRule::Slice, FactorRule::Slice, shaping(S::Slice), Moves, Pure, All;
    Transpose "transpose"                       Exactly(1), Dims, ShapeRule::Transpose, FactorRule::Transpose, shaping(S::Transpose), Moves, Pure, All;

    // Contractions, windows, sorting, indexing.
    BatchNormGrad "batch-norm-grad"             Exactly(5), BatchNorm, ShapeRule::BatchNormGrad, FactorRule::BatchNorm, several_arrays(M::BatchNormGrad), PerElement(16), Pure, All;
    BatchNormInference "batch-norm-inference"   Exactly(5), BatchNorm, ShapeRule::BatchNormInference, FactorRule::BatchNorm, one_array(A::BatchNormInference), PerElement(8), Pure, All;
    BatchNormTraining "batch-norm-training"     Exactly(3), BatchNorm, ShapeRule::BatchNormTraining, FactorRule::BatchNorm, several_arrays(M::BatchNormTraining), PerElement(10), Pure, All;
    Cholesky "cholesky"                         Exactly(1), Cholesky, ShapeRule::Cholesky, FactorRule::Cholesky, one_array(A::Cholesky), CostRule::Cholesky, Pure, All;
    Convolution "convolution"                   Exactly(2), Conv, ShapeRule::Convolution, FactorRule::Convolution, one_array(A::Convolution), CostRule::Convolution, Pure, All;
    Dot "dot"                                   AtLeast(2), Dot, ShapeRule::Dot, FactorRule::Dot, one_array(A::Dot), CostRule::Dot, Pure, All;
    Fft "fft"                                   Exactly(1), Fft, ShapeRule::Fft, FactorRule::Fft, one_array(A::Fft), CostRule::Fft, Pure, All;
    Gather "gather"                             Exactly(2), Gather, ShapeRule::Gather, FactorRule::Gather, one_array(A::Gather), Moves, Pure, All;
    RaggedDot "ragged-dot"                      Exactly(3), Dot, ShapeRule::RaggedDot, Whole("group sizes are run-time values"), one_array(A::RaggedDot), CostRule::Dot, Pure, All;
    Reduce "reduce"                             AtLeast(2), Reduce, ShapeRule::Reduce, FactorRule::Reduce, several_arrays(M::Reduce), CostRule::Reduce, OfCallees, All;
    ReduceWindow "reduce-window"                AtLeast(2), ReduceWindow, ShapeRule::ReduceWindow, FactorRule::ReduceWindow, several_arrays(M::ReduceWindow), CostRule::Window, OfCallees, All;
    ScaledDot "scaled-dot"                      Exactly(4), Dot, ShapeRule::ScaledDot, Whole("block scales tie dims of four operands together"), NotEvaluated("block scales follow the backend's conventions, which HLO does not pin down"), CostRule::Dot, Pure, All;
    Scan "scan"                                 AtLeast(1), Scan, ShapeRule::Scan, Whole("a loop over one dim"), lockstep(L::Scan), Called, OfCallees, All;
    Scatter "scatter"                           AtLeast(3), Scatter, ShapeRule::Scatter, FactorRule::Scatter, several_arrays(M::Scatter), CostRule::Scatter, OfCallees, All;
    SelectAndScatter "select-and-scatter"       Exactly(3), SelectAndScatter, ShapeRule::SelectAndScatter, FactorRule::SelectAndScatter, one_array(A::SelectAndScatter), CostRule::Window, OfCallees, All;
    Sort "sort"                                 AtLeast(1), Sort, ShapeRule::Sort, FactorRule::Sort, several_arrays(M::Sort), CostRule::Sort, OfCallees, All;
    TopK "topk"                                 Exactly(1), TopK, ShapeRule::TopK, FactorRule::Sort, several_arrays(M::TopK), CostRule::Sort, Pure, All;
    TriangularSolve "triangular-solve"          Exactly(2), TriangularSolve, ShapeRule::TriangularSolve, FactorRule::TriangularSolve, one_array(A::TriangularSolve), CostRule::TriangularSolve, Pure, All;

    // Random numbers.
    Rng "rng"                                   AtLeast(2), Rng, ShapeRule::Rng, Whole("every device draws from its own hidden state"), NotEvaluated("draws from hidden state: no two backends agree on the numbers"), PerElement(16), Random, All;
    RngBitGenerator "rng-bit-generator"         Exactly(1), RngBits, ShapeRule::RngBitGenerator, Whole("the counter runs over the whole result"), structure(T::RngBitGenerator), PerElement(16), Pure, All;
    RngGetAndUpdateState "rng-get-and-update-state" Exactly(0), RngState, ShapeRule::RngState, Whole("hidden state"), NotEvaluated("reads hidden state of the process"), Free, SideEffect, All;

    // Structure.
    AddDependency "add-dependency"              Exactly(2), Plain, ShapeRule::FirstOperand, NO_DIMS, structure(T::Identity), Free, Pure, Identity;
    AfterAll "after-all"                        AtLeast(0), Plain, ShapeRule::AfterAll, NO_DIMS, structure(T::AfterAll), Free, Pure, All;
    Call "call"                                 AtLeast(0), Call, ShapeRule::Call, LEAFWISE, lockstep(L::Call), Called, OfCallees, Call;
    Conditional "conditional"                   AtLeast(1), Conditional, ShapeRule::Conditional, LEAFWISE, lockstep(L::Conditional), Called, OfCallees, Conditional;
    Constant "constant"                         Exactly(0), Constant, ShapeRule::Constant, NO_DIMS, Routine(EvalRoutine::Constant), Free, Pure, Constant;
    CustomCall "custom-call"                    AtLeast(0), Custom, ShapeRule::Stated("only the callee knows"), FactorRule::CustomCall, structure(T::CustomCall), CostRule::Unknown("only the callee knows"), ByAttribute, All;
    Domain "domain"                             Exactly(1), Domain, ShapeRule::FirstOperand, NO_DIMS, structure(T::Identity), Free, Pure, Identity;
    Fusion "fusion"                             AtLeast(0), Fusion, ShapeRule::Call, LEAFWISE, lockstep(L::Call), Called, OfCallees, Call;
    GetTupleElement "get-tuple-element"         Exactly(1), TupleIndex, ShapeRule::GetTupleElement, NO_DIMS, structure(T::GetTupleElement), Free, Pure, GetTupleElement;
    OptimizationBarrier "opt-barrier"           Exactly(1), Plain, ShapeRule::FirstOperand, NO_DIMS, structure(T::Identity), Free, Pure, Identity;
    Parameter "parameter"                       Exactly(0), Parameter, ShapeRule::Stated("given from outside"), NO_DIMS, Routine(EvalRoutine::Parameter), Free, Pure, Parameter;
    Tuple "tuple"                               AtLeast(0), Plain, ShapeRule::Tuple, NO_DIMS, structure(T::Tuple), Free, Pure, Tuple;
    While "while"                               Exactly(1), While, ShapeRule::While, LEAFWISE, lockstep(L::While), Called, OfCallees, While;

    // Devices and collectives. The descriptor of a collective gives the remaining columns.
    AllGather "all-gather"                      AtLeast(1), Gathering, => ALL_GATHER;
    AllGatherDone "all-gather-done"             Exactly(1), Plain, => ALL_GATHER.done(Opcode::AllGatherStart, OperandsAndOutcome);
    AllGatherStart "all-gather-start"           AtLeast(1), Gathering, => ALL_GATHER.start(OperandsAndOutcome);
    AllReduce "all-reduce"                      AtLeast(1), Combining, => ALL_REDUCE;
    AllReduceDone "all-reduce-done"             Exactly(1), Plain, => ALL_REDUCE.done(Opcode::AllReduceStart, Outcome);
    AllReduceStart "all-reduce-start"           AtLeast(1), Combining, => ALL_REDUCE.start(Outcome);
    AllToAll "all-to-all"                       AtLeast(1), Exchanging, => ALL_TO_ALL;
    CollectiveBroadcast "collective-broadcast"  AtLeast(1), Exchanging, => COLLECTIVE_BROADCAST;
    CollectivePermute "collective-permute"      AtLeast(1), Permuting, => COLLECTIVE_PERMUTE;
    CollectivePermuteDone "collective-permute-done" Exactly(1), Plain, => COLLECTIVE_PERMUTE.done(Opcode::CollectivePermuteStart, OperandsOutcomeAndContext);
    CollectivePermuteStart "collective-permute-start" AtLeast(1), Permuting, => COLLECTIVE_PERMUTE.start(OperandsOutcomeAndContext);
    PartitionId "partition-id"                  Exactly(0), Plain, ShapeRule::DeviceId, NO_DIMS, lockstep(L::PartitionId), Free, Pure, PartitionId;
    RaggedAllToAll "ragged-all-to-all"          Exactly(6), Exchanging, => RAGGED_ALL_TO_ALL;
    ReduceScatter "reduce-scatter"              AtLeast(1), Combining, => REDUCE_SCATTER;
    ReplicaId "replica-id"                      Exactly(0), Plain, ShapeRule::DeviceId, NO_DIMS, lockstep(L::ReplicaId), Free, Pure, ReplicaId;

    // Asynchrony and the host.
    AsyncDone "async-done"                      Exactly(1), Async, ShapeRule::AsyncDone, NO_DIMS, lockstep(L::AsyncDone), Free, OfCallees, AsyncDone;
    AsyncStart "async-start"                    AtLeast(0), Async, ShapeRule::AsyncStart, NO_DIMS, lockstep(L::AsyncStart), Called, OfCallees, AsyncStart(Call);
    AsyncUpdate "async-update"                  Exactly(1), Async, ShapeRule::AsyncUpdate, NO_DIMS, lockstep(L::AsyncUpdate), Free, OfCallees, AsyncUpdate;
    CopyDone "copy-done"                        Exactly(1), Plain, ShapeRule::CopyDone, NO_DIMS, structure(T::CopyDone), Free, Pure, AsyncDone;
    CopyStart "copy-start"                      Exactly(1), CopyStart, ShapeRule::CopyStart, NO_DIMS, structure(T::CopyStart), Moves, Pure, AsyncStart(Copy);
    Infeed "infeed"                             Exactly(1), Infeed, ShapeRule::Stated("what the host feeds"), NO_DIMS, HOST, Moves, SideEffect, All;
    Outfeed "outfeed"                           Exactly(2), Outfeed, ShapeRule::Outfeed, NO_DIMS, HOST, Moves, SideEffect, All;
    Recv "recv"                                 Exactly(1), Transfer, ShapeRule::Recv, NO_DIMS, HOST, Communication, SideEffect, All;
    RecvDone "recv-done"                        Exactly(1), Transfer, ShapeRule::RecvDone, NO_DIMS, HOST, Free, SideEffect, All;
    Send "send"                                 Exactly(2), Transfer, ShapeRule::Send, NO_DIMS, HOST, Communication, SideEffect, All;
    SendDone "send-done"                        Exactly(1), Transfer, ShapeRule::SendDone, NO_DIMS, HOST, Free, SideEffect, All;
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
        assert_eq!(Opcode::ALL.len(), 133);
    }
}
