//! Minimizes a sum of costs of single variables and of pairs of variables, under linear constraints, with a lower bound.

mod descent;
mod eliminate;
mod model;
mod problem;
mod search;
mod simplify;
mod solve;
mod sweep;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use problem::{Assignment, Constraint, Cost, INFINITE, Pair, PairTable, Problem, VarId};
pub(crate) use solve::{Progress, SolveRequest, Solved, solve};
