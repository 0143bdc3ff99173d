//! MindSpore's way to say and to find how operators are cut: strategies, their propagation, and searches for them.

mod apply_strategies;
mod configure;
mod double_recursive;
mod dynamic_programming;
mod elimination;
mod file;
mod kinds;
mod layouts;
mod operators;
mod prepared;
mod propagate_strategies;
mod redistributions;
mod search_strategies;
mod spread;
mod write;

pub(crate) use apply_strategies::INFO as APPLY;
pub(crate) use propagate_strategies::INFO as PROPAGATE;
pub(crate) use search_strategies::INFO as SEARCH;
