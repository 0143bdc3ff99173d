//! A static proof that a transformed module computes what its source computes.
mod array;
mod closed_form;
mod collective;
mod control;
mod devices;
mod elementwise;
mod explain;
mod guess;
mod ids;
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
mod words;

pub use proof::{Error, Options, Output, Proof, Verdict, prove, prove_chain};
pub use rules::{RULES, Rule, RuleText, Rules};
