//! What greedy plans of others cost, to be printed beside ours.

use super::StepKind;
use super::price::{Prices, StepsPrice};
use super::space::{Place, Places, Space};

/// Prices of greedy plans; none where a plan's rules do not reach the target, or do not apply.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct GreedyPrices {
    /// MindSpore's: slice what it can; move single axes to whole dims; gather axes that the target has not; gather the first.
    pub mindspore: Option<StepsPrice>,
    /// In Shardy's order: slices, a permute, all-to-alls, an all-gather; of dims as they are, so that only minor axes move. It has no
    /// time on a cluster.
    pub shardy: Option<StepsPrice>,
}

/// The prices of both.
pub(super) fn greedy_prices(space: &Space, from: &Places, target: &Places, prices: &mut Prices<'_>) -> GreedyPrices {
    let shardy = prices.are_bytes().then(|| shardy(space, from, target, prices)).flatten();
    GreedyPrices { mindspore: mindspore(space, from, target, prices), shardy }
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

/// The axes of each dim, major to minor, with the common prefixes of source and target left out.
struct Pending {
    now: Vec<Vec<usize>>,
    target: Vec<Vec<usize>>,
    price: StepsPrice,
    tile: u64,
}

/// A greedy plan in the order of Shardy's reshards.
fn shardy(space: &Space, from: &Places, target: &Places, prices: &mut Prices<'_>) -> Option<StepsPrice> {
    if from.contains(&Place::Partial) {
        return None;
    }
    let mut pending = Pending::new(space, from, target);
    for _ in 0..4 * space.atoms.len() + 4 {
        pending.drop_prefixes();
        if pending.is_done() {
            return Some(pending.price);
        }
        pending.slice(space);
        pending.drop_prefixes();
        let moves = pending.permute(space, prices) | pending.exchange(space, prices);
        if !moves && !pending.is_done() {
            pending.gather(space, prices);
        }
    }
    None
}

impl Pending {
    fn new(space: &Space, from: &Places, target: &Places) -> Pending {
        let rank = space.segments.last().map_or(0, |segment| segment.dim + 1);
        let dims = |places: &Places| {
            let mut dims = vec![Vec::new(); rank];
            for (segment, list) in space.segments.iter().zip(space.lists(places)) {
                dims[segment.dim].extend(list);
            }
            dims
        };
        let tile = space.tile_bytes(from);
        Pending { now: dims(from), target: dims(target), price: StepsPrice::default(), tile }
    }

    fn is_done(&self) -> bool {
        self.now.iter().chain(&self.target).all(Vec::is_empty)
    }

    fn drop_prefixes(&mut self) {
        for (now, target) in self.now.iter_mut().zip(&mut self.target) {
            let n = now.iter().zip(target.iter()).take_while(|(a, b)| a == b).count();
            now.drain(..n);
            target.drain(..n);
        }
    }

    /// Dims that are whole so far are cut by axes that are on no dim.
    fn slice(&mut self, space: &Space) {
        for dim in 0..self.now.len() {
            while let Some(&axis) = self.target[dim].get(self.now[dim].len()) {
                let is_sliced = self.target[dim].starts_with(&self.now[dim]);
                if !is_sliced || self.now.iter().flatten().any(|&used| used == axis) {
                    break;
                }
                self.now[dim].push(axis);
                self.tile /= space.atoms[axis].size as u64;
            }
        }
    }

    /// All dims whose tiles have their sizes already take their axes in one permute.
    fn permute(&mut self, space: &Space, prices: &mut Prices<'_>) -> bool {
        let fits = |dim: &usize| {
            let (now, target) = (&self.now[*dim], &self.target[*dim]);
            !now.is_empty() && space.n_places(now) == space.n_places(target)
        };
        let dims: Vec<usize> = (0..self.now.len()).filter(fits).collect();
        let used_elsewhere = |axis: &usize| {
            (0..self.now.len()).filter(|dim| !dims.contains(dim)).any(|dim| self.now[dim].contains(axis))
        };
        if dims.is_empty() || dims.iter().any(|&dim| self.target[dim].iter().any(used_elsewhere)) {
            return false;
        }
        dims.iter().for_each(|&dim| self.now[dim] = self.target[dim].clone());
        self.price = self.price.plus(prices.of_pairs(&[], self.tile));
        self.drop_prefixes();
        true
    }

    /// Minor axes go to other dims where they are next.
    fn exchange(&mut self, space: &Space, prices: &mut Prices<'_>) -> bool {
        let mut has_moved = false;
        for source in 0..self.now.len() {
            for dim in 0..self.now.len() {
                if dim == source || !self.now[dim].is_empty() {
                    continue;
                }
                let n = self.now[source].len();
                let wanted = &self.target[dim];
                let is_suffix = |k: &usize| *k > 0 && *k <= wanted.len() && self.now[source][n - k..] == wanted[..*k];
                let Some(k) = (1..=n).rev().find(is_suffix) else { continue };
                let moved = self.now[source].split_off(n - k);
                self.price = self.price.plus(prices.of_atoms(space, StepKind::AllToAll, self.tile, &moved));
                self.now[dim].extend(moved);
                has_moved = true;
            }
            self.drop_prefixes();
        }
        has_moved
    }

    /// The first dim that has other axes than it should is made whole.
    fn gather(&mut self, space: &Space, prices: &mut Prices<'_>) {
        let Some(dim) = self.now.iter().position(|axes| !axes.is_empty()) else { return };
        let axes = std::mem::take(&mut self.now[dim]);
        self.price = self.price.plus(prices.of_atoms(space, StepKind::AllGather, self.tile, &axes));
        self.tile *= space.n_places(&axes) as u64;
    }
}
