//! How one array is cut on the atoms of the module's mesh.

use crate::mesh::ModuleMesh;
use hlo_ir::{ArrayShape, Dims};
use smallvec::{SmallVec, smallvec};

/// A prime axis of the module's mesh, as an index into [`ModuleMesh::sizes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Atom(pub u8);

/// Atoms, major to minor.
pub type AtomList = SmallVec<[Atom; 4]>;

/// How one array is cut: no atom stands twice.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ArraySharding {
    /// The atoms that cut each dim, major to minor. A dim of n elements has tiles of `ceil(n / number of tiles)`.
    pub dims: SmallVec<[AtomList; 4]>,
    /// The atoms over which the value is a partial result, ascending.
    pub partial: AtomList,
}

impl ArraySharding {
    /// Every device holds the whole array.
    pub fn replicated(rank: usize) -> ArraySharding {
        ArraySharding { dims: smallvec![AtomList::new(); rank], partial: AtomList::new() }
    }

    /// Whether every device holds the whole array.
    pub fn is_replicated(&self) -> bool {
        self.partial.is_empty() && self.dims.iter().all(|atoms| atoms.is_empty())
    }

    /// All atoms that cut a dim.
    pub fn cutting(&self) -> impl Iterator<Item = Atom> + '_ {
        self.dims.iter().flatten().copied()
    }

    /// Whether an atom cuts a dim or the value is partial over it.
    pub fn mentions(&self, atom: Atom) -> bool {
        self.cutting().any(|known| known == atom) || self.partial.contains(&atom)
    }

    /// The same without partial results.
    pub fn resolved(&self) -> ArraySharding {
        ArraySharding { dims: self.dims.clone(), partial: AtomList::new() }
    }

    /// Number of tiles of dim `dim`.
    pub fn n_tiles(&self, mesh: &ModuleMesh, dim: usize) -> i64 {
        self.dims.get(dim).map_or(1, |atoms| mesh.n_places(atoms))
    }

    /// Dims of a tile of an array of `dims`: the last tiles are padded to the size of the others.
    pub fn tile_dims(&self, mesh: &ModuleMesh, dims: &[i64]) -> Dims {
        let tile = |(dim, &size): (usize, &i64)| {
            let n = self.n_tiles(mesh, dim);
            size / n + i64::from(size % n != 0)
        };
        dims.iter().enumerate().map(tile).collect()
    }

    /// The shape of a tile, of the default layout.
    pub fn tile_shape(&self, mesh: &ModuleMesh, shape: &ArrayShape) -> ArrayShape {
        ArrayShape::new(shape.dtype, self.tile_dims(mesh, &shape.dims)).with_row_major()
    }
}
