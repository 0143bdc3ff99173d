//! How a value is held on a mesh: for each axis, which dim it cuts, or that the value is whole or a partial sum along it.

use crate::mesh::{AxisSet, MOST_AXES, SearchMesh};
use hlo_ir::axes::{AxisSharding, SubAxis};
use hlo_ir::sharding::Reduction;
use std::fmt;

/// What one axis does to a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Place {
    /// Devices along the axis hold the same (*R* in reports).
    Whole,
    /// The value is the sum of what devices along the axis hold (*P*).
    Partial,
    /// The axis cuts this dim. Where several axes cut a dim, an earlier axis of the mesh is the more major one.
    Dim(u8),
}

/// One place for each axis of a mesh, eight bits each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct State(u32);

impl State {
    /// Whole along every axis.
    pub(crate) const WHOLE: State = State(0);

    /// The place of an axis.
    pub(crate) fn place(self, axis: usize) -> Place {
        match (self.0 >> (8 * axis)) & 0xff {
            0 => Place::Whole,
            1 => Place::Partial,
            dim => Place::Dim((dim - 2) as u8),
        }
    }

    /// The same with another place for an axis.
    pub(crate) fn with(self, axis: usize, place: Place) -> State {
        let bits = match place {
            Place::Whole => 0,
            Place::Partial => 1,
            Place::Dim(dim) => 2 + u32::from(dim),
        };
        State(self.0 & !(0xff << (8 * axis)) | bits << (8 * axis))
    }

    /// The axes along which the value is a partial sum.
    pub(crate) fn partial(self, mesh: &SearchMesh) -> AxisSet {
        self.axes(mesh, |place| place == Place::Partial)
    }

    /// The axes that cut this dim.
    pub(crate) fn cutting(self, mesh: &SearchMesh, dim: usize) -> AxisSet {
        self.axes(mesh, |place| place == Place::Dim(dim as u8))
    }

    /// The axes that cut this dim, of a mesh of no more than [`MOST_AXES`].
    #[inline]
    pub(crate) fn axes_on(self, dim: usize) -> AxisSet {
        let byte = dim as u32 + 2;
        (0..MOST_AXES).fold(0, |set, axis| set | AxisSet::from(self.0 >> (8 * axis) & 0xff == byte) << axis)
    }

    /// The axes that cut any dim.
    pub(crate) fn cut(self, mesh: &SearchMesh) -> AxisSet {
        self.axes(mesh, |place| matches!(place, Place::Dim(_)))
    }

    fn axes(self, mesh: &SearchMesh, is_one: impl Fn(Place) -> bool) -> AxisSet {
        (0..mesh.n_axes()).filter(|&axis| is_one(self.place(axis))).fold(0, |set, axis| set | 1 << axis)
    }

    /// The same value whole where it was a partial sum.
    pub(crate) fn resolved(self, mesh: &SearchMesh) -> State {
        (0..mesh.n_axes()).fold(self, |state, axis| match state.place(axis) {
            Place::Partial => state.with(axis, Place::Whole),
            Place::Whole | Place::Dim(_) => state,
        })
    }

    /// Elements of a tile of an array of `dims`; a dim of n elements in t tiles has tiles of `ceil(n / t)`.
    pub(crate) fn tile_elems(self, mesh: &SearchMesh, dims: &[i64]) -> f64 {
        let tile = |(dim, &size): (usize, &i64)| {
            let n = mesh.n_places(self.cutting(mesh, dim));
            (size / n + i64::from(size % n != 0)) as f64
        };
        dims.iter().enumerate().map(tile).product()
    }

    /// As shardings say it. Partial sums are `unreduced`.
    pub(crate) fn axis_sharding(self, mesh: &SearchMesh, rank: usize) -> AxisSharding {
        let axis_mesh = mesh.axis_mesh();
        let list = |set: AxisSet| {
            crate::mesh::axes_of(set).map(|axis| SubAxis { axis, pre: 1, size: mesh.size(axis) }).collect::<Vec<_>>()
        };
        AxisSharding {
            dims: (0..rank).map(|dim| list(self.cutting(mesh, dim))).collect(),
            manual: Vec::new(),
            unreduced: list(self.partial(mesh)),
            reduction: Reduction::Sum,
            mesh: axis_mesh,
        }
    }

    /// In words, an item for each axis: `0,R,P` is dim 0, whole, partial.
    pub(crate) fn describe(self, mesh: &SearchMesh) -> String {
        let place = |axis| match self.place(axis) {
            Place::Whole => "R".to_string(),
            Place::Partial => "P".to_string(),
            Place::Dim(dim) => dim.to_string(),
        };
        (0..mesh.n_axes()).map(place).collect::<Vec<_>>().join(",")
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", [self.place(0), self.place(1), self.place(2), self.place(3)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    #[test]
    fn states_keep_what_they_are_given() {
        let mesh = SearchMesh { sizes: smallvec![2, 3, 4] };
        let state = State::WHOLE.with(0, Place::Dim(1)).with(1, Place::Partial).with(2, Place::Dim(1));
        assert_eq!(state.place(1), Place::Partial);
        assert_eq!((state.cutting(&mesh, 1), state.partial(&mesh), state.cut(&mesh)), (0b101, 0b010, 0b101));
        assert_eq!(state.resolved(&mesh).with(0, Place::Whole).describe(&mesh), "R,R,1");
        // 17 columns in 2 x 4 tiles: 3 each.
        assert_eq!(state.tile_elems(&mesh, &[5, 17]), 15.0);
    }
}
