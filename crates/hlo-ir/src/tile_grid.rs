//! Which tile of a value each device holds.

use crate::shape::Dims;
use crate::sharding::{LeafSharding, ShardingKind, SubgroupKind, WholeMesh};
use std::collections::HashMap;

/// A value's dims cut into tiles of `ceil(size / tiles)` elements, and the tile of each device. The last tiles of a dim
/// that is not divisible hold fewer elements, or none.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TileGrid {
    /// Number of tiles along each dim.
    pub tiles: Dims,
    /// The tile of each device, by its position along each dim.
    pub of_device: Vec<Dims>,
    /// The position of each device among those that hold its tile, manual and replicated subgroups apart from one another.
    pub copy_of_device: Vec<u32>,
}

impl TileGrid {
    /// Every device holds the whole value.
    pub fn replicated(rank: usize, n_devices: usize) -> TileGrid {
        TileGrid {
            tiles: Dims::from_elem(1, rank),
            of_device: vec![Dims::from_elem(0, rank); n_devices],
            copy_of_device: (0..n_devices as u32).collect(),
        }
    }

    /// From the number of tiles of each dim, and each device's position among all tiles (row-major); device ids come in any order.
    fn of_positions(tiles: Dims, positions: Vec<(i64, Dims)>, n_devices: usize) -> Option<TileGrid> {
        if positions.len() != n_devices {
            return None;
        }
        let mut of_device = vec![None; n_devices];
        let mut copy_of_device = vec![0; n_devices];
        let mut copies: HashMap<Dims, u32> = HashMap::new();
        for (id, tile) in positions {
            let device = usize::try_from(id).ok().filter(|&d| d < n_devices)?;
            let copy = copies.entry(tile.clone()).or_default();
            copy_of_device[device] = *copy;
            *copy += 1;
            if of_device[device].replace(tile).is_some() {
                return None;
            }
        }
        Some(TileGrid { tiles, of_device: of_device.into_iter().collect::<Option<_>>()?, copy_of_device })
    }

    /// The size of a tile of a value of these dims, padding included.
    pub fn tile_dims(&self, dims: &[i64]) -> Dims {
        dims.iter().zip(&self.tiles).map(|(&size, &n)| (size + n - 1) / n.max(1)).collect()
    }

    /// Where the tile of a device begins, and how many elements of the value it holds along each dim.
    pub fn tile_of(&self, dims: &[i64], device: usize) -> (Dims, Dims) {
        let sizes = self.tile_dims(dims);
        let starts: Dims = self.of_device[device].iter().zip(&sizes).map(|(&k, &size)| k * size).collect();
        let held = dims.iter().zip(&sizes).zip(&starts).map(|((&whole, &size), &at)| (whole - at).clamp(0, size));
        let held = held.collect();
        (starts, held)
    }
}

impl LeafSharding {
    /// Whether the annotation says which part of a value each device holds. One that puts the value onto a single device says it
    /// of that device alone: a partitioner chooses what the others hold.
    pub fn names_tiles(&self) -> bool {
        match &self.kind {
            ShardingKind::Maximal(_) | ShardingKind::MaximalMesh(_) | ShardingKind::Unknown => false,
            ShardingKind::Replicated
            | ShardingKind::Manual
            | ShardingKind::Unreduced
            | ShardingKind::Tiled(_)
            | ShardingKind::Named(_) => true,
        }
    }

    /// The tiles of a value of this rank on `n_devices` devices. `None` where the annotation does not say so (manual,
    /// unknown, unreduced, maximal, or malformed). Manual axes are not among the dims: they make copies, as replicated ones do.
    pub fn tile_grid(&self, rank: usize, n_devices: usize) -> Option<TileGrid> {
        match &self.kind {
            kind if kind.is_replicated() => Some(TileGrid::replicated(rank, n_devices)),
            ShardingKind::Tiled(tiling) => {
                let is_silent = |kind: &SubgroupKind| !matches!(kind, SubgroupKind::Replicated | SubgroupKind::Manual);
                if tiling.last_dims.iter().any(is_silent) || tiling.data_rank() != rank {
                    return None;
                }
                let ids = tiling.device_list()?;
                let n_tiles = tiling.dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None })?;
                if ids.len() as u64 != n_tiles as u64 {
                    return None;
                }
                let positions = ids.into_iter().enumerate().map(|(flat, id)| {
                    let mut at = unflattened(flat as i64, &tiling.dims);
                    at.truncate(rank);
                    (id, at)
                });
                TileGrid::of_positions(tiling.dims[..rank].into(), positions.collect(), n_devices)
            }
            ShardingKind::Named(named) => {
                if named.dims.len() != rank
                    || !named.unreduced.is_empty()
                    || named.whole.is_some_and(|w| w != WholeMesh::Replicated)
                {
                    return None;
                }
                let mut positions: Vec<(i64, Dims)> =
                    named.mesh.devices()?.into_iter().map(|id| (id, Dims::new())).collect();
                let place: HashMap<i64, usize> = positions.iter().enumerate().map(|(k, p)| (p.0, k)).collect();
                let mut tiles = Dims::new();
                for dim in &named.dims {
                    tiles.push(named.mesh.n_places(&dim.axes)?);
                    for (id, number) in named.numbered([&dim.axes, &[]])? {
                        positions[*place.get(&id)?].1.push(i64::from(number));
                    }
                }
                TileGrid::of_positions(tiles, positions, n_devices)
            }
            ShardingKind::Replicated
            | ShardingKind::Maximal(_)
            | ShardingKind::MaximalMesh(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced => None,
        }
    }
}

/// The position along each dim of the element `flat` in row-major order.
fn unflattened(mut flat: i64, dims: &[i64]) -> Dims {
    let mut out = Dims::from_elem(0, dims.len());
    for k in (0..dims.len()).rev() {
        out[k] = flat % dims[k];
        flat /= dims[k];
    }
    out
}
