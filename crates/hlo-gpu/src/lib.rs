#![forbid(unsafe_code)]
//! From HLO to kernel launches and collective calls.
//!
//! The way of a per-device module: the passes `propagate-layouts` and `fuse` make HLO of it whose every instruction is one
//! launch, product, collective or loop, and which XLA and the evaluator still read; `lower` walks it and writes a [`plan`]
//! over buffers in one arena, with the CUDA C++ of each kernel. A plan can be printed and verified; the crate `hlo-run` runs it.

mod buffers;
mod convolution_price;
mod convolution_to_dot;
mod error;
mod expand_operations;
mod fuse;
pub mod kernel;
pub mod lower;
mod pad_products;
pub mod plan;
mod propagate_layouts;
mod split_convolutions;

pub use error::GpuError;

use hlo_pass::PassInfo;

/// The passes of this crate.
pub const PASSES: &[&PassInfo] = &[
    &convolution_to_dot::INFO,
    &expand_operations::INFO,
    &fuse::INFO,
    &pad_products::INFO,
    &propagate_layouts::INFO,
    &split_convolutions::INFO,
];
