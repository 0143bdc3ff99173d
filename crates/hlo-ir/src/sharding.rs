//! The `sharding=` annotation: how a value's global shape is cut over the devices.
//!
//! The text has three generations of syntax (V1 device lists, V2 iota tiles, named meshes); each is kept as written,
//! and [`Sharding::tile_of_device`] answers the one question that analyses ask.

use crate::groups::{AxisRef, IotaTile, Mesh};
use crate::shape::Dims;

/// A sharding as written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Sharding {
    /// One sharding for the whole value.
    Single(LeafSharding),
    /// One per tuple leaf, in order; the nesting of the text is flat in HLO.
    Tuple(Vec<LeafSharding>),
}

/// One leaf's sharding with its trailing marks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeafSharding {
    /// What the devices hold.
    pub kind: ShardingKind,
    /// `shard_as N` / `shard_like N`.
    pub group: Option<ShardGroup>,
    /// Raw text of each `metadata={…}` entry, braces excluded; empty when none.
    pub metadata: Vec<String>,
}

/// What the devices hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ShardingKind {
    /// Every device holds everything.
    Replicated,
    /// One device holds everything.
    Maximal(i64),
    /// Shapes are already per device.
    Manual,
    /// Not known.
    Unknown,
    /// Each device holds a partial value that was not summed yet.
    Unreduced,
    /// `devices=[…]…`.
    Tiled(Box<Tiling>),
    /// `{mesh['a'=2], [{'a'},{}], …}`.
    Named(Box<NamedSharding>),
    /// `{maximal_mesh[device_id=5]}`.
    MaximalMesh(i64),
}

/// `devices=[tile dims]<=[reshape dims]T(perm)` or `devices=[tile dims]0,1,2…`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tiling {
    /// Tiles along each dim, then along each trailing subgroup dim.
    pub dims: Dims,
    /// Which device has which tile.
    pub devices: TileDevices,
    /// What the trailing dims mean: empty, or one kind for each.
    pub last_dims: Vec<SubgroupKind>,
    /// Printed as `last_tile_dim_replicate` (true) or as `last_tile_dims={replicated}` (false) when `last_dims` is one
    /// `Replicated`.
    pub last_dim_short: bool,
}

/// The device order of a tiling.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TileDevices {
    /// V2: reshape dims and permutation; `IotaTile::dims` repeats the tile dims.
    Iota(IotaTile),
    /// V1: ids in row-major order of the tile dims.
    List(Vec<i64>),
}

/// What a trailing subgroup dim of a tiling means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SubgroupKind {
    /// Its devices hold the same tile.
    Replicated,
    /// Its devices run manual code.
    Manual,
    /// Its devices hold partial values.
    Unreduced,
    /// One device of it holds the tile.
    Maximal,
    /// Not known.
    Unknown,
}

impl SubgroupKind {
    /// The text name.
    pub const fn name(self) -> &'static str {
        match self {
            SubgroupKind::Replicated => "replicated",
            SubgroupKind::Manual => "manual",
            SubgroupKind::Unreduced => "unreduced",
            SubgroupKind::Maximal => "maximal",
            SubgroupKind::Unknown => "unknown",
        }
    }

    /// The kind of a text name.
    pub fn from_name(name: &str) -> Option<SubgroupKind> {
        use SubgroupKind::*;
        [Replicated, Manual, Unreduced, Maximal, Unknown].into_iter().find(|k| k.name() == name)
    }
}

/// `shard_as N` or `shard_like N`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ShardGroup {
    /// True for `shard_as`.
    pub is_as: bool,
    /// Group number.
    pub id: i64,
}

/// A sharding over named mesh axes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct NamedSharding {
    /// The mesh.
    pub mesh: Mesh,
    /// Axes of each dim, and whether the dim is open (`?`).
    pub dims: Vec<NamedDim>,
    /// Axes over which the value is replicated.
    pub replicated: Vec<AxisRef>,
    /// Axes over which it is a partial sum.
    pub unreduced: Vec<AxisRef>,
    /// Axes along which the code is manual.
    pub manual: Vec<AxisRef>,
}

/// The axes of one dim.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct NamedDim {
    /// Axes, outermost first.
    pub axes: Vec<AxisRef>,
    /// `?`: propagation may shard it further.
    pub is_open: bool,
}

impl Sharding {
    /// A plain `{replicated}`.
    pub fn replicated() -> Sharding {
        Sharding::Single(LeafSharding::new(ShardingKind::Replicated))
    }

    /// The sharding of leaf `leaf_idx`; a single sharding holds for every leaf.
    pub fn leaf(&self, leaf_idx: usize) -> Option<&LeafSharding> {
        match self {
            Sharding::Single(leaf) => Some(leaf),
            Sharding::Tuple(leaves) => leaves.get(leaf_idx),
        }
    }
}

impl LeafSharding {
    /// A sharding without marks.
    pub fn new(kind: ShardingKind) -> LeafSharding {
        LeafSharding { kind, group: None, metadata: Vec::new() }
    }

    /// For each of `n_devices` devices the number of the tile that it holds: two devices hold the same data exactly
    /// if their numbers are equal. `None` where the annotation does not say so (manual, unknown, unreduced, or malformed).
    pub fn tile_of_device(&self, n_devices: usize) -> Option<Vec<u32>> {
        match &self.kind {
            ShardingKind::Replicated => Some(vec![0; n_devices]),
            ShardingKind::Tiled(tiling) => tiling.tile_of_device(n_devices),
            ShardingKind::Named(named) => named.tile_of_device(n_devices),
            ShardingKind::Maximal(_)
            | ShardingKind::MaximalMesh(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced => None,
        }
    }
}

impl Tiling {
    /// Number of tile dims that belong to the value's own dims.
    pub fn data_rank(&self) -> usize {
        self.dims.len().saturating_sub(self.last_dims.len())
    }

    /// The device ids in row-major order of [`Tiling::dims`].
    pub fn device_list(&self) -> Option<Vec<i64>> {
        match &self.devices {
            TileDevices::Iota(tile) => tile.expand(),
            TileDevices::List(ids) => Some(ids.clone()),
        }
    }

    fn tile_of_device(&self, n_devices: usize) -> Option<Vec<u32>> {
        let ids = self.device_list()?;
        let n_tiles = self.dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None })?;
        if ids.len() != n_devices || n_tiles as u64 != n_devices as u64 {
            return None;
        }
        // The tile number counts all dims but the replicated subgroups; other subgroup kinds promise nothing.
        let mut strides = vec![0u32; self.dims.len()];
        let mut stride = 1u32;
        for i in (0..self.dims.len()).rev() {
            let kind = i.checked_sub(self.data_rank()).and_then(|k| self.last_dims.get(k));
            match kind {
                Some(SubgroupKind::Replicated) => {}
                Some(SubgroupKind::Unreduced | SubgroupKind::Unknown | SubgroupKind::Maximal) => return None,
                Some(SubgroupKind::Manual) | None => {
                    strides[i] = stride;
                    stride = stride.checked_mul(u32::try_from(self.dims[i]).ok()?)?;
                }
            }
        }
        let mut out = vec![u32::MAX; n_devices];
        for (flat, &id) in ids.iter().enumerate() {
            let (mut rest, mut tile) = (flat as i64, 0u32);
            for i in (0..self.dims.len()).rev() {
                tile += (rest % self.dims[i]) as u32 * strides[i];
                rest /= self.dims[i];
            }
            *out.get_mut(usize::try_from(id).ok()?)? = tile;
        }
        out.iter().all(|&t| t != u32::MAX).then_some(out)
    }
}

impl NamedSharding {
    fn tile_of_device(&self, n_devices: usize) -> Option<Vec<u32>> {
        if !self.unreduced.is_empty() {
            return None;
        }
        let devices = self.mesh.devices()?;
        if devices.len() != n_devices {
            return None;
        }
        let axes: Vec<AxisRef> = self.dims.iter().flat_map(|d| d.axes.iter()).chain(&self.manual).cloned().collect();
        if axes.is_empty() {
            return Some(vec![0; n_devices]);
        }
        // Groups along the axes that the value uses hold distinct tiles by position; across groups tiles repeat.
        let groups = crate::groups::MeshGroups { mesh: self.mesh.clone(), axes }.expand()?;
        let mut out = vec![u32::MAX; n_devices];
        for group in &groups {
            for (position, &id) in group.iter().enumerate() {
                *out.get_mut(usize::try_from(id).ok()?)? = position as u32;
            }
        }
        out.iter().all(|&t| t != u32::MAX).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiled(dims: &[i64], reshape: &[i64], perm: &[i64], last: &[SubgroupKind]) -> LeafSharding {
        let tile = IotaTile {
            dims: Dims::from_slice(dims),
            reshape_dims: Dims::from_slice(reshape),
            perm: Dims::from_slice(perm),
        };
        LeafSharding::new(ShardingKind::Tiled(Box::new(Tiling {
            dims: Dims::from_slice(dims),
            devices: TileDevices::Iota(tile),
            last_dims: last.to_vec(),
            last_dim_short: true,
        })))
    }

    #[test]
    fn replicated_subgroup_devices_share_a_tile() {
        let s = tiled(&[1, 2, 4], &[4, 2], &[1, 0], &[SubgroupKind::Replicated]);
        assert_eq!(s.tile_of_device(8).unwrap(), [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(s.tile_of_device(4), None);
        let full = tiled(&[8, 1], &[8], &[0], &[]);
        assert_eq!(full.tile_of_device(8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
