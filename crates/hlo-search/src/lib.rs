//! The optimal parallel plan of a global training step: which axis of a mesh cuts which dim of each value, with a lower bound that says
//! how far from the best it can be.

mod ablation;
mod baselines;
#[cfg(test)]
mod checks;
mod choices;
mod claims;
mod draw;
mod dump;
mod emit;
mod error;
mod found;
mod ids;
mod independent;
mod linear;
mod memory;
mod mesh;
mod network;
mod operators;
mod picture;
mod pins;
mod pipeline;
mod plan;
mod plan_parallel;
mod plans;
mod prices;
mod program;
mod regions;
mod report;
mod rewritable;
mod roles;
mod search;
mod search_options;
mod search_parallelization;
mod search_within;
mod solver;
mod stack_branches;
mod stages;
mod state;
mod tiles;
mod ways_search;
mod why;
mod work;

pub use ablation::Part;
pub use claims::ExchangeReport;
pub use error::SearchError;
pub use network::Evenness;
pub use operators::{
    AxisOperator, AxisState, IDENTITIES, Identity, LocalOp, Move, Movement, OperandState, Operator, OperatorError,
    PASSINGS, Passes, Passing, Side, Space, TensorState, movements,
};
pub use pipeline::PipelineReport;
pub use plan_parallel::{Asked, ParallelPlan, Searched, StatePrograms, USED_SHARE, plan_parallel};
pub use regions::{Regions, RewrittenRegion};
pub use report::{
    AlgebraReport, BaselineReport, CostReport, MeshReport, NO_BASELINE, ParamReport, PlanReport, RegionReport,
    RewriteReport, Rewritten,
};
pub use search_options::{Algebra, MOST_DEVICES, SearchOptions, read_meshes, read_parts};
pub use stack_branches::{
    StackedBranches, StackedParam, StackedSet, StateForm, pack_program, stack_branches, unpack_program,
};
pub use stages::{Stage, StageCut, StageError, StageLayer, StageLimits, cut_stages};
pub use why::{OtherReport, WhyReport};

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[&search_parallelization::INFO, &stack_branches::INFO];
