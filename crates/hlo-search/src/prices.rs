//! What it costs to bring a value from one state to another.
//!
//! A closed form, because a search asks for some hundred thousand pairs of states. On each dim, the axes that cut it are a list, major
//! first. What the lists of source and target begin with stays; behind that, axes of the source have to *leave* the dim before axes of
//! the target *come* to it: tiles of any other order are no parts of one another. So:
//!
//! 1. axes come to dims that none leaves: slices, which cost nothing; then partial sums, by one reduce-scatter; other partial sums become
//!    whole by one all-reduce;
//! 2. axes that go from dim to dim do so by one all-to-all, if none leaves the dim to which they come;
//! 3. what else leaves is gathered by one all-gather, and cut again where the target wants it.
//!
//! Where axes come to a dim that others leave there are more ways, and the cheapest counts: sums are scattered and axes moved after
//! the others left; and a permute puts all tiles where they are wanted, or puts what leaves at the minor end.
//!
//! Tiles of uneven cuts end at different places: where a dim of n elements is cut into s tiles before and into t then, and rounding up
//! gives different lengths in all, a permute between neighbours brings the rows that lie on the other side of a border.
//!
//! The planner of [`hlo_spmd::redistribution`] finds such steps and better ones; a test compares the two. A search adds these prices
//! up, so its lower bound is one for programs whose redistributions cost what is said here.
//!
//! Seconds are those of the exact groups of devices on the machine's links.

use crate::mesh::{AxisSet, MOST_AXES, SearchMesh, axes_of};
use crate::solver::{Cost, INFINITE};
use crate::state::{Place, State};
use crate::tiles::Tiles;
use hlo_cluster::CollectiveCost;
use hlo_ir::names::FixedHash;
use hlo_mesh::{Exchange, Network};
use indexmap::IndexMap;
use smallvec::SmallVec;
use std::cell::RefCell;

/// The exchanges among groups of devices that differ along some axes, in the order of [`Prices::costs`].
const EXCHANGES: [Exchange; 4] =
    [Exchange::AllReduce, Exchange::ReduceScatter, Exchange::AllGather, Exchange::AllToAll];

/// The axes that cut an array, with the dims that they cut: along a dim an earlier one is the more major.
type CutList = SmallVec<[(u8, u8); 4]>;

/// One exchange on the way from one state to another.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct ExchangeStep {
    pub exchange: Exchange,
    pub axes: AxisSet,
    /// Of a device's tile: before an all-reduce, reduce-scatter or all-to-all, after an all-gather; what a permute sends.
    pub bytes: f64,
}

/// The steps from one state to another.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Way {
    pub steps: SmallVec<[ExchangeStep; 4]>,
    pub seconds: f64,
}

impl Way {
    fn add(&mut self, prices: &Prices<'_>, exchange: Exchange, axes: AxisSet, bytes: f64) {
        if prices.mesh.n_places(axes) > 1 && bytes > 0.0 {
            self.seconds += prices.costs[exchange as usize][usize::from(axes)].seconds(bytes);
            self.steps.push(ExchangeStep { exchange, axes, bytes });
        }
    }

    fn add_permute(&mut self, axes: AxisSet, bytes: f64, seconds: f64) {
        if seconds > 0.0 {
            self.seconds += seconds;
            self.steps.push(ExchangeStep { exchange: Exchange::Permute, axes, bytes });
        }
    }

    fn or(self, other: Way) -> Way {
        if other.seconds < self.seconds { other } else { self }
    }
}

/// Prices on one mesh.
pub(crate) struct Prices<'a> {
    pub mesh: &'a SearchMesh,
    network: &'a Network,
    /// By exchange of [`EXCHANGES`], which is its number, and set of axes.
    costs: Vec<Vec<CollectiveCost>>,
    /// Of messages from neighbour to neighbour, by set of axes.
    shifts: Vec<CollectiveCost>,
    /// Of permutes from one list to another, as far as they were asked for.
    permutes: RefCell<IndexMap<(CutList, CutList), CollectiveCost, FixedHash>>,
}

/// An array on its way.
#[derive(Clone, Copy)]
struct Ends<'d> {
    array: &'d Tiles,
    to: State,
}

/// What the axes do between two states.
#[derive(Clone, Copy, Default)]
struct Changes {
    /// Whole before, and cut then.
    sliced: AxisSet,
    /// Partial before, and cut then.
    scattered: AxisSet,
    /// Partial before, and whole then.
    reduced: AxisSet,
    /// From one dim to another.
    moved: AxisSet,
    /// Cut before, and whole then.
    dropped: AxisSet,
    /// On a dim behind an axis that comes or goes there.
    displaced: AxisSet,
    /// Those that come to a dim that others leave.
    late: AxisSet,
}

impl<'a> Prices<'a> {
    /// The prices of a mesh on these links.
    pub(crate) fn new(mesh: &'a SearchMesh, network: &'a Network) -> Prices<'a> {
        debug_assert!(mesh.n_axes() <= MOST_AXES);
        let of_axes = |exchange: Exchange, axes: AxisSet| network.exchange(exchange, &mesh.groups(axes), &[]);
        let sets = 1u8 << mesh.n_axes();
        let costs = EXCHANGES.iter().map(|&exchange| (0..sets).map(|axes| of_axes(exchange, axes)).collect()).collect();
        let shift = |axes: AxisSet| {
            let next = |group: &Vec<u32>| group.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
            network.permute(&mesh.groups(axes).iter().flat_map(next).collect::<Vec<_>>())
        };
        let shifts = (0..sets).map(shift).collect();
        Prices { mesh, network, costs, shifts, permutes: RefCell::default() }
    }

    /// Seconds of an exchange among devices that differ along these axes; the bytes as in [`ExchangeStep::bytes`].
    pub(crate) fn exchange_s(&self, exchange: Exchange, axes: AxisSet, bytes: f64) -> f64 {
        let mut way = Way::default();
        way.add(self, exchange, axes, bytes);
        way.seconds
    }

    /// Seconds in which each device sends so many bytes to the next one along these axes.
    pub(crate) fn shift_s(&self, axes: AxisSet, bytes: f64) -> f64 {
        if bytes > 0.0 { self.shifts[usize::from(axes)].seconds(bytes) } else { 0.0 }
    }

    /// Bytes that a device sends in a step, as [`hlo_analysis::traffic`] counts them.
    pub(crate) fn sent_bytes(&self, step: &ExchangeStep) -> f64 {
        step.exchange.sent_share(self.mesh.n_places(step.axes) as f64) * step.bytes
    }

    /// The cost of bringing an array from one state to another, in picoseconds.
    pub(crate) fn redistribution(&self, array: &Tiles, from: State, to: State) -> Cost {
        if from == to {
            return 0;
        }
        self.find_way(array, from, to).map_or(INFINITE, |way| picoseconds(way.seconds))
    }

    /// The fastest way from one state to another; `None` where there is none: nobody splits a whole value into a sum.
    pub(crate) fn find_way(&self, array: &Tiles, from: State, to: State) -> Option<Way> {
        let ends = Ends { array, to };
        let changes = self.find_changes(from, to)?;
        let mut shifts = Way::default();
        let is_even = self.is_even(ends, from);
        if !is_even {
            self.shift(ends, from, &changes, &mut shifts);
        }
        let least = self.straight(ends, from, &changes, shifts.clone());
        if changes.late | changes.displaced == 0 {
            return Some(least);
        }
        let least = least.or(self.delayed(ends, from, &changes, shifts));
        match self.permuted(ends, from, &changes).filter(|_| is_even) {
            Some(permuted) => Some(least.or(permuted)),
            None => Some(least),
        }
    }

    fn bytes(&self, ends: Ends<'_>, state: State) -> f64 {
        ends.array.bytes(state)
    }

    /// Whether all axes divide the dims that they cut at one of the ends.
    fn is_even(&self, ends: Ends<'_>, from: State) -> bool {
        ends.array.are_even(from, ends.to)
    }

    /// What comes before anything leaves, and then all that leaves.
    fn straight(&self, ends: Ends<'_>, from: State, changes: &Changes, mut way: Way) -> Way {
        let Changes { sliced, scattered, reduced, moved, dropped, displaced, late } = *changes;
        let mut at = come(from, ends.to, sliced & !late);
        way.add(self, Exchange::ReduceScatter, scattered & !late, self.bytes(ends, at));
        at = come(at, ends.to, scattered & !late);
        let sums = reduced | scattered & late;
        way.add(self, Exchange::AllReduce, sums, self.bytes(ends, at));
        at = whole(at, sums);
        way.add(self, Exchange::AllToAll, moved & !late, self.bytes(ends, at));
        at = come(at, ends.to, moved & !late);
        let gathered = dropped | displaced | moved & late;
        way.add(self, Exchange::AllGather, gathered, self.bytes(ends, whole(at, gathered)));
        way
    }

    /// What comes to dims that others leave comes after these left: sums by a reduce-scatter, axes of other dims by an all-to-all.
    fn delayed(&self, ends: Ends<'_>, from: State, changes: &Changes, mut way: Way) -> Way {
        let Changes { sliced, scattered, reduced, moved, dropped, displaced, late } = *changes;
        let is_left_by_move = |axis: usize| axes_of(moved & late).any(|other| from.place(other) == ends.to.place(axis));
        let late_moves =
            axes_of(moved & late).filter(|&axis| !is_left_by_move(axis)).fold(0, |set, axis| set | 1 << axis);
        let mut at = come(from, ends.to, sliced & !late);
        way.add(self, Exchange::ReduceScatter, scattered & !late, self.bytes(ends, at));
        at = come(at, ends.to, scattered & !late);
        way.add(self, Exchange::AllReduce, reduced, self.bytes(ends, at));
        at = whole(at, reduced);
        way.add(self, Exchange::AllToAll, moved & !late, self.bytes(ends, at));
        at = come(at, ends.to, moved & !late);
        let gathered = dropped | displaced | moved & late & !late_moves;
        at = whole(at, gathered);
        way.add(self, Exchange::AllGather, gathered, self.bytes(ends, at));
        way.add(self, Exchange::AllToAll, late_moves, self.bytes(ends, at));
        at = come(at, ends.to, late_moves);
        way.add(self, Exchange::ReduceScatter, scattered & late, self.bytes(ends, come(at, ends.to, sliced)));
        way
    }

    /// The fastest way with a permute, if there is one.
    fn permuted(&self, ends: Ends<'_>, from: State, changes: &Changes) -> Option<Way> {
        let Changes { sliced, scattered, reduced, moved, dropped, late, .. } = *changes;
        let own = list_of(from, from.cut(self.mesh));
        let target = list_of(ends.to, ends.to.cut(self.mesh));
        let listed = |more: &[(u8, u8)]| -> CutList { own.iter().chain(more).copied().collect() };
        let all = (1 << self.mesh.n_axes()) - 1;
        // What is sliced and scattered now; what comes to a dim that others leave may also stay out.
        let mut least: Option<Way> = None;
        let mut offer = |way: Way| least = Some(least.take().map_or(way.clone(), |known| known.or(way)));
        for waits in [0, late] {
            let (mut at, mut way) = (come(from, ends.to, sliced & !waits), Way::default());
            way.add(self, Exchange::ReduceScatter, scattered & !waits, self.bytes(ends, at));
            at = come(at, ends.to, scattered & !waits);
            let sums = reduced | scattered & waits;
            way.add(self, Exchange::AllReduce, sums, self.bytes(ends, at));
            at = whole(at, sums);
            let list = listed(&list_of(ends.to, (sliced | scattered) & !waits));
            let bytes = self.bytes(ends, at);
            if self.have_equal_tiles(&list, &target) {
                let mut direct = way.clone();
                direct.add_permute(all, bytes, self.permute_s(&list, &target, bytes));
                offer(direct);
            }
            if waits == 0 && moved != 0 && can_move_first(&list, ends.to, moved) {
                let rest: CutList = list.iter().copied().filter(|(_, axis)| moved & 1 << axis == 0).collect();
                let list: CutList = rest.into_iter().chain(list_of(ends.to, moved)).collect();
                let mut first = way.clone();
                first.add(self, Exchange::AllToAll, moved, bytes);
                let at = come(at, ends.to, moved);
                let goal: CutList = target.iter().copied().chain(list_of(from, dropped)).collect();
                let moved_bytes = self.bytes(ends, at);
                first.add_permute(all, moved_bytes, self.permute_s(&list, &goal, moved_bytes));
                first.add(self, Exchange::AllGather, dropped, self.bytes(ends, whole(at, dropped)));
                offer(first);
            }
            if waits == 0 && self.can_move_behind(ends.to, changes) {
                let kept = list_of(ends.to, ends.to.cut(self.mesh) & !moved);
                let goal: CutList = kept.iter().copied().chain(list_of(from, moved | dropped)).collect();
                way.add_permute(all, bytes, self.permute_s(&list, &goal, bytes));
                way.add(self, Exchange::AllToAll, moved, bytes);
                at = whole(come(at, ends.to, moved), dropped);
                way.add(self, Exchange::AllGather, dropped, self.bytes(ends, at));
                offer(way);
            }
            if late == 0 {
                break;
            }
        }
        least
    }

    /// Whether all axes that move go to dims that none leaves, behind all that lies there.
    fn can_move_behind(&self, to: State, changes: &Changes) -> bool {
        axes_of(changes.moved).all(|axis| {
            let Place::Dim(dim) = to.place(axis) else { return false };
            let on_dim = to.cutting(self.mesh, usize::from(dim));
            let is_left = changes.late & 1 << axis != 0;
            !is_left && axes_of(on_dim & !changes.moved).all(|other| other < axis)
        })
    }

    /// Messages between neighbours where tiles of uneven cuts end at different places.
    fn shift(&self, ends: Ends<'_>, from: State, changes: &Changes, way: &mut Way) {
        let stays = whole(from, changes.dropped | changes.displaced | changes.moved);
        for (dim, &size) in ends.array.dims.iter().enumerate() {
            let sets = [from, stays, ends.to].map(|state| state.cutting(self.mesh, dim));
            for k in 0..2 {
                let n = [k, k + 1].map(|k| self.mesh.n_places(sets[k]));
                let padded = n.map(|n| (size + n - 1) / n * n);
                if n.contains(&1) || padded[0] == padded[1] {
                    continue;
                }
                let tile = if n[0] > n[1] { from } else { ends.to };
                let tile_len = padded[0].max(padded[1]) / n[0].max(n[1]);
                let share = (padded[0] - padded[1]).abs().min(tile_len) as f64 / tile_len as f64;
                let (axes, bytes) = (sets[k] | sets[k + 1], share * self.bytes(ends, tile));
                way.add_permute(axes, bytes, self.shifts[usize::from(axes)].seconds(bytes));
            }
        }
    }

    fn find_changes(&self, from: State, to: State) -> Option<Changes> {
        let mut changes = Changes::default();
        let (mut leaves, mut comes): (AxisSet, AxisSet) = (0, 0);
        for axis in 0..self.mesh.n_axes() {
            let bit = 1 << axis;
            match (from.place(axis), to.place(axis)) {
                (Place::Partial, Place::Whole) => changes.reduced |= bit,
                (Place::Partial, Place::Dim(_)) => changes.scattered |= bit,
                (Place::Whole | Place::Dim(_), Place::Partial) => return None,
                (Place::Whole, Place::Dim(_)) => changes.sliced |= bit,
                (Place::Dim(_), Place::Whole) => changes.dropped |= bit,
                (Place::Dim(before), Place::Dim(then)) if before != then => changes.moved |= bit,
                (Place::Whole, Place::Whole) | (Place::Partial, Place::Partial) | (Place::Dim(_), Place::Dim(_)) => {}
            }
            for place in [from.place(axis), to.place(axis)] {
                let Place::Dim(dim) = place else { continue };
                let (before, then) =
                    (from.cutting(self.mesh, usize::from(dim)), to.cutting(self.mesh, usize::from(dim)));
                let differ = before ^ then;
                // All axes from the first one on that only one of both lists has.
                let tail = if differ == 0 { 0 } else { !((differ & differ.wrapping_neg()) - 1) };
                leaves |= before & tail;
                changes.displaced |= before & then & tail;
                if before & tail != 0 {
                    comes |= then & tail;
                }
            }
        }
        debug_assert_eq!(leaves, changes.dropped | changes.moved | changes.displaced);
        changes.late = comes & !changes.displaced;
        Some(changes)
    }

    /// Whether as many tiles lie along each dim.
    fn have_equal_tiles(&self, one: &CutList, other: &CutList) -> bool {
        let n_tiles = |list: &CutList, dim: u8| -> i64 {
            list.iter().filter(|(d, _)| *d == dim).map(|&(_, axis)| self.mesh.size(usize::from(axis))).product()
        };
        one.iter().chain(other).all(|&(dim, _)| n_tiles(one, dim) == n_tiles(other, dim))
    }

    /// Seconds in which tiles of these bytes go to the devices that want them.
    fn permute_s(&self, from: &CutList, to: &CutList, bytes: f64) -> f64 {
        let key = (sorted_by_dim(from), sorted_by_dim(to));
        if let Some(cost) = self.permutes.borrow().get(&key) {
            return cost.seconds(bytes);
        }
        let pairs = self.pairs(&key.0, &key.1);
        let cost = self.network.permute(&pairs);
        let seconds = cost.seconds(bytes);
        self.permutes.borrow_mut().insert(key, cost);
        seconds
    }

    /// Who sends its tile to whom. A device that holds what it wants keeps it; others get it in the order of their ids.
    fn pairs(&self, from: &CutList, to: &CutList) -> Vec<(u32, u32)> {
        let n_devices = self.mesh.n_devices() as u32;
        let tiles = |list: &CutList| -> Vec<Tile> { (0..n_devices).map(|device| self.tile(device, list)).collect() };
        let (held, wanted) = (tiles(from), tiles(to));
        let mut senders: IndexMap<&Tile, Vec<u32>, FixedHash> = IndexMap::default();
        for device in (0..n_devices).rev().filter(|&d| held[d as usize] != wanted[d as usize]) {
            senders.entry(&held[device as usize]).or_default().push(device);
        }
        let receivers = (0..n_devices).filter(|&d| held[d as usize] != wanted[d as usize]);
        let mut from = |d: u32| senders.get_mut(&wanted[d as usize]).and_then(Vec::pop).map(|sender| (sender, d));
        receivers.filter_map(&mut from).collect()
    }

    /// By dim that is cut, which tile a device holds. The list is sorted by dim.
    fn tile(&self, device: u32, list: &CutList) -> Tile {
        let place = |axis: usize| {
            let behind: i64 = (axis + 1..self.mesh.n_axes()).map(|minor| self.mesh.size(minor)).product();
            i64::from(device) / behind % self.mesh.size(axis)
        };
        let mut tile = Tile::new();
        for axis_of_dim in list.chunk_by(|a, b| a.0 == b.0) {
            let along =
                |at: i64, &(_, axis): &(u8, u8)| at * self.mesh.size(usize::from(axis)) + place(usize::from(axis));
            tile.push(axis_of_dim.iter().fold(0, along));
        }
        tile
    }
}

/// Whether all axes that move are at the minor ends of dims to which none goes.
fn can_move_first(list: &CutList, to: State, moved: AxisSet) -> bool {
    let moves = |axis: u8| moved & 1 << axis != 0;
    let mut movers = list.iter().enumerate().filter(|(_, (_, axis))| moves(*axis));
    movers.all(|(k, &(dim, _))| {
        let is_at_end = list[k + 1..].iter().all(|&(other, axis)| other != dim || moves(axis));
        is_at_end && axes_of(moved).all(|other| to.place(other) != Place::Dim(dim))
    })
}

/// These axes are where the target has them.
fn come(state: State, to: State, axes: AxisSet) -> State {
    axes_of(axes).fold(state, |state, axis| state.with(axis, to.place(axis)))
}

/// The value is whole along these axes.
fn whole(state: State, axes: AxisSet) -> State {
    axes_of(axes).fold(state, |state, axis| state.with(axis, Place::Whole))
}

/// Where a tile lies, by dim that is cut.
type Tile = SmallVec<[i64; 4]>;

/// The axes of a state that are in a set, where they cut.
fn list_of(state: State, axes: AxisSet) -> CutList {
    let at = |axis: usize| match state.place(axis) {
        Place::Dim(dim) => Some((dim, axis as u8)),
        Place::Whole | Place::Partial => None,
    };
    axes_of(axes).filter_map(at).collect()
}

/// The same list, dim by dim.
fn sorted_by_dim(list: &CutList) -> CutList {
    let mut sorted = list.clone();
    sorted.sort_by_key(|(dim, _)| *dim);
    sorted
}

/// Seconds as picoseconds, at most [`INFINITE`].
pub(crate) fn picoseconds(seconds: f64) -> Cost {
    let most = INFINITE as f64;
    (seconds * 1e12).round().min(most) as Cost
}
