//! Reference evaluator of HLO: runs a module on one device, or on all its devices in lockstep.

pub mod error;
pub mod kernels;

pub use error::EvalError;
