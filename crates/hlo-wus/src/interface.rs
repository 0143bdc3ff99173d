//! A sharded interface: state stays in shards between steps, and two more modules convert it (§4.2, §2.2).
//!
//! `shard` takes the original flat parameters to those of the rewritten module, `unshard` takes its outputs to the original ones:
//! `unshard(main(shard(x))) = original(x)`. The manifest says of every parameter and output how it is cut, which is what a
//! run-time system needs to track whether a variable is sharded.

use crate::context::ShardingContext;
use crate::error::WusError;
use crate::pairs::{Pair, param_numbers};
use crate::problem::Problem;
use crate::tables::{IndexMap, IndexSet};
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::optimizer_state::LeafRole;
use hlo_ir::attrs::{Attrs, ParameterAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind, SubgroupKind, TileDevices, Tiling};
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_spmd::{ShardBuilder, ShardFormat};
use serde::Serialize;
use std::sync::Arc;

/// How a leaf is cut: over which groups, members in the order of their shards.
#[derive(Clone, PartialEq, Debug)]
pub struct LeafShards {
    /// Which dims are cut, and how.
    pub format: ShardFormat,
    /// The groups.
    pub groups: Arc<[Vec<u32>]>,
}

/// A parameter or output leaf.
#[derive(Clone, PartialEq, Debug)]
pub struct Leaf {
    /// Its shape in the original module.
    pub shape: Shape,
    /// How it is cut, if it is.
    pub cut: Option<LeafShards>,
    /// What it is to the step, where only the optimizer's state may be cut.
    pub role: Option<LeafRole>,
    /// Whether the devices sum up what its next value is computed from.
    pub is_summed: bool,
    /// What the framework calls it, as `state.params['Dense_0']['kernel']`: the metadata of the parameter.
    pub name: Option<String>,
}

impl Leaf {
    /// Why it stays whole, as far as its role says it.
    fn whole_because(&self) -> Option<String> {
        match self.role? {
            _ if self.cut.is_some() => None,
            LeafRole::State if self.is_summed => None,
            LeafRole::State => Some(
                "every device computes its gradient whole, since no sum over devices reaches its update: cut the batch that \
                 the gradient is computed from"
                    .into(),
            ),
            role => Some(role.describe()),
        }
    }

    /// The shape on one device in the rewritten module.
    fn own_shape(&self) -> Shape {
        match (&self.cut, self.shape.as_array()) {
            (Some(cut), Some(whole)) => Shape::Array(cut.format.shard_shape(whole)),
            (_, _) => self.shape.clone(),
        }
    }
}

/// The entry's parameters and outputs, leaf by leaf, before and after.
#[derive(Clone, PartialEq, Debug)]
pub struct Interface {
    /// Parameters.
    pub params: Vec<Leaf>,
    /// Outputs.
    pub outputs: Vec<Leaf>,
    /// State: parameter and output.
    pub state_pairs: Vec<Pair>,
    /// How many devices add a gradient up, and how many hold it, where others repeat their work.
    pub repeated: Option<RepeatedWork>,
    replica_count: i64,
    num_partitions: i64,
    param_marks: Vec<(Option<Sharding>, Vec<bool>)>,
    is_tuple: bool,
}

impl Interface {
    /// The interface of a module as it is.
    ///
    /// # Errors
    /// A parameter is a tuple: the interface is flat.
    pub fn of(module: &Module) -> Result<Interface, WusError> {
        let entry = module.entry().ok_or(WusError::NoEntry)?;
        let root = module.comp(entry).root.expand().ok_or(WusError::NoRoot)?;
        let (mut params, mut param_marks) = (Vec::new(), Vec::new());
        for leaf in entry_leaves(module) {
            let shape = module.shape(leaf.param);
            if shape.as_tuple().is_some() {
                return Err(WusError::TupleParameter { name: module.inst_name(leaf.param).into() });
            }
            let name = module.inst(leaf.param).marks.as_ref().and_then(|marks| marks.op_name()).map(str::to_string);
            params.push(Leaf { shape: shape.clone(), cut: None, role: None, is_summed: true, name });
            let flags = ParameterAttrs::of(&module.inst(leaf.param).attrs).map(|attrs| &attrs.parameter_replication);
            param_marks.push((module.sharding(leaf.param).cloned(), flags.cloned().unwrap_or_default()));
        }
        let mut outputs = Vec::new();
        module.shape(root).for_each_leaf(&mut |_, shape| {
            outputs.push(Leaf { shape: shape.clone(), cut: None, role: None, is_summed: true, name: None });
        });
        Ok(Interface {
            params,
            outputs,
            state_pairs: Vec::new(),
            repeated: None,
            replica_count: module.header.replica_count,
            num_partitions: module.header.num_partitions,
            param_marks,
            is_tuple: module.shape(root).as_tuple().is_some(),
        })
    }

    /// Notes the roles of the parameters. Where gradients are summed over several sets of groups, those of the first count.
    pub fn set_roles(&mut self, roles: &[LeafRole]) {
        for (leaf, &role) in self.params.iter_mut().zip(roles) {
            leaf.role.get_or_insert(role);
        }
    }

    /// Notes whether the devices sum up what the parameters' next values are computed from.
    pub fn set_summed(&mut self, is_summed: &[bool]) {
        for (leaf, &is_summed) in self.params.iter_mut().zip(is_summed) {
            leaf.is_summed = is_summed;
        }
    }

    /// Takes over what a placement has in shards.
    pub fn record(&mut self, context: &ShardingContext<'_>, problem: &Problem) {
        let numbers = param_numbers(context);
        self.set_roles(problem.roles.as_deref().unwrap_or_default());
        let mut known: IndexSet<Pair> = self.state_pairs.drain(..).collect();
        for (output, param) in problem.pairs() {
            let Some(&number) = numbers.get(&param) else { continue };
            known.insert((number, output));
            if let Some(format) = problem.shards(param) {
                let cut = Some(LeafShards { format, groups: context.groups.into() });
                self.params[number].cut = cut.clone();
                self.outputs[output].cut = cut;
            }
        }
        self.state_pairs.extend(known);
        self.state_pairs.sort();
        for &(param, output) in &self.state_pairs {
            self.outputs[output].name = self.params[param].name.clone();
        }
    }

    fn module(&self, name: &str) -> (Module, hlo_ir::CompId) {
        let mut module = Module::new(name);
        module.header.replica_count = self.replica_count;
        module.header.num_partitions = self.num_partitions;
        let name = module.names.fresh(name);
        let entry = module.add_computation(name);
        module.set_entry(entry);
        (module, entry)
    }

    /// The module that takes the original flat parameters to those of the rewritten one.
    ///
    /// # Errors
    /// A group names a device that is none.
    pub fn shard_module(&self) -> Result<Module, WusError> {
        let (mut module, entry) = self.module("shard");
        let mut outputs = Vec::new();
        let mut builders = Builders::new();
        for (number, (leaf, (sharding, flags))) in self.params.iter().zip(&self.param_marks).enumerate() {
            let attrs = ParameterAttrs { number: number as i64, parameter_replication: flags.clone() };
            let hint = format!("param_{number}");
            let param = Builder::new(&mut module, entry).add(&hint, Opcode::Parameter, leaf.shape.clone(), [], attrs);
            if let Some(sharding) = sharding {
                module.marks_mut(param).sharding = Some(sharding.clone());
            }
            outputs.push(match &leaf.cut {
                Some(cut) => builder_for(&mut builders, &module, cut).cut(&mut module, param, &cut.format)?,
                None => param,
            });
        }
        finish(module, entry, outputs, true)
    }

    /// The module that takes the outputs of the rewritten one to the original ones.
    ///
    /// # Errors
    /// A leaf that is cut is no array.
    pub fn unshard_module(&self) -> Result<Module, WusError> {
        let (mut module, entry) = self.module("unshard");
        let mut outputs = Vec::new();
        let mut builders = Builders::new();
        let param_of: IndexMap<usize, usize> =
            self.state_pairs.iter().map(|&(param, output)| (output, param)).collect();
        for (number, leaf) in self.outputs.iter().enumerate() {
            let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
            let hint = format!("output_{number}");
            let param = Builder::new(&mut module, entry).add(&hint, Opcode::Parameter, leaf.own_shape(), [], attrs);
            outputs.push(match (&leaf.cut, leaf.shape.as_array()) {
                (Some(cut), Some(whole)) => {
                    let said = param_of.get(&number).and_then(|&param| self.param_sharding(param));
                    if let Some(sharding) = self.sharding(cut, whole.rank(), said) {
                        module.marks_mut(param).sharding = Some(sharding);
                    }
                    let builder = builder_for(&mut builders, &module, cut);
                    builder.join(&mut module, param, whole, &cut.format).whole
                }
                (_, _) => param,
            });
        }
        finish(module, entry, outputs, self.is_tuple)
    }

    /// How partitions hold a leaf in shards, as `sharding=` says it: a shard is a piece of the tile that the device held of
    /// the whole leaf, and only devices that held the same tile can hold the same shard. None for replicas, which it does
    /// not speak of, where nothing says who held what, and where a tiled dim is merged with another.
    fn sharding(&self, cut: &LeafShards, rank: usize, whole: Option<&Sharding>) -> Option<Sharding> {
        if self.num_partitions < 2 || self.replica_count > 1 {
            return None;
        }
        let n_devices = usize::try_from(self.num_partitions).ok()?;
        let whole = match whole {
            Some(whole) => whole.leaf(0)?.clone(),
            // In one group no two devices hold the same shard, whatever they held before.
            None if cut.groups.len() == 1 => LeafSharding::new(ShardingKind::Replicated),
            None => return None,
        };
        let mut old_dims: Vec<i64> = match &whole.kind {
            ShardingKind::Tiled(tiling) if !tiling.last_dims.contains(&SubgroupKind::Manual) => {
                tiling.dims.get(..tiling.data_rank())?.to_vec()
            }
            kind if kind.is_replicated() => vec![1; rank],
            _ => return None,
        };
        let (start, len) = (cut.format.run.start, cut.format.run.len);
        let run = old_dims.get(start..start + len)?;
        if len > 1 && run.iter().any(|&n| n != 1) {
            return None;
        }
        let first = *run.first()?;
        old_dims.splice(start..start + len, [first]);
        let n_shards = cut.format.split.n_shards;
        let mut dims: hlo_ir::shape::Dims = old_dims.iter().copied().collect();
        dims[start] *= n_shards;
        let inner = old_dims.get(start + 1..)?.iter().product::<i64>();
        let n_tiles = usize::try_from(dims.iter().product::<i64>()).ok()?;
        let mut holders: Vec<Vec<i64>> = vec![Vec::new(); n_tiles];
        let tiles = whole.tile_of_device(n_devices)?;
        for group in cut.groups.iter() {
            for (shard, &device) in (0i64..).zip(group) {
                let old = i64::from(*tiles.get(device as usize)?);
                let tile = (old / inner * n_shards + shard) * inner + old % inner;
                holders.get_mut(usize::try_from(tile).ok()?)?.push(i64::from(device));
            }
        }
        let n_copies = holders.first()?.len();
        if n_copies == 0 || holders.iter().any(|h| h.len() != n_copies) {
            return None;
        }
        let mut last_dims = Vec::new();
        if n_copies > 1 {
            dims.push(n_copies as i64);
            last_dims.push(SubgroupKind::Replicated);
        }
        let devices = TileDevices::List(holders.concat());
        let tiling = Tiling { dims, devices, last_dim_short: !last_dims.is_empty(), last_dims };
        Some(Sharding::Single(LeafSharding::new(ShardingKind::Tiled(Box::new(tiling)))))
    }

    /// What the original says of parameter `number`.
    fn param_sharding(&self, number: usize) -> Option<&Sharding> {
        self.param_marks.get(number).and_then(|(sharding, _)| sharding.as_ref())
    }

    /// Gives the root, a tuple, the shapes of its operands, and the module what [`declare`](Interface::declare) does.
    pub fn retuple(&self, module: &mut Module, root: InstId) {
        let elements = module.inst(root).operands.iter().map(|&operand| module.shape(operand).clone()).collect();
        let shape = module.shapes.intern(Shape::Tuple(elements));
        module.inst_mut(root).shape = shape;
        self.declare(module);
    }

    /// Gives the rewritten module's parameters and header what they are now.
    pub fn declare(&self, module: &mut Module) {
        let Some(entry) = module.entry() else { return };
        let params = module.comp(entry).params.clone();
        for (number, (leaf, &param)) in self.params.iter().zip(&params).enumerate() {
            let (Some(cut), Some(whole)) = (&leaf.cut, leaf.shape.as_array()) else { continue };
            // What was said of the whole leaf does not hold for the shard.
            let sharding = self.sharding(cut, whole.rank(), self.param_sharding(number));
            if sharding.is_some() || module.sharding(param).is_some() {
                module.marks_mut(param).sharding = sharding;
            }
            if let Attrs::Parameter(attrs) = &mut module.inst_mut(param).attrs {
                attrs.parameter_replication.iter_mut().for_each(|flag| *flag = false);
            }
        }
        let root = module.comp(entry).root.expand();
        let result = root.map(|root| module.shape(root).clone());
        let shapes: Vec<Shape> = params.iter().map(|&p| module.shape(p).clone()).collect();
        let (old, mut new) = match &module.header.entry_computation_layout {
            Some(layout) => (layout.clone(), layout.clone()),
            None => return,
        };
        for (k, shape) in shapes.into_iter().enumerate() {
            if self.params.get(k).is_some_and(|l| l.cut.is_some())
                && let Some(slot) = new.params.get_mut(k)
            {
                *slot = module.shapes.intern(shape);
            }
        }
        if let (Some(result), true) = (result, self.outputs.iter().any(|l| l.cut.is_some())) {
            let mut leaf = 0;
            let old_result = module.shapes.get(old.result).clone();
            let declared = declared(&old_result, &result, &self.outputs, &mut leaf);
            new.result = module.shapes.intern(declared);
        }
        module.header.entry_computation_layout = Some(new);
    }

    /// The manifest, as JSON.
    pub fn manifest(&self) -> String {
        let manifest = Manifest {
            version: 1,
            devices: self.replica_count.max(1) * self.num_partitions.max(1),
            params: self.params.iter().enumerate().map(|(i, leaf)| self.entry(i, leaf)).collect(),
            outputs: self.outputs.iter().enumerate().map(|(i, leaf)| self.entry(i, leaf)).collect(),
            state_pairs: self.state_pairs.clone(),
            repeated_work: self.repeated,
        };
        serde_json::to_string_pretty(&manifest).unwrap_or_default() + "\n"
    }

    fn entry(&self, index: usize, leaf: &Leaf) -> ManifestLeaf {
        let array = leaf.shape.as_array();
        let dims = |shape: Option<&ArrayShape>| shape.map(|a| a.dims.to_vec()).unwrap_or_default();
        let mut entry = ManifestLeaf {
            index,
            name: leaf.name.clone(),
            dtype: array.map(|a| a.dtype.to_string()).unwrap_or_default(),
            sharded: leaf.cut.is_some(),
            role: leaf.role.map(LeafRole::name),
            whole_because: leaf.whole_because(),
            original_shape: dims(array),
            ..ManifestLeaf::default()
        };
        if let (Some(LeafShards { format, groups }), Some(whole)) = (&leaf.cut, array) {
            let dims_of = |shape: ArrayShape| Some(shape.dims.to_vec());
            entry.formatted_shape = dims_of(format.merged_shape(whole));
            entry.padded_shape = dims_of(format.padded_shape(whole));
            entry.shard_shape = dims_of(format.shard_shape(whole));
            entry.dim = Some(format.run.start);
            entry.pad = Some(format.split.padding());
            entry.groups = Some(groups.to_vec());
            let n_devices = (self.replica_count.max(1) * self.num_partitions.max(1)) as u32;
            let place = |device| groups.iter().find_map(|g| g.iter().position(|&d| d == device));
            entry.shard_index_by_device = Some((0..n_devices).map(place).collect());
        }
        entry
    }
}

/// `old` with the leaves that are cut as in `new`.
fn declared(old: &Shape, new: &Shape, outputs: &[Leaf], leaf: &mut usize) -> Shape {
    match (old, new) {
        (Shape::Tuple(old), Shape::Tuple(new)) => {
            Shape::Tuple(old.iter().zip(new).map(|(o, n)| declared(o, n, outputs, leaf)).collect())
        }
        (old, new) => {
            let is_cut = outputs.get(*leaf).is_some_and(|l| l.cut.is_some());
            *leaf += 1;
            if is_cut { new.clone() } else { old.clone() }
        }
    }
}

/// One builder of shards for each set of groups.
type Builders = Vec<(Arc<[Vec<u32>]>, ShardBuilder)>;

/// The builder for a leaf's groups, made when first needed.
fn builder_for<'b>(builders: &'b mut Builders, module: &Module, cut: &LeafShards) -> &'b mut ShardBuilder {
    let place = match builders.iter().position(|(groups, _)| *groups == cut.groups) {
        Some(place) => place,
        None => {
            builders.push((cut.groups.clone(), ShardBuilder::new(module, cut.groups.clone())));
            builders.len() - 1
        }
    };
    &mut builders[place].1
}

/// Sets the root and the header's layout.
fn finish(
    mut module: Module,
    entry: hlo_ir::CompId,
    outputs: Vec<hlo_ir::InstId>,
    is_tuple: bool,
) -> Result<Module, WusError> {
    let root = match outputs.as_slice() {
        [only] if !is_tuple => *only,
        _ => {
            let shape = Shape::Tuple(outputs.iter().map(|&o| module.shape(o).clone()).collect());
            Builder::new(&mut module, entry).add("tuple", Opcode::Tuple, shape, outputs, Attrs::Plain)
        }
    };
    module.comp_mut(entry).root = Some(root).into();
    module.renumber_params(entry).map_err(|number| WusError::MissingParameter { number })?;
    Ok(module)
}

/// The manifest's document.
#[derive(Serialize)]
struct Manifest {
    version: u32,
    devices: i64,
    params: Vec<ManifestLeaf>,
    outputs: Vec<ManifestLeaf>,
    state_pairs: Vec<Pair>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated_work: Option<RepeatedWork>,
}

/// Gradients that some devices add up, while others do the same work again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct RepeatedWork {
    /// Devices that add a gradient up.
    pub summed_by: usize,
    /// Devices that hold the sum.
    pub held_by: usize,
}

/// One parameter or output of the manifest.
#[derive(Default, Serialize)]
struct ManifestLeaf {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    dtype: String,
    sharded: bool,
    /// Its role in the step, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    /// Why it stays whole, where its role or its update says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole_because: Option<String>,
    original_shape: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    formatted_shape: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    padded_shape: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard_shape: Option<Vec<i64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dim: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pad: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Vec<u32>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard_index_by_device: Option<Vec<Option<usize>>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_spmd::{DimRun, EvenSplit};

    /// Who holds what of an array of two dims, cut along `run` over the first axis of a 2 x 2 mesh.
    fn tiles(run: DimRun, whole: Option<&Sharding>) -> Option<Vec<u32>> {
        let interface = Interface {
            params: Vec::new(),
            outputs: Vec::new(),
            state_pairs: Vec::new(),
            repeated: None,
            replica_count: 1,
            num_partitions: 4,
            param_marks: Vec::new(),
            is_tuple: true,
        };
        let groups = vec![vec![0, 2], vec![1, 3]].into();
        let cut = LeafShards { format: ShardFormat { run, split: EvenSplit::new(64, 2) }, groups };
        interface.sharding(&cut, 2, whole)?.leaf(0)?.tile_of_device(4)
    }

    #[test]
    fn a_shard_is_a_piece_of_the_tile_that_its_device_held() {
        let by_columns = Tiling {
            dims: [1, 2, 2].into_iter().collect(),
            devices: TileDevices::List(vec![0, 2, 1, 3]),
            last_dim_short: true,
            last_dims: vec![SubgroupKind::Replicated],
        };
        let by_columns = Sharding::Single(LeafSharding::new(ShardingKind::Tiled(Box::new(by_columns))));
        assert_eq!(tiles(DimRun::dim(0), Some(&by_columns)), Some(vec![0, 1, 2, 3]));
        assert_eq!(tiles(DimRun::dim(1), Some(&by_columns)), Some(vec![0, 2, 1, 3]));
        assert_eq!(tiles(DimRun::dim(0), Some(&Sharding::replicated())), Some(vec![0, 0, 1, 1]));
        let merged = DimRun::of(0, 2);
        assert_eq!(tiles(merged, Some(&Sharding::replicated())), Some(vec![0, 0, 1, 1]));
        assert_eq!(tiles(merged, Some(&by_columns)), None, "a tiled dim merged with another");
        assert_eq!(tiles(DimRun::dim(0), None), None, "nobody said what the two groups hold");
    }
}
