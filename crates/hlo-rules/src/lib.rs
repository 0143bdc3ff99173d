//! Algebraic rules of tensor programs.
mod enumerate;
mod evaluate;
mod form;
mod index;
mod numbers;
mod rule;
mod shape;
mod size;
mod term;
pub mod text;
mod verify;
pub use enumerate::{Counts, Signature, enumerate, signatures};
pub use rule::{Label, Rule};
pub use size::{Size, Sym};
pub use term::{Terms, TermId, Op};
pub use verify::*;

#[cfg(test)]
mod tests;
