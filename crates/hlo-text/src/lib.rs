//! HLO text to [`hlo_ir::Module`]: hand-written, one pass over bytes, names resolved as they are met.
//!
//! A name must be defined before it is used, instructions and computations alike, as in XLA's own parser; so one pass
//! suffices. Attributes are parsed by the *type* of their value (`values.rs`); which attributes an
//! opcode has is data of the op table. Each distinct shape text is parsed once.
//!
//! Words that mean something else (`true`, `inf`, `ROOT`) are names only behind a `%`, and types are none of instructions, as in
//! XLA. Unlike in XLA, blanks may be left out around the `=` after an instruction's bare name (`p=f32[]`): XLA reads that as an
//! attribute's key.

mod asynchrony;
mod computation;
mod cursor;
mod defaults;
mod error;
mod groups;
mod header;
mod instruction;
mod marks;
mod module;
mod opcodes;
mod parser;
mod render;
mod shape;
mod sharding;
mod values;
mod words;

pub use module::{Parsed, parse_bytes, parse_module};
pub use render::{line_and_column, render};

use cursor::Cursor;
use error::Fallible;
use hlo_ir::Shape;
use hlo_ir::diag::Diagnostic;
use hlo_ir::groups::ReplicaGroups;
use hlo_ir::sharding::Sharding;

/// Parses the text of one shape, e.g. `(f32[2,3]{1,0}, s32[])`.
///
/// # Errors
/// The text is not exactly one shape.
pub fn parse_shape(text: &str) -> Result<Shape, Diagnostic> {
    whole(text, |cur| shape::shape(cur, 0))
}

/// Parses the text of one sharding, e.g. `{devices=[2,1]<=[2]}`.
///
/// # Errors
/// The text is not exactly one sharding.
pub fn parse_sharding(text: &str) -> Result<Sharding, Diagnostic> {
    whole(text, sharding::sharding)
}

/// Parses the value of a `replica_groups` attribute, e.g. `{{0,1},{2,3}}`.
///
/// # Errors
/// The text is not exactly one such value.
pub fn parse_replica_groups(text: &str) -> Result<ReplicaGroups, Diagnostic> {
    whole(text, groups::replica_groups)
}

fn whole<T>(text: &str, parse: impl FnOnce(&mut Cursor<'_>) -> Fallible<T>) -> Result<T, Diagnostic> {
    let mut cur = Cursor::new(text);
    let value = parse(&mut cur).map_err(|e| *e)?;
    match cur.peek() {
        None => Ok(value),
        Some(_) => Err(*cur.expected("the end of the text")),
    }
}
