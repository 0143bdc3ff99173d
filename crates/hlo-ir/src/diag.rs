//! Diagnostics as data: what is wrong, where, expected and found; printed only at the edge of the program.

use crate::module::{CompId, InstId};

/// A byte range of the source text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Span {
    /// First byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// What a diagnostic speaks of, when it has no place in a text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Entity {
    /// The module as a whole.
    Module,
    /// A computation.
    Comp(CompId),
    /// An instruction.
    Inst(InstId),
}

/// One thing that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// Id of the rule, in kebab-case: `parse-expected`, `shape-mismatch`, `groups-unique-ids` …
    pub rule: &'static str,
    /// Entity first, lower case: `` `%add.3`: expected f32[2], found f32[3] ``.
    pub message: String,
    /// What it speaks of.
    pub entity: Entity,
    /// Where in the text, if known.
    pub span: Option<Span>,
    /// What to do about it, if there is advice.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A diagnostic at a place of the text.
    pub fn at(rule: &'static str, span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic { rule, message: message.into(), entity: Entity::Module, span: Some(span), help: None }
    }

    /// A diagnostic about a part of the module.
    pub fn about(rule: &'static str, entity: Entity, message: impl Into<String>) -> Diagnostic {
        Diagnostic { rule, message: message.into(), entity, span: None, help: None }
    }

    /// With advice.
    pub fn with_help(mut self, help: impl Into<String>) -> Diagnostic {
        self.help = Some(help.into());
        self
    }
}

/// Where computations and instructions stand in the text a module was read from; kept beside the module.
#[derive(Clone, Debug, Default)]
pub struct SourceMap {
    /// Byte offset of each instruction's name; `u32::MAX` where unknown.
    pub insts: cranelift_entity::SecondaryMap<InstId, u32>,
    /// Byte offset of each computation's name.
    pub comps: cranelift_entity::SecondaryMap<CompId, u32>,
}
