//! From axes back to a sharding as text says it.

use super::{AxisSharding, SubAxis};
use crate::groups::{AxisRef, IotaTile, Mesh, MeshDevices};
use crate::shape::Dims;
use crate::sharding::{
    LeafSharding, NamedDim, NamedSharding, Reduction, ShardingKind, SubgroupKind, TileDevices, Tiling,
};

impl AxisSharding {
    /// The sharding as `devices=[…]<=[…]T(…)` with as few reshape dims as possible, as XLA prints it; as a list of devices where
    /// these do not stand in the order of their ids; as `{replicated}` where nothing is cut. Partial results that are not sums
    /// have a named form only.
    pub fn to_leaf(&self) -> LeafSharding {
        if self.is_replicated() {
            return LeafSharding::new(ShardingKind::Replicated);
        }
        if self.reduction != Reduction::Sum && !self.unreduced.is_empty() {
            let names: Vec<String> = (0..self.mesh.sizes.len()).map(|axis| format!("a{axis}")).collect();
            return LeafSharding::new(ShardingKind::Named(Box::new(self.to_named(&names))));
        }
        let rest = self.rest();
        let kinds = [
            (SubgroupKind::Manual, &self.manual),
            (SubgroupKind::Unreduced, &self.unreduced),
            (SubgroupKind::Replicated, &rest),
        ];
        let size = |parts: &[SubAxis]| -> i64 { parts.iter().map(|part| part.size).product() };
        let mut dims: Dims = self.dims.iter().map(|axes| size(axes)).collect();
        let mut order: Vec<SubAxis> = self.dims.iter().flatten().copied().collect();
        let mut last_dims = Vec::new();
        for (kind, parts) in kinds {
            if size(parts) > 1 {
                dims.push(size(parts));
                last_dims.push(kind);
                order.extend(parts.iter());
            }
        }
        let last_dim_short = last_dims == [SubgroupKind::Replicated];
        let devices = self.devices(&dims, &order);
        LeafSharding::new(ShardingKind::Tiled(Box::new(Tiling { dims, devices, last_dims, last_dim_short })))
    }

    /// The sharding over the axes of the mesh under these names.
    pub fn to_named(&self, names: &[String]) -> NamedSharding {
        let name = |axis: usize| names.get(axis).cloned().unwrap_or_else(|| format!("a{axis}"));
        let axis = |part: &SubAxis| {
            let whole = self.mesh.sizes.get(part.axis) == Some(&part.size);
            AxisRef { name: name(part.axis), sub: (!whole).then_some((part.pre, part.size)) }
        };
        let list = |parts: &[SubAxis]| -> Vec<AxisRef> { parts.iter().map(axis).collect() };
        let device_ids = match self.mesh.is_iota() {
            true => MeshDevices::Iota,
            false => MeshDevices::List(self.mesh.devices.iter().map(|&device| i64::from(device)).collect()),
        };
        let axes = self.mesh.sizes.iter().enumerate().map(|(axis, &size)| (name(axis), size)).collect();
        NamedSharding {
            mesh: Mesh { axes, device_ids },
            dims: self.dims.iter().map(|parts| NamedDim { axes: list(parts), is_open: false }).collect(),
            manual: list(&self.manual),
            unreduced: list(&self.unreduced),
            reduction: self.reduction,
            ..NamedSharding::default()
        }
    }

    /// The parts of axes that nothing names, in the order of the mesh.
    pub(super) fn rest(&self) -> Vec<SubAxis> {
        let mut out = Vec::new();
        for (axis, &size) in self.mesh.sizes.iter().enumerate() {
            let mut used: Vec<SubAxis> = self.parts().filter(|part| part.axis == axis).collect();
            used.sort_by_key(|part| part.pre);
            let mut pre = 1;
            for part in used {
                out.push(SubAxis { axis, pre, size: part.pre / pre });
                pre = part.pre * part.size;
            }
            out.push(SubAxis { axis, pre, size: size / pre });
        }
        out.retain(|part| part.size > 1);
        out
    }

    /// The devices in row-major order of `dims`, which `order` makes up.
    fn devices(&self, dims: &Dims, order: &[SubAxis]) -> TileDevices {
        let mut parts: Vec<SubAxis> = order.to_vec();
        parts.sort_by_key(|&part| std::cmp::Reverse(self.mesh.stride(part)));
        // Neighbours in both orders are one reshape dim.
        let place = |part: &SubAxis| parts.iter().position(|other| other == part).unwrap_or_default();
        let mut runs: Vec<(usize, i64)> = Vec::new();
        let mut before = None;
        for part in order {
            let at = place(part);
            match runs.last_mut() {
                Some(run) if before.is_some_and(|before| before + 1 == at) => run.1 *= part.size,
                Some(_) | None => runs.push((at, part.size)),
            }
            before = Some(at);
        }
        let mut by_place: Vec<usize> = (0..runs.len()).collect();
        by_place.sort_by_key(|&run| runs[run].0);
        let perm = (0..runs.len()).map(|run| by_place.iter().position(|&r| r == run).unwrap_or_default() as i64);
        let reshape_dims = by_place.iter().map(|&run| runs[run].1).collect();
        let tile = IotaTile { dims: dims.clone(), reshape_dims, perm: perm.collect() };
        if self.mesh.is_iota() {
            return TileDevices::Iota(tile);
        }
        let device = |position: i64| self.mesh.devices.get(position as usize).map_or(position, |&d| i64::from(d));
        TileDevices::List(tile.expand().unwrap_or_default().into_iter().map(device).collect())
    }
}
