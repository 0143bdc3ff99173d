//! Shardings as axes of a mesh: for each dim the axes that cut it, major to minor.
//!
//! The three generations of `sharding=` text say the same things in different words. [`LeafSharding::axes`] reads all of them into
//! one form, [`AxisSharding`]; [`AxisSharding::to_leaf`] goes back to text. [`refine_together`] brings several onto one mesh of
//! prime axes, on which each of their axes is a list of whole ones.

mod order;
mod read;
mod refine;
mod write;

pub use order::find_common_order;
pub use read::AxesError;
pub use refine::{primes, refine_together};

use crate::shape::Dims;
use crate::sharding::Reduction;

/// Devices in row-major order of some axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AxisMesh {
    /// Sizes of the axes, outermost first; each is at least 2.
    pub sizes: Vec<i64>,
    /// The device at each position: a permutation of 0 to one below the number of devices.
    pub devices: Vec<u32>,
}

/// An axis of a mesh or a part of one: with the axis reshaped to `[pre, size, rest]`, the middle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SubAxis {
    /// Index into [`AxisMesh::sizes`].
    pub axis: usize,
    /// How often the part's places recur along the axis.
    pub pre: i64,
    /// Number of places.
    pub size: i64,
}

/// How an array is cut, as axes. Axes that nothing names are those over which it is replicated.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AxisSharding {
    /// The mesh.
    pub mesh: AxisMesh,
    /// The axes that cut each dim, major to minor. A dim of n elements has tiles of `ceil(n / number of tiles)`.
    pub dims: Vec<Vec<SubAxis>>,
    /// Axes along which the code is manual.
    pub manual: Vec<SubAxis>,
    /// Axes over which the value is a partial result.
    pub unreduced: Vec<SubAxis>,
    /// How partial results are combined.
    pub reduction: Reduction,
}

impl AxisMesh {
    /// Devices 0, 1, 2 … along one axis.
    pub fn line(n_devices: usize) -> AxisMesh {
        let sizes = if n_devices > 1 { vec![n_devices as i64] } else { Vec::new() };
        AxisMesh { sizes, devices: (0..n_devices as u32).collect() }
    }

    /// Whether the devices stand in the order of their ids.
    pub fn is_iota(&self) -> bool {
        self.devices.iter().enumerate().all(|(position, &device)| position == device as usize)
    }

    /// How many positions apart two neighbours along a part of an axis are.
    pub fn stride(&self, part: SubAxis) -> i64 {
        let inner: i64 = self.sizes.iter().skip(part.axis + 1).product();
        let axis = self.sizes.get(part.axis).copied().unwrap_or(1);
        inner * (axis / (part.pre * part.size).max(1))
    }

    /// The place of a position along a part of an axis.
    pub fn place(&self, position: usize, part: SubAxis) -> i64 {
        position as i64 / self.stride(part).max(1) % part.size.max(1)
    }
}

impl AxisSharding {
    /// Every device holds the whole array.
    pub fn replicated(mesh: AxisMesh, rank: usize) -> AxisSharding {
        let reduction = Reduction::default();
        AxisSharding { mesh, dims: vec![Vec::new(); rank], manual: Vec::new(), unreduced: Vec::new(), reduction }
    }

    /// Number of tiles of each dim.
    pub fn tiles(&self) -> Vec<i64> {
        self.dims.iter().map(|axes| axes.iter().map(|axis| axis.size).product()).collect()
    }

    /// The tile of each device, by its position along each dim.
    pub fn tile_of_device(&self) -> Vec<Dims> {
        let mut out = vec![Dims::new(); self.mesh.devices.len()];
        for (position, &device) in self.mesh.devices.iter().enumerate() {
            let along = |axes: &Vec<SubAxis>| {
                axes.iter().fold(0, |tile, &part| tile * part.size + self.mesh.place(position, part))
            };
            if let Some(slot) = out.get_mut(device as usize) {
                *slot = self.dims.iter().map(along).collect();
            }
        }
        out
    }

    /// Whether both give every device the same tile, however they say it.
    pub fn has_tiles_of(&self, other: &AxisSharding) -> bool {
        self.tiles() == other.tiles() && self.tile_of_device() == other.tile_of_device()
    }

    /// Whether no dim is cut, nothing is partial and nothing manual.
    pub fn is_replicated(&self) -> bool {
        self.parts().next().is_none()
    }

    /// All parts of axes that are named.
    pub fn parts(&self) -> impl Iterator<Item = SubAxis> + '_ {
        self.dims.iter().flatten().chain(&self.manual).chain(&self.unreduced).copied()
    }

    /// The same with every list of parts given by another.
    fn map_lists<E>(
        &self,
        mesh: AxisMesh,
        mut map: impl FnMut(&[SubAxis]) -> Result<Vec<SubAxis>, E>,
    ) -> Result<AxisSharding, E> {
        let dims = self.dims.iter().map(|axes| map(axes)).collect::<Result<_, E>>()?;
        let (manual, unreduced) = (map(&self.manual)?, map(&self.unreduced)?);
        Ok(AxisSharding { mesh, dims, manual, unreduced, reduction: self.reduction })
    }
}
