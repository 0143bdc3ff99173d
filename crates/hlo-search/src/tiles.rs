//! How large the tiles of an array are, by what cuts each dim: asked for each pair of states, so it is computed once for each array.

use crate::mesh::{AxisSet, MOST_AXES, SearchMesh};
use crate::program::CutValue;
use crate::state::State;
use hlo_ir::Dims;
use smallvec::SmallVec;

const N_SETS: usize = 1 << MOST_AXES;

/// An array and its tiles on a mesh.
pub(crate) struct Tiles {
    /// Sizes of the dims of the whole array.
    pub dims: Dims,
    elem_bytes: f64,
    of_dims: SmallVec<[TilesOfDim; 4]>,
}

struct TilesOfDim {
    /// By set of axes that cut the dim, the length of a tile: n elements in t tiles have `ceil(n / t)`.
    lengths: [f64; N_SETS],
    /// The sets whose tiles are equally long, a bit each.
    are_even: u8,
}

impl Tiles {
    /// The tiles of an array of `dims` with elements of so many bytes.
    pub(crate) fn new(dims: &[i64], elem_bytes: f64, mesh: &SearchMesh) -> Tiles {
        let of_dim = |&size: &i64| {
            let mut of_dim = TilesOfDim { lengths: [0.0; N_SETS], are_even: 0 };
            for (set, length) in of_dim.lengths.iter_mut().enumerate() {
                let n_tiles = mesh.n_places(set as AxisSet);
                *length = (size / n_tiles + i64::from(size % n_tiles != 0)) as f64;
                of_dim.are_even |= u8::from(size % n_tiles == 0) << set;
            }
            of_dim
        };
        Tiles { dims: dims.into(), elem_bytes, of_dims: dims.iter().map(of_dim).collect() }
    }

    /// The tiles of a value.
    pub(crate) fn of(value: &CutValue, mesh: &SearchMesh) -> Tiles {
        Tiles::new(&value.dims, value.elem_bytes, mesh)
    }

    /// Bytes of a tile; of uneven ones, the largest.
    pub(crate) fn bytes(&self, state: State) -> f64 {
        let lengths = self.of_dims.iter().enumerate().map(|(dim, of_dim)| of_dim.lengths[state.axes_on(dim) as usize]);
        lengths.product::<f64>() * self.elem_bytes
    }

    /// Whether all axes divide the dims that they cut in either of two states.
    pub(crate) fn are_even(&self, from: State, to: State) -> bool {
        let cut_by = |dim: usize| from.axes_on(dim) | to.axes_on(dim);
        self.of_dims.iter().enumerate().all(|(dim, of_dim)| of_dim.are_even & 1 << cut_by(dim) != 0)
    }
}
