//! Global programs: shapes are those of whole values, and annotations say which tile of a value each device holds.
//!
//! A global program stands for every device computing every value in whole. A manual region takes the device's own tile of
//! its operands; where it ends, a device sees the value that its own copy of the tiles makes. So nothing is promised of
//! tiles that an annotation calls copies of one another: they are equal if their terms are.

use crate::array::{Tree, Value};
use crate::members::Members;
use crate::movement::Window;
use crate::prover::{Prover, Side};
use crate::segment::row_major;
use crate::term::ArrayId;
use hashbrown::HashMap;
use hlo_ir::attrs::CustomAttrs;
use hlo_ir::custom_target::CustomTarget;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::shardy::{self, attribute};
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{ArrayShape, Dims, InstId, Module, Opcode, Shape};
use std::rc::Rc;

impl Prover {
    /// For each device its tile of a value; nothing is known of padding.
    pub(crate) fn tile(&mut self, value: &Value, dims: &[i64], grid: &TileGrid) -> Option<Value> {
        let steps = row_major(dims);
        let sizes = grid.tile_dims(dims);
        let mut known: HashMap<(ArrayId, Dims), ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let array = self.arrays.on(value, device);
            let (start, held) = grid.tile_of(dims, device);
            if let Some(&id) = known.get(&(array, start.clone())) {
                each.push(id);
                continue;
            }
            let at = start.iter().zip(&steps).map(|(s, step)| s * step).sum();
            let mut id = self.arrays.view(array, &held, at, &steps)?;
            if held != sizes {
                let n = sizes.iter().product();
                let padding = self.arrays.terms.unique(n);
                let padding = self.arrays.whole(padding, n);
                let window = Window { start: vec![0; sizes.len()], sizes: held.to_vec() };
                let mut out = Vec::new();
                self.place(id, &window, &sizes, &mut out)?;
                self.keep_outside(padding, &window, &sizes, &mut out)?;
                id = self.arrays.intern(out);
            }
            known.insert((array, start), id);
            each.push(id);
        }
        Some(self.arrays.value(each))
    }

    /// Of each device's tile the elements that are no padding.
    pub(crate) fn held(&mut self, value: &Value, dims: &[i64], grid: &TileGrid) -> Option<Value> {
        let steps = row_major(&grid.tile_dims(dims));
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let (_, held) = grid.tile_of(dims, device);
            let array = self.arrays.on(value, device);
            each.push(self.arrays.view(array, &held, 0, &steps)?);
        }
        Some(self.arrays.value(each))
    }

    /// The whole value of which each device holds a tile, made of the tiles of the device's own copy.
    fn whole_of_tiles(&mut self, value: &Value, dims: &[i64], grid: &TileGrid) -> Option<Value> {
        // The devices of each copy, in the order of the tiles.
        let mut tiles: Vec<&Dims> = grid.of_device.iter().collect();
        tiles.sort();
        tiles.dedup();
        let n_copies = grid.copy_of_device.iter().map(|&copy| copy as usize + 1).max()?;
        let mut groups = vec![vec![u32::MAX; tiles.len()]; n_copies];
        for (device, (tile, &copy)) in grid.of_device.iter().zip(&grid.copy_of_device).enumerate() {
            groups[copy as usize][tiles.binary_search(&tile).ok()?] = device as u32;
        }
        let id = self.members(Members::of_groups(&groups, self.n_devices())?);
        let members = self.members_of(id);
        let spreads: Vec<_> = (0..tiles.len()).map(|k| self.spread(id, &[k])).collect();
        let sizes = grid.tile_dims(dims);
        let mut known: HashMap<Vec<ArrayId>, ArrayId> = HashMap::new();
        let mut each = Vec::with_capacity(self.n_devices());
        for device in 0..self.n_devices() {
            let arrays: Vec<ArrayId> = members.of(device).iter().map(|&d| self.arrays.on(value, d as usize)).collect();
            if let Some(&id) = known.get(&arrays) {
                each.push(id);
                continue;
            }
            let mut out = Vec::new();
            for ((&tile, &array), &source) in tiles.iter().zip(&arrays).zip(&spreads) {
                let start: Vec<i64> = tile.iter().zip(&sizes).map(|(k, size)| k * size).collect();
                let held: Vec<i64> = (0..dims.len()).map(|d| (dims[d] - start[d]).clamp(0, sizes[d])).collect();
                let array = self.array_from(array, source);
                let array = self.arrays.view(array, &held, 0, &row_major(&sizes))?;
                self.place(array, &Window { start, sizes: held }, dims, &mut out)?;
            }
            let id = self.arrays.intern(out);
            known.insert(arrays, id);
            each.push(id);
        }
        Some(self.arrays.value(each))
    }

    /// A custom call that says how values are cut, or where they lie; `None` for any other one, and for annotations that are not understood.
    pub(crate) fn annotation(&mut self, side: &Side<'_>, inst: InstId, operands: &[Tree]) -> Option<Tree> {
        let module = side.module;
        if let Some(CustomTarget::Move(_)) = CustomTarget::of(&module.inst(inst).attrs) {
            return operands.first().cloned();
        }
        let attrs = CustomAttrs::of(&module.inst(inst).attrs)?;
        let marks = module.inst(inst).marks.as_deref();
        let own = marks.map_or(&[][..], |marks| marks.frontend_attributes.as_slice());
        match attrs.custom_call_target.0.as_str() {
            "Sharding" | shardy::FUNC_RESULT_SHARDING => operands.first().cloned(),
            "SPMDFullToShardShape" => {
                let operand = *module.inst(inst).operands.first()?;
                let grid = self.grid(module.sharding(operand)?, module.shape(operand).as_array()?)?;
                self.exchange_tiles(side, inst, operands, &[grid], true)
            }
            "SPMDShardToFullShape" => {
                let grid = self.grid(module.sharding(inst)?, module.shape(inst).as_array()?)?;
                self.exchange_tiles(side, inst, operands, &[grid], false)
            }
            target @ (shardy::GLOBAL_TO_LOCAL | shardy::LOCAL_TO_GLOBAL) => {
                let is_to_local = target == shardy::GLOBAL_TO_LOCAL;
                let key = if is_to_local { shardy::IN_SHARDINGS } else { shardy::OUT_SHARDINGS };
                let grids = match attribute(own, key) {
                    Some(text) => self.manual_grids(side, own, text)?,
                    None => self.annotated_grids(module, inst, is_to_local)?,
                };
                self.exchange_tiles(side, inst, operands, &grids, is_to_local)
            }
            _ => None,
        }
    }

    fn grid(&self, sharding: &Sharding, shape: &ArrayShape) -> Option<TileGrid> {
        let Sharding::Single(leaf) = sharding else { return None };
        leaf.tile_grid(shape.rank(), self.n_devices())
    }

    /// The tiles along the manual axes, by Shardy's attributes.
    fn manual_grids(&self, side: &Side<'_>, own: &[(String, String)], text: &str) -> Option<Vec<TileGrid>> {
        let manual = shardy::manual_axes(attribute(own, shardy::MANUAL_AXES)?).ok()?;
        let shardings = side.meshes.shardings(text).ok()?;
        let grids = shardings.iter().map(|sharding| {
            let along = sharding.along(|axis| manual.iter().any(|name| name == axis));
            along.tile_grid(sharding.named.dims.len(), self.n_devices())
        });
        grids.collect()
    }

    /// The tiles along the manual axes, by `sharding=` of the operands and of the instruction: one says how the whole value is
    /// cut, the other that it is manual, and along which axes if not along all.
    fn annotated_grids(&self, module: &Module, inst: InstId, is_to_local: bool) -> Option<Vec<TileGrid>> {
        let mut ranks = Vec::new();
        module.shape(inst).for_each_leaf(&mut |_, leaf| ranks.push(leaf.as_array().map(ArrayShape::rank)));
        let own = module.sharding(inst)?;
        let grids = module.inst(inst).operands.iter().zip(ranks).enumerate().map(|(k, (&operand, rank))| {
            let of_operand = module.sharding(operand).and_then(|s| s.leaf(0));
            let of_result = own.leaf(k);
            let (whole, manual) = if is_to_local { (of_operand, of_result) } else { (of_result, of_operand) };
            let mut whole = whole?.clone();
            if let (ShardingKind::Named(cut), Some(ShardingKind::Named(manual))) =
                (&mut whole.kind, manual.map(|m| &m.kind))
                && manual.whole.is_none()
            {
                cut.dims.iter_mut().for_each(|dim| dim.axes.retain(|axis| manual.manual.contains(axis)));
            }
            whole.tile_grid(rank?, self.n_devices())
        });
        grids.collect()
    }

    /// Each operand's tiles, or the wholes of which the operands are tiles, one grid for each.
    fn exchange_tiles(
        &mut self,
        side: &Side<'_>,
        inst: InstId,
        operands: &[Tree],
        grids: &[TileGrid],
        is_to_local: bool,
    ) -> Option<Tree> {
        let module = side.module;
        let mut results = Vec::new();
        module.shape(inst).for_each_leaf(&mut |_, leaf| results.push(leaf.as_array().cloned()));
        if operands.len() != grids.len() || results.len() != grids.len() {
            return None;
        }
        let mut out = Vec::with_capacity(grids.len());
        for (k, (operand, grid)) in operands.iter().zip(grids).enumerate() {
            let Tree::Leaf(value) = operand else { return None };
            let from = module.shape(*module.inst(inst).operands.get(k)?).as_array()?;
            let to = results[k].as_ref()?;
            let (whole, local) = if is_to_local { (from, to) } else { (to, from) };
            if whole.rank() != grid.tiles.len() || grid.tile_dims(&whole.dims) != local.dims {
                return None;
            }
            let dims = &whole.dims;
            out.push(Tree::Leaf(if is_to_local {
                self.tile(value, dims, grid)?
            } else {
                self.whole_of_tiles(value, dims, grid)?
            }));
        }
        match module.shape(inst) {
            Shape::Tuple(_) => Some(Tree::Tuple(Rc::new(out))),
            Shape::Array(_) | Shape::Buffer(_) | Shape::Token | Shape::Opaque => out.pop(),
        }
    }
}

/// Whether a module has manual regions, where devices have numbers.
pub(crate) fn has_regions(module: &Module) -> bool {
    let comps = module.post_order();
    let mut insts = comps.iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.any(|&inst| {
        let target = CustomAttrs::of(&module.inst(inst).attrs).map(|attrs| attrs.custom_call_target.0.as_str());
        matches!(target, Some("SPMDFullToShardShape" | shardy::GLOBAL_TO_LOCAL))
    })
}

/// How a leaf of the entry may be cut: the annotations that fit the shapes, the likeliest first.
pub(crate) struct Layouts {
    candidates: Vec<LeafSharding>,
    /// Whether the first one is what the user wrote, so that no other will do.
    pub is_closed: bool,
    /// Whether the second module's devices are partitions: annotations do not cut values among replicas.
    are_partitions: bool,
    /// What the second module says itself, beside what the global program says.
    of_local: Option<LeafSharding>,
}

impl Layouts {
    /// Annotations with their tiles for a whole value and what a device holds of it.
    pub(crate) fn fitting(&self, whole: &[i64], local: &[i64], n_devices: usize) -> Vec<(LeafSharding, TileGrid)> {
        let mut out: Vec<(LeafSharding, TileGrid)> = Vec::new();
        let of_local = self.of_local.as_ref().and_then(|said| said.tile_grid(whole.len(), n_devices));
        for candidate in &self.candidates[..if self.is_closed { 1 } else { self.candidates.len() }] {
            if let Some(grid) = candidate.tile_grid(whole.len(), n_devices)
                && grid.tile_dims(whole).as_slice() == local
                && (self.are_partitions || grid.tiles.iter().all(|&n| n == 1))
                && of_local.as_ref().is_none_or(|said| said.tiles == grid.tiles && said.of_device == grid.of_device)
                && !out.iter().any(|(_, known)| known.tiles == grid.tiles && known.of_device == grid.of_device)
            {
                out.push((candidate.clone(), grid));
            }
        }
        out
    }

    /// What the second module says of the leaf, if that is not what the global program says.
    pub(crate) fn contradiction(&self, whole: &[i64], n_devices: usize) -> Option<&LeafSharding> {
        let of_local = self.of_local.as_ref()?;
        let grid = of_local.tile_grid(whole.len(), n_devices)?;
        let closed = self.candidates.first().filter(|_| self.is_closed)?.tile_grid(whole.len(), n_devices)?;
        (grid.tiles != closed.tiles || grid.of_device != closed.of_device).then_some(of_local)
    }

    /// Whether neither module says how the result is cut.
    pub(crate) fn is_assumed(&self) -> bool {
        !self.is_closed && self.of_local.is_none()
    }
}

/// Whether the devices of a module are all partitions of one program.
fn are_partitions(module: &Module) -> bool {
    module.header.replica_count <= 1
}

/// The annotation of each input of the global program, or else of the second module; what the second module says must agree.
pub(crate) fn input_layouts(global: &Module, local: &Module) -> Vec<Layouts> {
    let (of_local, of_global) = (entry_shardings(local), entry_shardings(global));
    let are_partitions = are_partitions(local);
    of_local
        .into_iter()
        .zip(of_global)
        .map(|(local, global)| {
            let said = global.filter(LeafSharding::names_tiles).or_else(|| local.clone());
            let is_closed = said.is_some();
            Layouts { is_closed, candidates: vec![said.unwrap_or_else(replicated)], are_partitions, of_local: local }
        })
        .collect()
}

fn replicated() -> LeafSharding {
    LeafSharding::new(ShardingKind::Replicated)
}

fn entry_shardings(module: &Module) -> Vec<Option<LeafSharding>> {
    let mut out = Vec::new();
    let Some(entry) = module.entry() else { return out };
    for &param in &module.comp(entry).params {
        for leaf in 0..module.shape(param).n_leaves() {
            out.push(module.sharding(param).and_then(|s| s.leaf(leaf)).cloned());
        }
    }
    out
}

/// How each output may be cut: as the second module says; as the user of the global program wrote; else as any input is,
/// because XLA's text does not keep what it chose for results.
pub(crate) fn output_layouts(
    global: &Module,
    local: &Module,
    meshes: &shardy::Meshes,
    n_outputs: usize,
) -> Vec<Layouts> {
    let inputs: Vec<LeafSharding> = entry_shardings(local).into_iter().flatten().collect();
    let root = |module: &Module| module.entry().and_then(|entry| module.comp(entry).root.expand());
    let of_root = |module: &Module, leaf: usize| module.sharding(root(module)?)?.leaf(leaf).cloned();
    let mut annotated = Vec::new();
    for inst in global.entry().map(|entry| global.comp(entry).insts.clone()).unwrap_or_default() {
        annotated.extend(global.sharding(inst).and_then(|s| s.leaf(0)).cloned());
    }
    let frees = global.header.allow_spmd_sharding_propagation_to_output.as_deref().unwrap_or_default();
    (0..n_outputs)
        .map(|leaf| {
            let is_free = frees.get(leaf).or(frees.first().filter(|_| frees.len() == 1)).copied() == Some(true);
            let is_open = is_free || is_open_result(global, meshes, leaf);
            let wrote = of_root(global, leaf).filter(|said| !is_open && said.names_tiles());
            let is_closed = wrote.is_some();
            let mut candidates: Vec<LeafSharding> = wrote.into_iter().collect();
            let of_local = of_root(local, leaf);
            candidates.extend(of_local.clone());
            candidates.push(replicated());
            candidates.extend(inputs.iter().cloned());
            candidates.extend(annotated.iter().cloned());
            Layouts { candidates, is_closed, are_partitions: are_partitions(local), of_local }
        })
        .collect()
}

/// Whether Shardy's annotation of a result leaves a dim open.
fn is_open_result(module: &Module, meshes: &shardy::Meshes, leaf: usize) -> bool {
    let operand = |inst: InstId, k: usize| module.inst(inst).operands.get(k).copied();
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    // A single result may be taken out of a tuple again.
    let tuple =
        root.and_then(
            |root| {
                if module.inst(root).opcode == Opcode::GetTupleElement { operand(root, 0) } else { Some(root) }
            },
        );
    let value = tuple
        .and_then(|tuple| if module.inst(tuple).opcode == Opcode::Tuple { operand(tuple, leaf) } else { Some(tuple) });
    let marks = value.and_then(|value| module.inst(value).marks.as_deref());
    let text = marks.and_then(|marks| attribute(&marks.frontend_attributes, shardy::SHARDING));
    text.and_then(|text| meshes.shardings(text).ok()).is_some_and(|all| all.iter().any(|s| s.is_open()))
}
