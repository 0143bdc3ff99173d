//! Pure functions from literals to a literal, one file per family of operations.

pub(crate) mod batch_norm;
pub(crate) mod choice;
pub(crate) mod conv;
pub(crate) mod dot;
pub(crate) mod elementwise;
pub(crate) mod fft;
pub(crate) mod index;
pub(crate) mod indexing;
pub(crate) mod linalg;
pub(crate) mod number;
pub(crate) mod ragged;
pub(crate) mod reduce;
pub(crate) mod reducer;
pub(crate) mod rounding;
pub(crate) mod shape_ops;
pub(crate) mod shortened;
pub(crate) mod sorting;
pub(crate) mod strided;
pub(crate) mod tiles;
pub(crate) mod typed;
pub(crate) mod windows;
