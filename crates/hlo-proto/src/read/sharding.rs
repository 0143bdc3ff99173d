//! Shardings of all three generations.

use super::Fallible;
use super::groups::{iota_tile, read_axes, read_mesh};
use super::metadata::read_metadata;
use crate::metadata_text::metadata_text;
use crate::table::*;
use crate::view::View;
use hlo_ir::Dims;
use hlo_ir::groups::{AxisRef, Mesh, MeshDevices};
use hlo_ir::sharding::{
    LeafSharding, NamedDim, NamedSharding, Reduction, ShardGroup, Sharding, ShardingKind, SubgroupKind, TileDevices,
    Tiling, WholeMesh,
};

/// The kinds of shardings that are no tiling, a kind of subgroup each, by the names in the table.
fn type_name(number: i64) -> Fallible<&'static str> {
    SHARDING_TYPE.name_of(number).ok_or_else(|| format!("expected a type of sharding, found number {number}"))
}

/// Reads a sharding.
pub(crate) fn read_sharding(view: &View<'_>) -> Fallible<Sharding> {
    if type_name(view.int(op_sharding::r#type))? == "TUPLE" {
        let leaves = view.messages(op_sharding::tuple_shardings).map(|leaf| read_leaf(&leaf));
        return Ok(Sharding::Tuple(leaves.collect::<Fallible<_>>()?));
    }
    Ok(Sharding::Single(read_leaf(view)?))
}

fn read_leaf(view: &View<'_>) -> Fallible<LeafSharding> {
    let named = view.message(op_sharding::named_sharding);
    let (kind, metadata) = match &named {
        Some(named) => (read_named(named)?, named.messages(named_sharding::metadata).collect::<Vec<_>>()),
        None => (read_kind(view)?, view.messages(op_sharding::metadata).collect()),
    };
    let group = view.bool(op_sharding::is_shard_group).then(|| ShardGroup {
        is_as: view.int(op_sharding::shard_group_type) == 0,
        id: view.int(op_sharding::shard_group_id),
    });
    let metadata: Fallible<Vec<String>> =
        metadata.iter().map(|entry| Ok(metadata_text(&*read_metadata(entry)?))).collect();
    Ok(LeafSharding { kind, group, metadata: metadata? })
}

fn read_kind(view: &View<'_>) -> Fallible<ShardingKind> {
    Ok(match type_name(view.int(op_sharding::r#type))? {
        "REPLICATED" => ShardingKind::Replicated,
        "MAXIMAL" => ShardingKind::Maximal(view.int(op_sharding::tile_assignment_devices)),
        "MANUAL" => ShardingKind::Manual,
        "UNKNOWN" => ShardingKind::Unknown,
        "UNREDUCED" => ShardingKind::Unreduced,
        "OTHER" => ShardingKind::Tiled(Box::new(read_tiling(view)?)),
        other => return Err(format!("expected the sharding of one array, found one of type {other}")),
    })
}

fn read_tiling(view: &View<'_>) -> Fallible<Tiling> {
    let dims: Dims = view.ints(op_sharding::tile_assignment_dimensions).collect();
    let reshape_dims: Dims = view.ints(op_sharding::iota_reshape_dims).collect();
    let devices = if reshape_dims.is_empty() {
        TileDevices::List(view.ints(op_sharding::tile_assignment_devices).collect())
    } else {
        let perm = view.ints(op_sharding::iota_transpose_perm).collect();
        TileDevices::Iota(iota_tile(dims.clone(), reshape_dims, perm))
    };
    let is_short = view.bool(op_sharding::replicate_on_last_tile_dim);
    let kind = |number: i64| {
        let name = type_name(number)?.to_ascii_lowercase();
        SubgroupKind::from_name(&name).ok_or_else(|| format!("expected a kind of subgroup, found {name}"))
    };
    let last_dims: Vec<SubgroupKind> = match is_short {
        true => vec![SubgroupKind::Replicated],
        false => view.ints(op_sharding::last_tile_dims).map(kind).collect::<Fallible<_>>()?,
    };
    if last_dims.len() > dims.len() {
        return Err(format!("expected at most {} kinds of subgroups, found {}", dims.len(), last_dims.len()));
    }
    Ok(Tiling { dims, devices, last_dims, last_dim_short: is_short })
}

fn read_named(view: &View<'_>) -> Fallible<ShardingKind> {
    let mesh = read_mesh(&view.message(named_sharding::mesh).unwrap_or_default())?;
    if let (true, MeshDevices::List(ids)) = (mesh.axes.is_empty(), &mesh.device_ids)
        && let [id] = ids.as_slice()
    {
        return Ok(ShardingKind::MaximalMesh(*id));
    }
    let dim = |dim: View<'_>| {
        let axes = read_axes(&dim, dimension_sharding::axes, &mesh)?;
        Ok(NamedDim { axes, is_open: !dim.bool(dimension_sharding::is_closed) })
    };
    let dims: Fallible<Vec<NamedDim>> = view.messages(named_sharding::dim_shardings).map(dim).collect();
    let reduction = match view.int(named_sharding::reduction_op) {
        0 => Reduction::Sum,
        number => {
            let found = REDUCTION_OP.word(number).and_then(|word| Reduction::from_name(&word));
            found.ok_or_else(|| format!("expected how partial results are combined, found number {number}"))?
        }
    };
    let mut named = NamedSharding {
        whole: None,
        dims: dims?,
        replicated: read_axes(view, named_sharding::replicated_axes, &mesh)?,
        unreduced: read_axes(view, named_sharding::unreduced_axes, &mesh)?,
        reduction,
        manual: read_axes(view, named_sharding::manual_axes, &mesh)?,
        mesh,
    };
    named.whole = whole_mesh(&named);
    if named.whole.is_some() {
        named.manual.clear();
        named.unreduced.clear();
    }
    Ok(ShardingKind::Named(Box::new(named)))
}

/// What holds over the whole mesh: there are no dims, and one list of axes at most, which then has them all.
fn whole_mesh(named: &NamedSharding) -> Option<WholeMesh> {
    if !named.dims.is_empty() || !named.replicated.is_empty() {
        return None;
    }
    match (named.manual.is_empty(), named.unreduced.is_empty()) {
        (true, true) => Some(WholeMesh::Replicated),
        (false, true) => is_whole(&named.manual, &named.mesh).then_some(WholeMesh::Manual),
        (true, false) => is_whole(&named.unreduced, &named.mesh).then_some(WholeMesh::Unreduced),
        (false, false) => None,
    }
}

fn is_whole(axes: &[AxisRef], mesh: &Mesh) -> bool {
    let is_axis = |(axis, (name, _)): (&AxisRef, &(String, i64))| axis.sub.is_none() && axis.name == *name;
    axes.len() == mesh.axes.len() && axes.iter().zip(&mesh.axes).all(is_axis)
}
