//! A static proof that a transformed module computes what its source computes.
mod array;
mod closed_form;
mod collective;
mod control;
mod devices;
mod elementwise;
mod explain;
mod global;
mod guess;
mod ids;
mod indexed;
mod members;
mod movement;
mod proof;
mod prover;
mod reduction;
mod rules;
mod segment;
mod store;
mod sum;
mod term;
mod unit;
mod walk;
mod window;
mod words;

pub use proof::{Error, Options, Output, Proof, Verdict, prove, prove_chain};
pub use rules::{RULES, Rule, RuleText, Rules};
