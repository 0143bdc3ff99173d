//! The search beside slow obvious twins.

mod ablation;
mod branches;
mod prices;
mod programs;
#[path = "../../tests/random/mod.rs"]
mod random;
mod regions;
