//! Replica groups and meshes.

use crate::table::*;
use crate::writer::Writer;
use hlo_ir::groups::{AxisRef, IotaTile, Mesh, MeshDevices, ReplicaGroups};

/// Appends the groups of an instruction in the field for their form: lists are what every reader knows.
pub(crate) fn write_groups(w: &mut Writer, groups: &ReplicaGroups) {
    use hlo_instruction as i;
    match groups {
        ReplicaGroups::List(lists) => w.message(i::collective_device_list, |w| {
            for ids in lists {
                w.message(collective_device_list::replica_groups, |w| {
                    w.ints(replica_group::replica_ids, ids.iter().copied());
                });
            }
        }),
        ReplicaGroups::Iota(tile) => w.message(i::iota_collective_device_list, |w| write_iota(w, tile)),
        ReplicaGroups::Mesh(groups) => w.message(i::mesh_axes_replica_group_list, |w| {
            w.message(mesh_axes_replica_group_list::mesh, |w| write_mesh(w, &groups.mesh));
            write_axes(w, mesh_axes_replica_group_list::axes, &groups.axes, &groups.mesh);
        }),
    }
}

fn write_iota(w: &mut Writer, tile: &IotaTile) {
    use iota_replica_group_list as g;
    w.int(g::num_replica_groups, tile.dims.first().copied().unwrap_or(0));
    w.int(g::num_devices_per_group, tile.dims.get(1).copied().unwrap_or(0));
    w.ints(g::iota_reshape_dims, tile.reshape_dims.iter().copied());
    w.ints(g::iota_transpose_perm, tile.perm.iter().copied());
}

/// Appends the fields of a mesh.
pub(crate) fn write_mesh(w: &mut Writer, of: &Mesh) {
    for (name, size) in &of.axes {
        w.message(mesh::axes, |w| {
            w.text(mesh_axis::name, name);
            w.int(mesh_axis::size, *size);
        });
    }
    match &of.device_ids {
        MeshDevices::Iota => {}
        MeshDevices::List(ids) => w.ints(mesh::device_ids, ids.iter().copied()),
        MeshDevices::Tile(tile) => w.message(mesh::iota_transform, |w| {
            w.ints(iota_transform::reshape_dims, tile.reshape_dims.iter().copied());
            w.ints(iota_transform::transpose_perm, tile.perm.iter().copied());
        }),
    }
}

/// Appends references to axes of a mesh.
pub(crate) fn write_axes(w: &mut Writer, field: Field, axes: &[AxisRef], of: &Mesh) {
    for axis in axes {
        let index = of.axes.iter().position(|(name, _)| *name == axis.name).unwrap_or(0);
        w.message(field, |w| {
            w.int(axis_ref::mesh_axis_index, index as i64);
            if let Some((pre_size, size)) = axis.sub {
                w.message(axis_ref::sub_axis_info, |w| {
                    w.int(sub_axis::pre_size, pre_size);
                    w.int(sub_axis::size, size);
                });
            }
        });
    }
}
