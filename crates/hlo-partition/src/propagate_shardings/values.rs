//! The values whose shardings are looked for, and how far each is known.

use crate::sharding::{ArraySharding, Atom, AtomList};
use cranelift_entity::entity_impl;
use hlo_ir::InstId;
use smallvec::SmallVec;

/// Atoms as bits.
pub(crate) type AtomSet = u64;

/// The bit of an atom.
pub(crate) fn bit(atom: Atom) -> AtomSet {
    1u64.checked_shl(u32::from(atom.0)).unwrap_or(0)
}

/// The bits of atoms.
pub(crate) fn bits<'a>(atoms: impl IntoIterator<Item = &'a Atom>) -> AtomSet {
    atoms.into_iter().fold(0, |set, &atom| set | bit(atom))
}

/// The atoms of a set, ascending.
pub(crate) fn atoms_of(set: AtomSet) -> AtomList {
    (0..64u8).map(Atom).filter(|&atom| set & bit(atom) != 0).collect()
}

/// A value: an array that has one sharding wherever it stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct CutId(u32);
entity_impl!(CutId, "cut");

/// One dim of a value.
#[derive(Clone, Debug, Default)]
pub(crate) struct CutDim {
    /// Number of elements.
    pub size: i64,
    /// The atoms that cut it, major to minor.
    pub atoms: AtomList,
    /// Whether no atoms may be added.
    pub is_closed: bool,
}

/// Atoms of a dim that the user gave with a priority whose turn has not come.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub priority: u32,
    pub dim: usize,
    pub atoms: AtomList,
    pub is_closed: bool,
}

/// How far the sharding of a value is known.
#[derive(Clone, Debug)]
pub(crate) struct CutValue {
    /// The instruction that computes it or the first that defines it, and the leaf of its result.
    pub inst: InstId,
    pub leaf: u32,
    pub dims: SmallVec<[CutDim; 4]>,
    pub n_elems: i64,
    /// Bytes of an element that have to be moved: none of a constant, which each device computes.
    pub elem_bytes: i64,
    /// Dims that are empty until their turn comes.
    pub waiting: Vec<Waiting>,
    /// Atoms that cut a dim.
    pub used: AtomSet,
    /// Atoms that no dim may take: the user pinned the value to be replicated over them, it is a partial result over them, they
    /// are manual, or they belong to dims whose turn has not come.
    pub taken: AtomSet,
    /// Atoms over which the value is a partial result.
    pub partial: AtomSet,
    /// Atoms along which the code is manual.
    pub manual: AtomSet,
    /// Where the user's annotation stands, if there is one.
    pub claimed_by: Option<InstId>,
}

impl CutValue {
    /// The sharding as it is now.
    pub(crate) fn sharding(&self) -> ArraySharding {
        let dims = self.dims.iter().map(|dim| dim.atoms.clone()).collect();
        ArraySharding { dims, partial: atoms_of(self.partial) }
    }

    /// Takes a sharding over, whatever was known.
    pub(crate) fn set_sharding(&mut self, sharding: &ArraySharding) {
        for (dim, atoms) in self.dims.iter_mut().zip(&sharding.dims) {
            dim.atoms.clone_from(atoms);
        }
        self.used = bits(sharding.cutting().collect::<AtomList>().iter());
    }

    /// Bytes of the whole value.
    pub(crate) fn bytes(&self) -> f64 {
        self.n_elems as f64 * self.elem_bytes as f64
    }
}
