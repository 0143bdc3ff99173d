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

/// What a sharding says of the part of the value that one device holds.
///
/// Two devices of one scope hold the same part exactly if the numbers of their parts are equal. Of devices of different scopes the
/// sharding says nothing: manual code may do something else on each, and partial sums differ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct DevicePart {
    /// Position along the manual, unreduced and unknown subgroups.
    pub scope: u32,
    /// Position along the dims of the value.
    pub part: u32,
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
    /// What holds over the whole mesh: `{mesh['a'=2], manual}`. The lists of axes are then empty.
    pub whole: Option<WholeMesh>,
    /// Axes of each dim, and whether the dim is open (`?`).
    pub dims: Vec<NamedDim>,
    /// Axes over which the value is replicated.
    pub replicated: Vec<AxisRef>,
    /// Axes over which it is a partial result.
    pub unreduced: Vec<AxisRef>,
    /// How partial results are combined.
    pub reduction: Reduction,
    /// Axes along which the code is manual.
    pub manual: Vec<AxisRef>,
}

/// What holds over a whole mesh.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WholeMesh {
    /// Every device holds everything.
    Replicated,
    /// Shapes are already per device.
    Manual,
    /// Each device holds a partial result.
    Unreduced,
}

impl WholeMesh {
    /// The text name.
    pub const fn name(self) -> &'static str {
        match self {
            WholeMesh::Replicated => "replicated",
            WholeMesh::Manual => "manual",
            WholeMesh::Unreduced => "unreduced",
        }
    }
}

/// How partial results are combined.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reduction {
    /// By a sum, which the text does not say.
    #[default]
    Sum,
    /// By the maximum.
    Max,
    /// By the minimum.
    Min,
}

impl Reduction {
    /// The text name.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Max => "max",
            Reduction::Min => "min",
        }
    }

    /// The reduction of a text name.
    pub fn from_name(name: &str) -> Option<Reduction> {
        [Reduction::Sum, Reduction::Max, Reduction::Min].into_iter().find(|r| r.name() == name)
    }
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
            kind if kind.is_replicated() => Some(vec![0; n_devices]),
            ShardingKind::Tiled(tiling) => tiling.tile_of_device(n_devices),
            ShardingKind::Named(named) => named.tile_of_device(n_devices),
            ShardingKind::Replicated
            | ShardingKind::Maximal(_)
            | ShardingKind::MaximalMesh(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced => None,
        }
    }

    /// Into how many tiles each dim is cut. `None` where the annotation does not say so, or says it of values of any rank.
    pub fn tiles_of_dims(&self) -> Option<Dims> {
        match &self.kind {
            ShardingKind::Tiled(tiling) => Some(tiling.dims.get(..tiling.data_rank())?.iter().copied().collect()),
            ShardingKind::Named(named) if named.whole.is_none() => {
                named.dims.iter().map(|dim| named.mesh.n_places(&dim.axes)).collect()
            }
            ShardingKind::Replicated
            | ShardingKind::Named(_)
            | ShardingKind::Maximal(_)
            | ShardingKind::MaximalMesh(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced => None,
        }
    }

    /// Whether the annotation cuts the first dim and no other.
    pub fn cuts_only_first_dim(&self) -> bool {
        let is_first = |tiles: Dims| tiles.first().is_some_and(|&n| n > 1) && tiles.iter().skip(1).all(|&n| n == 1);
        self.tiles_of_dims().is_some_and(is_first)
    }

    /// What the annotation says of the part of the value that each of `n_devices` devices holds; `None` where it says
    /// nothing of a device (manual, unknown, unreduced, malformed, or the device is not among those that it lists).
    ///
    /// This is the other side of [`LeafSharding::tile_of_device`], which says which devices are *known to be equal*. Here two
    /// devices of one scope with different parts are *known to differ*. So `maximal` counts: one device holds everything and
    /// the others hold nothing. Padding counts as well: of a dim of size 1 in 8 tiles, only the first tile has the element.
    pub fn part_of_device(&self, n_devices: usize) -> Vec<Option<DevicePart>> {
        let mut out = vec![None; n_devices];
        let listed = match &self.kind {
            kind if kind.is_replicated() => return vec![Some(DevicePart::default()); n_devices],
            &ShardingKind::Maximal(id) | &ShardingKind::MaximalMesh(id) => {
                let part = |device: usize| u32::from(i64::try_from(device) == Ok(id));
                return (0..n_devices).map(|device| Some(DevicePart { scope: 0, part: part(device) })).collect();
            }
            ShardingKind::Replicated | ShardingKind::Manual | ShardingKind::Unknown | ShardingKind::Unreduced => None,
            ShardingKind::Tiled(tiling) => tiling.part_of_listed_device(),
            ShardingKind::Named(named) => named.part_of_listed_device(),
        };
        for (id, part) in listed.into_iter().flatten() {
            if let Some(slot) = usize::try_from(id).ok().and_then(|id| out.get_mut(id)) {
                *slot = Some(part);
            }
        }
        out
    }
}

impl ShardingKind {
    /// Whether it says that every device holds everything, whatever the devices are.
    pub fn is_replicated(&self) -> bool {
        match self {
            ShardingKind::Replicated => true,
            ShardingKind::Named(named) => named.whole == Some(WholeMesh::Replicated),
            ShardingKind::Maximal(_)
            | ShardingKind::MaximalMesh(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced
            | ShardingKind::Tiled(_) => false,
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
        // Subgroups other than replicated and manual ones promise nothing.
        let is_silent = |kind: &SubgroupKind| !matches!(kind, SubgroupKind::Replicated | SubgroupKind::Manual);
        if self.last_dims.iter().any(is_silent) {
            return None;
        }
        let tiles = self.numbered(|kind| kind != Some(SubgroupKind::Replicated))?;
        by_device(tiles, n_devices)
    }

    /// The devices that the tiling lists, each with what is known of its part.
    fn part_of_listed_device(&self) -> Option<Vec<(i64, DevicePart)>> {
        let parts = self.numbered(|kind| matches!(kind, None | Some(SubgroupKind::Maximal)))?;
        let scopes = self.numbered(|kind| {
            matches!(kind, Some(SubgroupKind::Manual | SubgroupKind::Unreduced | SubgroupKind::Unknown))
        })?;
        Some(joined(parts, scopes))
    }

    /// The listed devices in order, each with its row-major position along those dims that `is_counted` takes. It is asked with
    /// `None` for a dim of the value, and with the kind of a subgroup dim.
    fn numbered(&self, is_counted: impl Fn(Option<SubgroupKind>) -> bool) -> Option<Vec<(i64, u32)>> {
        let ids = self.device_list()?;
        let n_tiles = self.dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None })?;
        if ids.len() as u64 != n_tiles as u64 {
            return None;
        }
        let mut strides = vec![0u32; self.dims.len()];
        let mut stride = 1u32;
        for i in (0..self.dims.len()).rev() {
            let kind = i.checked_sub(self.data_rank()).and_then(|k| self.last_dims.get(k));
            if is_counted(kind.copied()) {
                strides[i] = stride;
                stride = stride.checked_mul(u32::try_from(self.dims[i]).ok()?)?;
            }
        }
        let number = |flat: usize| {
            let (mut rest, mut number) = (flat as i64, 0u32);
            for i in (0..self.dims.len()).rev() {
                number += (rest % self.dims[i]) as u32 * strides[i];
                rest /= self.dims[i];
            }
            number
        };
        Some(ids.into_iter().enumerate().map(|(flat, id)| (id, number(flat))).collect())
    }
}

impl NamedSharding {
    fn tile_of_device(&self, n_devices: usize) -> Option<Vec<u32>> {
        if !self.unreduced.is_empty() || self.whole.is_some() {
            return None;
        }
        by_device(self.numbered([&self.dim_axes(), &self.manual])?, n_devices)
    }

    /// The devices of the mesh, each with what is known of its part.
    fn part_of_listed_device(&self) -> Option<Vec<(i64, DevicePart)>> {
        if self.whole.is_some() {
            return None;
        }
        let mut parts = self.numbered([&self.dim_axes(), &[]])?;
        let mut scopes = self.numbered([&self.manual, &self.unreduced])?;
        // The axes of each give the devices in an order of their own.
        parts.sort();
        scopes.sort();
        Some(joined(parts, scopes))
    }

    /// The axes of all dims.
    fn dim_axes(&self) -> Vec<AxisRef> {
        self.dims.iter().flat_map(|dim| dim.axes.iter()).cloned().collect()
    }

    /// The devices of the mesh, each with its position along these axes. Groups along the axes hold distinct numbers by
    /// position; across groups the numbers repeat.
    pub(crate) fn numbered(&self, axes: [&[AxisRef]; 2]) -> Option<Vec<(i64, u32)>> {
        let axes = axes.concat();
        if axes.is_empty() {
            return Some(self.mesh.devices()?.into_iter().map(|id| (id, 0)).collect());
        }
        let groups = crate::groups::MeshGroups { mesh: self.mesh.clone(), axes }.expand()?;
        Some(groups.iter().flat_map(|group| group.iter().copied().zip(0..)).collect())
    }
}

/// Numbers of devices in the order of the devices; `None` unless all devices from 0 below `n_devices` are there and no others.
fn by_device(numbered: Vec<(i64, u32)>, n_devices: usize) -> Option<Vec<u32>> {
    if numbered.len() != n_devices {
        return None;
    }
    let mut out = vec![u32::MAX; n_devices];
    for (id, number) in numbered {
        *out.get_mut(usize::try_from(id).ok()?)? = number;
    }
    out.iter().all(|&number| number != u32::MAX).then_some(out)
}

/// Parts with their scopes, both for the same devices in the same order.
fn joined(parts: Vec<(i64, u32)>, scopes: Vec<(i64, u32)>) -> Vec<(i64, DevicePart)> {
    let pairs = parts.into_iter().zip(scopes);
    pairs.map(|((id, part), (_, scope))| (id, DevicePart { scope, part })).collect()
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

    /// `scope.part` of each device, `-` where nothing is said.
    fn parts(sharding: &LeafSharding, n_devices: usize) -> String {
        let one = |part: &Option<DevicePart>| part.map_or("-".into(), |p| format!("{}.{}", p.scope, p.part));
        sharding.part_of_device(n_devices).iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn manual_and_partial_subgroups_are_scopes_of_their_own() {
        use SubgroupKind::*;
        assert_eq!(parts(&tiled(&[2, 2], &[4], &[0], &[Replicated]), 4), "0.0 0.0 0.1 0.1");
        assert_eq!(parts(&tiled(&[2, 2], &[4], &[0], &[Manual]), 4), "0.0 1.0 0.1 1.1");
        assert_eq!(parts(&tiled(&[1, 2, 2], &[4], &[0], &[Unreduced, Unknown]), 4), "0.0 1.0 2.0 3.0");
        assert_eq!(parts(&tiled(&[1, 4], &[4], &[0], &[Maximal]), 4), "0.0 0.1 0.2 0.3");
        // Devices that are not listed, and a list that does not fit.
        assert_eq!(parts(&tiled(&[2], &[2], &[0], &[]), 4), "0.0 0.1 - -");
        assert_eq!(parts(&tiled(&[3], &[2], &[0], &[]), 2), "- -");
    }

    #[test]
    fn kinds_without_tiles() {
        let of = |kind| parts(&LeafSharding::new(kind), 3);
        assert_eq!(of(ShardingKind::Replicated), "0.0 0.0 0.0");
        assert_eq!(of(ShardingKind::Maximal(1)), "0.0 0.1 0.0");
        for silent in [ShardingKind::Manual, ShardingKind::Unknown, ShardingKind::Unreduced] {
            assert_eq!(of(silent), "- - -");
        }
    }

    #[test]
    fn named_axes_of_dims_make_parts_and_manual_ones_scopes() {
        let axis = |name: &str| AxisRef { name: name.into(), sub: None };
        let mesh = Mesh { axes: vec![("a".into(), 2), ("b".into(), 2)], ..Mesh::default() };
        let dims = vec![NamedDim { axes: vec![axis("a")], is_open: false }];
        let named = |named| LeafSharding::new(ShardingKind::Named(Box::new(named)));
        let along_a = NamedSharding { mesh: mesh.clone(), dims: dims.clone(), ..NamedSharding::default() };
        assert_eq!(parts(&named(along_a.clone()), 4), "0.0 0.0 0.1 0.1");
        assert_eq!(named(along_a.clone()).tile_of_device(4).unwrap(), [0, 0, 1, 1]);
        let manual_b = NamedSharding { manual: vec![axis("b")], ..along_a };
        assert_eq!(parts(&named(manual_b), 4), "0.0 1.0 0.1 1.1");
        let replicated = NamedSharding { mesh, ..NamedSharding::default() };
        assert_eq!(parts(&named(replicated.clone()), 4), "0.0 0.0 0.0 0.0");
        let whole = |whole| named(NamedSharding { whole: Some(whole), ..replicated.clone() });
        assert_eq!(whole(WholeMesh::Replicated).tile_of_device(4), Some(vec![0; 4]));
        assert_eq!(parts(&whole(WholeMesh::Replicated), 8), ["0.0"; 8].join(" "), "a mesh of no device too");
        for silent in [WholeMesh::Manual, WholeMesh::Unreduced] {
            assert_eq!((whole(silent).tile_of_device(4), parts(&whole(silent), 4)), (None, "- - - -".into()));
        }
    }
}
