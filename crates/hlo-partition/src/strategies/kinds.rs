//! What kind of operator instructions are, as far as rules of cost tell them apart.

use crate::propagate_shardings::ties::{Tie, TieKind};
use hlo_ir::attrs::{ConvAttrs, DotAttrs};
use hlo_ir::op::FactorRule;
use hlo_ir::{InstId, Module, Opcode};

/// The kinds of operators that MindSpore has rules for, and the rest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperatorKind {
    MatMul,
    BatchMatMul,
    Conv2d,
    Conv2dTranspose,
    Elementwise,
    PRelu,
    Pooling,
    BatchNorm,
    Softmax,
    SoftmaxCrossEntropy,
    /// HLO's scatter.
    UnsortedSegment,
    /// Gather, embedding.
    Gather,
    Reshape,
    Concat,
    Broadcast,
    /// No rule: propagation reaches it.
    Other,
}

impl OperatorKind {
    /// Its name in reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            OperatorKind::MatMul => "MatMul",
            OperatorKind::BatchMatMul => "BatchMatMul",
            OperatorKind::Conv2d => "Conv2D",
            OperatorKind::Conv2dTranspose => "Conv2DTranspose",
            OperatorKind::Elementwise => "elementwise",
            OperatorKind::PRelu => "PReLU",
            OperatorKind::Pooling => "pooling",
            OperatorKind::BatchNorm => "BatchNorm",
            OperatorKind::Softmax => "Softmax",
            OperatorKind::SoftmaxCrossEntropy => "SoftmaxCrossEntropy",
            OperatorKind::UnsortedSegment => "UnsortedSegment",
            OperatorKind::Gather => "Gather",
            OperatorKind::Reshape => "reshape",
            OperatorKind::Concat => "concat",
            OperatorKind::Broadcast => "broadcast",
            OperatorKind::Other => "no rule of cost",
        }
    }
}

impl OperatorKind {
    /// Whether there are many of them, of which none decides anything.
    pub(super) const fn is_light(self) -> bool {
        match self {
            OperatorKind::Elementwise | OperatorKind::Reshape | OperatorKind::Broadcast | OperatorKind::Other => true,
            OperatorKind::MatMul
            | OperatorKind::BatchMatMul
            | OperatorKind::Conv2d
            | OperatorKind::Conv2dTranspose
            | OperatorKind::PRelu
            | OperatorKind::Pooling
            | OperatorKind::BatchNorm
            | OperatorKind::Softmax
            | OperatorKind::SoftmaxCrossEntropy
            | OperatorKind::UnsortedSegment
            | OperatorKind::Gather
            | OperatorKind::Concat => false,
        }
    }
}

/// The kind of an operator of one instruction.
pub(super) fn kind_of_one(module: &Module, tie: &Tie) -> OperatorKind {
    match tie.kind {
        TieKind::Edge | TieKind::Exit | TieKind::CountedRows | TieKind::Barrier(_) => OperatorKind::Other,
        TieKind::Elementwise
        | TieKind::Relabelling
        | TieKind::Window
        | TieKind::Broadcast
        | TieKind::Transform
        | TieKind::Other => kind_of_inst(module, tie.inst),
    }
}

fn kind_of_inst(module: &Module, inst: InstId) -> OperatorKind {
    let instruction = module.inst(inst);
    match instruction.opcode.row().factors {
        FactorRule::Dot => match DotAttrs::of(&instruction.attrs).is_some_and(|dot| !dot.lhs_batch_dims.is_empty()) {
            true => OperatorKind::BatchMatMul,
            false => OperatorKind::MatMul,
        },
        FactorRule::Convolution => {
            let is_dilated = |conv: &ConvAttrs| conv.window.dims.iter().any(|dim| dim.base_dilation > 1);
            match ConvAttrs::of(&instruction.attrs).is_some_and(is_dilated) {
                true => OperatorKind::Conv2dTranspose,
                false => OperatorKind::Conv2d,
            }
        }
        FactorRule::Elementwise => OperatorKind::Elementwise,
        FactorRule::ReduceWindow | FactorRule::SelectAndScatter => OperatorKind::Pooling,
        FactorRule::BatchNorm => OperatorKind::BatchNorm,
        FactorRule::Scatter => OperatorKind::UnsortedSegment,
        FactorRule::Gather => OperatorKind::Gather,
        FactorRule::Reshape | FactorRule::Bitcast | FactorRule::Transpose | FactorRule::BitcastConvert => {
            OperatorKind::Reshape
        }
        FactorRule::Concatenate => OperatorKind::Concat,
        FactorRule::Broadcast => OperatorKind::Broadcast,
        FactorRule::Reverse
        | FactorRule::Slice
        | FactorRule::DynamicSlice
        | FactorRule::DynamicUpdateSlice
        | FactorRule::Pad
        | FactorRule::Iota
        | FactorRule::Reduce
        | FactorRule::Sort
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::CustomCall
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => OperatorKind::Other,
    }
}

/// The kind of an operator of several instructions: that of its product, convolution, scatter or gather; else what a softmax, a
/// normalization or a rectifier is made of.
pub(super) fn kind_of_group(module: &Module, insts: &mut dyn Iterator<Item = InstId>) -> OperatorKind {
    let insts: Vec<InstId> = insts.collect();
    let kinds: Vec<OperatorKind> = insts.iter().map(|&inst| kind_of_inst(module, inst)).collect();
    let heavy = [
        OperatorKind::Conv2d,
        OperatorKind::Conv2dTranspose,
        OperatorKind::BatchMatMul,
        OperatorKind::MatMul,
        OperatorKind::BatchNorm,
        OperatorKind::Pooling,
        OperatorKind::UnsortedSegment,
        OperatorKind::Gather,
    ];
    if let Some(&kind) = heavy.iter().find(|kind| kinds.contains(kind)) {
        return kind;
    }
    let has = |opcode: Opcode| insts.iter().any(|&inst| module.inst(inst).opcode == opcode);
    let reduces = has(Opcode::Reduce);
    if reduces && has(Opcode::Exponential) {
        return if has(Opcode::Log) { OperatorKind::SoftmaxCrossEntropy } else { OperatorKind::Softmax };
    }
    if reduces && has(Opcode::Rsqrt) {
        return OperatorKind::BatchNorm;
    }
    if !reduces && has(Opcode::Select) && has(Opcode::Compare) && has(Opcode::Multiply) {
        return OperatorKind::PRelu;
    }
    let is_light = |kind: &OperatorKind| matches!(kind, OperatorKind::Elementwise | OperatorKind::Broadcast);
    if kinds.iter().all(is_light) && kinds.contains(&OperatorKind::Elementwise) {
        return OperatorKind::Elementwise;
    }
    OperatorKind::Other
}
