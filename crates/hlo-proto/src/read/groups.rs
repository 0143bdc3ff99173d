//! Replica groups in their four fields, and meshes, which shardings have as well.

use super::Fallible;
use crate::table::*;
use crate::view::View;
use hlo_ir::Dims;
use hlo_ir::groups::{AxisRef, IotaTile, Mesh, MeshDevices, MeshGroups, ReplicaGroups};

/// Reads the groups of an instruction; lists where it has none.
pub(crate) fn read_groups(view: &View<'_>) -> Fallible<ReplicaGroups> {
    use hlo_instruction as i;
    if let Some(groups) = view.message(i::mesh_axes_replica_group_list) {
        use mesh_axes_replica_group_list as m;
        let mesh = read_mesh(&groups.message(m::mesh).unwrap_or_default())?;
        let axes = read_axes(&groups, m::axes, &mesh)?;
        return Ok(ReplicaGroups::Mesh(MeshGroups { mesh, axes }));
    }
    if let Some(groups) = view.message(i::iota_collective_device_list) {
        return Ok(ReplicaGroups::Iota(read_iota(&groups)));
    }
    let (list, field) = match view.message(i::collective_device_list) {
        Some(list) => (list, collective_device_list::replica_groups),
        None => (view.clone(), i::replica_groups),
    };
    if let Some(groups) = list.message(collective_device_list::iota_replica_group_list)
        && view.has(i::collective_device_list)
    {
        return Ok(ReplicaGroups::Iota(read_iota(&groups)));
    }
    let groups = list.messages(field).map(|group| group.ints(replica_group::replica_ids).collect());
    Ok(ReplicaGroups::List(groups.collect()))
}

fn read_iota(view: &View<'_>) -> IotaTile {
    use iota_replica_group_list as g;
    let dims = Dims::from_slice(&[view.int(g::num_replica_groups), view.int(g::num_devices_per_group)]);
    iota_tile(dims, view.ints(g::iota_reshape_dims).collect(), view.ints(g::iota_transpose_perm).collect())
}

/// A tile; the dims stay in order where no other order is given.
pub(crate) fn iota_tile(dims: Dims, reshape_dims: Dims, perm: Dims) -> IotaTile {
    let n_ids = dims.iter().fold(1i64, |n, &size| n.saturating_mul(size));
    let reshape_dims = if reshape_dims.is_empty() { [n_ids].into_iter().collect() } else { reshape_dims };
    let perm = if perm.is_empty() { (0..reshape_dims.len() as i64).collect() } else { perm };
    IotaTile { dims, reshape_dims, perm }
}

/// Reads a mesh.
pub(crate) fn read_mesh(view: &View<'_>) -> Fallible<Mesh> {
    let axis = |axis: View<'_>| (axis.text(mesh_axis::name), axis.int(mesh_axis::size));
    let axes: Vec<(String, i64)> = view.messages(mesh::axes).map(axis).collect();
    let ids: Vec<i64> = view.ints(mesh::device_ids).collect();
    let sizes = || axes.iter().map(|&(_, size)| size).collect();
    let device_ids = match view.message(mesh::iota_transform) {
        Some(iota) if ids.is_empty() => {
            let reshape_dims: Dims = iota.ints(iota_transform::reshape_dims).collect();
            let perm: Dims = iota.ints(iota_transform::transpose_perm).collect();
            if reshape_dims.is_empty() {
                MeshDevices::Iota
            } else {
                MeshDevices::Tile(iota_tile(sizes(), reshape_dims, perm))
            }
        }
        Some(_) | None if ids.is_empty() => MeshDevices::Iota,
        Some(_) | None => MeshDevices::List(ids),
    };
    Ok(Mesh { axes, device_ids })
}

/// Reads references to axes of a mesh, which stand by index.
pub(crate) fn read_axes(view: &View<'_>, field: Field, mesh: &Mesh) -> Fallible<Vec<AxisRef>> {
    let axis = |axis: View<'_>| {
        let index = axis.int(axis_ref::mesh_axis_index);
        let known = usize::try_from(index).ok().and_then(|index| mesh.axes.get(index));
        let (name, _) =
            known.ok_or_else(|| format!("expected one of {} axes of a mesh, found {index}", mesh.axes.len()))?;
        let sub = axis.message(axis_ref::sub_axis_info);
        let sub = sub.map(|sub| (sub.int(sub_axis::pre_size), sub.int(sub_axis::size)));
        Ok(AxisRef { name: name.clone(), sub })
    };
    view.messages(field).map(axis).collect()
}
