//! Numbers of what a program has.

use cranelift_entity::entity_impl;

/// A value that is cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CutId(u32);
entity_impl!(CutId, "cut");

/// An op that is run on shards.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct OpId(u32);
entity_impl!(OpId, "op");
