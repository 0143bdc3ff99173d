//! One test binary for everything that needs more than one crate.

mod cli;
mod equivalence;
mod passes;
mod readme;
mod roundtrip;
mod weight_update;
