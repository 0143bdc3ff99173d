//! Which devices talk to each other in a collective.
//!
//! [`ReplicaGroups`] is the attribute as written (three syntaxes); [`DeviceGroups`] is what it means: lists of flat
//! device ids, expanded for the module's replica and partition counts. Meaning is never guessed: it follows from
//! [`GroupMode`], the table in XLA's collective semantics
//! (<https://openxla.org/xla/operation_semantics#allreduce>).

use crate::shape::Dims;
use std::fmt;

/// The `replica_groups` attribute as written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReplicaGroups {
    /// `{{0,1},{2,3}}`; `{}` is the empty list.
    List(Vec<Vec<i64>>),
    /// `[2,2]<=[4]T(1,0)`.
    Iota(IotaTile),
    /// `mesh['a'=2,'b'=2] {'a'}`.
    Mesh(MeshGroups),
}

impl Default for ReplicaGroups {
    fn default() -> Self {
        ReplicaGroups::List(Vec::new())
    }
}

/// The longest list of ids that a tile or a mesh expands to.
const MOST_IDS: usize = 1 << 24;

/// `dims<=[reshape_dims]T(perm)`: iota over the product, reshaped, transposed, reshaped to `dims`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct IotaTile {
    /// Result dims.
    pub dims: Dims,
    /// Dims of the iota before the transpose.
    pub reshape_dims: Dims,
    /// Transpose permutation; identity when nothing is printed.
    pub perm: Dims,
}

impl IotaTile {
    /// Number of ids, if the dims are positive and their product fits below `limit`.
    pub fn checked_len(&self, limit: usize) -> Option<usize> {
        let n = self.dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None })?;
        let m = self.reshape_dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None })?;
        (n == m && self.perm.len() == self.reshape_dims.len() && n as u64 <= limit as u64).then_some(n as usize)
    }

    /// What keeps a tile that does not [expand](Self::expand) from it, in words.
    pub(crate) fn fault(&self) -> String {
        let product = |dims: &Dims| dims.iter().try_fold(1i64, |n, &d| n.checked_mul(d));
        if let Some(dim) = self.dims.iter().chain(&self.reshape_dims).find(|&&dim| dim <= 0) {
            return format!("a dim of {dim}");
        }
        match (product(&self.dims), product(&self.reshape_dims)) {
            (Some(places), Some(ids)) if places != ids => format!("{places} places for {ids} ids"),
            (Some(n), Some(_)) if n <= MOST_IDS as i64 => {
                format!("a transpose by {:?} of {} dims", self.perm.as_slice(), self.reshape_dims.len())
            }
            (_, _) => format!("more than {MOST_IDS} ids"),
        }
    }

    /// The ids in row-major order of `dims`; `None` if the tile is not well formed or above 2^24 ids.
    pub fn expand(&self) -> Option<Vec<i64>> {
        let n = self.checked_len(MOST_IDS)?;
        let rank = self.reshape_dims.len();
        let mut seen = vec![false; rank];
        for &p in &self.perm {
            let slot = seen.get_mut(usize::try_from(p).ok()?)?;
            if std::mem::replace(slot, true) {
                return None;
            }
        }
        let mut stride = vec![1i64; rank];
        for i in (0..rank.saturating_sub(1)).rev() {
            stride[i] = stride[i + 1] * self.reshape_dims[i + 1];
        }
        let perm: Vec<usize> = self.perm.iter().map(|&p| p as usize).collect();
        let mut out = Vec::with_capacity(n);
        let mut counter = vec![0i64; rank];
        for _ in 0..n {
            out.push(perm.iter().zip(&counter).map(|(&p, &c)| c * stride[p]).sum());
            for k in (0..rank).rev() {
                counter[k] += 1;
                if counter[k] < self.reshape_dims[perm[k]] {
                    break;
                }
                counter[k] = 0;
            }
        }
        Some(out)
    }
}

/// A named mesh: axes with sizes, and the device order if it is not iota.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mesh {
    /// Axis names and sizes, outermost first.
    pub axes: Vec<(String, i64)>,
    /// Device ids in row-major order of the axes.
    pub device_ids: MeshDevices,
}

/// Order of a mesh's devices.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub enum MeshDevices {
    /// 0, 1, 2 …
    #[default]
    Iota,
    /// `device_ids=([2,2]T(1,0))`.
    Tile(IotaTile),
    /// `device_ids=(3,2,1,0)`.
    List(Vec<i64>),
}

/// An axis or a part of one: `'a'` or `'a':(pre_size)size`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AxisRef {
    /// The axis' name.
    pub name: String,
    /// `(pre_size, size)` of a sub-axis.
    pub sub: Option<(i64, i64)>,
}

/// Groups along axes of a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct MeshGroups {
    /// The mesh.
    pub mesh: Mesh,
    /// The axes along which the members of a group differ.
    pub axes: Vec<AxisRef>,
}

impl Mesh {
    /// Product of the axis sizes; `None` if one is not positive or above 2^24.
    pub fn n_devices(&self) -> Option<i64> {
        let n = self.axes.iter().try_fold(1i64, |n, (_, s)| if *s > 0 { n.checked_mul(*s) } else { None })?;
        (n <= MOST_IDS as i64).then_some(n)
    }

    /// The number of places along these axes of the mesh; `None` if one of them is no axis of it.
    pub fn n_places(&self, axes: &[AxisRef]) -> Option<i64> {
        let size = |axis: &AxisRef| match axis.sub {
            Some((_, size)) => Some(size),
            None => self.axes.iter().find(|(name, _)| *name == axis.name).map(|&(_, size)| size),
        };
        axes.iter().try_fold(1i64, |n, axis| n.checked_mul(size(axis)?))
    }

    /// What keeps a mesh without [devices](Self::devices) from having them, in words.
    pub(crate) fn fault(&self) -> String {
        if let Some((name, size)) = self.axes.iter().find(|(_, size)| *size <= 0) {
            return format!("axis `{name}` of size {size}");
        }
        match (self.n_devices(), &self.device_ids) {
            (None, _) => format!("more than {MOST_IDS} places"),
            (Some(n), MeshDevices::List(ids)) => format!("{n} places for {} ids", ids.len()),
            (Some(n), MeshDevices::Tile(tile)) => match tile.expand() {
                Some(ids) => format!("{n} places for {} ids", ids.len()),
                None => tile.fault(),
            },
            (Some(n), MeshDevices::Iota) => format!("{n} places"),
        }
    }

    /// Device ids in row-major order of the axes.
    pub fn devices(&self) -> Option<Vec<i64>> {
        let n = self.n_devices()?;
        let ids = match &self.device_ids {
            MeshDevices::Iota => (0..n).collect(),
            MeshDevices::Tile(tile) => tile.expand()?,
            MeshDevices::List(ids) => ids.clone(),
        };
        (ids.len() as i64 == n).then_some(ids)
    }
}

impl MeshGroups {
    /// The groups as lists: members in the order of the named axes, groups in the order of the remaining ones.
    pub fn expand(&self) -> Option<Vec<Vec<i64>>> {
        let devices = self.mesh.devices()?;
        // Split every axis at the borders of its selected parts; `parts` is row-major over (axis, pre_size).
        let mut parts: Vec<(usize, i64, i64)> = Vec::new();
        for (axis, (name, size)) in self.mesh.axes.iter().enumerate() {
            let mut cuts: Vec<i64> = vec![1, *size];
            for sub in self.axes.iter().filter(|a| a.name == *name).filter_map(|a| a.sub) {
                cuts.extend([sub.0, sub.0.checked_mul(sub.1)?]);
            }
            cuts.sort();
            cuts.dedup();
            for pair in cuts.windows(2) {
                if pair[0] <= 0 || pair[1] % pair[0] != 0 || *size % pair[1] != 0 {
                    return None;
                }
                parts.push((axis, pair[0], pair[1] / pair[0]));
            }
        }
        let mut chosen = Vec::new();
        for axis_ref in &self.axes {
            let axis = self.mesh.axes.iter().position(|(n, _)| *n == axis_ref.name)?;
            let (from, size) = axis_ref.sub.unwrap_or((1, self.mesh.axes[axis].1));
            let to = from.checked_mul(size)?;
            for (i, &(a, pre, n)) in parts.iter().enumerate() {
                if a == axis && pre >= from && pre * n <= to && n > 1 {
                    if chosen.contains(&i) {
                        return None;
                    }
                    chosen.push(i);
                }
            }
        }
        let order: Vec<usize> =
            (0..parts.len()).filter(|i| !chosen.contains(i)).chain(chosen.iter().copied()).collect();
        let tile = IotaTile {
            dims: Dims::from_slice(&[devices.len() as i64]),
            reshape_dims: parts.iter().map(|p| p.2).collect(),
            perm: order.iter().map(|&i| i as i64).collect(),
        };
        let group_size: i64 = chosen.iter().map(|&i| parts[i].2).product();
        let ids: Vec<i64> = tile.expand()?.into_iter().map(|i| devices[i as usize]).collect();
        Some(ids.chunks(group_size as usize).map(<[i64]>::to_vec).collect())
    }
}

impl ReplicaGroups {
    /// What keeps an attribute that does not [expand](Self::expand) from it, in words.
    pub(crate) fn fault(&self) -> String {
        match self {
            ReplicaGroups::List(_) => "lists".into(),
            ReplicaGroups::Iota(tile) => tile.fault(),
            ReplicaGroups::Mesh(groups) if groups.mesh.devices().is_none() => groups.mesh.fault(),
            ReplicaGroups::Mesh(_) => {
                "an axis that the mesh lacks, that does not divide so, or that comes twice".into()
            }
        }
    }

    /// The groups as lists; `None` if the attribute is malformed (the verifier says where).
    pub fn expand(&self) -> Option<Vec<Vec<i64>>> {
        match self {
            ReplicaGroups::List(groups) => Some(groups.clone()),
            ReplicaGroups::Iota(tile) => {
                let group_size = usize::try_from(*tile.dims.last()?).ok().filter(|&n| n > 0)?;
                Some(tile.expand()?.chunks(group_size).map(<[i64]>::to_vec).collect())
            }
            ReplicaGroups::Mesh(mesh) => mesh.expand(),
        }
    }

    /// Whether the attribute lists no group at all (which means "everyone" in most modes).
    pub fn is_empty(&self) -> bool {
        matches!(self, ReplicaGroups::List(groups) if groups.is_empty())
    }
}

/// How the ids in a collective's groups are read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupMode {
    /// Replica ids; each partition by itself.
    CrossReplica,
    /// Partition ids; each replica by itself.
    CrossPartition,
    /// Replica ids; every partition of a listed replica belongs to the group.
    CrossReplicaAndPartition,
    /// Flat ids: replica × num_partitions + partition.
    Flattened,
}

impl GroupMode {
    /// The mode of a collective. `use_global_device_ids` is `None` for ops that do not have the attribute
    /// (all-to-all, collective-permute, collective-broadcast).
    ///
    /// # Errors
    /// `use_global_device_ids=true` without a channel has no meaning.
    pub fn of(has_channel: bool, use_global_device_ids: Option<bool>) -> Result<GroupMode, GroupsError> {
        match (has_channel, use_global_device_ids) {
            (false, None | Some(false)) => Ok(GroupMode::CrossReplica),
            (false, Some(true)) => Err(GroupsError::GlobalIdsWithoutChannel),
            (true, None) => Ok(GroupMode::CrossPartition),
            (true, Some(false)) => Ok(GroupMode::CrossReplicaAndPartition),
            (true, Some(true)) => Ok(GroupMode::Flattened),
        }
    }

    /// How many ids the groups of this mode must cover.
    pub fn n_ids(self, replica_count: i64, num_partitions: i64) -> i64 {
        match self {
            GroupMode::CrossReplica | GroupMode::CrossReplicaAndPartition => replica_count,
            GroupMode::CrossPartition => num_partitions,
            GroupMode::Flattened => replica_count.saturating_mul(num_partitions),
        }
    }
}

/// Why the attributes of a collective say no groups or pairs of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupsError {
    /// The instruction is another op.
    NoGroups,
    /// The instruction is another op.
    NoPairs,
    /// Flat device ids, which need a channel.
    GlobalIdsWithoutChannel,
    /// A tile or a mesh that does not give the ids of its devices.
    Malformed,
    /// No groups, where flat device ids need some.
    NoFlattenedIds,
    /// An id that no device has.
    IdOutOfRange {
        /// The ids that there are: 0 to one below.
        n_ids: i64,
        /// The id.
        id: i64,
    },
    /// An id in two groups.
    IdTwice {
        /// The id.
        id: i64,
    },
}

impl fmt::Display for GroupsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupsError::NoGroups => "not a collective with groups",
            GroupsError::NoPairs => "not a collective-permute",
            GroupsError::GlobalIdsWithoutChannel => "use_global_device_ids=true needs a channel_id",
            GroupsError::Malformed => "replica_groups is malformed",
            GroupsError::NoFlattenedIds => "flattened ids need an explicit list of groups, found none",
            GroupsError::IdOutOfRange { n_ids, id } => return write!(f, "expected ids 0..{n_ids}, found {id}"),
            GroupsError::IdTwice { id } => return write!(f, "id {id} stands in two groups"),
        })
    }
}

impl std::error::Error for GroupsError {}

/// Groups of flat device ids; member order is meaning (it is the order of concatenation).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DeviceGroups {
    /// The groups.
    pub groups: Vec<Vec<u32>>,
}

impl DeviceGroups {
    /// Expands `groups` under `mode` on `replica_count × num_partitions` devices.
    ///
    /// # Errors
    /// A malformed attribute, an id out of range or named twice, an empty flattened list.
    pub fn expand(
        groups: &ReplicaGroups,
        mode: GroupMode,
        replica_count: i64,
        num_partitions: i64,
    ) -> Result<DeviceGroups, GroupsError> {
        let (r, p) = (replica_count.max(1), num_partitions.max(1));
        let n_ids = mode.n_ids(r, p);
        let mut lists = groups.expand().ok_or(GroupsError::Malformed)?;
        if lists.is_empty() {
            if mode == GroupMode::Flattened {
                return Err(GroupsError::NoFlattenedIds);
            }
            lists = vec![(0..n_ids).collect()];
        }
        let mut seen = vec![false; n_ids as usize];
        for &id in lists.iter().flatten() {
            match usize::try_from(id).ok().and_then(|i| seen.get_mut(i)) {
                None => return Err(GroupsError::IdOutOfRange { n_ids, id }),
                Some(slot) if *slot => return Err(GroupsError::IdTwice { id }),
                Some(slot) => *slot = true,
            }
        }
        let flat = |replica: i64, partition: i64| (replica * p + partition) as u32;
        let groups = match mode {
            GroupMode::Flattened => lists.iter().map(|g| g.iter().map(|&id| id as u32).collect()).collect(),
            GroupMode::CrossReplica => (0..p)
                .flat_map(|part| lists.iter().map(move |g| (part, g)))
                .map(|(part, g)| g.iter().map(|&id| flat(id, part)).collect())
                .collect(),
            GroupMode::CrossPartition => (0..r)
                .flat_map(|rep| lists.iter().map(move |g| (rep, g)))
                .map(|(rep, g)| g.iter().map(|&id| flat(rep, id)).collect())
                .collect(),
            GroupMode::CrossReplicaAndPartition => lists
                .iter()
                .map(|g| g.iter().flat_map(|&id| (0..p).map(move |part| (id, part))).map(|(id, part)| flat(id, part)))
                .map(Iterator::collect)
                .collect(),
        };
        Ok(DeviceGroups { groups })
    }

    /// The group that holds `device`, and its position there.
    pub fn find(&self, device: u32) -> Option<(&[u32], usize)> {
        self.groups.iter().find_map(|g| g.iter().position(|&d| d == device).map(|i| (g.as_slice(), i)))
    }

    /// The size all groups share; `None` if they differ or there is none.
    pub fn uniform_size(&self) -> Option<usize> {
        let first = self.groups.first()?.len();
        self.groups.iter().all(|g| g.len() == first).then_some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(axes: &[(&str, i64)], along: &[(&str, Option<(i64, i64)>)]) -> Vec<Vec<i64>> {
        let mesh =
            Mesh { axes: axes.iter().map(|(n, s)| (n.to_string(), *s)).collect(), device_ids: MeshDevices::Iota };
        let axes = along.iter().map(|(n, sub)| AxisRef { name: n.to_string(), sub: *sub }).collect();
        MeshGroups { mesh, axes }.expand().unwrap()
    }

    #[test]
    fn iota_tile_transposes() {
        let tile = IotaTile {
            dims: Dims::from_slice(&[2, 2]),
            reshape_dims: Dims::from_slice(&[2, 2]),
            perm: Dims::from_slice(&[1, 0]),
        };
        assert_eq!(ReplicaGroups::Iota(tile).expand().unwrap(), [[0, 2], [1, 3]]);
    }

    #[test]
    fn what_does_not_expand_says_why() {
        let tile = |dims: &[i64], reshape_dims: &[i64], perm: &[i64]| IotaTile {
            dims: Dims::from_slice(dims),
            reshape_dims: Dims::from_slice(reshape_dims),
            perm: Dims::from_slice(perm),
        };
        let fault = |tile: IotaTile| {
            assert_eq!(tile.expand(), None);
            tile.fault()
        };
        assert_eq!(fault(tile(&[2, 2], &[3], &[0])), "4 places for 3 ids");
        assert_eq!(fault(tile(&[2, 0], &[2], &[0])), "a dim of 0");
        assert_eq!(fault(tile(&[2, 2], &[2, 2], &[0, 0])), "a transpose by [0, 0] of 2 dims");
        assert_eq!(fault(tile(&[1 << 40, 1 << 40], &[1 << 40, 1 << 40], &[0, 1])), "more than 16777216 ids");
        assert_eq!(fault(tile(&[1 << 25], &[1 << 25], &[0])), "more than 16777216 ids");
        let mesh = |axes: &[(&str, i64)], device_ids| Mesh {
            axes: axes.iter().map(|(name, size)| (name.to_string(), *size)).collect(),
            device_ids,
        };
        let fault = |mesh: Mesh| {
            assert_eq!(mesh.devices(), None);
            mesh.fault()
        };
        assert_eq!(fault(mesh(&[("x", 2), ("y", 0)], MeshDevices::Iota)), "axis `y` of size 0");
        assert_eq!(fault(mesh(&[("x", 2)], MeshDevices::List(vec![0, 1, 2]))), "2 places for 3 ids");
        assert_eq!(fault(mesh(&[("x", 4)], MeshDevices::Tile(tile(&[2], &[2], &[0])))), "4 places for 2 ids");
        assert_eq!(fault(mesh(&[("x", 4)], MeshDevices::Tile(tile(&[4], &[2], &[0])))), "4 places for 2 ids");
        assert_eq!(fault(mesh(&[("x", 1 << 25)], MeshDevices::Iota)), "more than 16777216 places");
    }

    #[test]
    fn mesh_groups_along_axes_and_parts_of_axes() {
        assert_eq!(mesh(&[("a", 2), ("b", 3)], &[("b", None)]), [[0, 1, 2], [3, 4, 5]]);
        assert_eq!(mesh(&[("a", 2), ("b", 3)], &[("a", None)]), [[0, 3], [1, 4], [2, 5]]);
        assert_eq!(mesh(&[("a", 4)], &[("a", Some((1, 2)))]), [[0, 2], [1, 3]]);
        assert_eq!(mesh(&[("a", 4)], &[("a", Some((2, 2)))]), [[0, 1], [2, 3]]);
        assert_eq!(mesh(&[("a", 2), ("b", 2)], &[("b", None), ("a", None)]), [[0, 2, 1, 3]]);
    }

    #[test]
    fn four_modes_on_two_by_two() {
        let groups = ReplicaGroups::List(vec![vec![0, 1]]);
        let of = |mode| DeviceGroups::expand(&groups, mode, 2, 2).unwrap().groups;
        assert_eq!(of(GroupMode::CrossReplica), [[0, 2], [1, 3]]);
        assert_eq!(of(GroupMode::CrossPartition), [[0, 1], [2, 3]]);
        assert_eq!(of(GroupMode::CrossReplicaAndPartition), [[0, 1, 2, 3]]);
        assert_eq!(of(GroupMode::Flattened), [[0, 1]]);
        let none = ReplicaGroups::default();
        assert!(DeviceGroups::expand(&none, GroupMode::Flattened, 2, 2).is_err());
        assert!(DeviceGroups::expand(&groups, GroupMode::CrossReplica, 1, 2).is_err());
    }
}
