//! Algebraic rules of tensor programs (Unger et al. 2022, §4): enumerated, proved for all sizes, closed under differentiation, and applied to
//! regions of HLO in an e-graph.

pub mod bridge;
pub mod collection;
mod derive;
mod enumerate;
mod evaluate;
mod form;
mod gradient;
mod index;
mod loose;
mod mutant;
mod numbers;
mod op;
mod parallel;
pub mod region;
mod rule;
mod set;
mod shape;
mod signature;
mod size;
mod term;
pub mod text;
mod verify;
pub use enumerate::{Counts, MOST_OPS, enumerate, signatures};
pub use gradient::{NoGradient, gradient_rule};
pub use mutant::{Mutant, MutantCounts, MutantKind, check_mutants, mutants};
pub use numbers::PRIMES;
pub use op::{Conv, DimList, Dims, DotDims, Op, TypeError, Unary, Window};
pub use parallel::{ParallelFamily, parallel_families};
pub use rule::{Label, Rule};
pub use set::{Backward, Entry, Options, Origin, RuleSet, generate};
pub use signature::Signature;
pub use size::{Size, Sym};
pub use term::{Args, Node, TermId, Terms};
pub use verify::{Accepted, Counterexample, N_SEEDS, Rejected, Verdict, check, prove};

#[cfg(test)]
mod tests;

/// The example of the README is run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
