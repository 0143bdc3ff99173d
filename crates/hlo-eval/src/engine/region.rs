//! Manual regions of a global program.
//!
//! Outside of regions every device computes every value in whole, and since all devices share it, it is computed once. Where a region begins,
//! each device takes its tile; elements behind the end of a value are padding (see [`padding`](crate::kernels::tiles::padding)). Where it
//! ends, a device goes on with the whole value that the tiles of its own copy make: those on the devices that stand with it at one place of all axes
//! along which the value is not cut. Copies are equal in a sound program. The first ones that are not are remembered.

use super::boundary::{ValueDims, boundary_grids};
use super::machine::{Machine, first};
use super::pure::Operands;
use crate::error::EvalError;
use crate::kernels::tiles::{ElementPair, cut_tile, first_difference, held_part, join_tiles};
use crate::value::{Spread, Value};
use hlo_ir::attrs::CustomAttrs;
use hlo_ir::custom_target::{Boundary, CustomTarget};
use hlo_ir::shardy::Meshes;
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{ArrayShape, Dims, InstId, Literal, Shape};
use std::sync::Arc;

/// The array of each active device.
type Column = Vec<Arc<Literal>>;

impl Machine<'_> {
    pub(super) fn eval_custom_call(
        &mut self,
        inst: InstId,
        operands: Operands,
        active: &[u32],
    ) -> Result<Spread, EvalError> {
        let attrs = &self.module.inst(inst).attrs;
        match CustomTarget::of(attrs) {
            Some(CustomTarget::Annotation | CustomTarget::Move(_)) => first(operands),
            Some(CustomTarget::Group) => Ok(Spread::Same(Value::tuple([]))),
            Some(CustomTarget::Boundary(boundary)) => self.exchange_tiles(inst, boundary, &operands, active),
            Some(CustomTarget::Callback) | None => {
                let target = CustomAttrs::of(attrs).map_or("", |attrs| attrs.custom_call_target.0.as_str());
                let text = format!("custom-call \"{target}\": only its library knows what it computes");
                Err(EvalError::unsupported(text))
            }
        }
    }

    /// Each operand's tiles, or the wholes of which the operands are tiles.
    fn exchange_tiles(
        &mut self,
        inst: InstId,
        boundary: Boundary,
        operands: &Operands,
        active: &[u32],
    ) -> Result<Spread, EvalError> {
        let module = self.module;
        let result = module.shape(inst);
        let results: Option<Vec<&ArrayShape>> = match result {
            Shape::Tuple(elements) => elements.iter().map(Shape::as_array).collect(),
            Shape::Array(_) | Shape::Buffer(_) | Shape::Token | Shape::Opaque => result.as_array().map(|a| vec![a]),
        };
        let from: Option<Vec<&ArrayShape>> =
            module.inst(inst).operands.iter().map(|&operand| module.shape(operand).as_array()).collect();
        let (Some(from), Some(to)) = (from, results) else {
            return Err(EvalError::invalid("expected arrays at the end of a manual region"));
        };
        if let Shape::Tuple(elements) = result {
            elements.iter().try_for_each(|element| self.check_size(element))?;
        }
        if from.len() != to.len() {
            let text = format!("expected a result for each of {} operands, found {}", from.len(), to.len());
            return Err(EvalError::invalid(text));
        }
        let dims = from.iter().zip(&to).map(|(from, to)| match boundary {
            Boundary::Begin => ValueDims { whole: &from.dims, tile: &to.dims },
            Boundary::End => ValueDims { whole: &to.dims, tile: &from.dims },
        });
        let dims: Vec<ValueDims<'_>> = dims.collect();
        let grids = self.grids_of(inst, boundary, &dims)?;
        let mut columns: Vec<Column> = Vec::with_capacity(operands.len());
        for (k, ((operand, grid), dims)) in operands.iter().zip(grids.iter()).zip(&dims).enumerate() {
            columns.push(match boundary {
                Boundary::Begin => tiles_of(operand, dims.whole, grid, active)?,
                Boundary::End => self.wholes_of(inst, k, operand, dims.whole, grid, active)?,
            });
        }
        let is_tuple = matches!(result, Shape::Tuple(_));
        let value = |i: usize| {
            let mut leaves = columns.iter().filter_map(|column| column.get(i).cloned().map(Value::Array));
            match is_tuple {
                true => Ok(Value::tuple(leaves)),
                false => leaves.next().ok_or_else(|| EvalError::invalid("expected an operand")),
            }
        };
        Ok(Spread::of((0..active.len()).map(value).collect::<Result<_, _>>()?))
    }

    fn grids_of(
        &mut self,
        inst: InstId,
        boundary: Boundary,
        dims: &[ValueDims<'_>],
    ) -> Result<Arc<[TileGrid]>, EvalError> {
        if let Some(known) = self.grids.get(&inst) {
            return Ok(known.clone());
        }
        let meshes = match &self.meshes {
            Some(meshes) => meshes.clone(),
            None => {
                let meshes = Meshes::of(&self.module.header).map_err(|e| EvalError::invalid(e.to_string()))?;
                self.meshes.insert(Arc::new(meshes)).clone()
            }
        };
        let grids: Arc<[TileGrid]> = boundary_grids(self.module, &meshes, inst, boundary, dims)?.into();
        self.grids.insert(inst, grids.clone());
        Ok(grids)
    }

    /// For each active device the whole value that its own copy of the tiles makes.
    fn wholes_of(
        &mut self,
        inst: InstId,
        number: usize,
        operand: &Spread,
        dims: &Dims,
        grid: &TileGrid,
        active: &[u32],
    ) -> Result<Column, EvalError> {
        let mut positions: Vec<&Dims> = grid.of_device.iter().collect();
        positions.sort();
        positions.dedup();
        let n_copies = grid.copy_of_device.iter().max().map_or(0, |&last| last as usize + 1);
        // The device that holds each tile of each copy.
        let mut holders: Vec<Vec<Option<u32>>> = vec![vec![None; positions.len()]; n_copies];
        for (device, (position, &copy)) in (0u32..).zip(grid.of_device.iter().zip(&grid.copy_of_device)) {
            if let Ok(tile) = positions.binary_search(&position) {
                holders[copy as usize][tile] = Some(device);
            }
        }
        let mut seen = vec![Vec::new(); positions.len()];
        let mut made: Vec<(usize, Vec<Arc<Literal>>, Arc<Literal>)> = Vec::new();
        let mut of_copy: Vec<Option<Arc<Literal>>> = vec![None; n_copies];
        let mut column = Vec::with_capacity(active.len());
        for &device in active {
            let copy = grid.copy_of_device.get(device as usize).map_or(usize::MAX, |&copy| copy as usize);
            let Some(slot) = of_copy.get_mut(copy) else {
                return Err(EvalError::invalid(format!("expected a tile of device {device}, found none")));
            };
            if let Some(whole) = slot {
                column.push(whole.clone());
                continue;
            }
            let mut tiles = Vec::with_capacity(positions.len());
            for (tile, holder) in holders[copy].iter().enumerate() {
                let text = || {
                    EvalError::invalid(format!(
                        "expected all tiles in copy {copy}, found no {:?}",
                        positions[tile].as_slice()
                    ))
                };
                let holder = holder.ok_or_else(text)?;
                let at = active.binary_search(&holder).map_err(|_| self.divergence(inst, device, holder))?;
                let (start, held) = grid.tile_of(dims, holder as usize);
                let array = held_part(operand.get(at)?.as_array()?, &held)?;
                tiles.push((start.to_vec(), shared(&mut seen[tile], array)));
            }
            let arrays: Vec<Arc<Literal>> = tiles.iter().map(|(_, array)| array.clone()).collect();
            let is_known = |known: &[Arc<Literal>]| known.iter().zip(&arrays).all(|(a, b)| Arc::ptr_eq(a, b));
            let whole = match made.iter().find(|(_, known, _)| is_known(known)) {
                Some((.., whole)) => whole.clone(),
                None => {
                    let whole = join_tiles(&tiles, dims)?;
                    if let Some((other, _, first)) = made.first() {
                        self.remember_parting(inst, number, (*other, first), (device as usize, &whole));
                    }
                    made.push((device as usize, arrays, whole.clone()));
                    whole
                }
            };
            *slot = Some(whole.clone());
            column.push(whole);
        }
        Ok(column)
    }

    /// Notes that two devices go on with different copies of a value.
    fn remember_parting(
        &mut self,
        inst: InstId,
        number: usize,
        (a, one): (usize, &Literal),
        (b, other): (usize, &Literal),
    ) {
        if self.parting.is_some() {
            return;
        }
        let Some(ElementPair { index, one, other }) = first_difference(one, other) else { return };
        let name = self.module.inst_name(inst);
        self.parting = Some(format!(
            "the copies of value {number} of %{name} that devices {a} and {b} go on with differ at {index:?}: {one} and {other}"
        ));
    }
}

/// The array, or an equal one that was seen before.
fn shared(seen: &mut Vec<Arc<Literal>>, array: Arc<Literal>) -> Arc<Literal> {
    let known = seen.iter().find(|known| Arc::ptr_eq(known, &array)).or_else(|| seen.iter().find(|k| **k == array));
    if let Some(known) = known {
        return known.clone();
    }
    seen.push(array.clone());
    array
}

/// For each active device its tile of its own value.
fn tiles_of(operand: &Spread, dims: &Dims, grid: &TileGrid, active: &[u32]) -> Result<Column, EvalError> {
    let sizes = grid.tile_dims(dims);
    let mut known: Vec<(Arc<Literal>, Dims, Arc<Literal>)> = Vec::new();
    let mut column = Vec::with_capacity(active.len());
    for (i, &device) in active.iter().enumerate() {
        let whole = operand.get(i)?.as_array()?;
        if grid.of_device.len() <= device as usize {
            return Err(EvalError::invalid(format!("expected a tile of device {device}, found none")));
        }
        let (start, held) = grid.tile_of(dims, device as usize);
        let same = known.iter().find(|(of, at, _)| Arc::ptr_eq(of, whole) && *at == start);
        if let Some((.., tile)) = same {
            column.push(tile.clone());
            continue;
        }
        let tile = cut_tile(whole, &start, &held, &sizes)?;
        known.push((whole.clone(), start, tile.clone()));
        column.push(tile);
    }
    Ok(column)
}
