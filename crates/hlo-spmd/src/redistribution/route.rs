//! What instructions are built from: the steps of a plan with all that they need.

use super::StepKind;
use super::pieces::PiecePlan;
use super::space::{Places, Space};
use hlo_ir::axes::AxisSharding;
use hlo_ir::monoid::Monoid;
use hlo_ir::{ArrayShape, Dims};

/// What is built for a step.
#[derive(Clone, Debug)]
pub(super) enum LoweredStep {
    /// The tile is padded at its end to these dims.
    Pad(Dims),
    /// A step between two states of one space.
    Leg { space: Space, kind: StepKind, from: Places, to: Places },
    /// Tiles go to other devices as they are.
    Reorder(Vec<(u32, u32)>),
    /// Blocks are sent and written.
    Pieces(PiecePlan),
    /// The tile, of the first dims, is cut at its end to the second.
    Trim(Dims, Dims),
}

/// Everything that the instructions follow from.
#[derive(Clone, Debug)]
pub(super) struct RedistributionRoute {
    pub shape: ArrayShape,
    pub n_devices: usize,
    pub monoid: Monoid,
    /// Source and target.
    pub ends: [AxisSharding; 2],
    pub source_tile: Dims,
    pub target_tile: Dims,
    pub steps: Vec<LoweredStep>,
}
