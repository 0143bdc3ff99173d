//! The search of Unity, to compare ours with: a second implementation of Unger et al., *Unity*, OSDI 2022, §5, that shares no code with
//! `hlo-search`. Nothing but tests and benchmarks uses it.
//!
//! It sees what Unity sees: *layers* of the forward pass ([`layers`]), each with the cost of its forward pass, its backward pass and the
//! synchronization of its weights. The parallel computation graph is the layers and, for each, the *degrees* in which its dims are cut;
//! Partition, Combine, Replicate and Reduce stand on an edge where what gives and what takes a tensor differ ([`costs`]).
//!
//! Three levels, from below:
//! - [`views`]: the devices of each layer, by dynamic programming over post-dominators, and over branches that run in turn or beside each
//!   other on a part of the machine;
//! - [`queue`]: substitutions, best first, of a graph of a few layers;
//! - [`split`]: larger graphs are split where all paths meet, and every way to cut the tensor there is tried.
//!
//! What differs from the paper: substitutions are those of one layer and one degree (*cut, run, combine*), fusion of a ReLU, and the split of a
//! product of a concatenation; Pipeline and Batch are left out. A Partition beside a Combine of the same dim is simplified as soon as it
//! appears. Two faults of the artifact are switches ([`Faults`]), and mended where nothing else is said.

mod costs;
mod layers;
mod models;
mod queue;
mod split;
mod substitutions;
#[cfg(test)]
mod tests;
mod views;

pub use costs::UnityMachine;
pub use layers::{Layer, LayerGraph, LayerKind, WeightCut};
pub use models::model;
pub use queue::Budget;
pub use split::{Found, SplitShapes, UnityOptions, search};

/// Integer picoseconds.
pub type Picoseconds = u64;

/// More than any plan takes; sums of two do not overflow.
pub(crate) const IMPOSSIBLE: Picoseconds = u64::MAX / 4;

/// What the artifact does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// What is known of a subgraph is looked up without the devices of the layer before it.
    pub cache_key_lacks_source: bool,
    /// An edge beside a longer path is dropped with what moves along it.
    pub drops_skip_edges: bool,
}

/// What a search did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Graphs that were taken from the queue.
    pub n_pops: u64,
    /// Graphs that substitutions made.
    pub n_candidates: u64,
    /// Subgraphs whose cost was known, and those that were looked up.
    pub n_cache_hits: u64,
    /// Lookups in all.
    pub n_lookups: u64,
    /// Graphs of few layers that were searched.
    pub n_base_graphs: u64,
}
