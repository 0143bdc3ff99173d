//! Shardings, replica groups and meshes as text.

use super::shapes::{display_by, write_ints};
use super::write_index_comment;
use crate::float::decimal::write_i64;
use crate::groups::{AxisRef, IotaTile, Mesh, MeshDevices, MeshGroups, ReplicaGroups};
use crate::sharding::{
    LeafSharding, NamedSharding, Reduction, ShardGroup, Sharding, ShardingKind, SubgroupKind, TileDevices, Tiling,
};

display_by! {
    Sharding => write_sharding;
    LeafSharding => write_leaf;
    ReplicaGroups => write_groups;
    MeshGroups => write_mesh_groups;
    Mesh => write_mesh;
    IotaTile => write_iota;
}

/// Appends a sharding, braces included.
pub(super) fn write_sharding(sharding: &Sharding, out: &mut String) {
    match sharding {
        Sharding::Single(leaf) => write_leaf(leaf, out),
        Sharding::Tuple(leaves) => {
            out.push('{');
            for (i, leaf) in leaves.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                    if i % 5 == 0 {
                        write_index_comment(i, out);
                    }
                }
                write_leaf(leaf, out);
            }
            out.push('}');
        }
    }
}

fn write_leaf(leaf: &LeafSharding, out: &mut String) {
    out.push('{');
    // Named axes separate their marks by commas.
    let mut mark_separator = " ";
    match &leaf.kind {
        ShardingKind::Replicated => out.push_str("replicated"),
        ShardingKind::Manual => out.push_str("manual"),
        ShardingKind::Unknown => out.push_str("unknown"),
        ShardingKind::Unreduced => out.push_str("unreduced"),
        ShardingKind::Maximal(device) => {
            out.push_str("maximal device=");
            write_i64(*device, out);
        }
        ShardingKind::Tiled(tiling) => write_tiling(tiling, out),
        ShardingKind::Named(named) => {
            write_named(named, out);
            mark_separator = ", ";
        }
        ShardingKind::MaximalMesh(device) => {
            out.push_str("maximal_mesh[device_id=");
            write_i64(*device, out);
            out.push(']');
        }
    }
    if let Some(ShardGroup { is_as, id }) = leaf.group {
        out.push_str(mark_separator);
        out.push_str(if is_as { "shard_as " } else { "shard_like " });
        write_i64(id, out);
    }
    if !leaf.metadata.is_empty() {
        out.push_str(mark_separator);
        let is_list = leaf.metadata.len() > 1 || matches!(leaf.kind, ShardingKind::Named(_));
        write_metadata(&leaf.metadata, is_list, out);
    }
    out.push('}');
}

fn write_metadata(entries: &[String], is_list: bool, out: &mut String) {
    out.push_str(if is_list { "metadata={" } else { "metadata=" });
    for (i, entry) in entries.iter().enumerate() {
        out.push_str(if i > 0 { ", {" } else { "{" });
        out.push_str(entry);
        out.push('}');
    }
    if is_list {
        out.push('}');
    }
}

fn write_tiling(tiling: &Tiling, out: &mut String) {
    match &tiling.devices {
        TileDevices::Iota(tile) => {
            out.push_str("devices=");
            write_dims_and_iota(&tiling.dims, tile, out);
        }
        TileDevices::List(ids) => {
            out.push_str("devices=[");
            write_ints(&tiling.dims, out);
            out.push(']');
            write_ints(ids, out);
        }
    }
    match tiling.last_dims.as_slice() {
        [] => {}
        [SubgroupKind::Replicated] if tiling.last_dim_short => out.push_str(" last_tile_dim_replicate"),
        kinds => {
            out.push_str(" last_tile_dims={");
            for (i, kind) in kinds.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                out.push_str(kind.name());
            }
            out.push('}');
        }
    }
}

fn write_named(named: &NamedSharding, out: &mut String) {
    write_mesh(&named.mesh, out);
    if let Some(whole) = named.whole {
        out.push_str(", ");
        out.push_str(whole.name());
        if named.reduction != Reduction::Sum {
            out.push('=');
            out.push_str(named.reduction.name());
        }
        return;
    }
    out.push_str(", [");
    for (i, dim) in named.dims.iter().enumerate() {
        out.push_str(if i > 0 { ", {" } else { "{" });
        write_axes(&dim.axes, ", ", out);
        if dim.is_open {
            out.push_str(if dim.axes.is_empty() { "?" } else { ", ?" });
        }
        out.push('}');
    }
    out.push(']');
    for (key, axes) in [("replicated", &named.replicated), ("unreduced", &named.unreduced), ("manual", &named.manual)] {
        if !axes.is_empty() {
            out.push_str(", ");
            out.push_str(key);
            out.push('=');
            if key == "unreduced" && named.reduction != Reduction::Sum {
                out.push_str(named.reduction.name());
            }
            out.push('{');
            write_axes(axes, ", ", out);
            out.push('}');
        }
    }
}

/// Appends replica groups in the syntax in which they were written.
pub(super) fn write_groups(groups: &ReplicaGroups, out: &mut String) {
    match groups {
        ReplicaGroups::List(groups) => write_group_lists(groups, out),
        ReplicaGroups::Iota(tile) => write_iota(tile, out),
        ReplicaGroups::Mesh(groups) => write_mesh_groups(groups, out),
    }
}

/// Appends `{{0,1},{2,3}}`.
pub(super) fn write_group_lists(groups: &[Vec<i64>], out: &mut String) {
    out.push('{');
    for (i, group) in groups.iter().enumerate() {
        out.push_str(if i > 0 { ",{" } else { "{" });
        write_ints(group, out);
        out.push('}');
    }
    out.push('}');
}

fn write_mesh_groups(groups: &MeshGroups, out: &mut String) {
    write_mesh(&groups.mesh, out);
    out.push_str(" {");
    write_axes(&groups.axes, ",", out);
    out.push('}');
}

/// Appends `[2,2]<=[4]T(1,0)`.
fn write_iota(tile: &IotaTile, out: &mut String) {
    write_dims_and_iota(&tile.dims, tile, out);
}

fn write_dims_and_iota(dims: &[i64], tile: &IotaTile, out: &mut String) {
    out.push('[');
    write_ints(dims, out);
    out.push_str("]<=");
    write_iota_tail(tile, out);
}

/// Appends `[4,2]T(1,0)`, or `[8]` alone. XLA wants `T(…)` after several dims, even if it leaves them in order, and none after one.
fn write_iota_tail(tile: &IotaTile, out: &mut String) {
    out.push('[');
    write_ints(&tile.reshape_dims, out);
    out.push(']');
    if tile.perm.len() > 1 {
        out.push_str("T(");
        write_ints(&tile.perm, out);
        out.push(')');
    }
}

/// Appends `mesh['a'=4,'b'=2]`, with device ids if they are not iota.
fn write_mesh(mesh: &Mesh, out: &mut String) {
    out.push_str("mesh[");
    for (i, (name, size)) in mesh.axes.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_axis_name(name, out);
        out.push('=');
        write_i64(*size, out);
    }
    out.push(']');
    match &mesh.device_ids {
        MeshDevices::Iota => {}
        MeshDevices::Tile(tile) => {
            out.push_str(", device_ids=(");
            write_iota_tail(tile, out);
            out.push(')');
        }
        MeshDevices::List(ids) => {
            out.push_str(", device_ids=(");
            write_ints(ids, out);
            out.push(')');
        }
    }
}

fn write_axes(axes: &[AxisRef], separator: &str, out: &mut String) {
    for (i, axis) in axes.iter().enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        write_axis_name(&axis.name, out);
        if let Some((pre_size, size)) = axis.sub {
            out.push_str(":(");
            write_i64(pre_size, out);
            out.push(')');
            write_i64(size, out);
        }
    }
}

fn write_axis_name(name: &str, out: &mut String) {
    out.push('\'');
    out.push_str(name);
    out.push('\'');
}
