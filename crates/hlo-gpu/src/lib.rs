//! From HLO to kernel launches and collective calls.
//!
//! The way of a per-device module: the passes `propagate-layouts` and `fuse` make HLO of it whose every instruction is one
//! launch, product, collective or loop, and which XLA and the evaluator still read; `lower` walks it and writes a [`plan`]
//! over buffers in one arena, with the CUDA C++ of each kernel. A plan can be printed, verified, and [`run`]: on graphics
//! processors ([`cuda`]), or on the [`host`] by the same plan and the same source, compiled by the system's C++ compiler; by
//! one process or by several ([`ranks`]).

pub mod buffers;
pub mod cuda;
pub mod error;
pub mod fuse;
pub mod host;
pub mod kernel;
pub mod lower;
mod memory_order;
pub mod plan;
pub mod propagate_layouts;
pub mod ranks;
pub mod run;

pub use error::GpuError;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[&fuse::INFO, &propagate_layouts::INFO];
