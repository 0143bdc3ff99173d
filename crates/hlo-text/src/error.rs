//! How the parser fails: one boxed diagnostic, so that the happy path moves one pointer.

use hlo_ir::diag::{Diagnostic, Span};

/// Result of one parse step.
pub(crate) type Fallible<T> = Result<T, Box<Diagnostic>>;

/// The text is not what the grammar asks for.
pub(crate) const EXPECTED: &str = "parse-expected";
/// A name that nothing defines, or that comes after its use.
pub(crate) const UNKNOWN: &str = "parse-unknown-name";
/// Something that may stand once stands twice.
pub(crate) const DUPLICATE: &str = "parse-duplicate";
/// Something that must be given is missing.
pub(crate) const MISSING: &str = "parse-missing";
/// A number, nesting or size that is out of bounds.
pub(crate) const LIMIT: &str = "parse-limit";
/// A shape that is not stated and cannot be inferred.
pub(crate) const SHAPE: &str = "parse-shape";
/// A constant's value does not fit its shape.
pub(crate) const LITERAL: &str = "parse-literal";

/// Most diagnostics that one parse reports.
pub(crate) const MAX_DIAGNOSTICS: usize = 20;

/// Most levels of nested shapes, operands and literals.
pub(crate) const MAX_DEPTH: usize = 200;

/// Most parts of a tuple whose shape is not stated: a short text can name a shape with more parts than memory has room for.
pub(crate) const MAX_INFERRED_PARTS: usize = 1 << 18;

/// Most levels of computations inside of one another.
pub(crate) const MAX_INLINE: usize = 16;

/// A failure at bytes `start..end`.
#[cold]
pub(crate) fn failure(rule: &'static str, start: usize, end: usize, message: impl Into<String>) -> Box<Diagnostic> {
    Box::new(Diagnostic::at(rule, span(start, end), message))
}

/// A span of bytes; the parser refuses texts beyond `u32` before any span is made.
pub(crate) fn span(start: usize, end: usize) -> Span {
    let clip = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Span { start: clip(start), end: clip(end.max(start)) }
}
