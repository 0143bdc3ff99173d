//! The numbers of what the prover stores once.

/// A term's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct TermId(pub(crate) u32);

/// A loop's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct LoopId(pub(crate) u32);

/// A list of segments, interned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct ArrayId(pub(crate) u32);

/// A word of the prover's own pool: opcodes with attributes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct WordId(pub(crate) u32);
