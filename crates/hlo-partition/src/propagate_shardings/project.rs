//! What each tensor of a tie has of each factor: the atoms of its dims, dealt out to the factors of these.

use super::ties::{FactorEffect, Tie, TieFactor};
use super::values::{CutId, CutValue};
use crate::sharding::{Atom, AtomList};
use cranelift_entity::PrimaryMap;

/// Where a factor stands in a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub dim: u32,
    /// Place among the dim's factors.
    pub position: u32,
}

/// What a tensor has of a factor.
#[derive(Clone, Debug, Default)]
pub(crate) struct Projected {
    pub place: Option<Place>,
    pub atoms: AtomList,
    /// Whether more atoms may follow: the factors before it are cut as far as they go.
    pub may_grow: bool,
}

/// The projection of one tie at a time, kept to save allocations.
#[derive(Debug)]
pub(crate) struct Projector {
    atom_sizes: Vec<i64>,
    /// The tie's factors.
    pub factors: Vec<TieFactor>,
    /// By tensor, then factor.
    slots: Vec<Projected>,
}

impl Projector {
    pub(crate) fn new(atom_sizes: &[i64]) -> Projector {
        Projector { atom_sizes: atom_sizes.to_vec(), factors: Vec::new(), slots: Vec::new() }
    }

    pub(crate) fn size(&self, atom: Atom) -> i64 {
        self.atom_sizes.get(usize::from(atom.0)).copied().unwrap_or(1)
    }

    /// Number of tiles that these atoms make.
    pub(crate) fn n_tiles(&self, atoms: &[Atom]) -> i64 {
        atoms.iter().map(|&atom| self.size(atom)).product()
    }

    pub(crate) fn slot(&self, tensor: usize, factor: usize) -> &Projected {
        &self.slots[tensor * self.factors.len() + factor]
    }

    pub(crate) fn slot_mut(&mut self, tensor: usize, factor: usize) -> &mut Projected {
        let n_factors = self.factors.len();
        &mut self.slots[tensor * n_factors + factor]
    }

    /// What each tensor has of each factor.
    pub(crate) fn project(&mut self, values: &PrimaryMap<CutId, CutValue>, tie: &Tie) {
        self.factors.clear();
        match &tie.rule {
            Some(rule) => self.factors.extend_from_slice(&rule.factors),
            None => {
                let whole = tie.tensors.iter().find(|tensor| tensor.prefix.is_none());
                let dims = whole.map_or(&[][..], |tensor| &values[tensor.value].dims);
                self.factors.extend(dims.iter().map(|dim| TieFactor { size: dim.size, effect: FactorEffect::Pass }));
            }
        }
        let n_factors = self.factors.len();
        self.slots.iter_mut().for_each(|slot| {
            slot.place = None;
            slot.atoms.clear();
        });
        self.slots.resize_with(n_factors * tie.tensors.len(), Projected::default);
        for (k, tensor) in tie.tensors.iter().enumerate() {
            for (d, dim) in values[tensor.value].dims.iter().enumerate() {
                let own = [d as u16];
                let of_dim: &[u16] = match &tie.rule {
                    Some(rule) => rule.tensors[k].get(d).map_or(&[], |factors| factors),
                    None => &own,
                };
                let prefix = tensor.prefix.as_ref().and_then(|prefix| prefix.get(d)).map_or(&[][..], |atoms| atoms);
                self.project_dim(k * n_factors, (d, of_dim), prefix.iter().chain(&dim.atoms).copied());
            }
        }
    }

    /// Deals the atoms of a dim out to its factors.
    fn project_dim(&mut self, row: usize, (dim, factors): (usize, &[u16]), atoms: impl Iterator<Item = Atom>) {
        let Some(last) = factors.len().checked_sub(1) else { return };
        let size_of = |this: &Self, at: usize| this.factors.get(usize::from(factors[at])).map_or(1, |f| f.size);
        let (mut at, mut left, mut overflows) = (0, size_of(self, 0), false);
        for atom in atoms {
            while left == 1 && at < last {
                at += 1;
                left = size_of(self, at);
            }
            let size = self.size(atom);
            if at < last && left % size != 0 {
                overflows = true;
                break;
            }
            left = if left % size == 0 { left / size } else { 0 };
            if let Some(slot) = self.slots.get_mut(row + usize::from(factors[at])) {
                slot.atoms.push(atom);
            }
        }
        while left == 1 && at < last {
            at += 1;
            left = size_of(self, at);
        }
        for (position, &factor) in factors.iter().enumerate() {
            if let Some(slot) = self.slots.get_mut(row + usize::from(factor)) {
                slot.place = Some(Place { dim: dim as u32, position: position as u32 });
                slot.may_grow = position >= at && !overflows;
            }
        }
    }

    /// Whether the factors before this one in its dim are cut as far as they go, and those after it not at all.
    pub(crate) fn follows(&self, tie: &Tie, tensor: usize, place: Place) -> bool {
        let Some(rule) = &tie.rule else { return true };
        let Some(factors) = rule.tensors[tensor].get(place.dim as usize) else { return false };
        let n_shards = |factor: &u16| -> i64 {
            let slot = self.slot(tensor, usize::from(*factor));
            slot.atoms.iter().map(|&atom| self.size(atom)).product()
        };
        factors.iter().enumerate().all(|(position, factor)| {
            let size = self.factors.get(usize::from(*factor)).map_or(1, |f| f.size);
            match position.cmp(&(place.position as usize)) {
                std::cmp::Ordering::Less => n_shards(factor) == size,
                std::cmp::Ordering::Equal => true,
                std::cmp::Ordering::Greater => n_shards(factor) == 1,
            }
        })
    }
}
