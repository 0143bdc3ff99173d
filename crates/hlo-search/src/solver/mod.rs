//! Minimizes a sum of costs of single variables and of pairs of variables, under linear constraints, with a lower bound.

mod problem;

pub(crate) use problem::{Assignment, Constraint, Cost, INFINITE, Pair, PairTable, Problem, VarId};
