//! Why a part of a per-device program cannot be built: defects of the pass that asks for it.

use hlo_ir::{InstId, Module};
use std::fmt;

/// Why a part of a per-device program cannot be built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SpmdError {
    /// An instruction does not compute an array.
    NotAnArray {
        /// Its name.
        name: String,
    },
    /// An all-reduce has no operand.
    NoOperand,
    /// Something else stands where an all-reduce should.
    NotAnAllReduce,
    /// A group has a member that is no device of the module.
    UnknownDevice,
    /// The positions of the devices make no table.
    PositionTable,
}

impl SpmdError {
    /// `inst` is not an array.
    pub fn not_an_array(module: &Module, inst: InstId) -> SpmdError {
        SpmdError::NotAnArray { name: module.inst_name(inst).into() }
    }
}

impl fmt::Display for SpmdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpmdError::NotAnArray { name } => write!(f, "`%{name}` is not an array"),
            SpmdError::NoOperand => f.write_str("an all-reduce without operand"),
            SpmdError::NotAnAllReduce => f.write_str("expected the attributes of an all-reduce"),
            SpmdError::UnknownDevice => f.write_str("a group member is no device"),
            SpmdError::PositionTable => f.write_str("a table of positions"),
        }
    }
}

impl std::error::Error for SpmdError {}
