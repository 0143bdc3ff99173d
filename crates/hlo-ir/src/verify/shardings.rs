//! Sharding annotations: ranks, leaves, devices.

use super::Verifier;
use crate::attrs::Marks;
use crate::groups::MeshGroups;
use crate::module::InstId;
use crate::op::Opcode;
use crate::shape::Shape;
use crate::sharding::{LeafSharding, NamedSharding, Sharding, ShardingKind, TileDevices, Tiling, WholeMesh};

pub(super) fn check(cx: &mut Verifier<'_>, inst: InstId, marks: &Marks) {
    let Some(sharding) = &marks.sharding else { return };
    let module = cx.module;
    let node = module.inst(inst);
    // The parts of an outfeed's are those of what it gives away; its own value is a token.
    let is_outfeed = node.opcode == Opcode::Outfeed && matches!(sharding, Sharding::Tuple(_));
    let shape = module.shape(node.operands.first().copied().filter(|_| is_outfeed).unwrap_or(inst));
    match sharding {
        // Of a tuple it is that of every leaf.
        Sharding::Single(leaf) => {
            let mut shapes = Vec::new();
            collect_leaves(shape, &mut shapes);
            let rank = |shape: &Shape| shape.as_array().map(|array| array.rank());
            let mut seen = Vec::new();
            for shape in shapes {
                if !seen.contains(&rank(shape)) {
                    seen.push(rank(shape));
                    check_leaf(cx, inst, leaf, shape);
                }
            }
        }
        Sharding::Tuple(leaves) => {
            let mut shapes = Vec::new();
            collect_leaves(shape, &mut shapes);
            // XLA prints one part for the empty tuple and reads none as well.
            let is_fine = leaves.len() == shapes.len() || (shapes.is_empty() && leaves.len() == 1);
            if !is_fine {
                let expected = format!("{} parts of the sharding, one for each leaf", shapes.len());
                return cx.at_inst("sharding-tuple", inst, expected, leaves.len());
            }
            for (leaf, shape) in leaves.iter().zip(shapes) {
                check_leaf(cx, inst, leaf, shape);
            }
        }
    }
}

fn collect_leaves<'a>(shape: &'a Shape, out: &mut Vec<&'a Shape>) {
    match shape {
        Shape::Tuple(elements) => elements.iter().for_each(|e| collect_leaves(e, out)),
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => out.push(shape),
    }
}

fn check_leaf(cx: &mut Verifier<'_>, inst: InstId, leaf: &LeafSharding, shape: &Shape) {
    match &leaf.kind {
        ShardingKind::Replicated | ShardingKind::Manual | ShardingKind::Unknown | ShardingKind::Unreduced => {}
        ShardingKind::Maximal(id) | ShardingKind::MaximalMesh(id) => check_ids(cx, inst, &[*id]),
        ShardingKind::Tiled(tiling) => check_tiling(cx, inst, tiling, shape),
        ShardingKind::Named(named) => check_named(cx, inst, named, shape),
    }
}

fn check_rank(cx: &mut Verifier<'_>, inst: InstId, n_tiled: usize, shape: &Shape) {
    if let Some(array) = shape.as_array()
        && array.rank() != n_tiled
    {
        cx.at_inst("sharding-rank", inst, format_args!("a sharding of {} dims", array.rank()), n_tiled);
    }
}

/// Ids exist (where the header says how many partitions there are) and none comes twice.
fn check_ids(cx: &mut Verifier<'_>, inst: InstId, ids: &[i64]) {
    let n = cx.module.header.num_partitions;
    if let Some(&id) = ids.iter().find(|&&id| id < 0 || (n > 1 && id >= n)) {
        return cx.at_inst("sharding-device", inst, format_args!("devices 0 to {}", n - 1), id);
    }
    let mut sorted = ids.to_vec();
    sorted.sort();
    if let Some(pair) = sorted.windows(2).find(|w| w[0] == w[1]) {
        cx.at_inst("sharding-device", inst, "each device once", format_args!("device {} twice", pair[0]));
    }
}

fn check_tiling(cx: &mut Verifier<'_>, inst: InstId, tiling: &Tiling, shape: &Shape) {
    let n_tiles = tiling.dims.iter().try_fold(1i64, |n, &d| if d > 0 { n.checked_mul(d) } else { None });
    match (tiling.device_list(), n_tiles) {
        (Some(ids), Some(n)) if ids.len() as i64 == n => check_ids(cx, inst, &ids),
        (Some(ids), Some(n)) => {
            cx.at_inst("sharding-device-count", inst, format_args!("{n} devices for {n} tiles"), ids.len());
        }
        (_, None) => cx.at_inst(
            "sharding-device-count",
            inst,
            "dims of 1 or more for tiles",
            format_args!("{:?}", tiling.dims.as_slice()),
        ),
        (None, Some(_)) => {
            let found = match &tiling.devices {
                TileDevices::Iota(tile) => tile.fault(),
                TileDevices::List(ids) => format!("{} devices", ids.len()),
            };
            cx.at_inst("sharding-device-count", inst, "a device for each tile", found);
        }
    }
    check_rank(cx, inst, tiling.data_rank(), shape);
}

fn check_named(cx: &mut Verifier<'_>, inst: InstId, named: &NamedSharding, shape: &Shape) {
    if named.mesh.axes.is_empty() && named.whole == Some(WholeMesh::Replicated) {
        return;
    }
    match named.mesh.devices() {
        Some(ids) => check_ids(cx, inst, &ids),
        None => {
            return cx.at_inst(
                "sharding-device-count",
                inst,
                "a mesh with one device for each place",
                named.mesh.fault(),
            );
        }
    }
    let used =
        named.dims.iter().flat_map(|d| &d.axes).chain(&named.replicated).chain(&named.unreduced).chain(&named.manual);
    let axes: Vec<_> = used.cloned().collect();
    if !axes.is_empty() && (MeshGroups { mesh: named.mesh.clone(), axes }).expand().is_none() {
        return cx.at_inst("sharding-axes", inst, "axes of the mesh, each used once", "others");
    }
    if named.whole.is_none() {
        check_rank(cx, inst, named.dims.len(), shape);
    }
}
