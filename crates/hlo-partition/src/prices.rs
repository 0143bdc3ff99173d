//! What it costs, roughly, to bring an array from one sharding to another. Choices among ways to cut an op are made by this; the
//! planner of redistributions then finds the steps.
//!
//! Costs are in bytes that a device receives on a ring, the work of a device counted as the bytes that its links carry meanwhile; or,
//! where the machine is known, in seconds on it.

use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::sharding::{ArraySharding, Atom, AtomList};
use hlo_cluster::{Cluster, CollectiveCost};
use hlo_ir::ArrayShape;
use hlo_ir::diag::Entity;
use hlo_mesh::{Exchange, KernelWork, Machine, Network, SizeMismatch};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use indexmap::IndexMap;
use std::cell::RefCell;

/// The option that says what decides.
pub(crate) const PRICE: OptionInfo = OptionInfo {
    name: "price",
    kind: OptionKind::Word(&["bytes", "time"]),
    default: "bytes",
    help: "what decides: bytes that a device receives, or time on the machine",
};

/// What decides, as options say.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Price {
    /// Bytes that a device receives; one more collective counts as so many.
    Bytes { launch: i64 },
    /// Seconds on the machine.
    Time,
}

impl Price {
    /// Reads the option [`PRICE`].
    pub(crate) fn new(options: &Options, launch: i64) -> Price {
        match options.text(PRICE.name) {
            "time" => Price::Time,
            _ => Price::Bytes { launch },
        }
    }

    /// Prices between so many devices of a machine.
    ///
    /// # Errors
    /// The machine has another number of devices.
    pub(crate) fn of_devices(self, machine: &Machine, n_devices: usize) -> Result<Prices, PartitionError> {
        match self {
            Price::Bytes { launch } => Ok(Prices::Bytes { launch: launch as f64 }),
            Price::Time => TimePrices::new(machine.clone(), n_devices)
                .map(|prices| Prices::Time(Box::new(prices)))
                .map_err(|error| PartitionError::about("machine", Entity::Module, error.to_string())),
        }
    }
}

/// Operations of a matrix unit in the time in which a link carries a byte: some 5e14 against 4.5e11 per second.
const FLOPS_PER_BYTE: f64 = 1024.0;

/// Bytes of memory traffic in that time: some 3.4e12 against 4.5e11.
const MEMORY_BYTES_PER_BYTE: f64 = 8.0;

/// What decides between two ways to cut an op.
pub(crate) enum Prices {
    /// Bytes, and what one more collective costs beside its own.
    Bytes { launch: f64 },
    /// Seconds.
    Time(Box<TimePrices>),
}

/// Seconds on a machine.
pub(crate) struct TimePrices {
    machine: Machine,
    network: Network,
    /// By kind and atoms, which are bits.
    known: RefCell<IndexMap<(Exchange, u64), CollectiveCost>>,
}

impl TimePrices {
    /// Prices on a machine with so many devices.
    ///
    /// # Errors
    /// The machine has another number of devices.
    fn new(machine: Machine, n_devices: usize) -> Result<TimePrices, SizeMismatch> {
        let network = machine.network(n_devices)?;
        Ok(TimePrices { machine, network, known: RefCell::default() })
    }

    /// An exchange of all devices that differ along these atoms; `bytes` as the cluster's costs take them.
    fn seconds(&self, mesh: &ModuleMesh, exchange: Exchange, atoms: &[Atom], bytes: f64) -> f64 {
        let mask = atoms.iter().fold(0u64, |mask, atom| mask | 1 << atom.0);
        if mesh.n_places(atoms) <= 1 {
            return 0.0;
        }
        let mut known = self.known.borrow_mut();
        let cost = known.entry((exchange, mask)).or_insert_with(|| {
            let groups: Vec<Vec<u32>> =
                mesh.groups(atoms).into_iter().map(|group| group.into_iter().map(|id| id as u32).collect()).collect();
            // Each sends to the next.
            let next = groups.iter().flat_map(|group| group.windows(2).map(|pair| (pair[0], pair[1])));
            let pairs: Vec<(u32, u32)> = if exchange == Exchange::Permute { next.collect() } else { Vec::new() };
            self.network.exchange(exchange, &groups, &pairs)
        });
        cost.seconds(bytes)
    }
}

impl Prices {
    /// The links that redistributions are planned for; `None` where bytes decide.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        match self {
            Prices::Bytes { .. } => None,
            Prices::Time(time) => Some(time.network.cluster()),
        }
    }

    /// The cost of bringing an array of `shape` from one sharding to another.
    pub(crate) fn reshard(
        &self,
        mesh: &ModuleMesh,
        shape: &ArrayShape,
        (from, to): (&ArraySharding, &ArraySharding),
    ) -> f64 {
        if from == to {
            return 0.0;
        }
        let mut cost = 0.0;
        let mut at = from.clone();
        let resolved: AtomList = from.partial.iter().copied().filter(|atom| !to.partial.contains(atom)).collect();
        if !resolved.is_empty() {
            // What the target cuts along partial atoms is reduced and scattered; the rest is reduced as a whole.
            let is_new = |atom: &Atom| to.cutting().any(|cut| cut == *atom);
            let (scattered, reduced): (AtomList, AtomList) = resolved.iter().copied().partition(is_new);
            let bytes = tile_bytes(mesh, shape, from);
            cost += self.combining(mesh, &scattered, &reduced, bytes);
            at.partial.retain(|atom| to.partial.contains(atom));
            for (dim, atoms) in to.dims.iter().enumerate() {
                for &atom in atoms.iter().filter(|atom| scattered.contains(atom)) {
                    at.dims.get_mut(dim).into_iter().for_each(|list| list.push(atom));
                }
            }
        }
        let lacking = lacking_bytes(mesh, shape, &at, to);
        if lacking > 0.0 { cost + self.moving(mesh, shape, (&at, to), lacking) } else { cost }
    }

    /// Sums of partial results, scattered along some atoms and then whole along others.
    fn combining(&self, mesh: &ModuleMesh, scattered: &[Atom], reduced: &[Atom], bytes: f64) -> f64 {
        let (n_scattered, n_reduced) = (mesh.n_places(scattered) as f64, mesh.n_places(reduced) as f64);
        match self {
            Prices::Bytes { launch } => {
                let n_launches = u8::from(!scattered.is_empty()) + u8::from(!reduced.is_empty());
                bytes * (n_scattered - 1.0) / n_scattered
                    + 2.0 * bytes / n_scattered * (n_reduced - 1.0) / n_reduced
                    + launch * f64::from(n_launches)
            }
            Prices::Time(time) => {
                time.seconds(mesh, Exchange::ReduceScatter, scattered, bytes)
                    + time.seconds(mesh, Exchange::AllReduce, reduced, bytes / n_scattered)
            }
        }
    }

    /// Whole elements go to other devices, `lacking` bytes to each.
    fn moving(
        &self,
        mesh: &ModuleMesh,
        shape: &ArrayShape,
        (from, to): (&ArraySharding, &ArraySharding),
        lacking: f64,
    ) -> f64 {
        let time = match self {
            Prices::Bytes { launch } => return lacking + launch,
            Prices::Time(time) => time,
        };
        let (mut gathered, mut moved, mut sliced) = (AtomList::new(), AtomList::new(), AtomList::new());
        for (a, b) in from.dims.iter().zip(&to.dims) {
            let n = a.iter().zip(b).take_while(|(x, y)| x == y).count();
            let (left, came) = (a.get(n..).unwrap_or(&[]), b.get(n..).unwrap_or(&[]));
            for &atom in left {
                if to.cutting().any(|cut| cut == atom) { moved.push(atom) } else { gathered.push(atom) }
            }
            sliced.extend(came.iter().copied().filter(|&atom| from.cutting().all(|cut| cut != atom)));
        }
        let tile = tile_bytes(mesh, shape, from);
        let exchanged = time.seconds(mesh, Exchange::AllToAll, &moved, tile);
        let gathering = time.seconds(mesh, Exchange::AllGather, &gathered, tile * mesh.n_places(&gathered) as f64);
        if !sliced.is_empty() && mesh.n_places(&sliced) == mesh.n_places(&gathered) {
            // Tiles of equal size may go from device to device as they are.
            let both: AtomList = gathered.iter().chain(&sliced).copied().collect();
            return exchanged + gathering.min(time.seconds(mesh, Exchange::Permute, &both, tile));
        }
        exchanged + gathering
    }

    /// The cost of `n_permutes` that bring a device these bytes.
    pub(crate) fn permutes(&self, mesh: &ModuleMesh, n_permutes: usize, bytes: f64) -> f64 {
        match self {
            Prices::Bytes { launch } => bytes + launch * n_permutes as f64,
            Prices::Time(_) if n_permutes == 0 => 0.0,
            Prices::Time(time) => {
                let atoms: AtomList = mesh.atoms().collect();
                let permute_s = time.seconds(mesh, Exchange::Permute, &atoms, bytes / n_permutes as f64);
                // Beside each permute two kernels: the rows are cut out, and put where they belong.
                n_permutes as f64 * (permute_s + 2.0 * time.machine.launch_s())
            }
        }
    }

    /// The cost of a device's own work: `n_steps` of the op's loop nest.
    pub(crate) fn work(&self, n_steps: f64, is_product: bool, result: &ArrayShape) -> f64 {
        let element_bytes = f64::from(result.dtype.bits()) / 8.0;
        match (self, is_product) {
            (Prices::Bytes { .. }, true) => 2.0 * n_steps / FLOPS_PER_BYTE,
            (Prices::Bytes { .. }, false) => n_steps * element_bytes / MEMORY_BYTES_PER_BYTE,
            (Prices::Time(time), true) => time.machine.matrix_s(2.0 * n_steps, result.dtype, true),
            (Prices::Time(time), false) => {
                let work = KernelWork { bytes: n_steps * element_bytes, arithmetic_s: 0.0 };
                time.machine.kernel_s(work) - time.machine.launch_s()
            }
        }
    }
}

/// Bytes of a tile.
fn tile_bytes(mesh: &ModuleMesh, shape: &ArrayShape, sharding: &ArraySharding) -> f64 {
    let elems: f64 = sharding.tile_dims(mesh, &shape.dims).iter().map(|&size| size as f64).product();
    elems * f64::from(shape.dtype.bits()) / 8.0
}

/// The most bytes of a target tile that a device does not hold.
fn lacking_bytes(mesh: &ModuleMesh, shape: &ArrayShape, from: &ArraySharding, to: &ArraySharding) -> f64 {
    let (source, target) = (from.tile_dims(mesh, &shape.dims), to.tile_dims(mesh, &shape.dims));
    let mut held = 1.0;
    for (dim, (a, b)) in from.dims.iter().zip(&to.dims).enumerate() {
        let n = a.len().min(b.len());
        held *= match a[..n] == b[..n] {
            true => source[dim].min(target[dim]) as f64,
            false => 0.0,
        };
    }
    let wanted: f64 = target.iter().map(|&size| size as f64).product();
    (wanted - held).max(0.0) * f64::from(shape.dtype.bits()) / 8.0
}
