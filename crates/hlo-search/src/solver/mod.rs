//! Minimizes a sum of costs of single variables and of pairs of variables, under linear constraints, with a lower bound.

mod blocks;
mod descent;
mod eliminate;
mod facts;
mod limits;
mod model;
mod problem;
mod repair;
mod repeats;
mod runner_up;
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
pub(crate) use repeats::find_repeats;
pub(crate) use runner_up::RunnerUps;
pub(crate) use solve::{LeastDemand, Progress, SolveRequest, Solved, solve};
