//! Between instructions of a computation and terms.

mod read;
mod write;

pub use read::{Region, find_regions, read_region};
pub use write::{add_alternative, write_alternative};

use std::fmt;

/// Why instructions are no region, or an alternative is not written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BridgeError {
    /// An instruction that no term stands for.
    Unsupported {
        /// Its name.
        inst: String,
        /// What stands in the way.
        why: &'static str,
    },
    /// Nothing outside of the region takes a value of it.
    NoResult,
    /// An alternative needs a value that is computed from what it gives.
    Circle {
        /// An instruction on the circle.
        inst: String,
    },
    /// A term that no instruction stands for.
    Term(&'static str),
}

impl fmt::Display for BridgeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BridgeError::Unsupported { inst, why } => write!(f, "%{inst}: expected an op that rules have, found {why}"),
            BridgeError::NoResult => f.write_str("region: expected a value that is taken outside, found none"),
            BridgeError::Circle { inst } => write!(f, "%{inst}: expected operands before users, found a circle"),
            BridgeError::Term(what) => write!(f, "alternative: expected terms that HLO has, found {what}"),
        }
    }
}

impl std::error::Error for BridgeError {}
