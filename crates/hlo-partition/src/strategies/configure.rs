//! From a file of strategies to the layouts of the operators that it names.

use super::file::{LeftOver, MapEntry, OperatorEntry, StrategyFile, ValueEntry};
use super::layouts::{
    Assignment, DeviceMatrix, common_mesh, prime_matrix, read_strategy, strategy_cuts, strategy_lists,
};
use super::operators::{Operator, OperatorGraph, OperatorId, Port};
use super::spread::Spread;
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::values::{CutDim, CutId};
use crate::sharding::{ArraySharding, Atom, AtomList};
use hlo_ir::Module;
use hlo_ir::diag::Entity;

/// An operator with its device matrix.
pub(super) struct Configured {
    pub id: OperatorId,
    pub matrix: DeviceMatrix,
}

fn wrong(operator: Option<&Operator>, text: String) -> PartitionError {
    PartitionError::about("strategy", operator.map_or(Entity::Module, |operator| Entity::Inst(operator.inst)), text)
}

/// The operators that a file names, with their device matrices, and the mesh on which all lie.
///
/// # Errors
/// A name without an operator, a strategy that is not legal, and matrices that do not lie on one mesh.
pub(super) fn configure(
    graph: &ShardingGraph,
    operators: &OperatorGraph,
    file: &StrategyFile,
) -> Result<(Vec<Configured>, ModuleMesh), PartitionError> {
    let mut configured = Vec::new();
    let mut is_used = vec![false; file.operator.len()];
    for (id, operator) in &operators.operators {
        let Some((at, entry)) = file.find(&operator.name) else { continue };
        is_used[at] = true;
        let matrix = read_entry(graph, operator, entry, file.devices).map_err(|text| wrong(Some(operator), text))?;
        configured.push(Configured { id, matrix });
    }
    if let Some(at) = is_used.iter().position(|used| !used) {
        let name = &file.operator[at].name;
        let what = match file.depth {
            0 => "an instruction with `%`".to_string(),
            depth => format!("{depth} parts of op_name, or of an instruction with `%`"),
        } + "; what gives a scalar or only calls, and what is made of constants, is none";
        return Err(wrong(None, format!("strategies: expected the name of an operator ({what}), found `{name}`")));
    }
    let mut matrices: Vec<DeviceMatrix> = configured.iter().map(|one| one.matrix.clone()).collect();
    let of_value = |entry: &ValueEntry| DeviceMatrix { sizes: entry.device_matrix.clone(), entries_of: Vec::new() };
    let fits = |matrix: &DeviceMatrix| {
        matrix.sizes.iter().try_fold(1i64, |n, &size| n.checked_mul(size).filter(|_| size >= 1)) == Some(file.devices)
    };
    matrices.extend(file.value.iter().map(of_value).filter(fits));
    let mesh = common_mesh(file.devices, &matrices).map_err(|(one, other)| {
        let name = |at: usize| configured.get(at).map_or("(a value)", |c| &operators.operators[c.id].name);
        let sizes = |at: usize| matrices.get(at).map_or(Vec::new(), |matrix| matrix.sizes.clone());
        let text = format!(
            "operators `{}` and `{}`: expected device matrices that cut the devices at numbers that divide one another, found {:?} and {:?}",
            name(one),
            name(other),
            sizes(one),
            sizes(other)
        );
        wrong(None, text)
    })?;
    Ok((configured, mesh))
}

/// Decides the operators and parameters of a file.
///
/// # Errors
/// A parameter that there is not, or whose layout does not fit it or the mesh.
pub(super) fn choose_configured(
    (spread, module): (&mut Spread<'_>, &Module),
    configured: &[Configured],
    file: &StrategyFile,
) -> Result<(), PartitionError> {
    for entry in &file.value {
        let (value, layout) =
            read_value(spread, module, entry).map_err(|text| wrong(None, format!("value `{}`: {text}", entry.name)))?;
        spread.fix(value, layout);
    }
    for one in configured {
        let operator = &spread.operators.operators[one.id];
        let assignment = one.matrix.assignment(spread.mesh).ok_or_else(|| {
            wrong(Some(operator), format!("operator `{}`: expected a device matrix on the mesh", operator.name))
        })?;
        spread.choose(one.id, assignment);
    }
    Ok(())
}

fn read_entry(
    graph: &ShardingGraph,
    operator: &Operator,
    entry: &OperatorEntry,
    n_devices: i64,
) -> Result<DeviceMatrix, String> {
    if let (Some(matrix), Some(maps)) = (&entry.device_matrix, &entry.tensor_map) {
        return read_map(graph, operator, (matrix, maps), n_devices);
    }
    let said = entry.strategy.as_deref().unwrap_or_default();
    let cuts = read_strategy(graph, operator, said, n_devices)?;
    let is_first = entry.left_over == Some(LeftOver::First);
    Ok(DeviceMatrix::of_cuts(&cuts, operator.classes.len(), n_devices, is_first))
}

/// A value that no operator computes, and its layout.
fn read_value(spread: &Spread<'_>, module: &Module, entry: &ValueEntry) -> Result<(CutId, ArraySharding), String> {
    let graph = spread.graph;
    let name = entry.name.trim_start_matches('%');
    let mut named =
        graph.values.iter().filter(|(_, value)| value.leaf == entry.leaf && module.inst_name(value.inst) == name);
    let found = named.find(|(id, _)| spread.operators.producer(*id).is_none());
    let (id, value) = found.ok_or("expected the name of a parameter, found none with this leaf")?;
    let (matrix, n_devices) = (&entry.device_matrix, spread.mesh.n_devices());
    let product = matrix.iter().try_fold(1i64, |product, &size| product.checked_mul(size).filter(|_| size >= 1));
    if product != Some(n_devices as i64) || entry.tensor_map.len() != value.dims.len() {
        let n_dims = value.dims.len();
        return Err(format!("expected a matrix of {n_devices} devices and a map of {n_dims} dims, found others"));
    }
    let to_left =
        |from_right: &i64| usize::try_from(matrix.len() as i64 - 1 - from_right).ok().filter(|&k| k < matrix.len());
    let entries_of = entry.tensor_map.iter().map(|map| map.entries().iter().map(to_left).collect::<Option<Vec<_>>>());
    let entries_of = entries_of.collect::<Option<Vec<_>>>().ok_or("expected entries of the matrix, or -1")?;
    let matrix = DeviceMatrix { sizes: matrix.clone(), entries_of };
    let dims = matrix.assignment(spread.mesh).ok_or("expected a device matrix on the mesh of the operators'")?;
    let mut used: Vec<Atom> = dims.iter().flatten().copied().collect();
    used.sort();
    let is_even = |(atoms, dim): (&AtomList, &CutDim)| dim.size % spread.mesh.n_places(atoms) == 0;
    if used.windows(2).any(|pair| pair[0] == pair[1]) || !dims.iter().zip(&value.dims).all(is_even) {
        return Err("expected cuts that divide the dims, and no entry twice".into());
    }
    Ok((id, ArraySharding { dims: dims.into_iter().collect(), partial: AtomList::new() }))
}

/// How a value is cut, as a file says it.
pub(super) fn value_entry(module: &Module, spread: &Spread<'_>, value: CutId) -> Option<ValueEntry> {
    let (cut, layout) = (&spread.graph.values[value], spread.sharding(value)?);
    let assignment: Assignment = layout.dims.iter().cloned().collect();
    let matrix = prime_matrix(spread.mesh, &assignment);
    let classes = (0..cut.dims.len() as u16).collect();
    let tensor_map = matrix.tensor_map(&Port { value, classes, users: Default::default() });
    let name = format!("%{}", module.inst_name(cut.inst));
    Some(ValueEntry { name, leaf: cut.leaf, device_matrix: matrix.sizes, tensor_map })
}

/// A device matrix with tensor maps: of the tensors of a strategy, or of all inputs and then all outputs.
fn read_map(
    graph: &ShardingGraph,
    operator: &Operator,
    (matrix, maps): (&[i64], &[Vec<MapEntry>]),
    n_devices: i64,
) -> Result<DeviceMatrix, String> {
    let name = &operator.name;
    let product = matrix.iter().try_fold(1i64, |product, &size| product.checked_mul(size).filter(|_| size >= 1));
    if product != Some(n_devices) {
        return Err(format!("operator `{name}`: expected a device matrix of {n_devices} devices, found {matrix:?}"));
    }
    let all: Vec<&Port> = operator.inputs.iter().chain(&operator.outputs).collect();
    let ports: Vec<&Port> = if maps.len() == all.len() { all } else { operator.strategy_ports().iter().collect() };
    if maps.len() != ports.len() {
        let (expected, found) = (ports.len(), maps.len());
        return Err(format!("operator `{name}`: expected tensor maps of {expected} tensors, found {found}"));
    }
    let mut entries_of: Vec<Option<Vec<usize>>> = vec![None; operator.classes.len()];
    for (tensor, (port, map)) in ports.iter().zip(maps).enumerate() {
        let dims = &graph.values[port.value].dims;
        if map.len() != dims.len() {
            let (expected, found) = (dims.len(), map.len());
            return Err(format!(
                "operator `{name}`, tensor {tensor}: expected a map of {expected} dims, found {found}"
            ));
        }
        for (d, (entry, (class, dim))) in map.iter().zip(port.classes.iter().zip(dims)).enumerate() {
            let place = format!("operator `{name}`, tensor {tensor}, dim {d} of size {}", dim.size);
            let entries = entry.entries();
            let to_left = |from_right: &i64| {
                let left = matrix.len() as i64 - 1 - from_right;
                usize::try_from(left).ok().filter(|&left| left < matrix.len())
            };
            let Some(entries) = entries.iter().map(to_left).collect::<Option<Vec<usize>>>() else {
                let n = matrix.len();
                return Err(format!("{place}: expected entries of a matrix with {n}, or -1, found {entries:?}"));
            };
            let cut: i64 = entries.iter().map(|&entry| matrix[entry]).product();
            let of_class = operator.classes[usize::from(*class)];
            if let Some(why) = of_class.why_whole().filter(|_| cut > 1) {
                return Err(format!("{place}: expected no cut, because {why}, found {cut}"));
            }
            if of_class.granule % cut != 0 {
                let granule = of_class.granule;
                return Err(format!("{place}: expected a cut that divides {granule}, found {cut}"));
            }
            match &entries_of[usize::from(*class)] {
                Some(known) if *known != entries => {
                    return Err(format!("{place}: expected the entries of the dims that go with it, found others"));
                }
                Some(_) => {}
                None => entries_of[usize::from(*class)] = Some(entries),
            }
        }
    }
    let entries_of: Vec<Vec<usize>> = entries_of.into_iter().map(Option::unwrap_or_default).collect();
    let mut used: Vec<usize> = entries_of.iter().flatten().copied().filter(|&entry| matrix[entry] > 1).collect();
    used.sort();
    if let Some(pair) = used.windows(2).find(|pair| pair[0] == pair[1]) {
        let entry = matrix.len() - 1 - pair[0];
        return Err(format!(
            "operator `{name}`: expected each entry of the matrix to cut one dim, found {entry} twice"
        ));
    }
    Ok(DeviceMatrix { sizes: matrix.to_vec(), entries_of })
}

/// How an operator's layout is written: as a strategy where one gives it.
pub(super) fn entry_of(operator: &Operator, mesh: &ModuleMesh, assignment: &Assignment) -> OperatorEntry {
    let name = operator.name.clone();
    if let Some(cuts) = strategy_cuts(operator, mesh, assignment) {
        let strategy = Some(strategy_lists(operator, &cuts));
        return OperatorEntry { name, strategy, ..OperatorEntry::default() };
    }
    let matrix = prime_matrix(mesh, assignment);
    let ports = operator.inputs.iter().chain(&operator.outputs);
    let maps = ports.map(|port| matrix.tensor_map(port)).collect();
    OperatorEntry { name, device_matrix: Some(matrix.sizes), tensor_map: Some(maps), ..OperatorEntry::default() }
}

/// A layout in one line: the strategy, or matrix and maps.
pub(super) fn describe(entry: &OperatorEntry) -> String {
    match (&entry.strategy, &entry.device_matrix, &entry.tensor_map) {
        (Some(strategy), ..) => format!("strategy {strategy:?}"),
        (None, Some(matrix), Some(maps)) => {
            let maps: Vec<Vec<Vec<i64>>> = maps.iter().map(|map| map.iter().map(MapEntry::entries).collect()).collect();
            format!("device matrix {matrix:?}, tensor maps {maps:?}")
        }
        (None, ..) => "no strategy".into(),
    }
}
