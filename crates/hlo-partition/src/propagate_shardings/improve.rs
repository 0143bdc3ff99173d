//! Changes single values of which the user said nothing, while that makes the program cheaper.

use super::price::Pricer;
use super::schedule::TiesOf;
use super::ties::{Tie, TieId};
use super::values::{AtomSet, CutId, CutValue, bits};
use crate::sharding::{ArraySharding, AtomList};
use cranelift_entity::{EntitySet, PrimaryMap};
use hlo_pass::{Deadline, OutOfTime};

/// A value with more ties than this stays: each try would price all of them.
const MOST_TIES: usize = 64;

/// Tries for each value at a dear tie the shardings that the other values of its ties have, and keeps the cheapest. At most
/// `n_steps` are tried. Returns how many values changed, and how many shardings were tried.
///
/// # Errors
/// The time is over.
pub(super) fn improve(
    values: &mut PrimaryMap<CutId, CutValue>,
    ties: &PrimaryMap<TieId, Tie>,
    ties_of: &TiesOf,
    pricer: &mut Pricer<'_>,
    n_steps: usize,
    deadline: Deadline,
) -> Result<(usize, usize), OutOfTime> {
    let mut open: Vec<CutId> = Vec::new();
    let mut is_open: EntitySet<CutId> = EntitySet::with_capacity(values.len());
    for tie in ties.values().filter(|tie| pricer.moved_bytes(values, tie).total() > 0.0).collect::<Vec<_>>() {
        for tensor in &tie.tensors {
            if is_open.insert(tensor.value) {
                open.push(tensor.value);
            }
        }
    }
    open.reverse();
    let (mut n_changed, mut n_tried) = (0, 0);
    while let Some(value) = open.pop() {
        deadline.check()?;
        is_open.remove(value);
        if values[value].claimed_by.is_some() || ties_of.of(value).len() > MOST_TIES {
            continue;
        }
        let own = values[value].sharding();
        let around = |values: &PrimaryMap<CutId, CutValue>, pricer: &mut Pricer<'_>| -> f64 {
            ties_of.of(value).iter().map(|&id| pricer.price(values, id, &ties[id])).sum()
        };
        let (mut best, mut least) = (own.clone(), around(values, pricer));
        for candidate in candidates(values, ties, ties_of, pricer, value) {
            if n_tried == n_steps {
                values[value].set_sharding(&best);
                return Ok((n_changed, n_tried));
            }
            n_tried += 1;
            values[value].set_sharding(&candidate);
            let cost = around(values, pricer);
            if cost < least * (1.0 - 1e-9) {
                (best, least) = (candidate, cost);
            }
        }
        values[value].set_sharding(&best);
        if best != own {
            n_changed += 1;
            for &id in ties_of.of(value) {
                for tensor in ties[id].tensors.iter().filter(|tensor| tensor.value != value) {
                    if is_open.insert(tensor.value) {
                        open.push(tensor.value);
                    }
                }
            }
        }
    }
    Ok((n_changed, n_tried))
}

/// What the other tensors of a value's ties would have it be; each once.
fn candidates(
    values: &PrimaryMap<CutId, CutValue>,
    ties: &PrimaryMap<TieId, Tie>,
    ties_of: &TiesOf,
    pricer: &mut Pricer<'_>,
    value: CutId,
) -> Vec<ArraySharding> {
    let own = values[value].sharding();
    let mut out: Vec<ArraySharding> = Vec::new();
    for &id in ties_of.of(value) {
        let tie = &ties[id];
        if tie.tensors.iter().any(|tensor| tensor.prefix.is_some()) {
            continue;
        }
        pricer.projector.project(values, tie);
        for (k, tensor) in tie.tensors.iter().enumerate().filter(|(_, tensor)| tensor.value == value) {
            for from in (0..tie.tensors.len()).filter(|&from| from != k) {
                let found = as_seen_from(values, pricer, (tie, k, from), tensor.value);
                if let Some(found) = found.filter(|found| *found != own && !out.contains(found)) {
                    out.push(found);
                }
            }
        }
    }
    out
}

/// A tensor's sharding with the factors that another one has as that one has them.
fn as_seen_from(
    values: &PrimaryMap<CutId, CutValue>,
    pricer: &Pricer<'_>,
    (tie, k, from): (&Tie, usize, usize),
    value: CutId,
) -> Option<ArraySharding> {
    let mut sharding = ArraySharding::replicated(values[value].dims.len());
    let mut used: AtomSet = values[value].taken;
    // What the other tensor has comes first, then what this one has beside it.
    for is_shared in [true, false] {
        for f in 0..pricer.projector.factors.len() {
            let (own, other) = (pricer.projector.slot(k, f), pricer.projector.slot(from, f));
            let Some(place) = own.place.filter(|_| other.place.is_some() == is_shared) else { continue };
            let is_alone = tie
                .rule
                .as_ref()
                .is_none_or(|rule| rule.tensors[k].get(place.dim as usize).is_some_and(|factors| factors.len() == 1));
            if !is_alone {
                return None;
            }
            let atoms: &AtomList = if is_shared { &other.atoms } else { &own.atoms };
            let free: AtomList = atoms.iter().copied().take_while(|atom| used & bits([atom]) == 0).collect();
            used |= bits(&free);
            if let Some(dim) = sharding.dims.get_mut(place.dim as usize) {
                *dim = free;
            }
        }
    }
    let partial = super::values::atoms_of(values[value].partial);
    Some(ArraySharding { partial, ..sharding })
}
