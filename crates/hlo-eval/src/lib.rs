//! Reference evaluator of HLO: runs a module on one device, on all its devices in lockstep, or as a global program.

pub mod draw;
mod engine;
mod error;
pub mod global;
mod kernels;
pub mod npz;
mod run;
mod value;

pub use engine::{DEFAULT_MAX_STEPS, EvalOptions};
pub use error::EvalError;
pub use run::{EntryLeaf, Inputs, Outputs, entry_leaves, result_leaves, run, run_observed};
pub use value::Value;
