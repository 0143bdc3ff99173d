//! What goes together: values, dim by dim, as an instruction ties them.

use super::values::CutId;
use crate::sharding::AtomList;
use cranelift_entity::entity_impl;
use hlo_ir::InstId;
use smallvec::SmallVec;
use std::sync::Arc;

/// A tie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TieId(u32);
entity_impl!(TieId, "tie");

/// Which ops take part early and in which direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TieKind {
    /// Every dim of the operands is that of the result.
    Elementwise,
    /// The same elements under other dims: reshape, transpose.
    Relabelling,
    /// No op: what a value becomes in a loop, a branch or a region.
    Edge,
    /// No op: what a result of the entry becomes at the end. Results speak before ops do.
    Exit,
    /// dynamic-slice and dynamic-update-slice.
    Window,
    /// broadcast.
    Broadcast,
    /// Any other op.
    Other,
    /// A barrier of the user's that lets shardings pass one way or not at all.
    Barrier(Direction),
}

/// From where shardings come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    Nowhere,
    /// From operands.
    Forward,
    /// From results.
    Backward,
    Both,
}

impl Direction {
    /// What either lets pass.
    pub(crate) fn or(self, other: Direction) -> Direction {
        match (self, other) {
            (Direction::Nowhere, any) | (any, Direction::Nowhere) => any,
            (Direction::Forward, Direction::Forward) => Direction::Forward,
            (Direction::Backward, Direction::Backward) => Direction::Backward,
            (Direction::Both, _) | (_, Direction::Both) => Direction::Both,
            (Direction::Forward, Direction::Backward) | (Direction::Backward, Direction::Forward) => Direction::Both,
        }
    }

    /// What both let pass.
    pub(crate) fn and(self, other: Direction) -> Direction {
        match (self, other) {
            (Direction::Both, any) | (any, Direction::Both) => any,
            (Direction::Forward, Direction::Forward) => Direction::Forward,
            (Direction::Backward, Direction::Backward) => Direction::Backward,
            (Direction::Nowhere, _)
            | (_, Direction::Nowhere)
            | (Direction::Forward, Direction::Backward)
            | (Direction::Backward, Direction::Forward) => Direction::Nowhere,
        }
    }

    /// Whether shardings come from operands, or from results.
    pub(crate) fn comes_from(self, is_operand: bool) -> bool {
        match self {
            Direction::Nowhere => false,
            Direction::Forward => is_operand,
            Direction::Backward => !is_operand,
            Direction::Both => true,
        }
    }
}

/// What cutting a factor does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum FactorEffect {
    /// Tiles correspond.
    Pass,
    /// Each device has a partial result.
    Reduce,
    /// Tiles need some rows of their neighbours.
    Halo,
    /// Rows go to other tiles.
    Move,
    /// It has to be whole to compute.
    Whole,
}

/// One factor of a tie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TieFactor {
    pub size: i64,
    pub effect: FactorEffect,
}

/// The factors of a tie and the dims that they are in.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct TieRule {
    pub factors: Vec<TieFactor>,
    /// For each tensor and each of its dims the factors, major to minor.
    pub tensors: Vec<Vec<SmallVec<[u16; 2]>>>,
}

/// A value in a tie.
#[derive(Clone, Debug)]
pub(crate) struct TieTensor {
    pub value: CutId,
    /// At the border of a manual region: the manual atoms that cut each dim of the whole, before those that cut the local value.
    pub prefix: Option<Arc<[AtomList]>>,
}

/// Values whose dims go together.
#[derive(Clone, Debug)]
pub(crate) struct Tie {
    /// The instruction that ties them.
    pub inst: InstId,
    pub kind: TieKind,
    pub n_operands: u32,
    /// Operands, then results.
    pub tensors: SmallVec<[TieTensor; 3]>,
    /// `None`: all tensors have the same dims, each a factor.
    pub rule: Option<Arc<TieRule>>,
    /// Whether no operand that has dims is used elsewhere.
    pub is_sole_use: bool,
}

impl Tie {
    /// Whether a tensor is an operand.
    pub(crate) fn is_operand(&self, tensor: usize) -> bool {
        tensor < self.n_operands as usize
    }
}
