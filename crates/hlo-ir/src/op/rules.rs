//! The columns of the op table: named rules as data, implemented once each where they are used.

use super::{BinaryFns, CollectiveForm, CollectiveRule, EvalRoutine, StartResult, UnaryFns};
use crate::dtype::{DType, NumberClass};
use std::ops::Range;

/// Number of operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arity {
    /// Exactly this many.
    Exactly(u8),
    /// This many or more.
    AtLeast(u8),
}

impl Arity {
    /// Whether `n` operands are right.
    pub fn accepts(self, n: usize) -> bool {
        match self {
            Arity::Exactly(k) => n == k as usize,
            Arity::AtLeast(k) => n >= k as usize,
        }
    }

    /// Whether more than `n` operands are needed.
    pub fn is_above(self, n: usize) -> bool {
        let (Arity::Exactly(least) | Arity::AtLeast(least)) = self;
        n < usize::from(least)
    }
}

/// A set of number classes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers(u8);

#[allow(missing_docs)]
impl Numbers {
    pub const PRED: Numbers = Numbers(1);
    pub const INT: Numbers = Numbers(2);
    pub const FLOAT: Numbers = Numbers(4);
    pub const COMPLEX: Numbers = Numbers(8);
    pub const SIGNED_OR_FLOAT: Numbers = Numbers(16 | 4);
    pub const ANY: Numbers = Numbers(31);
    pub const fn or(self, other: Numbers) -> Numbers {
        Numbers(self.0 | other.0)
    }
    /// Whether the class of `dtype` is in the set.
    pub const fn has(self, dtype: DType) -> bool {
        let bit = match dtype.class() {
            NumberClass::Pred => 1,
            NumberClass::Signed => 2 | 16,
            NumberClass::Unsigned => 2,
            NumberClass::Float => 4,
            NumberClass::Complex => 8,
        };
        self.0 & bit != 0
    }
}

/// How a result's shape follows from operands and attributes.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum ShapeRule {
    /// The operand's own shape; its element type is in the set.
    Unary(Numbers),
    /// Both operands have the result's dims and element type.
    Binary(Numbers),
    Abs,
    IsFinite,
    Compare,
    Select,
    Clamp,
    Complex,
    /// `real` and `imag`.
    ComplexPart,
    /// Dims as the operand, element type as stated.
    Convert,
    BitcastConvert,
    StochasticConvert,
    Broadcast,
    Reshape,
    DynamicReshape,
    Bitcast,
    Transpose,
    Reverse,
    Slice,
    DynamicSlice,
    DynamicUpdateSlice,
    Pad,
    Concatenate,
    Iota,
    Dot,
    RaggedDot,
    ScaledDot,
    Convolution,
    Reduce,
    Map,
    ReduceWindow,
    SelectAndScatter,
    Sort,
    Scan,
    Gather,
    Scatter,
    TopK,
    Fft,
    Cholesky,
    TriangularSolve,
    BatchNormTraining,
    BatchNormInference,
    BatchNormGrad,
    GetDimensionSize,
    SetDimensionSize,
    RngBitGenerator,
    RngState,
    Rng,
    Tuple,
    GetTupleElement,
    /// The operand's shape, whatever it is (opt-barrier, domain, add-dependency's first).
    FirstOperand,
    AfterAll,
    Constant,
    /// The called computation's result.
    Call,
    While,
    Conditional,
    /// A collective, or the start of one.
    Collective(CollectiveRule),
    /// The second element of the start's tuple (all-gather-done, collective-permute-done).
    DoneOfPair,
    AsyncStart,
    AsyncUpdate,
    AsyncDone,
    CopyStart,
    CopyDone,
    Send,
    SendDone,
    Recv,
    RecvDone,
    Outfeed,
    /// `u32[]`.
    DeviceId,
    /// Nothing to infer it from, and why.
    Stated(&'static str),
}

impl ShapeRule {
    /// The operands over whose memory an op may write its result because it changes a part of them only, or sorts or
    /// solves them where they are.
    pub fn overwritten_operands(self, n_operands: usize) -> Range<usize> {
        match self {
            ShapeRule::DynamicUpdateSlice | ShapeRule::SetDimensionSize => 0..1,
            ShapeRule::Scatter => 0..n_operands.saturating_sub(1) / 2,
            ShapeRule::TriangularSolve => 1..2,
            ShapeRule::Sort => 0..n_operands,
            // A start whose result is the outcome works in place.
            ShapeRule::Collective(rule) if rule.form == CollectiveForm::Start(StartResult::Outcome) => 0..n_operands,
            _ => 0..0,
        }
    }
}

/// Ops whose result has the elements of the operand, each once, under another shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relabelling {
    /// The elements keep their order in memory.
    Bitcast,
    /// The elements keep their row-major order.
    Reshape,
    /// The dims are permuted.
    Transpose,
}

impl FactorRule {
    /// Whether each element of the result needs at most one element of the operand, which is at the same place.
    pub fn reads_where_it_writes(self, operand: usize) -> bool {
        match self {
            FactorRule::Elementwise => true,
            FactorRule::DynamicUpdateSlice | FactorRule::Scatter => operand == 0,
            _ => false,
        }
    }

    /// Whose dims the op's attributes name, if dims of its operands and its result may be merged; `None` if they may not.
    pub fn merged_dims(self) -> Option<NamedDims> {
        match self {
            // `map` lists all dims of its result, a broadcast the result dims of its operand's.
            FactorRule::Elementwise | FactorRule::Broadcast => Some(NamedDims::OfResult),
            FactorRule::Transpose | FactorRule::Reduce => Some(NamedDims::OfOperand),
            FactorRule::Reshape => Some(NamedDims::Nowhere),
            _ => None,
        }
    }

    /// Whether each element of the result is an element of an operand, at a place that depends on no value but indices. Dims
    /// that such an op takes whole may be cut.
    pub fn copies_elements(self) -> bool {
        matches!(
            self,
            FactorRule::Slice
                | FactorRule::DynamicSlice
                | FactorRule::DynamicUpdateSlice
                | FactorRule::Pad
                | FactorRule::Concatenate
                | FactorRule::Reverse
        )
    }

    /// Whether the op reads or writes no more of its first operand than a window.
    pub fn takes_window(self) -> bool {
        matches!(self, FactorRule::DynamicSlice | FactorRule::DynamicUpdateSlice)
    }

    /// How the op puts its operand's elements under another shape; `None` if it does something else.
    pub fn relabelling(self) -> Option<Relabelling> {
        match self {
            FactorRule::Bitcast => Some(Relabelling::Bitcast),
            FactorRule::Reshape => Some(Relabelling::Reshape),
            FactorRule::Transpose => Some(Relabelling::Transpose),
            _ => None,
        }
    }
}

/// Whose dims an op's attributes name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamedDims {
    /// Those of the first operand.
    OfOperand,
    /// Those of the result.
    OfResult,
    /// The attributes name no dims.
    Nowhere,
}

/// Which dims of operands and result go together; [`crate::op`]'s sharding view of an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum FactorRule {
    /// Every dim passes through; scalar operands among arrays have no dims to give.
    Elementwise,
    Broadcast,
    Reshape,
    /// As reshape, over the dims in physical order.
    Bitcast,
    BitcastConvert,
    Transpose,
    Reverse,
    Slice,
    DynamicSlice,
    DynamicUpdateSlice,
    Pad,
    Concatenate,
    Iota,
    Dot,
    Convolution,
    Reduce,
    ReduceWindow,
    SelectAndScatter,
    Sort,
    Gather,
    Scatter,
    Cholesky,
    TriangularSolve,
    Fft,
    BatchNorm,
    /// Where the target's meaning is known.
    CustomCall,
    /// The value has no dims of its own to shard, or each tuple leaf follows its producer.
    Structural(&'static str),
    /// The op needs whole operands, and why.
    Whole(&'static str),
}

/// How the evaluator computes an op.
#[derive(Clone, Copy, Debug)]
pub enum EvalRule {
    /// One scalar function on every element.
    Unary(UnaryFns),
    /// One scalar function on every pair of elements.
    Binary(BinaryFns),
    /// A routine of the evaluator.
    Routine(EvalRoutine),
    /// Not evaluated, and why.
    NotEvaluated(&'static str),
}

/// What an op costs, in flops; bytes are those of operands and results unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CostRule {
    /// No work: bookkeeping only, no bytes either.
    Free,
    /// Moves bytes, no flops.
    Moves,
    /// This many flops for each result element.
    PerElement(u32),
    /// 2 × result elements × contracted elements.
    Dot,
    /// 2 × result elements × window elements × input features per group.
    Convolution,
    /// Flops of the reducer for each operand element.
    Reduce,
    /// Flops of the combiner for each element of an update.
    Scatter,
    /// Flops of the reducer for each window element.
    Window,
    /// Operand elements × log2 of the sorted dim × flops of the comparator.
    Sort,
    /// n³ / 3 for each matrix (cholesky).
    Cholesky,
    /// n² m for each matrix (triangular-solve).
    TriangularSolve,
    /// 5 n log2 n.
    Fft,
    /// What the called computations cost, as often as they run.
    Called(Runs),
    /// Bytes over the links between devices; see the cluster model.
    Communication,
    /// Not known, and why.
    Unknown(&'static str),
}

/// How often an op runs the computations that it calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Runs {
    /// Each once.
    Once,
    /// Once, and what goes between its instructions stays in the kernel.
    Fused,
    /// As often as the loop goes round, where that is known.
    Loop,
    /// One of them, and the dearest is counted.
    Choice,
    /// For each element of the result.
    Elements,
    /// For each index of the dim that the op runs along.
    Steps,
}

/// What an op does besides computing a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effects {
    /// Nothing: same operands, same result.
    Pure,
    /// Draws random numbers from hidden state.
    Random,
    /// Waits for other devices.
    Communicates,
    /// Seen from outside: infeed, outfeed, host transfer.
    SideEffect,
    /// What its called computations do.
    OfCallees,
    /// An attribute decides (custom-call).
    ByAttribute,
}

/// How tuple leaves of operands reach the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Flow {
    /// Every result leaf depends on every operand leaf.
    All,
    Parameter,
    Constant,
    Tuple,
    GetTupleElement,
    /// Result leaf `i` is leaf `i` of the first operand.
    Identity,
    /// Operands are the callee's parameters, its root is the result.
    Call,
    While,
    Conditional,
    ReplicaId,
    PartitionId,
    /// A collective that waits for its outcome.
    Collective(CollectiveRule),
    /// Result of an async pair's first half: a tuple of operands, results and context.
    AsyncStart(Begun),
    AsyncUpdate,
    /// Result of an async pair's second half.
    AsyncDone,
}

/// What the first half of an async pair begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// A run of the called computation.
    Call,
    /// A copy of the operand.
    Copy,
    /// A collective.
    Collective(CollectiveRule),
}

/// How an instruction runs the computations that it calls, with its operands as their arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CalleeEntry {
    /// Once: the operands are the parameters, the root is the result.
    Call,
    /// As a loop: its operand, its result, and the parameter of condition and body are one value that goes round.
    Loop,
    /// One of several, chosen by the first operand: the others are the branches' parameters, one each.
    Branches,
}

impl CalleeEntry {
    /// Place of a loop's body among the computations that the loop calls; the condition comes first.
    pub const BODY: usize = 1;

    /// The operand that is parameter `param` of callee `callee_idx` (in the order of `Module::called`).
    pub fn operand(self, callee_idx: usize, param: usize) -> usize {
        match self {
            CalleeEntry::Call => param,
            CalleeEntry::Loop => 0,
            CalleeEntry::Branches => callee_idx + 1,
        }
    }

    /// Whether the root of callee `callee_idx` becomes the result. The root of a loop's condition does not.
    pub fn returns(self, callee_idx: usize) -> bool {
        match self {
            CalleeEntry::Call | CalleeEntry::Branches => true,
            CalleeEntry::Loop => callee_idx == CalleeEntry::BODY,
        }
    }
}

/// Where the leaves of an instruction's result come from, as far as its op tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeafRule {
    /// The instruction computes them.
    Computed,
    /// They are an argument of the computation.
    Argument,
    /// They are the leaves of all operands in a row.
    Operands,
    /// They are the leaves of one element of the operand.
    Element,
    /// They are the leaves of the first operand.
    FirstOperand,
    /// They are the leaves of what the called computations return.
    Callees(CalleeEntry),
    /// The instruction begins an asynchronous op: a tuple of the operands, the results and a context.
    AsyncStart,
    /// The instruction stands between the halves of an asynchronous op: the leaves of the first operand.
    AsyncUpdate,
    /// The instruction ends an asynchronous op: the results of the first half.
    AsyncDone,
}

impl Flow {
    /// Where the leaves of the result come from.
    pub fn leaf_rule(self) -> LeafRule {
        match self {
            Flow::All | Flow::Constant | Flow::ReplicaId | Flow::PartitionId | Flow::Collective(_) => {
                LeafRule::Computed
            }
            Flow::Parameter => LeafRule::Argument,
            Flow::Tuple => LeafRule::Operands,
            Flow::GetTupleElement => LeafRule::Element,
            Flow::Identity => LeafRule::FirstOperand,
            Flow::Call => LeafRule::Callees(CalleeEntry::Call),
            Flow::While => LeafRule::Callees(CalleeEntry::Loop),
            Flow::Conditional => LeafRule::Callees(CalleeEntry::Branches),
            Flow::AsyncStart(_) => LeafRule::AsyncStart,
            Flow::AsyncUpdate => LeafRule::AsyncUpdate,
            Flow::AsyncDone => LeafRule::AsyncDone,
        }
    }

    /// How the instruction enters what it calls; `None` where operands do not become parameters as they are (reducers,
    /// comparators, async pairs) or nothing is called.
    pub fn entry(self) -> Option<CalleeEntry> {
        match self.leaf_rule() {
            LeafRule::Callees(entry) => Some(entry),
            LeafRule::Computed
            | LeafRule::Argument
            | LeafRule::Operands
            | LeafRule::Element
            | LeafRule::FirstOperand
            | LeafRule::AsyncStart
            | LeafRule::AsyncUpdate
            | LeafRule::AsyncDone => None,
        }
    }
}
