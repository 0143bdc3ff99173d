//! The optimal parallel plan of a global training step: which axis of a mesh cuts which dim of each value, with a lower bound that says
//! how far from the best it can be.

mod baselines;
mod emit;
mod error;
mod linear;
mod memory;
mod mesh;
mod network;
mod plan;
mod plans;
mod prices;
mod program;
mod report;
mod roles;
mod search;
mod search_parallelization;
mod solver;
mod state;
mod work;

pub use error::SearchError;
pub use report::{BaselineReport, MeshReport, ParamReport, PlanReport};
pub use search_parallelization::{SearchOptions, Searched, plan_parallel};

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[&search_parallelization::INFO];
