//! The names by which the parts of a module are known in memory.

use cranelift_entity::entity_impl;

/// An instruction of a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstId(u32);
entity_impl!(InstId, "inst");

/// A computation of a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CompId(u32);
entity_impl!(CompId, "comp");
