//! What a kernel does for each opcode: what the op table says, or code of its own.
// circle: the code for an element asks the emitter for its operands, and the emitter asks this table for their code

use hlo_ir::Opcode;
use hlo_ir::op::{OpKind, SpecialOp};

use super::emitter::{Element, Emitted, Emitter};
use super::{contraction, elementwise, indexing, reduction, scalar, shape_ops, structure, windows};

/// Writes the code for one element of one leaf of an instruction.
pub(super) type EmitValue = fn(&mut Emitter<'_>, Element<'_>) -> Emitted;

/// How an element of an instruction's result is computed.
pub(super) enum Rule {
    /// The prelude's function of this name, on the operands' elements at the same index.
    Function(String),
    /// A function that writes code.
    Code(EmitValue),
    /// Not in a kernel, for this reason.
    Refused(&'static str),
}

const COLLECTIVE: &str = "expected an operation of one device in a kernel, found one that communicates";
const HOST: &str = "expected an operation of one device in a kernel, found one that exchanges data with the host";
const TRANSFORM: &str = "Fourier transforms are not written as kernels";
const ORDER: &str = "expected a sort that is all of its kernel, of rows that fit a block's shared memory; expand-operations cuts longer rows by comparators of elementwise operations";
const TOP_K: &str = "expected a top-k as the sort that expand-operations makes of it";
const RANDOM: &str = "no hidden state of random numbers is kept; draw them by rng-bit-generator, which expand-operations writes as arithmetic";
const LINEAR_ALGEBRA: &str = "matrix factorizations are not written as kernels";
const NORM: &str = "expected batch norms as the operations that they consist of";
const DYNAMIC: &str = "expected static dims";
const FLOW: &str = "expected straight code in a kernel, found control flow";
const ORDERING: &str = "expected arrays in a kernel, found an operation on tokens";

const DEVICE_IDS: &str = "expected device ids as operands of a kernel: the plan keeps them in a buffer";
const ASYNCHRONOUS: &str = "expected a synchronous operation in a kernel";

/// How kernels compute an opcode.
pub(super) fn rule(opcode: Opcode) -> Rule {
    match opcode.row().kind {
        OpKind::Scalar(_) => Rule::Function(scalar::name(opcode)),
        OpKind::Collective => Rule::Refused(COLLECTIVE),
        OpKind::Special(op) => special(op),
    }
}

/// How kernels compute an op that no row describes.
fn special(op: SpecialOp) -> Rule {
    use Rule::{Code, Refused};
    let function = |name: &str| Rule::Function(name.to_string());
    match op {
        SpecialOp::Abs => function("abs"),
        SpecialOp::IsFinite => function("is_finite"),
        SpecialOp::Clamp => function("clamp"),
        SpecialOp::Select => function("select"),
        SpecialOp::Complex => function("complex"),
        SpecialOp::Compare => Code(elementwise::compare),
        SpecialOp::Convert => Code(elementwise::convert),
        SpecialOp::BitcastConvert => Code(elementwise::bitcast_convert),
        SpecialOp::ReducePrecision => Code(elementwise::reduce_precision),
        SpecialOp::Map => Code(elementwise::map),
        SpecialOp::Real => Code(elementwise::real),
        SpecialOp::Imag => Code(elementwise::imag),

        SpecialOp::Copy | SpecialOp::AddDependency | SpecialOp::Domain => Code(shape_ops::same_index),
        SpecialOp::Bitcast => Code(shape_ops::bitcast),
        SpecialOp::Broadcast => Code(shape_ops::broadcast),
        SpecialOp::Concatenate => Code(shape_ops::concatenate),
        SpecialOp::DynamicSlice => Code(shape_ops::dynamic_slice),
        SpecialOp::DynamicUpdateSlice => Code(shape_ops::dynamic_update_slice),
        SpecialOp::GetDimensionSize => Code(shape_ops::get_dimension_size),
        SpecialOp::Iota => Code(shape_ops::iota),
        SpecialOp::Pad => Code(shape_ops::pad),
        SpecialOp::Reshape => Code(shape_ops::reshape),
        SpecialOp::Reverse => Code(shape_ops::reverse),
        SpecialOp::Slice => Code(shape_ops::slice),
        SpecialOp::Transpose => Code(shape_ops::transpose),
        SpecialOp::Gather => Code(indexing::gather),
        SpecialOp::Scatter => Code(indexing::scatter),
        SpecialOp::Reduce => Code(reduction::reduce),
        SpecialOp::ReduceWindow => Code(windows::reduce_window),
        SpecialOp::SelectAndScatter => Code(windows::select_and_scatter),
        SpecialOp::Convolution => Code(contraction::convolution),
        SpecialOp::Dot => Code(contraction::dot),
        SpecialOp::Constant => Code(structure::constant),
        SpecialOp::Call | SpecialOp::Fusion => Code(structure::call),
        SpecialOp::Tuple | SpecialOp::GetTupleElement | SpecialOp::OptimizationBarrier => Code(structure::handed_on),

        SpecialOp::Parameter => Refused("expected a parameter of the fused computation, found another"),
        SpecialOp::Fft => Refused(TRANSFORM),
        SpecialOp::StochasticConvert => Refused("stochastic rounding is not written as a kernel"),
        SpecialOp::Sort => Refused(ORDER),
        SpecialOp::TopK => Refused(TOP_K),
        SpecialOp::Scan => Refused("a scan is not written as a kernel"),
        SpecialOp::RaggedDot | SpecialOp::ScaledDot => {
            Refused("products of ragged or scaled blocks are not written as kernels")
        }
        SpecialOp::Cholesky | SpecialOp::TriangularSolve => Refused(LINEAR_ALGEBRA),
        SpecialOp::BatchNormGrad | SpecialOp::BatchNormInference | SpecialOp::BatchNormTraining => Refused(NORM),
        SpecialOp::Rng | SpecialOp::RngBitGenerator | SpecialOp::RngGetAndUpdateState => Refused(RANDOM),
        SpecialOp::DynamicReshape | SpecialOp::SetDimensionSize => Refused(DYNAMIC),
        SpecialOp::Conditional | SpecialOp::While => Refused(FLOW),
        SpecialOp::CustomCall => Refused("only the callee knows what a custom call does"),
        SpecialOp::AfterAll => Refused(ORDERING),
        SpecialOp::PartitionId | SpecialOp::ReplicaId => Refused(DEVICE_IDS),
        SpecialOp::AsyncDone | SpecialOp::AsyncStart | SpecialOp::AsyncUpdate => Refused(ASYNCHRONOUS),
        SpecialOp::CopyDone | SpecialOp::CopyStart => Refused(ASYNCHRONOUS),
        SpecialOp::Infeed
        | SpecialOp::Outfeed
        | SpecialOp::Recv
        | SpecialOp::RecvDone
        | SpecialOp::Send
        | SpecialOp::SendDone => Refused(HOST),
    }
}

/// Writes the code for one element.
pub(super) fn emit_value(e: &mut Emitter<'_>, element: Element<'_>) -> Emitted {
    match rule(e.module.inst(element.inst).opcode) {
        Rule::Function(name) => elementwise::function(e, element, &name),
        Rule::Code(emit) => emit(e, element),
        Rule::Refused(reason) => Err(e.unsupported(element.inst, reason)),
    }
}
