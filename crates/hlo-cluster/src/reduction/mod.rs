//! Placement of parallelism and synthesis of reductions: P² (Xie et al., *Synthesizing Optimal Parallelism Placement and
//! Reduction Strategies on Hierarchical Systems for Deep Learning*, MLSys 2022).
//!
//! A [`Matrix`] lays axes of parallelism over the levels of a machine. A reduction over some axes then has a hierarchy of
//! its own; its programs are sequences of [`Step`]s that turn what each device has at first into the sum everywhere. All of
//! them are the ways through one [`Graph`] for each depth; [`StepCosts`] prices its edges on a machine, and the best
//! program is a shortest path.
//!
//! The conventions that the paper leaves open are those that reproduce its tables: which groups `Master` makes, when
//! a broadcast is allowed ([`Rules`]), how positions of several axes are numbered ([`Lowering`]).

pub mod chunk_order;
mod class_loads;
pub mod cost;
mod device_groups;
mod fast_hash;
pub mod graph;
pub mod instruction;
pub mod matrix;
pub mod paths;
mod placed;
mod plain_loads;
pub mod plan;
pub mod scatter;
pub mod semantics;
mod symmetric;

pub use cost::StepCosts;
pub use graph::{Graph, Vocabulary};
pub use instruction::{Form, Instruction, Step};
pub use matrix::{Lowering, Matrix};
pub use paths::{Priced, Program};
pub use placed::Reduction;
pub use plan::{MatrixPlan, PlannedStep, Planner, Request};
pub use scatter::{Scatter, ScatterProgram};
pub use semantics::Rules;
