//! The custom calls of a partitioner, and how the values at the ends of a manual region are cut.
//!
//! Two forms say it. Shardy's has the shardings of all values and the manual axes in attributes; tiles are along the manual axes alone.
//! GSPMD's has two `sharding=` for each value: one says how the whole is cut, the other that the code is manual, and along which
//! subgroups of devices if not along all.

use crate::error::EvalError;
use hlo_ir::custom_target::Boundary;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind, SubgroupKind};
use hlo_ir::shardy::{self, Meshes, attribute};
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{Dims, InstId, Module};

/// The dims of one value at a boundary.
pub(super) struct ValueDims<'a> {
    pub whole: &'a Dims,
    pub tile: &'a Dims,
}

/// How each value at a boundary is cut.
pub(super) fn boundary_grids(
    module: &Module,
    meshes: &Meshes,
    inst: InstId,
    boundary: Boundary,
    values: &[ValueDims<'_>],
) -> Result<Vec<TileGrid>, EvalError> {
    let marks = module.inst(inst).marks.as_deref();
    let own = marks.map_or(&[][..], |marks| marks.frontend_attributes.as_slice());
    let key = match boundary {
        Boundary::Begin => shardy::IN_SHARDINGS,
        Boundary::End => shardy::OUT_SHARDINGS,
    };
    let grids = match attribute(own, key) {
        Some(text) => grids_of_attributes(module, meshes, own, text)?,
        None => grids_of_annotations(module, inst, boundary, values)?,
    };
    if grids.len() != values.len() {
        let text = format!("expected shardings of {} values, found {}", values.len(), grids.len());
        return Err(EvalError::invalid(text));
    }
    for (k, (grid, value)) in grids.iter().zip(values).enumerate() {
        let found = (grid.tiles.len() == value.whole.len()).then(|| grid.tile_dims(value.whole));
        if found.as_ref() != Some(value.tile) {
            let (whole, tile) = (value.whole.as_slice(), value.tile.as_slice());
            let cut = grid.tiles.as_slice();
            return Err(EvalError::invalid(format!(
                "value {k}: expected tiles of {whole:?} in {cut:?} parts along its dims, found {tile:?}"
            )));
        }
    }
    Ok(grids)
}

/// By Shardy's attributes: the tiles along the manual axes.
fn grids_of_attributes(
    module: &Module,
    meshes: &Meshes,
    own: &[(String, String)],
    text: &str,
) -> Result<Vec<TileGrid>, EvalError> {
    let wrong = |error: shardy::Error| EvalError::invalid(error.to_string());
    let manual = attribute(own, shardy::MANUAL_AXES)
        .ok_or_else(|| EvalError::invalid(format!("expected `{}` beside `{text}`, found none", shardy::MANUAL_AXES)))?;
    let manual = shardy::manual_axes(manual).map_err(wrong)?;
    let shardings = meshes.shardings(text).map_err(wrong)?;
    let grids = shardings.iter().map(|sharding| {
        let along = sharding.along(|axis| manual.iter().any(|name| name == axis));
        grid_of(&along, sharding.named.dims.len(), module.n_devices())
    });
    grids.collect()
}

/// By `sharding=` of the operands and of the instruction.
fn grids_of_annotations(
    module: &Module,
    inst: InstId,
    boundary: Boundary,
    values: &[ValueDims<'_>],
) -> Result<Vec<TileGrid>, EvalError> {
    let own = module.sharding(inst);
    let grids = values.iter().enumerate().map(|(k, value)| {
        let operand = module.inst(inst).operands.get(k).and_then(|&operand| module.sharding(operand));
        let (of_operand, of_result) = (operand.and_then(|s| s.leaf(0)), own.and_then(|s: &Sharding| s.leaf(k)));
        let (whole, manual) = match boundary {
            Boundary::Begin => (of_operand, of_result),
            Boundary::End => (of_result, of_operand),
        };
        let rank = value.whole.len();
        let Some(whole) = whole else {
            if value.whole == value.tile {
                return Ok(TileGrid::replicated(rank, module.n_devices()));
            }
            return Err(EvalError::invalid(format!("expected `sharding=` of the whole value {k}, found none")));
        };
        let grid = grid_of(whole, rank, module.n_devices())?;
        if &grid.tile_dims(value.whole) == value.tile {
            return Ok(grid);
        }
        let of_tiles =
            manual.filter(|leaf| names_manual_subgroup(leaf)).and_then(|leaf| leaf.tile_grid(rank, module.n_devices()));
        Ok(of_tiles.and_then(|of_tiles| manual_part(&grid, &of_tiles)).unwrap_or(grid))
    });
    grids.collect()
}

fn grid_of(leaf: &LeafSharding, rank: usize, n_devices: usize) -> Result<TileGrid, EvalError> {
    leaf.tile_grid(rank, n_devices).ok_or_else(|| {
        EvalError::invalid(format!("expected tiles of rank {rank} on {n_devices} devices, found sharding={leaf}"))
    })
}

/// Whether code is manual along some subgroups of devices, and a partitioner cuts along the others.
fn names_manual_subgroup(leaf: &LeafSharding) -> bool {
    match &leaf.kind {
        ShardingKind::Tiled(tiling) => tiling.last_dims.contains(&SubgroupKind::Manual),
        ShardingKind::Named(named) => !named.manual.is_empty(),
        ShardingKind::Replicated
        | ShardingKind::Maximal(_)
        | ShardingKind::MaximalMesh(_)
        | ShardingKind::Manual
        | ShardingKind::Unknown
        | ShardingKind::Unreduced => false,
    }
}

/// What is left of the cut of a whole value when the cut of the manual code's value is taken away: a partitioner has filled in
/// the dims that the user left to it, in both. The manual part of a dim is the outer one, or else the inner one.
fn manual_part(whole: &TileGrid, rest: &TileGrid) -> Option<TileGrid> {
    let mut grid = whole.clone();
    for dim in 0..whole.tiles.len() {
        let (n, n_rest) = (whole.tiles[dim], rest.tiles[dim]);
        if n_rest == 0 || n % n_rest != 0 {
            return None;
        }
        let n_manual = n / n_rest;
        let agrees = |rest_of: &dyn Fn(i64) -> i64| {
            whole.of_device.iter().zip(&rest.of_device).all(|(at, of_rest)| rest_of(at[dim]) == of_rest[dim])
        };
        let is_outer = agrees(&|at| at % n_rest);
        if !is_outer && !agrees(&|at| at / n_manual) {
            return None;
        }
        grid.tiles[dim] = n_manual;
        for at in &mut grid.of_device {
            at[dim] = if is_outer { at[dim] / n_rest } else { at[dim] % n_manual };
        }
    }
    // A copy is what stands at one place of everything that is not manual.
    let key = |device: usize| (rest.of_device.get(device), whole.copy_of_device.get(device));
    for device in 0..grid.of_device.len() {
        let same_tile = (0..grid.of_device.len()).filter(|&d| grid.of_device[d] == grid.of_device[device]);
        grid.copy_of_device[device] = same_tile.filter(|&d| key(d) < key(device)).count() as u32;
    }
    Some(grid)
}
