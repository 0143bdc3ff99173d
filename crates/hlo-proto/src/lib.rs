//! HloModuleProto to [`hlo_ir::Module`] and back, by one table of messages and fields.
//!
//! [`read`] takes the bytes of an HloModuleProto, or of what wraps one: HloProto as XLA's dumps hold it, HloSnapshot,
//! HloUnoptimizedSnapshot, each packed with gzip or not. [`write`] gives the bytes of an HloModuleProto. What a module cannot hold,
//! unknown fields included, is kept beside it in [`Kept`], and writing puts it back. [`text::print`] gives the text format of any
//! message of the table.
//!
//! The bytes are held against the table once, before anything is read (`check.rs`); readers then see messages as lists of
//! borrowed fields (`view.rs`) and need no errors of their own about lengths and wire types.

mod bindings;
mod braces;
mod check;
mod container;
mod kept;
mod literal_fields;
mod literal_order;
mod metadata_text;
mod opcodes;
mod raw_literal;
mod read;
pub mod table;
pub mod text;
mod view;
pub mod wire;
mod write;
mod writer;

pub use container::{Unpacked, Wrapper, is_binary, unpack, unzip};
pub use kept::Kept;
pub use write::Written;

use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};

/// A module read from a proto, and the fields that it cannot hold.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The module.
    pub module: Module,
    /// What it cannot hold.
    pub kept: Kept,
}

/// Reads a module from the bytes of a message of any kind that [`unpack`] knows.
///
/// # Errors
/// What is wrong and where: byte and field of what is damaged, computation and instruction of what has no meaning.
pub fn read(bytes: &[u8]) -> Result<Parsed, Diagnostic> {
    let fault = |message: String| Diagnostic::about("proto", Entity::Module, message);
    let unpacked = unpack(bytes).map_err(fault)?;
    let (module, kept) = read::read_module(unpacked.module()).map_err(fault)?;
    Ok(Parsed { module, kept })
}

/// Writes a module as an HloModuleProto, with those of the kept fields whose instructions are still the same.
pub fn write(module: &Module, kept: &Kept) -> Written {
    write::write_module(module, kept, false)
}

/// As [`write()`], in the form that older readers take too, such as PyTorch/XLA 2.9 and StableHLO's importer. Groups are lists, since a
/// reader that knows neither axes of a mesh nor tiles would silently find none. Names of computations and instructions have a number behind a
/// period, without which XLA's builder ends the process.
pub fn write_for_old_readers(module: &Module, kept: &Kept) -> Written {
    write::write_module(module, kept, true)
}
