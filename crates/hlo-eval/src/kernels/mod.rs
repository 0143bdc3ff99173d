//! Pure functions from literals to a literal, one file per family of operations.

pub mod batch_norm;
pub mod choice;
pub mod conv;
pub mod dot;
pub mod elementwise;
pub mod fft;
pub mod index;
pub mod indexing;
pub mod linalg;
pub mod number;
pub mod ragged;
pub mod reduce;
pub mod reducer;
pub mod rounding;
pub mod shape_ops;
pub mod shortened;
pub mod sorting;
pub mod strided;
pub(crate) mod typed;
pub mod windows;
