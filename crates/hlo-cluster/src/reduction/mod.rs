//! Placement of parallelism and synthesis of reductions: P² (Xie et al., *Synthesizing Optimal Parallelism Placement and
//! Reduction Strategies on Hierarchical Systems for Deep Learning*, MLSys 2022).
//!
//! A [`ParallelismMatrix`] lays axes of parallelism over the levels of a machine. A reduction over some axes then has a
//! hierarchy of its own. Its programs are sequences of [`ReductionStep`]s. They turn what each device has at first into
//! the sum on every device. All programs of one depth are the ways through one [`Graph`]. [`StepCosts`] prices the
//! edges of the graph on a machine, and the best program is a shortest path.
//!
//! The paper leaves some conventions open: which groups `Master` makes, when a broadcast is allowed ([`Rules`]), and how
//! positions of several axes are numbered ([`Lowering`]). We chose the conventions that reproduce the paper's tables.

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
pub use instruction::{InstructionForm, ReductionInstruction, ReductionStep};
pub use matrix::{Lowering, ParallelismMatrix};
pub use paths::{Priced, ReductionProgram};
pub use placed::PlacedReduction;
pub use plan::{MatrixPlan, PlannedStep, Planner, Request};
pub use scatter::{Scatter, ScatterProgram};
pub use semantics::Rules;
