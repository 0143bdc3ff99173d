//! Minimizes a sum of costs of single variables and of pairs of variables, under linear constraints, with a lower bound.

mod descent;
mod eliminate;
mod facts;
mod limits;
mod model;
mod parts;
mod problem;
mod repair;
mod search;
mod simplify;
mod solve;
mod sweep;
mod tables;
#[cfg(test)]
mod tests;
mod tied;
mod within;

pub(crate) use problem::{Assignment, Constraint, Cost, INFINITE, Pair, PairTable, Problem, VarId};
pub(crate) use solve::{Progress, SolveRequest, Solved, solve};
