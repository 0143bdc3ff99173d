//! The mesh of a module: prime axes that all its shardings are lists of.

// circle: a mesh reads shardings, and the tiles of a sharding depend on the sizes of the atoms of its mesh

use crate::error::PartitionError;
use crate::sharding::{ArraySharding, Atom, AtomList};
use hlo_ir::axes::{AxisMesh, AxisSharding, SubAxis, find_common_order, primes};
use hlo_ir::devices::find_n_devices;
use hlo_ir::diag::Entity;
use hlo_ir::names::FixedHash;
use hlo_ir::sharding::{LeafSharding, Reduction, ShardingKind};
use hlo_ir::shardy::{self, Meshes};
use hlo_ir::{InstId, Module};
use indexmap::IndexMap;

/// Most atoms of a mesh: a device id has fewer prime factors.
const MOST_ATOMS: usize = 64;

/// Most devices of a mesh that an option describes.
const MOST_DEVICES: i64 = 1 << 20;

/// The atoms of a module's shardings: the axes of all of them, cut where another one cuts, and into prime sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModuleMesh {
    mesh: AxisMesh,
}

/// A sharding as text says it, on atoms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReadSharding {
    /// How the array is cut, and over which atoms it is a partial result.
    pub sharding: ArraySharding,
    /// The atoms along which the code is manual.
    pub manual: AtomList,
    /// How partial results are combined.
    pub reduction: Reduction,
}

/// A sharding on its own mesh, and who says it.
struct Said {
    sharding: AxisSharding,
    by: Entity,
    text: String,
}

impl ModuleMesh {
    /// The mesh of all shardings of a module.
    ///
    /// # Errors
    /// A sharding is malformed; two list the devices in different orders, or cut them at places that do not divide one another.
    pub fn of(module: &Module) -> Result<ModuleMesh, PartitionError> {
        let n_devices = find_n_devices(module);
        let meshes = Meshes::of(&module.header)
            .map_err(|error| PartitionError::about("sharding", Entity::Module, error.to_string()))?;
        let mut said: Vec<Said> = Vec::new();
        for mesh in meshes.iter() {
            // Every axis of a mesh, as if one dim were cut along all of them.
            let axes = mesh.axes.iter().map(|(name, _)| hlo_ir::groups::AxisRef { name: name.clone(), sub: None });
            let dims = axes.map(|axis| hlo_ir::sharding::NamedDim { axes: vec![axis], is_open: false }).collect();
            let named = hlo_ir::sharding::NamedSharding { mesh: mesh.clone(), dims, ..Default::default() };
            let leaf = LeafSharding::new(ShardingKind::Named(Box::new(named)));
            if mesh.n_devices() == Some(n_devices as i64) {
                said.push(read_axes(&leaf, mesh.axes.len(), n_devices, Entity::Module)?);
            }
        }
        let mut known: IndexMap<(LeafSharding, usize), (), FixedHash> = IndexMap::default();
        for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
            for (leaf, rank) in leaves_said(module, &meshes, inst)? {
                if known.insert((leaf.clone(), rank), ()).is_none() && names_tiles(&leaf) {
                    said.push(read_axes(&leaf, rank, n_devices, Entity::Inst(inst))?);
                }
            }
        }
        let order = common_order(&said, n_devices)?;
        for one in &mut said {
            one.sharding = in_order(one, &order)?;
        }
        let sizes = prime_sizes(&said, n_devices)?;
        match sizes.len() <= MOST_ATOMS {
            true => Ok(ModuleMesh { mesh: AxisMesh { sizes, devices: order } }),
            false => Err(PartitionError::about("mesh", Entity::Module, "expected at most 64 prime axes")),
        }
    }

    /// A mesh of these atoms, whose devices are numbered through them, the first one slowest.
    ///
    /// # Errors
    /// More atoms or devices than a module can have.
    pub(crate) fn of_sizes(sizes: Vec<i64>) -> Result<ModuleMesh, PartitionError> {
        let n_devices = sizes.iter().fold(1i64, |n, &size| n.saturating_mul(size));
        if sizes.len() > MOST_ATOMS || n_devices > MOST_DEVICES {
            let text = format!("mesh: expected at most {MOST_DEVICES} devices, found {n_devices}");
            return Err(PartitionError::about("mesh", Entity::Module, text));
        }
        Ok(ModuleMesh { mesh: AxisMesh { sizes, devices: (0..n_devices as u32).collect() } })
    }

    /// The mesh with atoms of these sizes, major first, over devices in ascending order.
    pub(crate) fn ascending(sizes: Vec<i64>) -> ModuleMesh {
        let n_devices = sizes.iter().product::<i64>().max(1) as u32;
        ModuleMesh { mesh: AxisMesh { sizes, devices: (0..n_devices).collect() } }
    }

    /// Sizes of the atoms, major first; each is prime.
    pub fn sizes(&self) -> &[i64] {
        &self.mesh.sizes
    }

    /// Number of devices.
    pub fn n_devices(&self) -> usize {
        self.mesh.devices.len()
    }

    /// All atoms, major first.
    pub fn atoms(&self) -> impl Iterator<Item = Atom> + use<> {
        (0..self.mesh.sizes.len() as u8).map(Atom)
    }

    /// Size of an atom.
    pub fn size(&self, atom: Atom) -> i64 {
        self.mesh.sizes.get(usize::from(atom.0)).copied().unwrap_or(1)
    }

    /// Number of places along these atoms.
    pub fn n_places(&self, atoms: &[Atom]) -> i64 {
        atoms.iter().map(|&atom| self.size(atom)).product()
    }

    /// Along these atoms, major to minor, the place of each device, by device id.
    pub fn places(&self, atoms: &[Atom]) -> Vec<i64> {
        let mut out = vec![0; self.n_devices()];
        for (position, &device) in self.mesh.devices.iter().enumerate() {
            let along =
                |place: i64, &atom: &Atom| place * self.size(atom) + self.mesh.place(position, part(self, atom));
            if let Some(slot) = out.get_mut(device as usize) {
                *slot = atoms.iter().fold(0, along);
            }
        }
        out
    }

    /// Groups of devices that differ only along these atoms, members in the order of their places along them.
    pub fn groups(&self, atoms: &[Atom]) -> Vec<Vec<i64>> {
        let others: AtomList = self.atoms().filter(|atom| !atoms.contains(atom)).collect();
        let (group_of, place_of) = (self.places(&others), self.places(atoms));
        let mut groups = vec![vec![0; self.n_places(atoms) as usize]; self.n_places(&others) as usize];
        for (device, (&group, &place)) in group_of.iter().zip(&place_of).enumerate() {
            let slot = groups.get_mut(group as usize).and_then(|group| group.get_mut(place as usize));
            slot.into_iter().for_each(|slot| *slot = device as i64);
        }
        groups
    }

    /// A sharding of an array of this rank on the atoms; `None` where it claims nothing, or one device holds everything.
    ///
    /// # Errors
    /// It is malformed, or no list of atoms of this mesh.
    pub fn read(&self, leaf: &LeafSharding, rank: usize, by: Entity) -> Result<Option<ReadSharding>, PartitionError> {
        if !names_tiles(leaf) {
            return Ok(None);
        }
        let mut said = read_axes(leaf, rank, self.n_devices(), by)?;
        said.sharding = in_order(&said, &self.mesh.devices)?;
        let list = |parts: &[SubAxis]| -> Result<AtomList, PartitionError> {
            let mut out = AtomList::new();
            for &part in parts {
                let mut found = self.atoms_of(&said.sharding.mesh, part).ok_or_else(|| foreign(&said))?;
                out.append(&mut found);
            }
            Ok(out)
        };
        let dims = said.sharding.dims.iter().map(|parts| list(parts)).collect::<Result<_, _>>()?;
        let (mut partial, mut manual) = (list(&said.sharding.unreduced)?, list(&said.sharding.manual)?);
        partial.sort();
        manual.sort();
        let reduction = said.sharding.reduction;
        Ok(Some(ReadSharding { sharding: ArraySharding { dims, partial }, manual, reduction }))
    }

    /// The atoms of a part of an axis of another mesh of the same devices, major first.
    fn atoms_of(&self, mesh: &AxisMesh, of: SubAxis) -> Option<AtomList> {
        let from = mesh.stride(of);
        let (mut left, mut out) = (from * of.size, AtomList::new());
        for atom in self.atoms() {
            let stride = self.mesh.stride(part(self, atom));
            if stride >= from && stride * self.size(atom) == left {
                out.push(atom);
                left = stride;
            }
        }
        (left == from).then_some(out)
    }

    /// The sharding for the planner of redistributions, with `manual` atoms beside it.
    pub fn axes(&self, sharding: &ArraySharding, manual: &[Atom]) -> AxisSharding {
        let list = |atoms: &[Atom]| -> Vec<SubAxis> { atoms.iter().map(|&atom| part(self, atom)).collect() };
        AxisSharding {
            mesh: self.mesh.clone(),
            dims: sharding.dims.iter().map(|atoms| list(atoms)).collect(),
            manual: list(manual),
            unreduced: list(&sharding.partial),
            reduction: Reduction::Sum,
        }
    }

    /// The sharding as `sharding=` says it.
    pub fn leaf(&self, sharding: &ArraySharding, manual: &[Atom]) -> LeafSharding {
        self.axes(sharding, manual).to_leaf()
    }
}

fn part(mesh: &ModuleMesh, atom: Atom) -> SubAxis {
    SubAxis { axis: usize::from(atom.0), pre: 1, size: mesh.size(atom) }
}

fn foreign(said: &Said) -> PartitionError {
    let text = format!("sharding {}: expected one on the axes of the module's other shardings", said.text);
    PartitionError::about("sharding", said.by, text)
}

/// Whether a sharding says of each device what it holds.
fn names_tiles(leaf: &LeafSharding) -> bool {
    match leaf.kind {
        ShardingKind::Replicated
        | ShardingKind::Manual
        | ShardingKind::Unreduced
        | ShardingKind::Tiled(_)
        | ShardingKind::Named(_) => true,
        ShardingKind::Unknown | ShardingKind::Maximal(_) | ShardingKind::MaximalMesh(_) => false,
    }
}

fn read_axes(leaf: &LeafSharding, rank: usize, n_devices: usize, by: Entity) -> Result<Said, PartitionError> {
    // A mesh of one device stands for all devices: nothing can be cut on it.
    let is_alone = matches!(&leaf.kind, ShardingKind::Named(named) if named.mesh.n_devices() == Some(1));
    let whole = LeafSharding::new(ShardingKind::Replicated);
    match if is_alone { &whole } else { leaf }.axes(rank, n_devices) {
        Ok(sharding) => Ok(Said { sharding, by, text: leaf.to_string() }),
        Err(error) => Err(PartitionError::about("sharding", by, format!("{leaf}: {error}"))),
    }
}

/// All shardings that an instruction's marks say, with the ranks of what they cut.
fn leaves_said(module: &Module, meshes: &Meshes, inst: InstId) -> Result<Vec<(LeafSharding, usize)>, PartitionError> {
    let mut out = Vec::new();
    if let Some(sharding) = module.sharding(inst) {
        let mut leaf = 0;
        module.shape(inst).for_each_leaf(&mut |_, shape| {
            if let (Some(said), Some(array)) = (sharding.leaf(leaf), shape.as_array()) {
                out.push((said.clone(), array.rank()));
            }
            leaf += 1;
        });
    }
    let attributes = module.inst(inst).marks.as_ref().map_or(&[][..], |marks| &marks.frontend_attributes);
    for key in [shardy::SHARDING, shardy::IN_SHARDINGS, shardy::OUT_SHARDINGS] {
        let Some(text) = shardy::attribute(attributes, key) else { continue };
        let all = meshes
            .shardings(text)
            .map_err(|error| PartitionError::about("sharding", Entity::Inst(inst), error.to_string()))?;
        out.extend(all.iter().map(|one| (one.as_leaf(), one.named.dims.len())));
    }
    Ok(out)
}

/// An order of devices in which all shardings are axes of a mesh.
fn common_order(said: &[Said], n_devices: usize) -> Result<Vec<u32>, PartitionError> {
    let mut cutting = said.iter().filter(|said| !said.sharding.is_replicated());
    let Some(first) = cutting.next() else { return Ok((0..n_devices as u32).collect()) };
    let Some(other) = cutting.find(|said| said.sharding.mesh.devices != first.sharding.mesh.devices) else {
        return Ok(first.sharding.mesh.devices.clone());
    };
    let all: Vec<&AxisSharding> = said.iter().map(|said| &said.sharding).collect();
    find_common_order(&all, n_devices).ok_or_else(|| {
        let text = format!("sharding {}: expected the order of devices of {}, found another", other.text, first.text);
        PartitionError::about("device-order", other.by, text)
    })
}

/// A sharding on devices in this order.
fn in_order(said: &Said, order: &[u32]) -> Result<AxisSharding, PartitionError> {
    if said.sharding.is_replicated() || said.sharding.mesh.devices == order {
        return Ok(said.sharding.clone());
    }
    said.sharding.in_order(order).ok_or_else(|| foreign(said))
}

/// Sizes of the atoms between all cuts, major first.
fn prime_sizes(said: &[Said], n_devices: usize) -> Result<Vec<i64>, PartitionError> {
    let mut cuts = vec![(1, None), (n_devices as i64, None)];
    for (at, said) in said.iter().enumerate() {
        for part in said.sharding.parts() {
            let stride = said.sharding.mesh.stride(part);
            cuts.extend([(stride, Some(at)), (stride * part.size, Some(at))]);
        }
    }
    cuts.sort();
    cuts.dedup_by_key(|cut| cut.0);
    let mut sizes = Vec::new();
    for pair in cuts.windows(2) {
        let [(low, one), (high, other)] = *pair else { continue };
        if high % low != 0 {
            let text = |at: Option<usize>| at.and_then(|at| said.get(at)).map_or("the mesh", |said| &said.text);
            let by = other.or(one).and_then(|at| said.get(at)).map_or(Entity::Module, |said| said.by);
            let text = format!("shardings {} and {}: expected cuts that divide one another", text(one), text(other));
            return Err(PartitionError::about("mesh", by, text));
        }
        sizes.extend(primes(high / low));
    }
    sizes.reverse();
    Ok(sizes)
}
