//! Which tiles of a global program's whole values a per-device program takes and gives.
//!
//! An input is cut as the per-device program's `sharding=` of its entry parameter says, or else as the global program's does. A result is cut as the user
//! of the global program wrote. Where the user left that open, the partitioner was free, and its text need not say what it chose: then a result
//! may be cut in any way that fits the shapes and that some annotation names: the per-device program's own of the result, none, those
//! of its inputs, those within the global program's entry, in this order. Where neither program says a word of the result, none of these
//! need be the right one: then any way is right in which each device holds some tile, and each tile is held.

use super::program::GlobalProgram;
use crate::error::EvalError;
use crate::kernels::tiles::{cut_tile, held_part};
use crate::run::{EntryLeaf, Inputs, entry_leaves, result_leaves};
use hlo_ir::sharding::{LeafSharding, ShardingKind};
use hlo_ir::shardy::{self, Meshes, attribute};
use hlo_ir::tile_grid::TileGrid;
use hlo_ir::{ArrayShape, Dims, InstId, Literal, Module, Opcode, Shape};
use std::sync::Arc;

/// The tiles of one leaf of an entry.
#[derive(Clone, Debug)]
pub struct LeafTiles {
    /// The annotation that says so.
    pub sharding: LeafSharding,
    grid: TileGrid,
    dims: Dims,
}

impl LeafTiles {
    /// The tiles that `sharding` makes of `whole` on so many devices; `None` where it does not say so.
    pub fn of(sharding: &LeafSharding, whole: &ArrayShape, n_devices: usize) -> Option<LeafTiles> {
        let grid = sharding.tile_grid(whole.rank(), n_devices)?;
        Some(LeafTiles { sharding: sharding.clone(), grid, dims: whole.dims.clone() })
    }

    /// The tiles that `sharding` makes of `whole`, if they have the type and dims of `tile`.
    fn fitting(sharding: &LeafSharding, whole: &ArrayShape, tile: &ArrayShape, n_devices: usize) -> Option<LeafTiles> {
        let tiles = LeafTiles::of(sharding, whole, n_devices)?;
        (whole.dtype == tile.dtype && tiles.grid.tile_dims(&whole.dims) == tile.dims).then_some(tiles)
    }

    /// Of each device's whole value the elements that its tile holds, without padding.
    ///
    /// # Errors
    /// The arrays are not those of a whole value on all devices.
    pub fn of_wholes(&self, wholes: &[Arc<Literal>]) -> Result<Vec<Arc<Literal>>, EvalError> {
        self.each(wholes, |whole, start, held| cut_tile(whole, start, held, held))
    }

    /// Of each device's tile the elements that are no padding.
    ///
    /// # Errors
    /// The arrays are not tiles on all devices.
    pub fn without_padding(&self, tiles: &[Arc<Literal>]) -> Result<Vec<Arc<Literal>>, EvalError> {
        self.each(tiles, |tile, _, held| held_part(tile, held))
    }

    /// Each device's tile of one whole value, padding included.
    fn with_padding(&self, whole: &Arc<Literal>) -> Result<Vec<Arc<Literal>>, EvalError> {
        let sizes = self.grid.tile_dims(&self.dims);
        let wholes = vec![whole.clone(); self.grid.of_device.len()];
        self.each(&wholes, |whole, start, held| cut_tile(whole, start, held, &sizes))
    }

    /// `make` of the array, the start of the tile and what it holds, on each device; equal arguments give one array.
    fn each(
        &self,
        arrays: &[Arc<Literal>],
        make: impl Fn(&Arc<Literal>, &[i64], &[i64]) -> Result<Arc<Literal>, EvalError>,
    ) -> Result<Vec<Arc<Literal>>, EvalError> {
        if arrays.len() != self.grid.of_device.len() {
            let (expected, found) = (self.grid.of_device.len(), arrays.len());
            return Err(EvalError::invalid(format!("expected arrays of {expected} devices, found {found}")));
        }
        let mut known: Vec<(&Arc<Literal>, Dims, Arc<Literal>)> = Vec::new();
        let mut out = Vec::with_capacity(arrays.len());
        for (device, array) in arrays.iter().enumerate() {
            let (start, held) = self.grid.tile_of(&self.dims, device);
            if let Some((.., made)) = known.iter().find(|(of, at, _)| Arc::ptr_eq(of, array) && *at == start) {
                out.push(made.clone());
                continue;
            }
            let made = make(array, &start, &held)?;
            known.push((array, start, made.clone()));
            out.push(made);
        }
        Ok(out)
    }
}

/// What a per-device program takes and gives of a global program's values.
#[derive(Clone, Debug)]
pub struct TiledInterface {
    inputs: Vec<LeafTiles>,
    outputs: Vec<OutputTiles>,
}

/// How a result may be cut.
#[derive(Clone, Debug)]
struct OutputTiles {
    /// By annotations, the likeliest first.
    ways: Vec<LeafTiles>,
    /// Where no annotation of the result says how: its tiles, the first one as if all devices held it.
    unsaid: Option<LeafTiles>,
}

impl TiledInterface {
    /// Between a global program and programs of its devices that run one after the other.
    ///
    /// # Errors
    /// The programs run on other numbers of devices, or their shapes are not those of tiles.
    pub fn between(global: &GlobalProgram<'_>, chain: &[&Module]) -> Result<TiledInterface, EvalError> {
        let (Some(first), Some(last)) = (chain.first(), chain.last()) else {
            return Err(EvalError::invalid("expected a per-device program, found none"));
        };
        let n_devices = global.n_devices();
        if let Some(other) = chain.iter().find(|module| module.n_devices() != n_devices) {
            let text = format!("expected {n_devices} devices, found {}", other.n_devices());
            return Err(EvalError::invalid(text));
        }
        Ok(TiledInterface {
            inputs: input_tiles(global.module(), first, n_devices)?,
            outputs: output_tiles(global.module(), first, last, n_devices)?,
        })
    }

    /// Each device's tiles of one set of whole inputs; what pads uneven tiles is NaN, 77 or true.
    ///
    /// # Errors
    /// The arrays are not those of the global program's inputs.
    pub fn cut_inputs(&self, wholes: &Inputs) -> Result<Inputs, EvalError> {
        let leaves = self.inputs.iter().zip(&wholes.leaves).map(|(tiles, row)| match row.as_slice() {
            [whole] if whole.dims() == tiles.dims.as_slice() => tiles.with_padding(whole),
            row => Err(EvalError::invalid(format!("expected one array for a whole input, found {}", row.len()))),
        });
        Ok(Inputs { leaves: leaves.collect::<Result<_, _>>()? })
    }

    /// The ways in which a result may be cut that annotations name, the likeliest first.
    pub fn of_output(&self, leaf: usize) -> &[LeafTiles] {
        self.outputs.get(leaf).map_or(&[], |output| &output.ways)
    }

    /// The tiles of a result of which no annotation says how it is cut, each as if all devices held it; none where one says so.
    pub fn tiles_of_unsaid(&self, leaf: usize) -> impl Iterator<Item = LeafTiles> {
        self.outputs.get(leaf).and_then(|output| output.unsaid.as_ref()).into_iter().flat_map(every_tile)
    }
}

fn input_tiles(global: &Module, local: &Module, n_devices: usize) -> Result<Vec<LeafTiles>, EvalError> {
    let (wholes, tiles) = (entry_leaves(global), entry_leaves(local));
    check_number("inputs", wholes.len(), tiles.len())?;
    let pairs = wholes.iter().zip(&tiles).enumerate();
    let fitting = pairs.map(|(leaf, (whole, tile)): (usize, (&EntryLeaf, &EntryLeaf))| {
        let said = tile.sharding.iter().chain(&whole.sharding).find(|said| said.names_tiles());
        let sharding = said.cloned().unwrap_or_else(replicated);
        LeafTiles::fitting(&sharding, &whole.shape, &tile.shape, n_devices).ok_or_else(|| {
            let (whole, tile) = (shown(&whole.shape), shown(&tile.shape));
            EvalError::invalid(format!(
                "input {leaf}: expected the tiles that sharding={sharding} makes of {whole}, found {tile}"
            ))
        })
    });
    fitting.collect()
}

fn output_tiles(
    global: &Module,
    first: &Module,
    last: &Module,
    n_devices: usize,
) -> Result<Vec<OutputTiles>, EvalError> {
    let (wholes, tiles) = (result_leaves(global), result_leaves(last));
    check_number("outputs", wholes.len(), tiles.len())?;
    let wrote = written_results(global)?;
    let own = result_shardings(last);
    let mut others = vec![replicated()];
    others.extend(entry_leaves(first).into_iter().filter_map(|leaf| leaf.sharding));
    for &inst in global.entry().map_or(&[][..], |entry| &global.comp(entry).insts) {
        others.extend(global.sharding(inst).and_then(|s| s.leaf(0)).cloned());
    }
    let mut out = Vec::with_capacity(wholes.len());
    for (leaf, (whole, tile)) in wholes.iter().zip(&tiles).enumerate() {
        let of_leaf = |all: &[Option<LeafSharding>]| all.get(leaf).cloned().flatten();
        let candidates: Vec<LeafSharding> = match of_leaf(&wrote).filter(LeafSharding::names_tiles) {
            Some(wrote) => vec![wrote],
            None => of_leaf(&own).into_iter().chain(others.iter().cloned()).collect(),
        };
        let mut fitting: Vec<LeafTiles> = Vec::new();
        for sharding in &candidates {
            if let Some(found) = LeafTiles::fitting(sharding, whole, tile, n_devices)
                && !fitting
                    .iter()
                    .any(|known| known.grid.of_device == found.grid.of_device && known.grid.tiles == found.grid.tiles)
            {
                fitting.push(found);
            }
        }
        let is_said = of_leaf(&wrote).is_some() || of_leaf(&own).is_some();
        let unsaid = if is_said { None } else { first_tile(whole, tile, n_devices) };
        if fitting.is_empty() && unsaid.is_none() {
            let by = match candidates.as_slice() {
                [only] => format!("sharding={only} makes"),
                _ => "an annotation makes".to_string(),
            };
            let (whole, tile) = (shown(whole), shown(tile));
            return Err(EvalError::invalid(format!(
                "output {leaf}: expected the tiles that {by} of {whole}, found {tile}"
            )));
        }
        out.push(OutputTiles { ways: fitting, unsaid });
    }
    Ok(out)
}

/// The first of the tiles of `whole` that have the type and dims of `tile`, as if all devices held it; `None` where there are more tiles than
/// devices.
fn first_tile(whole: &ArrayShape, tile: &ArrayShape, n_devices: usize) -> Option<LeafTiles> {
    if whole.dtype != tile.dtype || whole.rank() != tile.rank() {
        return None;
    }
    let count = |(&all, &part): (&i64, &i64)| ((all + part - 1) / part.max(1)).max(1);
    let tiles: Dims = whole.dims.iter().zip(&tile.dims).map(count).collect();
    let n_tiles = tiles.iter().try_fold(1i64, |n, &count| n.checked_mul(count))?;
    let grid = TileGrid { tiles, ..TileGrid::replicated(whole.rank(), n_devices) };
    let fits = n_tiles <= n_devices as i64 && grid.tile_dims(&whole.dims) == tile.dims;
    fits.then(|| LeafTiles { sharding: replicated(), grid, dims: whole.dims.clone() })
}

/// All tiles, each as if all devices held it, from the first one.
fn every_tile(first: &LeafTiles) -> impl Iterator<Item = LeafTiles> {
    (0..first.grid.tiles.iter().product()).map(|number: i64| {
        let (mut place, mut rest) = (first.grid.tiles.clone(), number);
        for count in place.iter_mut().rev() {
            (*count, rest) = (rest % *count, rest / *count);
        }
        let grid = TileGrid { of_device: vec![place; first.grid.of_device.len()], ..first.grid.clone() };
        LeafTiles { grid, ..first.clone() }
    })
}

fn check_number(what: &str, expected: usize, found: usize) -> Result<(), EvalError> {
    match expected == found {
        true => Ok(()),
        false => Err(EvalError::invalid(format!("expected {expected} {what}, found {found}"))),
    }
}

fn replicated() -> LeafSharding {
    LeafSharding::new(ShardingKind::Replicated)
}

/// A type and its dims.
fn shown(shape: &ArrayShape) -> String {
    let dims: Vec<String> = shape.dims.iter().map(i64::to_string).collect();
    format!("{}[{}]", shape.dtype, dims.join(","))
}

fn root(module: &Module) -> Option<InstId> {
    module.comp(module.entry()?).root.expand()
}

/// For each array of the entry's result the annotation of the root.
fn result_shardings(module: &Module) -> Vec<Option<LeafSharding>> {
    let mut out = Vec::new();
    let Some(root) = root(module) else { return out };
    let mut leaf_idx = 0;
    module.shape(root).for_each_leaf(&mut |_, shape| {
        if matches!(shape, Shape::Array(_)) {
            out.push(module.sharding(root).and_then(|s| s.leaf(leaf_idx)).cloned());
        }
        leaf_idx += 1;
    });
    out
}

/// For each array of the entry's result how the user wants it cut; `None` where that is left to the partitioner.
fn written_results(global: &Module) -> Result<Vec<Option<LeafSharding>>, EvalError> {
    let meshes = Meshes::of(&global.header).map_err(|e| EvalError::invalid(e.to_string()))?;
    let free = global.header.allow_spmd_sharding_propagation_to_output.as_deref().unwrap_or_default();
    let mut out = result_shardings(global);
    for (leaf, wrote) in out.iter_mut().enumerate() {
        // One flag may stand for all results.
        let is_free = match free {
            [one] => *one,
            flags => flags.get(leaf).copied().unwrap_or(false),
        };
        if is_free || is_open(global, &meshes, leaf) {
            *wrote = None;
        }
    }
    Ok(out)
}

/// Whether a result's dim is left open, by Shardy's attribute or as GSPMD lists such dims: `sharding=` beside it is then a stand-in.
fn is_open(module: &Module, meshes: &Meshes, leaf: usize) -> bool {
    let operand = |inst: InstId, k: usize| module.inst(inst).operands.get(k).copied();
    let opcode = |inst: InstId| module.inst(inst).opcode;
    let mut value = root(module);
    // A single result may be taken out of a tuple again.
    if let Some(inst) = value.filter(|&inst| opcode(inst) == Opcode::GetTupleElement) {
        value = operand(inst, 0);
    }
    if let Some(inst) = value.filter(|&inst| opcode(inst) == Opcode::Tuple) {
        value = operand(inst, leaf);
    }
    let marks = value.and_then(|inst| module.inst(inst).marks.as_deref());
    let config = marks.and_then(|marks| marks.backend_config.as_deref());
    if config.is_some_and(|config| config.contains("unspecified_dims=[")) {
        return true;
    }
    let text = marks.and_then(|marks| attribute(&marks.frontend_attributes, shardy::SHARDING));
    text.and_then(|text| meshes.shardings(text).ok()).is_some_and(|all| all.iter().any(|s| s.is_open()))
}
