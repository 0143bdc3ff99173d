//! The optimal parallel plan of a global training step: which axis of a mesh cuts which dim of each value, with a lower bound that says
//! how far from the best it can be.

mod operators;
mod solver;
mod stages;

pub use operators::{
    AxisOperator, AxisState, IDENTITIES, Identity, LocalOp, Move, Movement, OperandState, Operator, OperatorError,
    PASSINGS, Passes, Passing, Side, Space, TensorState, movements,
};
pub use stages::{Stage, StageCut, StageError, StageLayer, StageLimits, cut_stages};
