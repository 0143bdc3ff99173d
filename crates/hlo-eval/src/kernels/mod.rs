//! Pure functions from literals to a literal, one file per family of operations.

pub mod conv;
pub mod index;
pub mod indexing;
pub mod number;
pub mod reducer;
pub mod sorting;
pub mod windows;
