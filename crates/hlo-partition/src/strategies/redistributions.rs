//! What MindSpore takes a redistribution to cost: between the layouts of a tensor that two operators want.
//!
//! Device matrices and shapes are unified: here both layouts are lists of prime axes, and neighbours that move together count as one
//! axis. Then, until nothing is pending: split whole dims by axes that cut nothing; move axes to whole dims by an all-to-all; gather
//! axes that the target does not have; where nothing applies, gather the first pending one. With a slice of s bytes and n devices a
//! gather costs 0.5 s n and on the way back 0.5 s, an all-to-all 2 s each way, a split nothing.

use crate::mesh::ModuleMesh;
use crate::sharding::{ArraySharding, Atom};
use hlo_ir::names::FixedHash;
use indexmap::IndexSet;
use std::collections::HashMap;

/// Number of a layout.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LayoutId(usize);

/// Where some neighbouring axes are: the dim, and between which numbers of tiles they cut it.
type Seat = Option<(usize, i64, i64)>;

/// Layouts, each once, and the costs between them.
pub(super) struct Redistributions<'a> {
    mesh: &'a ModuleMesh,
    layouts: IndexSet<ArraySharding, FixedHash>,
    known: HashMap<(LayoutId, LayoutId), f64, FixedHash>,
}

/// Axes that move together.
struct Unit {
    n_places: i64,
    now: Seat,
    target: Seat,
}

impl<'a> Redistributions<'a> {
    pub(super) fn new(mesh: &'a ModuleMesh) -> Redistributions<'a> {
        Redistributions { mesh, layouts: IndexSet::default(), known: HashMap::default() }
    }

    /// The number of a layout.
    pub(super) fn id(&mut self, layout: ArraySharding) -> LayoutId {
        LayoutId(self.layouts.insert_full(layout).0)
    }

    /// A layout by its number.
    pub(super) fn layout(&self, id: LayoutId) -> Option<&ArraySharding> {
        self.layouts.get_index(id.0)
    }

    /// The cost for each byte of the whole tensor.
    pub(super) fn cost_per_byte(&mut self, from: LayoutId, to: LayoutId) -> f64 {
        if from == to {
            return 0.0;
        }
        if let Some(&known) = self.known.get(&(from, to)) {
            return known;
        }
        let (Some(a), Some(b)) = (self.layout(from), self.layout(to)) else { return 0.0 };
        let cost = greedy_cost(units(self.mesh, a, b));
        self.known.insert((from, to), cost);
        cost
    }
}

/// Where each atom is in a layout.
fn seats(mesh: &ModuleMesh, layout: &ArraySharding) -> Vec<Seat> {
    let mut seats = vec![None; mesh.sizes().len()];
    for (dim, atoms) in layout.dims.iter().enumerate() {
        let mut begin = 1;
        for &atom in atoms {
            let end = begin * mesh.size(atom);
            seats[usize::from(atom.0)] = Some((dim, begin, end));
            begin = end;
        }
    }
    seats
}

/// Neighbouring atoms that are neighbours in both layouts are one unit.
fn units(mesh: &ModuleMesh, from: &ArraySharding, to: &ArraySharding) -> Vec<Unit> {
    let (from, to) = (seats(mesh, from), seats(mesh, to));
    let joined = |a: Seat, b: Seat| match (a, b) {
        (None, None) => Some(None),
        (Some((dim, begin, middle)), Some((other, next, end))) if dim == other && middle == next => {
            Some(Some((dim, begin, end)))
        }
        _ => None,
    };
    let mut units: Vec<Unit> = Vec::new();
    for (atom, (&now, &target)) in from.iter().zip(&to).enumerate() {
        let size = mesh.size(Atom(atom as u8));
        if let Some(last) = units.last_mut()
            && let (Some(both_now), Some(both_target)) = (joined(last.now, now), joined(last.target, target))
        {
            *last = Unit { n_places: last.n_places * size, now: both_now, target: both_target };
        } else {
            units.push(Unit { n_places: size, now, target });
        }
    }
    units
}

/// Whether two parts of dims have a common segment.
fn overlap(a: Seat, b: Seat) -> bool {
    match (a, b) {
        (Some((dim, begin, end)), Some((other, next, last))) => dim == other && begin < last && next < end,
        _ => false,
    }
}

fn greedy_cost(mut units: Vec<Unit>) -> f64 {
    let mut cost = 0.0;
    let slice = |units: &[Unit]| {
        let cut = units.iter().filter(|unit| unit.now.is_some()).map(|unit| unit.n_places as f64);
        1.0 / cut.product::<f64>()
    };
    loop {
        let Some(pending) = units.iter().position(|unit| unit.now != unit.target) else { return cost };
        let is_whole = |units: &[Unit], k: usize| {
            units.iter().enumerate().all(|(j, u)| j == k || !overlap(u.now, units[k].target))
        };
        let mut has_moved = false;
        for (is_cut, is_wanted) in [(false, true), (true, true), (true, false)] {
            for k in 0..units.len() {
                let unit = &units[k];
                let applies = unit.now.is_some() == is_cut && unit.target.is_some() == is_wanted;
                if !applies || unit.now == unit.target || (is_wanted && !is_whole(&units, k)) {
                    continue;
                }
                let (part, n) = (slice(&units), unit.n_places as f64);
                cost += match (is_cut, is_wanted) {
                    (false, _) => 0.0,
                    (true, true) => 4.0 * part,
                    (true, false) => 0.5 * part * n + 0.5 * part,
                };
                units[k].now = units[k].target;
                has_moved = true;
            }
        }
        if !has_moved {
            let stuck = units.iter().position(|unit| unit.now.is_some() && unit.now != unit.target).unwrap_or(pending);
            let (part, n) = (slice(&units), units[stuck].n_places as f64);
            cost += 0.5 * part * n + 0.5 * part;
            units[stuck].now = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn cost(sizes: &[i64], from: &[&[u8]], to: &[&[u8]]) -> f64 {
        let mesh = ModuleMesh::ascending(sizes.to_vec());
        let mut all = Redistributions::new(&mesh);
        let layout = |dims: &[&[u8]]| ArraySharding {
            dims: dims.iter().map(|atoms| atoms.iter().map(|&a| Atom(a)).collect()).collect(),
            partial: smallvec![],
        };
        let (from, to) = (all.id(layout(from)), all.id(layout(to)));
        all.cost_per_byte(from, to)
    }

    #[test]
    fn costs_are_those_of_the_rules() {
        // Rows on 4 to whole: one gather of the quarter by 4 devices.
        assert_eq!(cost(&[2, 2], &[&[0, 1], &[]], &[&[], &[]]), 0.25 * 4.0 * 0.5 + 0.25 * 0.5);
        // Rows to columns: one all-to-all of the quarter, both ways.
        assert_eq!(cost(&[2, 2], &[&[0, 1], &[]], &[&[], &[0, 1]]), 4.0 * 0.25);
        // Whole to rows: a split.
        assert_eq!(cost(&[2, 2], &[&[], &[]], &[&[0, 1], &[]]), 0.0);
        // Two axes change places: neither dim is whole, so the first is gathered (2 halves of a quarter each), the other moves, and
        // the first splits.
        let gathered = 0.5 * 0.25 * 2.0 + 0.5 * 0.25;
        assert_eq!(cost(&[2, 2], &[&[0], &[1]], &[&[1], &[0]]), gathered + 4.0 * 0.5);
        // Another axis cuts the same dim: it is gathered, and split anew.
        assert_eq!(cost(&[2, 2], &[&[0]], &[&[1]]), 0.5 * 0.5 * 2.0 + 0.5 * 0.5);
    }
}
