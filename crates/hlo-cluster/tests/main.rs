//! The crate from outside: descriptions, predicted times against slow obvious twins.

mod chunk_order;
mod descriptions;
mod hierarchies;
mod paper_tables;
mod random;
mod reduction_cost;
mod reduction_graph;
mod scatter;
mod simulator;
