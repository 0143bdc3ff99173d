//! Runs a plan without a graphics processor: the same steps and the same kernels, compiled by the system's C++ compiler.
//!
//! All devices go through the plan in lockstep, step by step; streams and their events are not modelled. Kernels are what
//! is emitted for the device, unchanged; products and collectives are written here.

mod arrays;
mod collective;
mod compile;
mod gemm;
mod library;
mod memory;
mod run;

pub use library::Library;
pub use memory::Block;
pub use run::{Program, run};
