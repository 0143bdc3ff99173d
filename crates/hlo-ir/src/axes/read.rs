//! From a sharding as written to axes.

use super::{AxisMesh, AxisSharding, SubAxis};
use crate::groups::AxisRef;
use crate::sharding::{LeafSharding, NamedSharding, ShardingKind, SubgroupKind, Tiling, WholeMesh};
use std::fmt;

/// Why a sharding is not a mesh with axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AxesError {
    /// One device holds everything.
    Maximal,
    /// It claims nothing.
    Unknown,
    /// It is for another number of dims.
    Rank {
        /// Dims of the array.
        expected: usize,
        /// Dims that the sharding speaks of.
        found: usize,
    },
    /// It is for another number of devices.
    DeviceCount {
        /// Devices that there are.
        expected: usize,
        /// Devices that the sharding speaks of.
        found: usize,
    },
    /// A number of tiles that is not positive, or a list that does not have a device for each tile.
    TileCount {
        /// Tiles.
        tiles: Vec<i64>,
        /// Devices in the list.
        n_listed: usize,
    },
    /// A device that is none, or that stands in the list twice.
    Device {
        /// Its id.
        id: i64,
        /// Devices that there are.
        n_devices: usize,
    },
    /// The mesh has a size that is not positive, or a list of other devices.
    Mesh,
    /// The mesh has no such axis or no such part of it.
    NoAxis {
        /// The axis as written.
        axis: String,
    },
    /// Two parts of an axis overlap, or cut it at places that do not go together.
    Overlap {
        /// The axis as written.
        axis: String,
    },
}

impl fmt::Display for AxesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AxesError::Maximal => {
                f.write_str("sharding: expected axes or tiles, found one device that holds everything")
            }
            AxesError::Unknown => f.write_str("sharding: expected axes or tiles, found one that claims nothing"),
            AxesError::Rank { expected, found } => {
                write!(f, "sharding: expected one entry for each of {expected} dims, found {found}")
            }
            AxesError::DeviceCount { expected, found } => {
                write!(f, "sharding: expected {expected} devices, found {found}")
            }
            AxesError::TileCount { tiles, n_listed } => {
                write!(f, "sharding: expected a device for each tile of {tiles:?}, found {n_listed} devices")
            }
            AxesError::Device { id, n_devices } => {
                write!(
                    f,
                    "sharding: expected each of the devices 0 to {} once, found {id}",
                    n_devices.saturating_sub(1)
                )
            }
            AxesError::Mesh => f.write_str("mesh: expected positive sizes and a device for each position"),
            AxesError::NoAxis { axis } => write!(f, "axis {axis}: expected an axis of the mesh or a part of one"),
            AxesError::Overlap { axis } => {
                write!(f, "axis {axis}: expected each part of an axis once, found parts that overlap")
            }
        }
    }
}

impl std::error::Error for AxesError {}

impl LeafSharding {
    /// The number of devices that the sharding lists; `None` where it lists none (replicated, manual, maximal …).
    pub fn n_listed_devices(&self) -> Option<usize> {
        let product = |mut dims: std::slice::Iter<'_, i64>| {
            dims.try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None })
        };
        let n = match &self.kind {
            ShardingKind::Tiled(tiling) => product(tiling.dims.iter())?,
            ShardingKind::Named(named) => named.mesh.n_devices()?,
            ShardingKind::Replicated
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced
            | ShardingKind::Maximal(_)
            | ShardingKind::MaximalMesh(_) => return None,
        };
        usize::try_from(n).ok()
    }

    /// The sharding of an array of this rank on `n_devices` devices as axes: of the mesh that it names, or of the devices in the
    /// order of their ids if tiles can be said so, else of a mesh with its own device order.
    ///
    /// # Errors
    /// It says nothing of tiles, or is malformed.
    pub fn axes(&self, rank: usize, n_devices: usize) -> Result<AxisSharding, AxesError> {
        let line = || AxisMesh::line(n_devices);
        let whole = SubAxis { axis: 0, pre: 1, size: n_devices as i64 };
        let all: Vec<SubAxis> = if n_devices > 1 { vec![whole] } else { Vec::new() };
        let plain = || AxisSharding::replicated(line(), rank);
        match &self.kind {
            ShardingKind::Replicated => Ok(plain()),
            ShardingKind::Manual => Ok(AxisSharding { manual: all, ..plain() }),
            ShardingKind::Unreduced => Ok(AxisSharding { unreduced: all, ..plain() }),
            ShardingKind::Unknown => Err(AxesError::Unknown),
            ShardingKind::Maximal(_) | ShardingKind::MaximalMesh(_) => Err(AxesError::Maximal),
            ShardingKind::Tiled(tiling) => Ok(in_device_order(of_tiling(tiling, rank, n_devices)?)),
            ShardingKind::Named(named) => match named.whole {
                Some(WholeMesh::Replicated) => Ok(plain()),
                Some(WholeMesh::Manual) => Ok(AxisSharding { manual: all, ..plain() }),
                Some(WholeMesh::Unreduced) => {
                    Ok(AxisSharding { unreduced: all, reduction: named.reduction, ..plain() })
                }
                // A mesh without axes stands for any devices.
                None if named.mesh.axes.is_empty() => Ok(plain()),
                None => {
                    let sharding = of_named(named, rank, n_devices)?;
                    // The axes of a mesh whose devices are in order stay as they are named.
                    Ok(if sharding.mesh.is_iota() { sharding } else { in_device_order(sharding) })
                }
            },
        }
    }
}

/// The ids as devices, each of 0 to one below `n_devices` once.
fn devices(ids: &[i64], n_devices: usize) -> Result<Vec<u32>, AxesError> {
    if ids.len() != n_devices {
        return Err(AxesError::DeviceCount { expected: n_devices, found: ids.len() });
    }
    let mut seen = vec![false; n_devices];
    let device = |&id: &i64| {
        let slot = usize::try_from(id).ok().and_then(|id| seen.get_mut(id));
        match slot.map(|slot| std::mem::replace(slot, true)) {
            Some(false) => Ok(id as u32),
            Some(true) | None => Err(AxesError::Device { id, n_devices }),
        }
    };
    ids.iter().map(device).collect()
}

/// Tiles on a mesh of their own: an axis for each dim of the tiling.
fn of_tiling(tiling: &Tiling, rank: usize, n_devices: usize) -> Result<AxisSharding, AxesError> {
    if tiling.data_rank() != rank {
        return Err(AxesError::Rank { expected: rank, found: tiling.data_rank() });
    }
    let ids = tiling.device_list().unwrap_or_default();
    let n_tiles = tiling.dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None });
    if n_tiles != i64::try_from(ids.len()).ok() {
        return Err(AxesError::TileCount { tiles: tiling.dims.to_vec(), n_listed: ids.len() });
    }
    let sizes: Vec<i64> = tiling.dims.iter().copied().filter(|&size| size > 1).collect();
    let mesh = AxisMesh { sizes, devices: devices(&ids, n_devices)? };
    let mut sharding = AxisSharding::replicated(mesh, rank);
    let mut axis = 0;
    for (k, &size) in tiling.dims.iter().enumerate() {
        let kind = k.checked_sub(rank).and_then(|k| tiling.last_dims.get(k));
        if matches!(kind, Some(SubgroupKind::Maximal)) {
            return Err(AxesError::Maximal);
        }
        if size == 1 {
            continue;
        }
        let part = SubAxis { axis, pre: 1, size };
        axis += 1;
        match kind {
            None => sharding.dims[k].push(part),
            Some(SubgroupKind::Replicated) => {}
            Some(SubgroupKind::Manual) => sharding.manual.push(part),
            Some(SubgroupKind::Unreduced) => sharding.unreduced.push(part),
            Some(SubgroupKind::Maximal) => return Err(AxesError::Maximal),
            Some(SubgroupKind::Unknown) => return Err(AxesError::Unknown),
        }
    }
    Ok(sharding)
}

fn of_named(named: &NamedSharding, rank: usize, n_devices: usize) -> Result<AxisSharding, AxesError> {
    if named.dims.len() != rank {
        return Err(AxesError::Rank { expected: rank, found: named.dims.len() });
    }
    let ids = named.mesh.devices().ok_or(AxesError::Mesh)?;
    let sizes = named.mesh.axes.iter().map(|&(_, size)| size).filter(|&size| size > 1).collect();
    let mesh = AxisMesh { sizes, devices: devices(&ids, n_devices)? };
    let parts = |axes: &[AxisRef]| -> Result<Vec<SubAxis>, AxesError> {
        let parts = axes.iter().map(|axis| part_of(named, axis)).collect::<Result<Vec<_>, _>>()?;
        Ok(merged(parts.into_iter().flatten()))
    };
    let dims = named.dims.iter().map(|dim| parts(&dim.axes)).collect::<Result<_, _>>()?;
    let (manual, unreduced) = (parts(&named.manual)?, parts(&named.unreduced)?);
    parts(&named.replicated)?;
    let sharding = AxisSharding { mesh, dims, manual, unreduced, reduction: named.reduction };
    check_apart(named, &sharding)?;
    Ok(sharding)
}

/// The part of the mesh that a reference names; none if it has one place.
fn part_of(named: &NamedSharding, axis: &AxisRef) -> Result<Option<SubAxis>, AxesError> {
    let missing = || AxesError::NoAxis { axis: axis_text(axis) };
    let index = named.mesh.axes.iter().position(|(name, _)| *name == axis.name).ok_or_else(missing)?;
    let whole = named.mesh.axes[index].1;
    let (pre, size) = axis.sub.unwrap_or((1, whole));
    let is_part = pre > 0 && size > 0 && pre.checked_mul(size).is_some_and(|n| whole % n == 0);
    if !is_part {
        return Err(missing());
    }
    let axis = named.mesh.axes[..index].iter().filter(|(_, size)| *size > 1).count();
    Ok((size > 1).then_some(SubAxis { axis, pre, size }))
}

fn axis_text(axis: &AxisRef) -> String {
    match axis.sub {
        None => format!("'{}'", axis.name),
        Some((pre, size)) => format!("'{}':({pre}){size}", axis.name),
    }
}

/// No place of an axis stands twice, and the parts of an axis cut it at places that divide one another.
fn check_apart(named: &NamedSharding, sharding: &AxisSharding) -> Result<(), AxesError> {
    let mut parts: Vec<SubAxis> = sharding.parts().collect();
    parts.sort_by_key(|part| (part.axis, part.pre));
    for pair in parts.windows(2) {
        let [a, b] = pair else { continue };
        if a.axis == b.axis && b.pre % (a.pre * a.size) != 0 {
            let large = named.mesh.axes.iter().filter(|(_, size)| *size > 1);
            let name = large.map(|(name, _)| name.as_str()).nth(b.axis).unwrap_or_default();
            return Err(AxesError::Overlap { axis: format!("'{name}':({}){}", b.pre, b.size) });
        }
    }
    Ok(())
}

/// The same parts, with neighbours along an axis joined.
fn merged(parts: impl IntoIterator<Item = SubAxis>) -> Vec<SubAxis> {
    let mut out: Vec<SubAxis> = Vec::new();
    for part in parts {
        match out.last_mut() {
            Some(last) if last.axis == part.axis && last.pre * last.size == part.pre => last.size *= part.size,
            Some(_) | None => out.push(part),
        }
    }
    out
}

/// A run of positions: so many, so many devices apart.
#[derive(Clone, Copy, Debug)]
struct Run {
    count: i64,
    /// Positions between two of the run.
    positions: i64,
    /// Devices between two of the run.
    devices: i64,
}

/// The runs, minor first, of a list that is a transposed iota; `None` for any other list.
fn runs(devices: &[u32]) -> Option<Vec<Run>> {
    let (n, mut step, mut runs) = (devices.len(), 1, Vec::new());
    while step < n {
        let stride = i64::from(*devices.get(step)?);
        let follows = |count: usize| devices.get(count * step).is_some_and(|&d| i64::from(d) == count as i64 * stride);
        let count = (1..).take_while(|&count| follows(count)).count() + 1;
        if !n.is_multiple_of(step * count) {
            return None;
        }
        runs.push(Run { count: count as i64, positions: step as i64, devices: stride });
        step *= count;
    }
    let device = |position: usize| -> i64 {
        runs.iter().map(|run| position as i64 / run.positions % run.count * run.devices).sum()
    };
    devices.iter().enumerate().all(|(position, &found)| device(position) == i64::from(found)).then_some(runs)
}

/// The same sharding on the devices in the order of their ids; as it was, if its axes cannot be said so.
pub(super) fn in_device_order(sharding: AxisSharding) -> AxisSharding {
    let ordered = runs(&sharding.mesh.devices).and_then(|runs| on_runs(&sharding, &runs));
    ordered.unwrap_or(sharding)
}

fn on_runs(sharding: &AxisSharding, runs: &[Run]) -> Option<AxisSharding> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|&k| std::cmp::Reverse(runs[k].devices));
    let inner = |place: usize| -> i64 { order[place + 1..].iter().map(|&k| runs[k].count).product() };
    if (0..order.len()).any(|place| runs[order[place]].devices != inner(place)) {
        return None;
    }
    let mesh = AxisMesh {
        sizes: order.iter().map(|&k| runs[k].count).collect(),
        devices: (0..sharding.mesh.devices.len() as u32).collect(),
    };
    let on_run = |k: usize, from: i64, to: i64| -> Option<Option<SubAxis>> {
        let run = runs[k];
        let (low, high) = (from.max(run.positions), to.min(run.positions * run.count));
        if low >= high {
            return Some(None);
        }
        let end = run.positions * run.count;
        let is_cut =
            low % run.positions == 0 && low % from == 0 && high % low == 0 && end % high == 0 && to % high == 0;
        let axis = order.iter().position(|&at| at == k)?;
        is_cut.then_some(Some(SubAxis { axis, pre: end / high, size: high / low }))
    };
    let split = |parts: &[SubAxis]| -> Result<Vec<SubAxis>, ()> {
        let mut out = Vec::new();
        for &part in parts {
            let from = sharding.mesh.stride(part);
            for k in (0..runs.len()).rev() {
                out.extend(on_run(k, from, from * part.size).ok_or(())?);
            }
        }
        Ok(merged(out))
    };
    sharding.map_lists(mesh, split).ok()
}
