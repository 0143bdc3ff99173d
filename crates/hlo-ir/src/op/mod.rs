//! The op table: everything that is known per opcode, one row each.
//!
//! Parser, printer, verifier, evaluator, cost and sharding read rows; none of them asks for an opcode by name. The
//! rows are in [`table`]; this module says what the columns mean.

mod collective;
mod routines;
mod rules;
mod table;

pub use collective::{CollectiveForm, CollectiveRule, CollectiveSource, Participation, StartResult};
pub use routines::*;
pub use rules::*;
pub use table::Opcode;

use crate::attrs::AttrFormat;
use std::fmt;

/// One row of the op table.
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// The opcode.
    pub opcode: Opcode,
    /// Its name in HLO text.
    pub name: &'static str,
    /// How many operands it takes.
    pub arity: Arity,
    /// Which attributes it has.
    pub format: AttrFormat,
    /// How its result's shape follows from its operands.
    pub shape: ShapeRule,
    /// Which dims of operands and result go together.
    pub factors: FactorRule,
    /// How the evaluator computes it.
    pub eval: EvalRule,
    /// What it costs.
    pub cost: CostRule,
    /// What it does besides computing a value.
    pub effects: Effects,
    /// How tuple leaves of operands reach the result.
    pub flow: Flow,
    /// What it exchanges between devices, if it is a collective.
    pub collective: Option<CollectiveRule>,
}

impl Opcode {
    /// Everything known about this opcode.
    pub fn row(self) -> &'static OpRow {
        &table::ROWS[self as usize]
    }

    /// The name in HLO text.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// One result element from one element of each operand at the same place.
    pub fn is_elementwise(self) -> bool {
        matches!(self.row().factors, FactorRule::Elementwise)
    }

    /// Whether it may be removed when unused and merged with an equal one, as far as the op itself goes.
    pub fn is_pure(self) -> bool {
        matches!(self.row().effects, Effects::Pure)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
