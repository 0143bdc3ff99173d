//! Algebraic rules of tensor programs.
pub mod bridge;
mod derive;
mod enumerate;
mod evaluate;
mod form;
mod gradient;
mod index;
mod loose;
mod numbers;
pub mod region;
mod rule;
mod set;
mod shape;
mod size;
mod term;
pub mod text;
mod verify;
pub use enumerate::{Counts, Signature, enumerate, signatures};
pub use gradient::{NoGradient, gradient_rule};
pub use set::{Backward, Entry, Options, Origin, RuleSet, generate};
pub use rule::{Label, Rule};
pub use size::{Size, Sym};
pub use term::{Terms, TermId, Op};
pub use verify::*;

#[cfg(test)]
mod tests;
