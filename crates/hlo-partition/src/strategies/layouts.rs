//! Strategies as MindSpore says them, and what they mean: device matrix, tensor maps, atoms.
//!
//! A strategy cuts the dims of each input evenly. The *device matrix* has one entry for each class of dims, in the order in which the
//! inputs name them, and one more for devices that are left over: the last one, or the first one for data sets. A *tensor map* says
//! for each dim of a tensor which entry cuts it, counted from the right; -1: none. Devices are numbered row-major over the matrix.
//!
//! Reference: *Automatic Parallel Strategy Search* of MindSpore's design documents, "Tensor Arrangement".

use super::file::MapEntry;
use super::operators::{Operator, Port};
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::graph::ShardingGraph;
use crate::sharding::{ArraySharding, AtomList};
use hlo_ir::axes::primes;
use smallvec::SmallVec;

/// The atoms that cut each class of an operator, major to minor.
pub(super) type Assignment = SmallVec<[AtomList; 5]>;

/// A device matrix and which of its entries cuts each class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct DeviceMatrix {
    pub sizes: Vec<i64>,
    /// By class, major to minor; a strategy gives one to each class that it names.
    pub entries_of: Vec<Vec<usize>>,
}

impl DeviceMatrix {
    /// The matrix of a strategy: cuts of the classes that it names, in order; devices left over come last, or first.
    pub(super) fn of_cuts(cuts: &[i64], n_classes: usize, n_devices: i64, is_left_over_first: bool) -> DeviceMatrix {
        let used: i64 = cuts.iter().product::<i64>().max(1);
        let left = n_devices / used;
        let mut sizes = cuts.to_vec();
        let shift = usize::from(left > 1 && is_left_over_first);
        if left > 1 {
            sizes.insert(if is_left_over_first { 0 } else { sizes.len() }, left);
        }
        let of_class = |class: usize| if class < cuts.len() { vec![class + shift] } else { Vec::new() };
        DeviceMatrix { sizes, entries_of: (0..n_classes).map(of_class).collect() }
    }

    /// The tensor map of a tensor: for each dim the entry that cuts it, from the right.
    pub(super) fn tensor_map(&self, port: &Port) -> Vec<MapEntry> {
        let from_right = |entry: &usize| self.sizes.len() as i64 - 1 - *entry as i64;
        let of_class = |class: &u16| {
            MapEntry::of(self.entries_of.get(usize::from(*class)).into_iter().flatten().map(from_right).collect())
        };
        port.classes.iter().map(of_class).collect()
    }

    /// Numbers of parts before each entry and after the last one, from the left.
    fn products(&self) -> Vec<i64> {
        let mut product = 1;
        let after = self.sizes.iter().map(|&size| {
            product *= size;
            product
        });
        std::iter::once(1).chain(after).collect()
    }

    /// The atoms of each class; `None` where an entry begins or ends within an atom.
    pub(super) fn assignment(&self, mesh: &ModuleMesh) -> Option<Assignment> {
        let products = self.products();
        let mut begins = vec![1];
        for size in mesh.sizes() {
            begins.push(begins.last().copied().unwrap_or(1) * size);
        }
        let atoms: Vec<_> = mesh.atoms().collect();
        let of_entry = |entry: usize| -> Option<AtomList> {
            let (from, to) = (*products.get(entry)?, *products.get(entry + 1)?);
            if from == to {
                return Some(AtomList::new());
            }
            let first = begins.iter().position(|&begin| begin == from)?;
            let last = begins.iter().position(|&begin| begin == to)?;
            Some(atoms.get(first..last)?.iter().copied().collect())
        };
        let of_class = |entries: &Vec<usize>| -> Option<AtomList> {
            let lists = entries.iter().map(|&entry| of_entry(entry)).collect::<Option<Vec<_>>>()?;
            Some(lists.into_iter().flatten().collect())
        };
        self.entries_of.iter().map(of_class).collect()
    }
}

/// The prime axes on which all of these matrices lie.
///
/// # Errors
/// The places in `matrices` of two that cut the devices at numbers that do not divide one another.
pub(super) fn common_mesh(n_devices: i64, matrices: &[DeviceMatrix]) -> Result<ModuleMesh, (usize, usize)> {
    let mut cuts: Vec<(i64, usize)> = vec![(1, 0), (n_devices, 0)];
    for (at, matrix) in matrices.iter().enumerate() {
        cuts.extend(matrix.products().into_iter().map(|product| (product, at)));
    }
    cuts.sort();
    cuts.dedup_by_key(|cut| cut.0);
    let mut sizes = Vec::new();
    for pair in cuts.windows(2) {
        let [(low, one), (high, other)] = *pair else { continue };
        if high % low != 0 {
            return Err((one, other));
        }
        // Large primes first, as far as the strategies leave it open.
        sizes.extend(primes(high / low).into_iter().rev());
    }
    Ok(ModuleMesh::ascending(sizes))
}

/// How the operator's classes cut a tensor.
pub(super) fn sharding_of(port: &Port, assignment: &Assignment) -> ArraySharding {
    let of_class = |class: &u16| assignment.get(usize::from(*class)).cloned().unwrap_or_default();
    ArraySharding { dims: port.classes.iter().map(of_class).collect(), partial: AtomList::new() }
}

/// The number of classes that a strategy names.
pub(super) fn n_named(operator: &Operator) -> usize {
    let classes = operator.strategy_ports().iter().flat_map(|port| &port.classes);
    classes.map(|&class| usize::from(class) + 1).max().unwrap_or(0)
}

/// The cuts of each class that a strategy says, one list for each tensor.
///
/// # Errors
/// What is wrong with it: the operator, the input, its dim, expected and found.
pub(super) fn read_strategy(
    graph: &ShardingGraph,
    operator: &Operator,
    said: &[Vec<i64>],
    n_devices: i64,
) -> Result<Vec<i64>, String> {
    let ports = operator.strategy_ports();
    let name = &operator.name;
    let said: Vec<&Vec<i64>> = said.iter().filter(|list| !list.is_empty()).collect();
    if said.len() != ports.len() {
        let (expected, found) = (ports.len(), said.len());
        return Err(format!("operator `{name}`: expected cuts of {expected} tensors with dims, found {found}"));
    }
    let mut cuts: Vec<Option<(i64, usize, usize)>> = vec![None; n_named(operator)];
    for (input, (port, said)) in ports.iter().zip(said).enumerate() {
        let dims = &graph.values[port.value].dims;
        if said.len() != dims.len() {
            let (expected, found) = (dims.len(), said.len());
            return Err(format!("operator `{name}`, input {input}: expected {expected} cuts, found {found}"));
        }
        for (d, (&cut, (class, dim))) in said.iter().zip(port.classes.iter().zip(dims)).enumerate() {
            let place = format!("operator `{name}`, input {input}, dim {d} of size {}", dim.size);
            if cut < 1 || dim.size % cut != 0 {
                return Err(format!("{place}: expected a cut that divides the size, found {cut}"));
            }
            let Some(known) = cuts.get_mut(usize::from(*class)) else { continue };
            match known {
                Some((other, at, of_dim)) if *other != cut => {
                    return Err(format!("{place}: expected cut {other}, as of input {at}, dim {of_dim}, found {cut}"));
                }
                Some(_) => {}
                None => *known = Some((cut, input, d)),
            }
            let class = operator.classes[usize::from(*class)];
            if let Some(why) = class.why_whole().filter(|_| cut > 1) {
                return Err(format!("{place}: expected cut 1, because {why}, found {cut}"));
            }
            if class.granule % cut != 0 {
                let granule = class.granule;
                return Err(format!(
                    "{place}: expected a cut that divides {granule}, which tensors share, found {cut}"
                ));
            }
        }
    }
    let cuts: Vec<i64> = cuts.into_iter().map(|cut| cut.map_or(1, |(cut, ..)| cut)).collect();
    let product = cuts.iter().try_fold(1i64, |product, &cut| product.checked_mul(cut));
    match product.filter(|product| n_devices % product == 0) {
        Some(_) => Ok(cuts),
        None => {
            let found = cuts.iter().map(i64::to_string).collect::<Vec<_>>().join(" x ");
            Err(format!("operator `{name}`: expected cuts whose product divides {n_devices} devices, found {found}"))
        }
    }
}

/// The strategy that gives these atoms, with devices left over last; `None` if no strategy does.
pub(super) fn strategy_cuts(operator: &Operator, mesh: &ModuleMesh, assignment: &Assignment) -> Option<Vec<i64>> {
    let n = n_named(operator);
    let cuts: Vec<i64> = assignment.iter().take(n).map(|atoms| mesh.n_places(atoms)).collect();
    let matrix = DeviceMatrix::of_cuts(&cuts, operator.classes.len(), mesh.n_devices() as i64, false);
    (matrix.assignment(mesh).as_ref() == Some(assignment)).then_some(cuts)
}

/// The cuts of each tensor of a strategy, from those of classes.
pub(super) fn strategy_lists(operator: &Operator, cuts: &[i64]) -> Vec<Vec<i64>> {
    let of_class = |class: &u16| cuts.get(usize::from(*class)).copied().unwrap_or(1);
    operator.strategy_ports().iter().map(|port| port.classes.iter().map(of_class).collect()).collect()
}

/// The device matrix of prime axes, and which of them cut each class.
pub(super) fn prime_matrix(mesh: &ModuleMesh, assignment: &Assignment) -> DeviceMatrix {
    let of_class = |atoms: &AtomList| atoms.iter().map(|atom| usize::from(atom.0)).collect();
    DeviceMatrix { sizes: mesh.sizes().to_vec(), entries_of: assignment.iter().map(of_class).collect() }
}

/// The most strategies that are listed of one operator.
const MOST_CANDIDATES: usize = 4096;

/// All strategies of an operator whose cuts are even and lie on the mesh, those with more parts of the first classes first.
pub(super) fn candidates(operator: &Operator, mesh: &ModuleMesh) -> Vec<Assignment> {
    let atoms: Vec<_> = mesh.atoms().collect();
    let mut out = Vec::new();
    let mut current: Assignment = smallvec::smallvec![AtomList::new(); operator.classes.len()];
    add_candidates((operator, mesh, &atoms), 0, n_named(operator), &mut current, &mut out);
    out
}

fn add_candidates(
    (operator, mesh, left): (&Operator, &ModuleMesh, &[crate::sharding::Atom]),
    class: usize,
    n: usize,
    current: &mut Assignment,
    out: &mut Vec<Assignment>,
) {
    if out.len() >= MOST_CANDIDATES {
        return;
    }
    if class == n {
        out.push(current.clone());
        return;
    }
    let of_class = operator.classes[class];
    let most = if of_class.why_whole().is_some() { 0 } else { left.len() };
    for n_taken in (0..=most).rev() {
        let (taken, rest) = left.split_at(n_taken);
        if of_class.granule % mesh.n_places(taken) == 0 {
            current[class] = taken.iter().copied().collect();
            add_candidates((operator, mesh, rest), class + 1, n, current, out);
        }
    }
    current[class] = AtomList::new();
}
