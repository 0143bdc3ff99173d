//! One step: shardings go along the factors of one tie.
//!
//! Per factor the longest list of atoms is looked for such that the list and the atoms of each tensor are prefixes of one another;
//! where two tensors disagree, it is what both have in common. Each tensor then grows to that list, as far as nothing
//! of its own stands in the way: closed dims, atoms that it uses elsewhere, sizes that the atoms do not divide.

use super::project::Projector;
use super::ties::{Direction, FactorEffect, Tie, TieId, TieKind};
use super::values::{AtomSet, CutId, CutValue, bit, bits};
use crate::sharding::AtomList;
use cranelift_entity::PrimaryMap;
use std::cmp::Reverse;

/// That a dim of a value got atoms, and from where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    pub value: CutId,
    pub dim: u32,
    /// Number of atoms of the dim before.
    pub n_before: u32,
    pub tie: TieId,
    pub from: CutId,
}

/// A list of atoms that a factor offers to all tensors.
#[derive(Clone, Debug)]
struct Offer {
    factor: usize,
    atoms: AtomList,
    n_elems: i64,
    n_shards: i64,
    /// The tensor that it comes from.
    tensor: usize,
}

/// The state of a step, kept to save allocations.
#[derive(Debug)]
pub(crate) struct Stepper {
    projector: Projector,
    /// As GSPMD does: more shards count before larger tensors, and some values have what their operands give them.
    is_gspmd: bool,
    offers: Vec<Offer>,
    /// What grew, in order.
    pub log: Vec<Growth>,
    /// The values that the last step changed.
    pub changed: Vec<CutId>,
}

impl Stepper {
    pub(crate) fn new(atom_sizes: &[i64], is_gspmd: bool) -> Stepper {
        let (offers, log, changed) = (Vec::new(), Vec::new(), Vec::new());
        Stepper { projector: Projector::new(atom_sizes), is_gspmd, offers, log, changed }
    }

    /// Propagates along one tie. `direction` says from where, by what cutting a factor does. [`Stepper::changed`] then holds
    /// the values that changed.
    pub(crate) fn visit(
        &mut self,
        values: &mut PrimaryMap<CutId, CutValue>,
        (id, tie): (TieId, &Tie),
        direction: impl Fn(FactorEffect) -> Direction,
    ) {
        self.changed.clear();
        if tie.tensors.iter().all(|tensor| values[tensor.value].used == 0 && tensor.prefix.is_none()) {
            return;
        }
        self.projector.project(values, tie);
        self.find_offers(values, tie, direction);
        if self.offers.is_empty() {
            return;
        }
        let n = tie.tensors.len();
        let results_first = (tie.n_operands as usize..n).chain(0..tie.n_operands as usize);
        let offers = std::mem::take(&mut self.offers);
        for tensor in results_first {
            let mut has_grown = false;
            for offer in &offers {
                has_grown |= self.grow(values, (id, tie), tensor, offer);
            }
            if has_grown {
                self.changed.push(tie.tensors[tensor].value);
            }
        }
        self.offers = offers;
    }

    /// The list that each factor offers, the most important one first.
    fn find_offers(
        &mut self,
        values: &PrimaryMap<CutId, CutValue>,
        tie: &Tie,
        direction: impl Fn(FactorEffect) -> Direction,
    ) {
        self.offers.clear();
        for factor in 0..self.projector.factors.len() {
            let from = direction(self.projector.factors[factor].effect);
            if from == Direction::Nowhere {
                continue;
            }
            let Some(atoms) = self.common_list(tie, factor, from) else { continue };
            let (mut tensor, mut n_elems) = (0, -1);
            for (k, one) in tie.tensors.iter().enumerate() {
                let slot = self.projector.slot(k, factor);
                let is_source = slot.place.is_some() && slot.atoms.starts_with(&atoms);
                if is_source && values[one.value].n_elems > n_elems {
                    (tensor, n_elems) = (k, values[one.value].n_elems);
                }
            }
            let n_shards = self.projector.n_tiles(&atoms);
            self.offers.push(Offer { factor, atoms, n_elems, n_shards, tensor });
        }
        let (is_elementwise, is_gspmd) = (tie.kind == TieKind::Elementwise, self.is_gspmd);
        self.offers.sort_by_key(|offer| {
            let n_shards = if is_elementwise || is_gspmd { offer.n_shards } else { 0 };
            let n_elems = if is_gspmd { 0 } else { offer.n_elems };
            (Reverse(n_elems), Reverse(n_shards), offer.tensor, offer.factor)
        });
    }

    /// The longest list that agrees with all tensors; `None` if it is empty.
    fn common_list(&self, tie: &Tie, factor: usize, from: Direction) -> Option<AtomList> {
        let mut list = AtomList::new();
        let mut can_extend = true;
        for k in 0..tie.tensors.len() {
            let slot = self.projector.slot(k, factor);
            if slot.place.is_none() {
                continue;
            }
            let n_common = list.iter().zip(&slot.atoms).take_while(|(a, b)| a == b).count();
            if n_common == list.len() {
                if can_extend && from.comes_from(tie.is_operand(k)) && slot.atoms.len() > n_common {
                    list.extend_from_slice(&slot.atoms[n_common..]);
                }
            } else if n_common < slot.atoms.len() {
                list.truncate(n_common);
                can_extend = false;
            }
        }
        (!list.is_empty()).then_some(list)
    }

    /// Grows one tensor to what a factor offers; whether it grew.
    fn grow(
        &mut self,
        values: &mut PrimaryMap<CutId, CutValue>,
        (id, tie): (TieId, &Tie),
        tensor: usize,
        offer: &Offer,
    ) -> bool {
        let one = &tie.tensors[tensor];
        let slot = self.projector.slot(tensor, offer.factor);
        let Some(place) = slot.place else { return false };
        let n_now = slot.atoms.len();
        if self.is_gspmd && values[one.value].is_given && tie.is_operand(tensor) {
            return false;
        }
        if !slot.may_grow || n_now >= offer.atoms.len() || !offer.atoms.starts_with(&slot.atoms) {
            return false;
        }
        let value = &values[one.value];
        let Some(dim) = value.dims.get(place.dim as usize) else { return false };
        if dim.is_closed || !self.projector.follows(tie, tensor, place) {
            return false;
        }
        let mut n_most = offer.atoms.len();
        if tie.kind == TieKind::Elementwise && tie.is_operand(tensor) {
            let of_result = self.projector.slot(tie.tensors.len() - 1, offer.factor);
            n_most = n_most.min(of_result.atoms.len());
        }
        // The last factor of a dim takes atoms that do not divide its size: the last tiles hold less. Others would shift those behind.
        let is_last = tie.rule.as_ref().is_none_or(|rule| {
            rule.tensors[tensor].get(place.dim as usize).is_none_or(|all| all.len() == place.position as usize + 1)
        });
        let size = self.projector.factors.get(offer.factor).map_or(1, |f| f.size);
        let divided = (!is_last).then_some(size);
        let n_new = self.n_that_fit(offer, (n_now, n_most), value.used | value.taken, divided, one.prefix.as_deref());
        if n_new <= n_now {
            return false;
        }
        let added = &offer.atoms[n_now..n_new];
        let n_before = dim.atoms.len() as u32;
        self.projector.slot_mut(tensor, offer.factor).atoms.extend_from_slice(added);
        let value = &mut values[one.value];
        value.used |= bits(added);
        if let Some(dim) = value.dims.get_mut(place.dim as usize) {
            dim.atoms.extend_from_slice(added);
        }
        let from = tie.tensors[offer.tensor].value;
        self.log.push(Growth { value: one.value, dim: place.dim, n_before, tie: id, from });
        true
    }

    /// How many atoms of an offer the tensor can have: from `n_now` to `n_most`, none of `others`, and as many as divide `divided`.
    fn n_that_fit(
        &self,
        offer: &Offer,
        (n_now, n_most): (usize, usize),
        others: AtomSet,
        divided: Option<i64>,
        prefix: Option<&[AtomList]>,
    ) -> usize {
        let manual = prefix.map_or(0, |prefix| bits(prefix.iter().flatten()));
        let (mut n_shards, mut n) = (1, 0);
        for &atom in offer.atoms.iter().take(n_most) {
            n_shards *= self.projector.size(atom);
            let is_free = (others | manual) & bit(atom) == 0;
            let fits = divided.is_none_or(|size| size % n_shards == 0);
            if n >= n_now && !(is_free && fits) {
                break;
            }
            n += 1;
        }
        n
    }
}
