//! The leaves of values: which leaf of which instruction comes from where.
//!
//! HLO's values are arrays and tuples of values. A *leaf* is a part that is no tuple; leaves are numbered in order
//! ("flat"). Many instructions compute nothing and only hand leaves on: tuples, elements of tuples, barriers. Calls, loops and
//! conditionals bind operands to parameters and roots to results. This module is the one place that reads these rules off the op
//! table. Everybody else asks:
//!
//! - [`source_of_leaf`] and [`handed_on`]: where leaves come from, by one instruction; [`follow`] repeats that;
//! - [`CallSites`], [`entered`], [`argument`], [`params_of_operands`]: who calls a computation, and what it gives for the parameters;
//! - [`Values`]: the whole graph, with one value for what a loop carries.

mod calls;
mod enterable;
mod graph;
mod source;

pub use calls::{
    CallSite, CallSites, argument, argument_idx, arguments, condition_and_body, entered, params_of_operands,
};
pub use enterable::SharedCallees;
pub use graph::{LeafValue, Origin, Use, User, ValueId, Values};
pub use source::{
    InstLeaf, LeafRun, LeafSource, Through, follow, handed_on, hands_on, source_of_leaf, tuple_elements, tuple_index,
};
