//! Shardings of all three generations.

use super::groups::{write_axes, write_mesh};
use super::value::write_metadata;
use crate::metadata_text::parse_metadata;
use crate::table::*;
use crate::writer::Writer;
use hlo_ir::groups::AxisRef;
use hlo_ir::sharding::{
    LeafSharding, NamedSharding, Reduction, Sharding, ShardingKind, SubgroupKind, TileDevices, Tiling, WholeMesh,
};

/// The number of a type of sharding.
fn type_of(name: &str) -> i64 {
    SHARDING_TYPE.number_of_word(name).unwrap_or(0)
}

/// Appends the fields of the sharding of a value with this many leaves; `None` for a value that is no tuple.
pub(crate) fn write_sharding(w: &mut Writer, sharding: &Sharding, n_leaves: Option<usize>) {
    match (sharding, n_leaves) {
        (Sharding::Single(leaf), None) => write_leaf(w, leaf),
        // XLA has one for each leaf of a tuple.
        (Sharding::Single(leaf), Some(n_leaves)) => {
            w.int(op_sharding::r#type, type_of("TUPLE"));
            (0..n_leaves.max(1)).for_each(|_| w.message(op_sharding::tuple_shardings, |w| write_leaf(w, leaf)));
        }
        (Sharding::Tuple(leaves), _) => {
            w.int(op_sharding::r#type, type_of("TUPLE"));
            leaves.iter().for_each(|leaf| w.message(op_sharding::tuple_shardings, |w| write_leaf(w, leaf)));
        }
    }
}

fn write_leaf(w: &mut Writer, leaf: &LeafSharding) {
    let mut tiled = None;
    let mut named = None;
    match &leaf.kind {
        ShardingKind::Replicated => w.int(op_sharding::r#type, type_of("REPLICATED")),
        ShardingKind::Manual => w.int(op_sharding::r#type, type_of("MANUAL")),
        ShardingKind::Unknown => w.int(op_sharding::r#type, type_of("UNKNOWN")),
        ShardingKind::Unreduced => w.int(op_sharding::r#type, type_of("UNREDUCED")),
        ShardingKind::Maximal(device) => {
            w.int(op_sharding::r#type, type_of("MAXIMAL"));
            w.ints(op_sharding::tile_assignment_devices, [*device]);
        }
        ShardingKind::Tiled(tiling) => {
            tiled = Some(tiling);
            write_tiles(w, tiling);
        }
        ShardingKind::Named(_) | ShardingKind::MaximalMesh(_) => named = Some(&leaf.kind),
    }
    if named.is_none() {
        leaf.metadata.iter().for_each(|text| w.message(op_sharding::metadata, |w| write_metadata_text(w, text)));
    }
    if let Some(tiling) = tiled {
        write_rest_of_tiling(w, tiling);
    }
    if let Some(group) = leaf.group {
        w.bool(op_sharding::is_shard_group, true);
        w.int(op_sharding::shard_group_id, group.id);
        w.bool(op_sharding::shard_group_type, !group.is_as);
    }
    match named {
        Some(ShardingKind::Named(named)) => {
            w.message(op_sharding::named_sharding, |w| write_named(w, named, &leaf.metadata));
        }
        Some(ShardingKind::MaximalMesh(device)) => w.message(op_sharding::named_sharding, |w| {
            w.message(named_sharding::mesh, |w| w.ints(mesh::device_ids, [*device]));
            leaf.metadata.iter().for_each(|text| w.message(named_sharding::metadata, |w| write_metadata_text(w, text)));
        }),
        Some(_) | None => {}
    }
}

fn write_metadata_text(w: &mut Writer, text: &str) {
    write_metadata(w, &parse_metadata(text));
}

fn write_tiles(w: &mut Writer, tiling: &Tiling) {
    w.int(op_sharding::r#type, type_of("OTHER"));
    w.ints(op_sharding::tile_assignment_dimensions, tiling.dims.iter().copied());
    if let TileDevices::List(ids) = &tiling.devices {
        w.ints(op_sharding::tile_assignment_devices, ids.iter().copied());
    }
    w.bool(op_sharding::replicate_on_last_tile_dim, is_replicated_last(tiling));
}

/// Whether one subgroup dim holds copies, which has a field of its own.
fn is_replicated_last(tiling: &Tiling) -> bool {
    tiling.last_dims == [SubgroupKind::Replicated]
}

fn write_rest_of_tiling(w: &mut Writer, tiling: &Tiling) {
    if !is_replicated_last(tiling) {
        w.ints(op_sharding::last_tile_dims, tiling.last_dims.iter().map(|kind| type_of(kind.name())));
    }
    if let TileDevices::Iota(tile) = &tiling.devices {
        w.ints(op_sharding::iota_reshape_dims, tile.reshape_dims.iter().copied());
        w.ints(op_sharding::iota_transpose_perm, tile.perm.iter().copied());
    }
}

fn write_named(w: &mut Writer, of: &NamedSharding, metadata: &[String]) {
    use named_sharding as n;
    w.message(n::mesh, |w| write_mesh(w, &of.mesh));
    for dim in &of.dims {
        w.message(n::dim_shardings, |w| {
            write_axes(w, dimension_sharding::axes, &dim.axes, &of.mesh);
            w.bool(dimension_sharding::is_closed, !dim.is_open);
        });
    }
    let whole = || of.mesh.axes.iter().map(|(name, _)| AxisRef { name: name.clone(), sub: None }).collect();
    let axes_of = |kind: WholeMesh, own: &[AxisRef]| -> Vec<AxisRef> {
        if of.whole == Some(kind) { whole() } else { own.to_vec() }
    };
    write_axes(w, n::replicated_axes, &of.replicated, &of.mesh);
    write_axes(w, n::unreduced_axes, &axes_of(WholeMesh::Unreduced, &of.unreduced), &of.mesh);
    metadata.iter().for_each(|text| w.message(n::metadata, |w| write_metadata_text(w, text)));
    write_axes(w, n::manual_axes, &axes_of(WholeMesh::Manual, &of.manual), &of.mesh);
    if of.reduction != Reduction::Sum {
        w.int(n::reduction_op, REDUCTION_OP.number_of_word(of.reduction.name()).unwrap_or(0));
    }
}
