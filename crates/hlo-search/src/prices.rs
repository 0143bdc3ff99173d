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
use hlo_analysis::time::Network;
use hlo_cluster::{Collective, CollectiveCost};
use hlo_ir::names::FixedHash;
use indexmap::IndexMap;
use smallvec::SmallVec;
use std::cell::RefCell;

/// What devices do together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Exchange {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllToAll,
}

const EXCHANGES: [Exchange; 4] =
    [Exchange::AllReduce, Exchange::ReduceScatter, Exchange::AllGather, Exchange::AllToAll];

/// The axes that cut an array, with the dims that they cut: along a dim an earlier one is the more major.
type CutList = SmallVec<[(u8, u8); 4]>;

/// Prices on one mesh.
pub(crate) struct Prices<'a> {
    pub mesh: &'a SearchMesh,
    network: &'a Network,
    /// By exchange and set of axes.
    costs: Vec<Vec<CollectiveCost>>,
    /// Of messages from neighbour to neighbour, by set of axes.
    shifts: Vec<CollectiveCost>,
    /// Of permutes from one list to another, as far as they were asked for.
    permutes: RefCell<IndexMap<(CutList, CutList), CollectiveCost, FixedHash>>,
}

/// An array on its way.
#[derive(Clone, Copy)]
struct Ends<'d> {
    dims: &'d [i64],
    elem_bytes: f64,
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
        let of_axes = |exchange: Exchange, axes: AxisSet| {
            let groups = mesh.groups(axes);
            match exchange {
                Exchange::AllReduce => network.collective(Collective::AllReduce, &groups),
                Exchange::ReduceScatter => network.collective(Collective::ReduceScatter, &groups),
                Exchange::AllGather => network.collective(Collective::AllGather, &groups),
                Exchange::AllToAll => network.all_to_all(&groups),
            }
        };
        let sets = 1u8 << mesh.n_axes();
        let costs = EXCHANGES.iter().map(|&exchange| (0..sets).map(|axes| of_axes(exchange, axes)).collect()).collect();
        let shift = |axes: AxisSet| {
            let next = |group: &Vec<u32>| group.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<_>>();
            network.permute(&mesh.groups(axes).iter().flat_map(next).collect::<Vec<_>>())
        };
        let shifts = (0..sets).map(shift).collect();
        Prices { mesh, network, costs, shifts, permutes: RefCell::default() }
    }

    fn seconds(&self, exchange: Exchange, axes: AxisSet, bytes: f64) -> f64 {
        if self.mesh.n_places(axes) <= 1 || bytes <= 0.0 {
            return 0.0;
        }
        self.costs[exchange as usize][usize::from(axes)].seconds(bytes)
    }

    /// The cost of bringing an array of `dims` with elements of `elem_bytes` from one state to another, in picoseconds.
    pub(crate) fn redistribution(&self, dims: &[i64], elem_bytes: f64, from: State, to: State) -> Cost {
        if from == to {
            return 0;
        }
        self.find_seconds(Ends { dims, elem_bytes, to }, from).map_or(INFINITE, picoseconds)
    }

    /// The least seconds from one state to another; `None` where there is no way: nobody splits a whole value into a sum.
    fn find_seconds(&self, ends: Ends<'_>, from: State) -> Option<f64> {
        let changes = self.find_changes(from, ends.to)?;
        let shifts_s = if self.is_even(ends, from) { 0.0 } else { self.shifts_s(ends, from, &changes) };
        let least = shifts_s + self.straight_s(ends, from, &changes);
        if changes.late | changes.displaced == 0 {
            return Some(least);
        }
        let least = least.min(shifts_s + self.delayed_s(ends, from, &changes));
        if self.is_even(ends, from) { Some(least.min(self.permuted_s(ends, from, &changes))) } else { Some(least) }
    }

    fn bytes(&self, ends: Ends<'_>, state: State) -> f64 {
        state.tile_elems(self.mesh, ends.dims) * ends.elem_bytes
    }

    /// Whether all axes divide the dims that they cut at one of the ends.
    fn is_even(&self, ends: Ends<'_>, from: State) -> bool {
        let cut_by = |dim: usize| from.cutting(self.mesh, dim) | ends.to.cutting(self.mesh, dim);
        ends.dims.iter().enumerate().all(|(dim, &size)| size % self.mesh.n_places(cut_by(dim)) == 0)
    }

    /// What comes before anything leaves, and then all that leaves.
    fn straight_s(&self, ends: Ends<'_>, from: State, changes: &Changes) -> f64 {
        let Changes { sliced, scattered, reduced, moved, dropped, displaced, late } = *changes;
        let mut at = come(from, ends.to, sliced & !late);
        let mut seconds = self.seconds(Exchange::ReduceScatter, scattered & !late, self.bytes(ends, at));
        at = come(at, ends.to, scattered & !late);
        let sums = reduced | scattered & late;
        seconds += self.seconds(Exchange::AllReduce, sums, self.bytes(ends, at));
        at = whole(at, sums);
        seconds += self.seconds(Exchange::AllToAll, moved & !late, self.bytes(ends, at));
        at = come(at, ends.to, moved & !late);
        let gathered = dropped | displaced | moved & late;
        seconds + self.seconds(Exchange::AllGather, gathered, self.bytes(ends, whole(at, gathered)))
    }

    /// What comes to dims that others leave comes after these left: sums by a reduce-scatter, axes of other dims by an all-to-all.
    fn delayed_s(&self, ends: Ends<'_>, from: State, changes: &Changes) -> f64 {
        let Changes { sliced, scattered, reduced, moved, dropped, displaced, late } = *changes;
        let is_left_by_move = |axis: usize| axes_of(moved & late).any(|other| from.place(other) == ends.to.place(axis));
        let late_moves =
            axes_of(moved & late).filter(|&axis| !is_left_by_move(axis)).fold(0, |set, axis| set | 1 << axis);
        let mut at = come(from, ends.to, sliced & !late);
        let mut seconds = self.seconds(Exchange::ReduceScatter, scattered & !late, self.bytes(ends, at));
        at = come(at, ends.to, scattered & !late);
        seconds += self.seconds(Exchange::AllReduce, reduced, self.bytes(ends, at));
        at = whole(at, reduced);
        seconds += self.seconds(Exchange::AllToAll, moved & !late, self.bytes(ends, at));
        at = come(at, ends.to, moved & !late);
        let gathered = dropped | displaced | moved & late & !late_moves;
        at = whole(at, gathered);
        seconds += self.seconds(Exchange::AllGather, gathered, self.bytes(ends, at));
        seconds += self.seconds(Exchange::AllToAll, late_moves, self.bytes(ends, at));
        at = come(at, ends.to, late_moves);
        seconds + self.seconds(Exchange::ReduceScatter, scattered & late, self.bytes(ends, come(at, ends.to, sliced)))
    }

    /// The ways with a permute.
    fn permuted_s(&self, ends: Ends<'_>, from: State, changes: &Changes) -> f64 {
        let Changes { sliced, scattered, reduced, moved, dropped, late, .. } = *changes;
        let own = list_of(from, from.cut(self.mesh));
        let target = list_of(ends.to, ends.to.cut(self.mesh));
        let listed = |more: &[(u8, u8)]| -> CutList { own.iter().chain(more).copied().collect() };
        // What is sliced and scattered now; what comes to a dim that others leave may also stay out.
        let mut least = f64::INFINITY;
        for waits in [0, late] {
            let mut at = come(from, ends.to, sliced & !waits);
            let mut seconds = self.seconds(Exchange::ReduceScatter, scattered & !waits, self.bytes(ends, at));
            at = come(at, ends.to, scattered & !waits);
            let sums = reduced | scattered & waits;
            seconds += self.seconds(Exchange::AllReduce, sums, self.bytes(ends, at));
            at = whole(at, sums);
            let list = listed(&list_of(ends.to, (sliced | scattered) & !waits));
            if self.have_equal_tiles(&list, &target) {
                least = least.min(seconds + self.permute_s(&list, &target, self.bytes(ends, at)));
            }
            if waits == 0 && moved != 0 && can_move_first(&list, ends.to, moved) {
                let rest: CutList = list.iter().copied().filter(|(_, axis)| moved & 1 << axis == 0).collect();
                let list: CutList = rest.into_iter().chain(list_of(ends.to, moved)).collect();
                let move_s = self.seconds(Exchange::AllToAll, moved, self.bytes(ends, at));
                let at = come(at, ends.to, moved);
                let goal: CutList = target.iter().copied().chain(list_of(from, dropped)).collect();
                let gather_s = self.seconds(Exchange::AllGather, dropped, self.bytes(ends, whole(at, dropped)));
                let permute_s = self.permute_s(&list, &goal, self.bytes(ends, at));
                least = least.min(seconds + move_s + permute_s + gather_s);
            }
            if waits == 0 && self.can_move_behind(ends.to, changes) {
                let kept = list_of(ends.to, ends.to.cut(self.mesh) & !moved);
                let goal: CutList = kept.iter().copied().chain(list_of(from, moved | dropped)).collect();
                seconds += self.permute_s(&list, &goal, self.bytes(ends, at));
                seconds += self.seconds(Exchange::AllToAll, moved, self.bytes(ends, at));
                at = whole(come(at, ends.to, moved), dropped);
                seconds += self.seconds(Exchange::AllGather, dropped, self.bytes(ends, at));
                least = least.min(seconds);
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
    fn shifts_s(&self, ends: Ends<'_>, from: State, changes: &Changes) -> f64 {
        let stays = whole(from, changes.dropped | changes.displaced | changes.moved);
        let shifts = |(dim, &size): (usize, &i64)| {
            let sets = [from, stays, ends.to].map(|state| state.cutting(self.mesh, dim));
            let between = |k: usize| {
                let n = [k, k + 1].map(|k| self.mesh.n_places(sets[k]));
                let padded = n.map(|n| (size + n - 1) / n * n);
                if n.contains(&1) || padded[0] == padded[1] {
                    return 0.0;
                }
                let tile = if n[0] > n[1] { from } else { ends.to };
                let tile_len = padded[0].max(padded[1]) / n[0].max(n[1]);
                let share = (padded[0] - padded[1]).abs().min(tile_len) as f64 / tile_len as f64;
                self.shifts[usize::from(sets[k] | sets[k + 1])].seconds(share * self.bytes(ends, tile))
            };
            between(0) + between(1)
        };
        ends.dims.iter().enumerate().map(shifts).sum()
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
