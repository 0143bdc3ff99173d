//! What greedy plans of others cost, to be printed beside ours.

use super::StepKind;
use super::price::{Prices, StepsPrice};
use super::space::{Place, Places, Space};

/// Prices of greedy plans; none where a plan's rules do not reach the target, or do not apply.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct GreedyPrices {
    /// MindSpore's: slice what it can; move single axes to whole dims; gather axes that the target has not; gather the first.
    pub mindspore: Option<StepsPrice>,
    /// In Shardy's order: slices, a permute, all-to-alls, an all-gather.
    pub shardy: Option<StepsPrice>,
}

/// The prices of both.
pub(super) fn greedy_prices(space: &Space, from: &Places, target: &Places, prices: &mut Prices<'_>) -> GreedyPrices {
    GreedyPrices { mindspore: mindspore(space, from, target, prices), shardy: None }
}

/// Atoms that stand side by side in the mesh, in the source and in the target: one axis for whoever does not cut axes into primes.
fn units(space: &Space, from: &Places, target: &Places) -> Vec<Vec<usize>> {
    let is_next = |a: Place, b: Place| match (a, b) {
        (Place::Free, Place::Free) | (Place::Partial, Place::Partial) => true,
        (Place::On { segment, depth }, Place::On { segment: next, depth: next_depth }) => {
            let dim = |s: u16| space.segments[s as usize].dim;
            (segment == next && depth + 1 == next_depth) || (segment + 1 == next && dim(segment) == dim(next))
        }
        (Place::Free | Place::Partial | Place::On { .. }, _) => false,
    };
    let mut units: Vec<Vec<usize>> = Vec::new();
    for a in 0..space.atoms.len() {
        match units.last_mut() {
            Some(unit) if is_next(from[a - 1], from[a]) && is_next(target[a - 1], target[a]) => unit.push(a),
            Some(_) | None => units.push(vec![a]),
        }
    }
    units
}

/// The plan of MindSpore's redistribution operators, on the same segments, which are its unified tensor shape.
fn mindspore(space: &Space, from: &Places, target: &Places, prices: &mut Prices<'_>) -> Option<StepsPrice> {
    if space.lists(from).iter().chain(&space.lists(target)).any(|list| list.len() > 1) || from.contains(&Place::Partial)
    {
        return None;
    }
    let units = units(space, from, target);
    let (mut now, mut price) = (from.clone(), StepsPrice::default());
    let is_whole = |now: &Places, unit: &[usize]| {
        unit.iter().all(|&a| now.iter().all(|&place| place == Place::Free || place != target[a]))
    };
    let placed = |places: &Places, unit: &[usize]| matches!(places[unit[0]], Place::On { .. });
    while now != *target {
        let before = now.clone();
        for (kind, was_placed, is_placed) in
            [(StepKind::Slice, false, true), (StepKind::AllToAll, true, true), (StepKind::AllGather, true, false)]
        {
            for unit in &units {
                let applies = placed(&now, unit) == was_placed && placed(target, unit) == is_placed;
                let is_due = unit.iter().any(|&a| now[a] != target[a]);
                if !applies || !is_due || (is_placed && !is_whole(&now, unit)) {
                    continue;
                }
                let mut to = now.clone();
                unit.iter().for_each(|&a| to[a] = target[a]);
                price = price.plus(prices.of_step(space, kind, &now, &to));
                now = to;
            }
        }
        if now == before {
            let stuck = |unit: &&Vec<usize>| placed(&now, unit) && unit.iter().any(|&a| now[a] != target[a]);
            let first = units.iter().filter(stuck).min_by_key(|unit| now[unit[0]])?;
            let mut to = now.clone();
            first.iter().for_each(|&a| to[a] = Place::Free);
            price = price.plus(prices.of_step(space, StepKind::AllGather, &now, &to));
            now = to;
        }
    }
    Some(price)
}
