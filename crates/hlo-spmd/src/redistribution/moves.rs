//! The steps that can follow a state.

use super::StepKind;
use super::space::{AtomList, Place, Places, Space};
use hlo_mesh::Exchange;
use smallvec::SmallVec;

/// A state and what can follow it.
pub(super) struct Moves<'a> {
    space: &'a Space,
    from: &'a Places,
    target: &'a Places,
    lists: Vec<AtomList>,
    local: SmallVec<[i64; 8]>,
    /// Segments that atoms may come to.
    is_open: Vec<bool>,
}

impl<'a> Moves<'a> {
    pub(super) fn new(space: &'a Space, from: &'a Places, target: &'a Places) -> Moves<'a> {
        let is_large = space.atoms.len() - space.pinned.count_ones() as usize > 4;
        let is_open = space.lists(target).iter().map(|list| !is_large || !list.is_empty()).collect();
        Moves { space, from, target, lists: space.lists(from), local: space.local_sizes(from), is_open }
    }

    /// Calls `visit` with each step and the state after it.
    pub(super) fn each(&self, visit: &mut impl FnMut(StepKind, Places)) {
        self.slices(visit);
        self.gathers(visit);
        self.exchanges(StepKind::Exchange(Exchange::AllToAll), visit);
        self.permutes(visit);
        if self.from.contains(&Place::Partial) {
            self.exchanges(StepKind::Exchange(Exchange::ReduceScatter), visit);
            self.all_reduces(visit);
        }
    }

    fn n_atoms(&self) -> usize {
        self.space.atoms.len()
    }

    /// Where an atom goes if it is appended to a segment that has room for it.
    fn appended(&self, local: &[i64], places: &Places, atom: usize, segment: usize) -> Option<Place> {
        let has_room = local[segment] % self.space.atoms[atom].size == 0;
        let on = |place: &&Place| matches!(place, Place::On { segment: s, .. } if *s as usize == segment);
        let depth = places.iter().filter(on).count() as u16;
        (has_room && self.is_open[segment]).then_some(Place::On { segment: segment as u16, depth })
    }

    /// A free atom cuts a segment.
    fn slices(&self, visit: &mut impl FnMut(StepKind, Places)) {
        for atom in (0..self.n_atoms()).filter(|&a| self.from[a] == Place::Free && !self.space.is_pinned(a)) {
            for segment in 0..self.space.segments.len() {
                if let Some(place) = self.appended(&self.local, self.from, atom, segment) {
                    let mut to = self.from.clone();
                    to[atom] = place;
                    visit(StepKind::Slice, to);
                }
            }
        }
    }

    /// Atoms at the minor ends of their segments become free, any number in one all-gather.
    fn gathers(&self, visit: &mut impl FnMut(StepKind, Places)) {
        let placed: Vec<usize> = (0..self.n_atoms()).filter(|&a| matches!(self.from[a], Place::On { .. })).collect();
        self.freed(&placed, &mut |to| {
            let is_free = |a: &usize| to[*a] == Place::Free;
            if self.lists.iter().all(|list| list.iter().map(is_free).is_sorted()) {
                visit(StepKind::Exchange(Exchange::AllGather), to);
            }
        });
    }

    fn all_reduces(&self, visit: &mut impl FnMut(StepKind, Places)) {
        let is_due = |&a: &usize| self.from[a] == Place::Partial && self.target[a] != Place::Partial;
        let due: Vec<usize> = (0..self.n_atoms()).filter(is_due).collect();
        self.freed(&due, &mut |to| visit(StepKind::Exchange(Exchange::AllReduce), to));
    }

    /// The states in which some of these atoms are free.
    fn freed(&self, atoms: &[usize], visit: &mut impl FnMut(Places)) {
        for mask in 1u64..1 << atoms.len() {
            let mut to = self.from.clone();
            atoms.iter().enumerate().filter(|(k, _)| mask >> k & 1 == 1).for_each(|(_, &a)| to[a] = Place::Free);
            visit(to);
        }
    }

    /// Atoms move to segments with room, any number in one collective: from other segments, none of which gains one, or from
    /// partial results.
    fn exchanges(&self, kind: StepKind, visit: &mut impl FnMut(StepKind, Places)) {
        let is_mover = |&a: &usize| match kind {
            StepKind::Exchange(Exchange::ReduceScatter) => {
                self.from[a] == Place::Partial && self.target[a] != Place::Partial
            }
            _ => matches!(self.from[a], Place::On { .. }),
        };
        let mut movers: Vec<usize> = (0..self.n_atoms()).filter(is_mover).collect();
        // In the target's order, in which several are appended to one segment.
        movers.sort_by_key(|&a| (self.target[a], a));
        let mut state = Partway { places: self.from.clone(), local: self.local.clone(), moved: 0 };
        self.exchange(kind, &movers, &mut state, visit);
    }

    fn exchange(
        &self,
        kind: StepKind,
        movers: &[usize],
        state: &mut Partway,
        visit: &mut impl FnMut(StepKind, Places),
    ) {
        let Some((&atom, rest)) = movers.split_first() else {
            if state.moved != 0 && self.is_exchange(state) {
                visit(kind, state.places.clone());
            }
            return;
        };
        self.exchange(kind, rest, state, visit);
        for segment in 0..self.space.segments.len() {
            let is_own = matches!(self.from[atom], Place::On { segment: s, .. } if s as usize == segment);
            let gains = if is_own { None } else { self.appended(&state.local, &state.places, atom, segment) };
            let Some(place) = gains else { continue };
            let size = self.space.atoms[atom].size;
            state.places[atom] = place;
            state.local[segment] /= size;
            state.moved |= 1 << atom;
            self.exchange(kind, rest, state, visit);
            state.moved &= !(1 << atom);
            state.local[segment] *= size;
            state.places[atom] = self.from[atom];
        }
    }

    /// Whether what leaves a segment is its minor end, and no segment both loses and gains.
    fn is_exchange(&self, state: &Partway) -> bool {
        let leaves = |a: &usize| state.moved >> a & 1 == 1;
        self.lists.iter().enumerate().all(|(segment, list)| {
            let gains = state.local[segment] != self.local[segment];
            list.iter().map(leaves).is_sorted() && !(gains && list.iter().any(leaves))
        })
    }

    /// Tiles of the same shape go to other devices: any atoms on the segments that are cut.
    fn permutes(&self, visit: &mut impl FnMut(StepKind, Places)) {
        let cut: Vec<usize> = (0..self.lists.len()).filter(|&s| !self.lists[s].is_empty()).collect();
        let is_bound = |a: usize| self.from[a] == Place::Partial || self.space.is_pinned(a);
        let mut places: Places =
            (0..self.n_atoms()).map(|a| if is_bound(a) { self.from[a] } else { Place::Free }).collect();
        self.permute(&cut, (1, 0), &mut places, visit);
    }

    /// Fills the first of the `cut` segments further, which has `depth` atoms of `n` places so far.
    fn permute(
        &self,
        cut: &[usize],
        (n, depth): (i64, u16),
        places: &mut Places,
        visit: &mut impl FnMut(StepKind, Places),
    ) {
        let Some((&segment, rest)) = cut.split_first() else {
            if places != self.from {
                visit(StepKind::Exchange(Exchange::Permute), places.clone());
            }
            return;
        };
        let wanted = self.space.segments[segment].size / self.local[segment];
        if n == wanted {
            return self.permute(rest, (1, 0), places, visit);
        }
        for atom in 0..self.n_atoms() {
            let size = self.space.atoms[atom].size;
            if places[atom] != Place::Free || self.space.is_pinned(atom) || wanted % (n * size) != 0 {
                continue;
            }
            places[atom] = Place::On { segment: segment as u16, depth };
            self.permute(cut, (n * size, depth + 1), places, visit);
            places[atom] = Place::Free;
        }
    }
}

/// An exchange that is being put together.
struct Partway {
    places: Places,
    local: SmallVec<[i64; 8]>,
    moved: u64,
}
