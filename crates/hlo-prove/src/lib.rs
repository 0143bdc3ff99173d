//! A static proof that a transformed module computes what its source computes.
mod array;
mod collective;
mod control;
mod devices;
mod elementwise;
mod explain;
mod movement;
mod proof;
mod prover;
mod reduction;
mod rules;
mod segment;
mod sum;
mod term;
mod unit;
mod walk;
mod words;

pub use proof::{Error, Options, Output, Proof, Verdict, prove};
pub use rules::{RULES, Rule, RuleText, Rules};
