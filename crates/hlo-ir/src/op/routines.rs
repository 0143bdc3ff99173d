//! The routines that the evaluator has beyond scalar functions, grouped by what they take and give.
//!
//! Each group is an enum of its own, so that the function of the evaluator that runs a group lists its routines all.

use super::CollectiveRule;

/// A routine of the evaluator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EvalRoutine {
    /// Given by the caller before the computation runs.
    Parameter,
    /// Given by the module before the computation runs.
    Constant,
    /// One result element from one element of each operand.
    Elementwise(ElementwiseRoutine),
    /// Elements of operands in another order or shape.
    Shaping(ShapingRoutine),
    /// One array from whole arrays.
    OneArray(OneArrayRoutine),
    /// One array or several from whole arrays.
    SeveralArrays(SeveralArraysRoutine),
    /// Tuples, tokens and what the runtime adds.
    Structure(StructureRoutine),
    /// All devices together: called computations, collectives, and what tells devices apart.
    Lockstep(LockstepRoutine),
}

/// See [`EvalRoutine::Elementwise`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ElementwiseRoutine {
    Abs,
    IsFinite,
    Compare,
    Select,
    Clamp,
    Complex,
    Real,
    Imag,
    Convert,
    BitcastConvert,
    StochasticConvert,
    ReducePrecision,
}

/// See [`EvalRoutine::Shaping`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ShapingRoutine {
    Broadcast,
    /// Also a bitcast, which keeps the order of elements in memory.
    Reshape,
    Transpose,
    Reverse,
    Slice,
    DynamicSlice,
    DynamicUpdateSlice,
    Pad,
    Concatenate,
    Iota,
    GetDimensionSize,
}

/// See [`EvalRoutine::OneArray`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum OneArrayRoutine {
    Dot,
    RaggedDot,
    Convolution,
    Gather,
    SelectAndScatter,
    Map,
    Cholesky,
    TriangularSolve,
    Fft,
    BatchNormInference,
}

/// See [`EvalRoutine::SeveralArrays`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SeveralArraysRoutine {
    Reduce,
    ReduceWindow,
    Scatter,
    Sort,
    TopK,
    BatchNormTraining,
    BatchNormGrad,
}

/// See [`EvalRoutine::Structure`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum StructureRoutine {
    Tuple,
    GetTupleElement,
    /// The first operand as it is (copy, opt-barrier, domain, add-dependency).
    Identity,
    AfterAll,
    CopyStart,
    CopyDone,
    RngBitGenerator,
}

/// See [`EvalRoutine::Lockstep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum LockstepRoutine {
    Call,
    While,
    Conditional,
    /// Where a manual region begins or ends, devices exchange tiles.
    CustomCall,
    Scan,
    /// A collective, or the start of one.
    Collective(CollectiveRule),
    ReplicaId,
    PartitionId,
    AsyncStart,
    AsyncUpdate,
    AsyncDone,
}
