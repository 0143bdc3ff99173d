//! The op table: everything that is known per opcode, one row each.
//!
//! Parser, printer, verifier, evaluator, cost and sharding read rows; none of them asks for an opcode by name. The
//! rows are in [`table`]; this module says what the columns mean.

mod collective;
mod factor_row;
mod formula;
mod routines;
mod rules;
#[macro_use]
mod scalar;
mod signs;
mod table;

pub use collective::{CollectiveForm, CollectiveRule, CollectiveSource, Participation, StartResult};
pub use factor_row::{DimPlaces, FactorRow, KernelForm, Linear, Reach, Reads, Stacks};
pub use formula::{Formula, ScalarFn};
pub use routines::*;
pub use rules::*;
pub use scalar::{BinaryFns, C64, Formulas, UnaryFns};
pub use signs::{Domain, ResultSign, Signs};
pub use table::{Opcode, SpecialOp};

use crate::attrs::AttrFormat;
pub use crate::float::scalar_fn::IntType;
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
    /// What tells the whole of what it does, for who makes code of it.
    pub kind: OpKind,
    /// What it exchanges between devices, if it is a collective.
    pub collective: Option<CollectiveRule>,
    /// Which operands give a number, and the sign of the result.
    pub signs: Signs,
}

/// What tells the whole of what an op does.
#[derive(Clone, Copy, Debug)]
pub enum OpKind {
    /// A scalar function of the operands' elements at the same index.
    Scalar(Formulas),
    /// The descriptor in [`OpRow::collective`].
    Collective,
    /// Nothing that is data: who makes code of ops has code for this one.
    Special(SpecialOp),
}

/// The columns that an elementwise op and a collective derive from their descriptions.
struct RuleColumns {
    shape: ShapeRule,
    factors: FactorRule,
    eval: EvalRule,
    cost: CostRule,
    effects: Effects,
    flow: Flow,
    kind: OpKind,
    collective: Option<CollectiveRule>,
    signs: Signs,
}

impl RuleColumns {
    /// The same columns of an op with these signs.
    const fn with_signs(self, signs: Signs) -> RuleColumns {
        RuleColumns { signs, ..self }
    }
}

impl OpRow {
    const fn new(opcode: Opcode, name: &'static str, arity: Arity, format: AttrFormat, columns: RuleColumns) -> OpRow {
        let RuleColumns { shape, factors, eval, cost, effects, flow, kind, collective, signs } = columns;
        OpRow { opcode, name, arity, format, shape, factors, eval, cost, effects, flow, kind, collective, signs }
    }
}

impl Opcode {
    /// Everything known about this opcode.
    #[inline]
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
