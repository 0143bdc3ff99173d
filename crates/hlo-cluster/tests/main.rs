//! The crate from outside: descriptions, predicted times against slow obvious twins.

mod descriptions;
mod random;
mod reduction_graph;
mod simulator;
