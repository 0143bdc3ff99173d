//! What a kernel does for each opcode: one row each.
// circle: the code for an element asks the emitter for its operands, and the emitter asks this table for their code

use hlo_ir::Opcode;

use super::emitter::{Element, Emitted, Emitter};
use super::{contraction, elementwise, indexing, reduction, shape_ops, structure, windows};

/// Writes the code for one element of one leaf of an instruction.
pub(super) type EmitValue = fn(&mut Emitter<'_>, Element<'_>) -> Emitted;

/// How an element of an instruction's result is computed.
pub(super) enum Rule {
    /// The prelude's function of this name, on the operands' elements at the same index.
    Function(&'static str),
    /// A function that writes code.
    Code(EmitValue),
    /// Not in a kernel, for this reason.
    Refused(&'static str),
}

const COLLECTIVE: &str = "expected an operation of one device in a kernel, found one that communicates";
const HOST: &str = "expected an operation of one device in a kernel, found one that exchanges data with the host";
const COMPLEX: &str = "expected real numbers in a kernel, found complex ones";
const ORDER: &str = "sorting is not written as a kernel";
const RANDOM: &str = "random numbers are not drawn in kernels";
const LINEAR_ALGEBRA: &str = "matrix factorizations are not written as kernels";
const NORM: &str = "expected batch norms as the operations that they consist of";
const DYNAMIC: &str = "expected static dims";
const FLOW: &str = "expected straight code in a kernel, found control flow";
const ORDERING: &str = "expected arrays in a kernel, found an operation on tokens";

const DEVICE_IDS: &str = "expected device ids as operands of a kernel: the plan keeps them in a buffer";
const ASYNCHRONOUS: &str = "expected a synchronous operation in a kernel";

/// The row of an opcode.
pub(super) fn rule(opcode: Opcode) -> Rule {
    use Rule::{Code, Function, Refused};
    match opcode {
        Opcode::Abs => Function("abs"),
        Opcode::Acos => Function("acos"),
        Opcode::Acosh => Function("acosh"),
        Opcode::Asin => Function("asin"),
        Opcode::Asinh => Function("asinh"),
        Opcode::Atanh => Function("atanh"),
        Opcode::Cbrt => Function("cbrt"),
        Opcode::Ceil => Function("ceil"),
        Opcode::CountLeadingZeros => Function("count_leading_zeros"),
        Opcode::Cosine => Function("cosine"),
        Opcode::Cosh => Function("cosh"),
        Opcode::Erf => Function("erf"),
        Opcode::Exponential => Function("exponential"),
        Opcode::ExponentialMinusOne => Function("exponential_minus_one"),
        Opcode::Floor => Function("floor"),
        Opcode::IsFinite => Function("is_finite"),
        Opcode::Log => Function("log"),
        Opcode::LogPlusOne => Function("log_plus_one"),
        Opcode::Logistic => Function("logistic"),
        Opcode::Negate => Function("negate"),
        Opcode::Not => Function("bit_not"),
        Opcode::PopulationCount => Function("population_count"),
        Opcode::RoundNearestAfz => Function("round_nearest_afz"),
        Opcode::RoundNearestEven => Function("round_nearest_even"),
        Opcode::Rsqrt => Function("rsqrt"),
        Opcode::Sign => Function("sign"),
        Opcode::Sine => Function("sine"),
        Opcode::Sinh => Function("sinh"),
        Opcode::Sqrt => Function("sqrt"),
        Opcode::Tan => Function("tan"),
        Opcode::Tanh => Function("tanh"),
        Opcode::Add => Function("add"),
        Opcode::And => Function("bit_and"),
        Opcode::Atan2 => Function("atan2"),
        Opcode::Divide => Function("divide"),
        Opcode::Maximum => Function("maximum"),
        Opcode::Minimum => Function("minimum"),
        Opcode::Multiply => Function("multiply"),
        Opcode::MultiplyHigh => Function("multiply_high"),
        Opcode::Or => Function("bit_or"),
        Opcode::Power => Function("power"),
        Opcode::Remainder => Function("remainder"),
        Opcode::ShiftLeft => Function("shift_left"),
        Opcode::ShiftRightArithmetic => Function("shift_right_arithmetic"),
        Opcode::ShiftRightLogical => Function("shift_right_logical"),
        Opcode::Subtract => Function("subtract"),
        Opcode::Xor => Function("bit_xor"),
        Opcode::Clamp => Function("clamp"),
        Opcode::Select => Function("select"),
        Opcode::Compare => Code(elementwise::compare),
        Opcode::Convert => Code(elementwise::convert),
        Opcode::BitcastConvert => Code(elementwise::bitcast_convert),
        Opcode::ReducePrecision => Code(elementwise::reduce_precision),
        Opcode::Map => Code(elementwise::map),

        Opcode::Copy | Opcode::AddDependency | Opcode::Domain => Code(shape_ops::same_index),
        Opcode::Bitcast => Code(shape_ops::bitcast),
        Opcode::Broadcast => Code(shape_ops::broadcast),
        Opcode::Concatenate => Code(shape_ops::concatenate),
        Opcode::DynamicSlice => Code(shape_ops::dynamic_slice),
        Opcode::DynamicUpdateSlice => Code(shape_ops::dynamic_update_slice),
        Opcode::GetDimensionSize => Code(shape_ops::get_dimension_size),
        Opcode::Iota => Code(shape_ops::iota),
        Opcode::Pad => Code(shape_ops::pad),
        Opcode::Reshape => Code(shape_ops::reshape),
        Opcode::Reverse => Code(shape_ops::reverse),
        Opcode::Slice => Code(shape_ops::slice),
        Opcode::Transpose => Code(shape_ops::transpose),
        Opcode::Gather => Code(indexing::gather),
        Opcode::Scatter => Code(indexing::scatter),
        Opcode::Reduce => Code(reduction::reduce),
        Opcode::ReduceWindow => Code(windows::reduce_window),
        Opcode::SelectAndScatter => Code(windows::select_and_scatter),
        Opcode::Convolution => Code(contraction::convolution),
        Opcode::Dot => Code(contraction::dot),
        Opcode::Constant => Code(structure::constant),
        Opcode::Call | Opcode::Fusion => Code(structure::call),
        Opcode::Tuple | Opcode::GetTupleElement | Opcode::OptimizationBarrier => Code(structure::handed_on),

        Opcode::Parameter => Refused("expected a parameter of the fused computation, found another"),
        Opcode::Complex | Opcode::Real | Opcode::Imag | Opcode::Fft => Refused(COMPLEX),
        Opcode::StochasticConvert => Refused("stochastic rounding is not written as a kernel"),
        Opcode::Sort | Opcode::TopK => Refused(ORDER),
        Opcode::Scan => Refused("a scan is not written as a kernel"),
        Opcode::RaggedDot | Opcode::ScaledDot => {
            Refused("products of ragged or scaled blocks are not written as kernels")
        }
        Opcode::Cholesky | Opcode::TriangularSolve => Refused(LINEAR_ALGEBRA),
        Opcode::BatchNormGrad | Opcode::BatchNormInference | Opcode::BatchNormTraining => Refused(NORM),
        Opcode::Rng | Opcode::RngBitGenerator | Opcode::RngGetAndUpdateState => Refused(RANDOM),
        Opcode::DynamicReshape | Opcode::SetDimensionSize => Refused(DYNAMIC),
        Opcode::Conditional | Opcode::While => Refused(FLOW),
        Opcode::CustomCall => Refused("only the callee knows what a custom call does"),
        Opcode::AfterAll => Refused(ORDERING),
        Opcode::PartitionId | Opcode::ReplicaId => Refused(DEVICE_IDS),
        Opcode::AllGather
        | Opcode::AllGatherDone
        | Opcode::AllGatherStart
        | Opcode::AllReduce
        | Opcode::AllReduceDone
        | Opcode::AllReduceStart
        | Opcode::AllToAll
        | Opcode::CollectiveBroadcast
        | Opcode::CollectivePermute
        | Opcode::CollectivePermuteDone
        | Opcode::CollectivePermuteStart
        | Opcode::RaggedAllToAll
        | Opcode::ReduceScatter => Refused(COLLECTIVE),
        Opcode::AsyncDone | Opcode::AsyncStart | Opcode::AsyncUpdate => Refused(ASYNCHRONOUS),
        Opcode::CopyDone | Opcode::CopyStart => Refused(ASYNCHRONOUS),
        Opcode::Infeed | Opcode::Outfeed | Opcode::Recv | Opcode::RecvDone | Opcode::Send | Opcode::SendDone => {
            Refused(HOST)
        }
    }
}

/// Writes the code for one element.
pub(super) fn emit_value(e: &mut Emitter<'_>, element: Element<'_>) -> Emitted {
    match rule(e.module.inst(element.inst).opcode) {
        Rule::Function(name) => elementwise::function(e, element, name),
        Rule::Code(emit) => emit(e, element),
        Rule::Refused(reason) => Err(e.unsupported(element.inst, reason)),
    }
}
