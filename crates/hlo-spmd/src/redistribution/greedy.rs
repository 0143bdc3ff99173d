//! What greedy plans of others cost, to be printed beside ours.

use super::StepKind;
use super::price::{Prices, StepsPrice};
use super::space::{Place, Places, Space};
use hlo_mesh::Exchange;

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
        for (kind, was_placed, is_placed) in [
            (StepKind::Slice, false, true),
            (StepKind::Exchange(Exchange::AllToAll), true, true),
            (StepKind::Exchange(Exchange::AllGather), true, false),
        ] {
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
            price = price.plus(prices.of_step(space, StepKind::Exchange(Exchange::AllGather), &now, &to));
            now = to;
        }
    }
    Some(price)
}

/// A greedy plan in the order of Shardy's reshards: everything that is free and wanted is sliced; if all-to-alls alone do not bring
/// every axis to its dim, one permute puts the target's axes where tiles have room for them; then all-to-alls, then one all-gather.
fn shardy(space: &Space, from: &Places, target: &Places, prices: &mut Prices<'_>) -> Option<StepsPrice> {
    if from.contains(&Place::Partial) {
        return None;
    }
    let mut dims = DimAxes::new(space, from, target);
    dims.slice(space);
    let mut tried = dims.clone();
    tried.exchange(space, prices);
    if !tried.is_near() {
        dims.permute(space, prices)?;
        tried = dims;
        tried.exchange(space, prices);
    }
    tried.gather(space, prices);
    (tried.now == tried.target).then_some(tried.price)
}

/// The axes of each dim, major to minor.
#[derive(Clone)]
struct DimAxes {
    now: Vec<Vec<usize>>,
    target: Vec<Vec<usize>>,
    price: StepsPrice,
    tile: u64,
}

impl DimAxes {
    fn new(space: &Space, from: &Places, target: &Places) -> DimAxes {
        let rank = space.segments.last().map_or(0, |segment| segment.dim + 1);
        let dims = |places: &Places| {
            let mut dims = vec![Vec::new(); rank];
            for (segment, list) in space.segments.iter().zip(space.lists(places)) {
                dims[segment.dim].extend(list);
            }
            dims
        };
        DimAxes { now: dims(from), target: dims(target), price: StepsPrice::default(), tile: space.tile_bytes(from) }
    }

    /// Whether each dim has what it should have, and behind that only what no dim should have.
    fn is_near(&self) -> bool {
        let is_wanted = |axis: &usize| self.target.iter().flatten().any(|wanted| wanted == axis);
        let is_near = |(now, target): (&Vec<usize>, &Vec<usize>)| {
            now.starts_with(target) && !now[target.len()..].iter().any(is_wanted)
        };
        self.now.iter().zip(&self.target).all(is_near)
    }

    /// Wanted axes that are free cut the dim on which the axis before them is, or their own.
    fn slice(&mut self, space: &Space) {
        for dim in 0..self.target.len() {
            for k in 0..self.target[dim].len() {
                let axis = self.target[dim][k];
                if self.now.iter().flatten().any(|&used| used == axis) {
                    continue;
                }
                let before = k.checked_sub(1).map(|k| self.target[dim][k]);
                let follows = |now: &Vec<usize>| before.is_some() && now.last().copied() == before;
                let place = self.now.iter().position(follows).unwrap_or(dim);
                self.now[place].push(axis);
                self.tile /= space.atoms[axis].size as u64;
            }
        }
    }

    /// Minor axes go to dims where they are next, until none is.
    fn exchange(&mut self, space: &Space, prices: &mut Prices<'_>) {
        let rank = self.now.len();
        let mut pairs = (0..rank).flat_map(|source| (0..rank).map(move |dim| (source, dim))).collect::<Vec<_>>();
        pairs.retain(|(source, dim)| source != dim);
        while let Some((source, dim, n)) = pairs.iter().find_map(|&(source, dim)| {
            let (now, wanted) = (&self.now[source], &self.target[dim]);
            let rest = wanted.strip_prefix(self.now[dim].as_slice())?;
            let n = (1..=now.len().min(rest.len())).rev().find(|&n| now.ends_with(&rest[..n]))?;
            Some((source, dim, n))
        }) {
            let at = self.now[source].len() - n;
            let moved = self.now[source].split_off(at);
            self.price =
                self.price.plus(prices.of_atoms(space, StepKind::Exchange(Exchange::AllToAll), self.tile, &moved));
            self.now[dim].extend(moved);
        }
    }

    /// Each dim takes as many of its axes as its tile has room for; the room that is left takes first what no dim wants, then what
    /// other dims want.
    fn permute(&mut self, space: &Space, prices: &mut Prices<'_>) -> Option<()> {
        let mut left: Vec<usize> = self.now.iter().flatten().copied().collect();
        let room: Vec<i64> = self.now.iter().map(|axes| space.n_places(axes)).collect();
        for (dim, &room) in room.iter().enumerate() {
            self.now[dim].clear();
            for &axis in &self.target[dim] {
                let mut longer = self.now[dim].clone();
                longer.push(axis);
                if room % space.n_places(&longer) != 0 {
                    break;
                }
                self.now[dim] = longer;
                left.retain(|&other| other != axis);
            }
        }
        let order =
            |axis: &usize| self.target.iter().flatten().position(|wanted| wanted == axis).map_or(0, |at| at + 1);
        left.sort_by_key(order);
        for (dim, &room) in room.iter().enumerate() {
            while let Some(k) = left.iter().position(|&axis| {
                let n = space.n_places(&self.now[dim]) * space.atoms[axis].size;
                room % n == 0
            }) {
                let axis = left.remove(k);
                self.now[dim].push(axis);
            }
        }
        self.price = self.price.plus(prices.of_pairs(&[], self.tile));
        left.is_empty().then_some(())
    }

    /// What no dim wants is gathered.
    fn gather(&mut self, space: &Space, prices: &mut Prices<'_>) {
        let mut axes = Vec::new();
        for (now, target) in self.now.iter_mut().zip(&self.target) {
            if now.starts_with(target) {
                axes.extend(now.split_off(target.len()));
            }
        }
        if !axes.is_empty() {
            self.price =
                self.price.plus(prices.of_atoms(space, StepKind::Exchange(Exchange::AllGather), self.tile, &axes));
            self.tile *= space.n_places(&axes) as u64;
        }
    }
}
