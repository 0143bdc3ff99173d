//! What plans are made of: prime axes, and the segments of dims that they cut.
//!
//! Every dim is cut into *segments* at the cumulative numbers of tiles of source and target, so that a segment holds one prime axis
//! (*atom*). An atom of any segment can then move by itself: no rule of minor ends is left. Where source and target cut a dim at
//! places that do not divide one another (by 2 and by 3), a segment holds a list of atoms, major to minor.

use hlo_ir::Dims;
use hlo_ir::axes::{AxisMesh, AxisSharding, SubAxis};
use smallvec::SmallVec;

/// Where an atom is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Place {
    /// The value is the same along it.
    Free,
    /// The value is a partial result along it.
    Partial,
    /// It cuts a segment, as the `depth`-th atom from the major end.
    On {
        /// Index into [`Space::segments`].
        segment: u16,
        /// Atoms of the segment before it.
        depth: u16,
    },
}

/// The place of each atom: one way to hold the value.
pub(super) type Places = SmallVec<[Place; 8]>;

/// The atoms of a segment, major to minor.
pub(super) type AtomList = SmallVec<[usize; 2]>;

/// A prime axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Atom {
    /// Number of places.
    pub size: i64,
    /// Positions from one place to the next.
    pub stride: i64,
}

/// A factor of a dim's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    /// The dim.
    pub dim: usize,
    /// Its size, padding included.
    pub size: i64,
}

/// Atoms, segments and devices.
#[derive(Clone, Debug)]
pub(super) struct Space {
    pub atoms: Vec<Atom>,
    pub segments: Vec<Segment>,
    /// The device at each position.
    pub devices: Vec<u32>,
    pub element_bytes: u64,
    /// Bit a: atom a stays where it is.
    pub pinned: u64,
}

/// A dim whose tiles in source and target do not lie on one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UnalignedDim(pub usize);

/// The size of each dim with the padding that the tiles of source and target need.
///
/// # Errors
/// Both cut a dim, and their tiles end at different places.
pub(super) fn padded_dims(dims: &[i64], source: &[i64], target: &[i64]) -> Result<Dims, UnalignedDim> {
    let padded = |(dim, &size): (usize, &i64)| {
        let whole = |n_tiles: i64| (size + n_tiles - 1) / n_tiles * n_tiles;
        let n = |tiles: &[i64]| tiles.get(dim).copied().unwrap_or(1);
        match (n(source), n(target)) {
            (n, 1) | (1, n) => Ok(whole(n)),
            (s, t) if whole(s) == whole(t) => Ok(whole(s)),
            (_, _) => Err(UnalignedDim(dim)),
        }
    };
    dims.iter().enumerate().map(padded).collect()
}

/// The segments of dims of these sizes, which source and target cut.
pub(super) fn segments(padded: &[i64], source: &AxisSharding, target: &AxisSharding) -> Vec<Segment> {
    let mut out = Vec::new();
    for (dim, &size) in padded.iter().enumerate() {
        let cuts = |sharding: &AxisSharding| -> Vec<i64> {
            let axes = sharding.dims.get(dim).map(Vec::as_slice).unwrap_or_default();
            axes.iter().scan(1, |n, axis| Some(*n * axis.size).inspect(|&next| *n = next)).collect()
        };
        let mut all = [cuts(source), cuts(target), vec![size]].concat();
        all.sort();
        all.dedup();
        let fits = |&cut: &i64| all.iter().all(|&other| other % cut == 0 || cut % other == 0);
        let mut before = 1;
        for cut in all.iter().copied().filter(fits) {
            if cut > before {
                out.push(Segment { dim, size: cut / before });
                before = cut;
            }
        }
    }
    out
}

impl Space {
    /// The atoms of a mesh of prime axes.
    pub(super) fn new(mesh: &AxisMesh, segments: Vec<Segment>, element_bytes: u64) -> Space {
        let atom = |(axis, &size): (usize, &i64)| Atom { size, stride: mesh.stride(SubAxis { axis, pre: 1, size }) };
        let atoms = mesh.sizes.iter().enumerate().map(atom).collect();
        Space { atoms, segments, devices: mesh.devices.clone(), element_bytes, pinned: 0 }
    }

    /// The places of the atoms in a sharding over the mesh of this space.
    pub(super) fn places(&self, sharding: &AxisSharding) -> Places {
        let mut places: Places = smallvec::smallvec![Place::Free; self.atoms.len()];
        for part in &sharding.unreduced {
            places[part.axis] = Place::Partial;
        }
        for (dim, axes) in sharding.dims.iter().enumerate() {
            let mut of_dim = (0..self.segments.len()).filter(|&s| self.segments[s].dim == dim);
            let (mut segment, mut filled, mut depth) = (of_dim.next(), 1, 0);
            for part in axes {
                while segment.is_some_and(|s| filled == self.segments[s].size) {
                    (segment, filled, depth) = (of_dim.next(), 1, 0);
                }
                places[part.axis] = Place::On { segment: segment.unwrap_or_default() as u16, depth };
                filled *= part.size;
                depth += 1;
            }
        }
        places
    }

    /// The atoms on each segment, major to minor.
    pub(super) fn lists(&self, places: &Places) -> Vec<AtomList> {
        let mut lists = vec![AtomList::new(); self.segments.len()];
        for (atom, place) in places.iter().enumerate() {
            if let Place::On { segment, .. } = place {
                lists[*segment as usize].push(atom);
            }
        }
        let depth = |atom: &usize| match places[*atom] {
            Place::On { depth, .. } => depth,
            Place::Free | Place::Partial => 0,
        };
        lists.iter_mut().for_each(|list| list.sort_by_key(depth));
        lists
    }

    /// What one device holds of each segment.
    pub(super) fn local_sizes(&self, places: &Places) -> SmallVec<[i64; 8]> {
        let mut sizes: SmallVec<[i64; 8]> = self.segments.iter().map(|segment| segment.size).collect();
        for (atom, place) in self.atoms.iter().zip(places) {
            if let Place::On { segment, .. } = place {
                sizes[*segment as usize] /= atom.size;
            }
        }
        sizes
    }

    /// Bytes that one device holds.
    pub(super) fn tile_bytes(&self, places: &Places) -> u64 {
        self.local_sizes(places).iter().product::<i64>() as u64 * self.element_bytes
    }

    /// Dims of what one device holds.
    pub(super) fn local_dims(&self, places: &Places, rank: usize) -> Dims {
        let mut dims = Dims::from_elem(1, rank);
        for (segment, size) in self.segments.iter().zip(self.local_sizes(places)) {
            dims[segment.dim] *= size;
        }
        dims
    }

    /// Whether an atom can be moved.
    pub(super) fn is_pinned(&self, atom: usize) -> bool {
        self.pinned >> atom & 1 == 1
    }

    /// The place of a position along a list of atoms.
    pub(super) fn place_along(&self, position: usize, list: &[usize]) -> i64 {
        list.iter()
            .map(|&a| self.atoms[a])
            .fold(0, |at, atom| at * atom.size + position as i64 / atom.stride % atom.size)
    }

    /// The devices that differ along these atoms only, in the order of their places.
    pub(super) fn groups(&self, atoms: &[usize]) -> Vec<Vec<u32>> {
        let mut groups: indexmap::IndexMap<i64, Vec<(i64, u32)>> = indexmap::IndexMap::new();
        for (position, &device) in self.devices.iter().enumerate() {
            let along = |&a: &usize| {
                let atom = self.atoms[a];
                position as i64 / atom.stride % atom.size * atom.stride
            };
            let rest = position as i64 - atoms.iter().map(along).sum::<i64>();
            groups.entry(rest).or_default().push((self.place_along(position, atoms), device));
        }
        let sorted = |mut group: Vec<(i64, u32)>| {
            group.sort();
            group.into_iter().map(|(_, device)| device).collect()
        };
        groups.into_values().map(sorted).collect()
    }

    /// The number of places along these atoms.
    pub(super) fn n_places(&self, atoms: &[usize]) -> i64 {
        atoms.iter().map(|&a| self.atoms[a].size).product()
    }
}

/// Who sends its tile to whom, so that tiles of `from` come to lie as in `to`, which has equal tiles. The free atoms of both are
/// matched, so that every device sends once and receives once.
pub(super) fn permutation((before, from): (&Space, &Places), (after, to): (&Space, &Places)) -> Vec<(u32, u32)> {
    let free = |space: &Space, places: &Places| -> Vec<usize> {
        (0..space.atoms.len()).filter(|&a| matches!(places[a], Place::Free | Place::Partial)).collect()
    };
    let mut unmatched = free(after, to);
    let mut matched: Vec<(usize, usize)> = Vec::new();
    let is_same_mesh = before.devices == after.devices && before.atoms == after.atoms;
    for is_second in [false, true] {
        for atom in free(before, from) {
            if matched.iter().any(|&(a, _)| a == atom) {
                continue;
            }
            let fits = |&b: &usize| match is_second {
                false => is_same_mesh && b == atom,
                true => after.atoms[b].size == before.atoms[atom].size,
            };
            if let Some(k) = unmatched.iter().position(fits) {
                matched.push((atom, unmatched.remove(k)));
            }
        }
    }
    let (sent, wanted) = (before.lists(from), after.lists(to));
    let source = |position: usize| {
        let mut at = 0;
        for (list, wanted) in sent.iter().zip(&wanted) {
            let mut tile = after.place_along(position, wanted);
            for &a in list.iter().rev() {
                let atom = before.atoms[a];
                at += tile % atom.size * atom.stride;
                tile /= atom.size;
            }
        }
        for &(a, b) in &matched {
            at += after.place_along(position, &[b]) * before.atoms[a].stride;
        }
        before.devices[at as usize]
    };
    after.devices.iter().enumerate().map(|(position, &device)| (source(position), device)).collect()
}
