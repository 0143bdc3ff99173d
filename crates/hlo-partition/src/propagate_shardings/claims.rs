//! What the user says of one value, in whichever words.

use super::calls::front_end;
use super::values::{AtomSet, CutValue, Waiting, bits};
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::sharding::AtomList;
use hlo_ir::diag::Entity;
use hlo_ir::groups::AxisRef;
use hlo_ir::names::FixedHash;
use hlo_ir::sharding::{LeafSharding, NamedDim, NamedSharding, ShardGroup, ShardingKind};
use hlo_ir::shardy::{self, Meshes, ShardySharding, attribute};
use hlo_ir::{InstId, Module};
use indexmap::IndexMap;
use std::sync::Arc;

/// The user's word on one dim.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClaimedDim {
    pub atoms: AtomList,
    pub is_open: bool,
    pub priority: u32,
}

/// The user's word on one value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Claim {
    pub dims: Vec<ClaimedDim>,
    /// Atoms over which the value must stay replicated.
    pub pinned: AtomSet,
    /// Atoms over which it is a partial result.
    pub partial: AtomSet,
    /// Atoms along which it is local already.
    pub manual: AtomSet,
    pub group: Option<ShardGroup>,
}

/// What is said in HLO's words of an array: the sharding, the rank, and GSPMD's list of dims that are left open.
type LeafKey = (LeafSharding, usize, Option<String>);

/// Reads annotations, each text once.
pub(crate) struct ClaimReader<'m> {
    module: &'m Module,
    pub mesh: &'m ModuleMesh,
    meshes: Meshes,
    of_leaves: IndexMap<LeafKey, Option<Arc<Claim>>, FixedHash>,
    of_texts: IndexMap<String, Vec<Arc<Claim>>, FixedHash>,
}

impl<'m> ClaimReader<'m> {
    pub(crate) fn new(module: &'m Module, mesh: &'m ModuleMesh) -> Result<ClaimReader<'m>, PartitionError> {
        let meshes = Meshes::of(&module.header)
            .map_err(|error| PartitionError::about("sharding", Entity::Module, error.to_string()))?;
        Ok(ClaimReader { module, mesh, meshes, of_leaves: IndexMap::default(), of_texts: IndexMap::default() })
    }

    /// What an instruction says of a leaf of its result; Shardy's attribute wins over `sharding=`.
    ///
    /// # Errors
    /// It is malformed, or not on the axes of the module's mesh.
    pub(crate) fn claim(&mut self, inst: InstId, leaf: u32) -> Result<Option<Arc<Claim>>, PartitionError> {
        if let Some(text) = attribute(front_end(self.module, inst), shardy::SHARDING) {
            let all = self.texts(inst, text)?;
            return Ok(all.get(leaf as usize).or(all.first().filter(|_| all.len() == 1)).cloned());
        }
        let Some(said) = self.module.sharding(inst).and_then(|sharding| sharding.leaf(leaf as usize)) else {
            return Ok(None);
        };
        let shape = self.module.shapes.leaf(self.module.inst(inst).shape, leaf as usize);
        let Some(array) = shape.and_then(|shape| shape.as_array()) else { return Ok(None) };
        let config = self.module.inst(inst).marks.as_ref().and_then(|marks| marks.backend_config.clone());
        let open = config.filter(|config| config.contains(UNSPECIFIED));
        let key = (said.clone(), array.rank(), open);
        if let Some(known) = self.of_leaves.get(&key) {
            return Ok(known.clone());
        }
        let claim = self.read_leaf(inst, said, array.rank(), key.2.as_deref())?.map(Arc::new);
        self.of_leaves.insert(key, claim.clone());
        Ok(claim)
    }

    /// The claims of an attribute in Shardy's words.
    pub(crate) fn texts(&mut self, inst: InstId, text: &str) -> Result<Vec<Arc<Claim>>, PartitionError> {
        if let Some(known) = self.of_texts.get(text) {
            return Ok(known.clone());
        }
        let said = self.meshes.shardings(text).map_err(|error| malformed(inst, &error))?;
        let claims = said.iter().map(|one| self.read_shardy(inst, one).map(Arc::new));
        let claims: Vec<Arc<Claim>> = claims.collect::<Result<_, _>>()?;
        self.of_texts.insert(text.to_string(), claims.clone());
        Ok(claims)
    }

    /// The atoms of the axes that `manual_axes` names, on the mesh of the shardings beside it.
    pub(crate) fn manual_axes(&self, inst: InstId, text: &str, beside: &str) -> Result<AtomSet, PartitionError> {
        let names = shardy::manual_axes(text).map_err(|error| malformed(inst, &error))?;
        let said = self.meshes.shardings(beside).map_err(|error| malformed(inst, &error))?;
        let Some(first) = said.first() else {
            // Without values there is nothing that names the mesh: all axes of this name.
            let mut all =
                self.meshes.iter().map(|mesh| NamedSharding { mesh: mesh.clone(), ..NamedSharding::default() });
            let on = all.find(|n| names.iter().all(|name| n.mesh.axes.iter().any(|(known, _)| known == name)));
            return on.map_or(Ok(0), |named| self.axis_set(inst, &named, &whole_axes(&names)));
        };
        self.axis_set(inst, &first.named, &whole_axes(&names))
    }

    fn axis_set(&self, inst: InstId, on: &NamedSharding, axes: &[AxisRef]) -> Result<AtomSet, PartitionError> {
        if axes.is_empty() {
            return Ok(0);
        }
        let dims = vec![NamedDim { axes: axes.to_vec(), is_open: false }];
        let named = NamedSharding { mesh: on.mesh.clone(), dims, ..NamedSharding::default() };
        let leaf = LeafSharding::new(ShardingKind::Named(Box::new(named)));
        let read = self.mesh.read(&leaf, 1, Entity::Inst(inst))?;
        Ok(read.map_or(0, |read| bits(read.sharding.dims.iter().flatten())))
    }

    fn read_shardy(&self, inst: InstId, said: &ShardySharding) -> Result<Claim, PartitionError> {
        let leaf = said.as_leaf();
        let mut claim = self.read_leaf(inst, &leaf, said.named.dims.len(), None)?.unwrap_or_default();
        for (dim, &priority) in claim.dims.iter_mut().zip(&said.priorities) {
            dim.priority = priority;
        }
        Ok(claim)
    }

    /// A sharding in HLO's words; `None` where it claims nothing.
    fn read_leaf(
        &self,
        inst: InstId,
        said: &LeafSharding,
        rank: usize,
        config: Option<&str>,
    ) -> Result<Option<Claim>, PartitionError> {
        let Some(read) = self.mesh.read(said, rank, Entity::Inst(inst))? else { return Ok(None) };
        let unspecified = config.map(unspecified_dims).unwrap_or_default();
        let (mut open, mut pinned) = (vec![false; rank], 0);
        if let ShardingKind::Named(named) = &said.kind {
            open = named.dims.iter().map(|dim| dim.is_open).collect();
            open.resize(rank, false);
            pinned = self.axis_set(inst, named, &named.replicated)?;
        }
        let dims = read.sharding.dims.iter().enumerate().map(|(d, atoms)| ClaimedDim {
            atoms: atoms.clone(),
            is_open: open.get(d) == Some(&true) || unspecified.contains(&d),
            priority: 0,
        });
        let (partial, manual) = (bits(&read.sharding.partial), bits(&read.manual));
        Ok(Some(Claim { dims: dims.collect(), pinned, partial, manual, group: said.group }))
    }
}

fn malformed(inst: InstId, error: &shardy::Error) -> PartitionError {
    PartitionError::about("sharding", Entity::Inst(inst), error.to_string())
}

fn whole_axes(names: &[String]) -> Vec<AxisRef> {
    names.iter().map(|name| AxisRef { name: name.clone(), sub: None }).collect()
}

const UNSPECIFIED: &str = "unspecified_dims=[";

/// The dims that GSPMD may cut further: `unspecified_dims=[0,1]`.
fn unspecified_dims(config: &str) -> Vec<usize> {
    let Some((_, rest)) = config.split_once(UNSPECIFIED) else { return Vec::new() };
    let list = rest.split(']').next().unwrap_or_default();
    list.split(',').filter_map(|number| number.trim().parse().ok()).collect()
}

impl Claim {
    /// Puts the claim on a value, without the atoms in `without`: those along which the value is local. Dims of later priorities
    /// wait, closed, and keep their atoms from others.
    pub(crate) fn put_on(&self, value: &mut CutValue, by: InstId, without: AtomSet) {
        value.claimed_by = Some(by);
        value.partial |= self.partial;
        value.taken |= self.pinned | self.partial;
        for (d, said) in self.dims.iter().enumerate() {
            let kept = said.atoms.iter().copied().filter(|&atom| super::values::bit(atom) & without == 0);
            let (atoms, is_closed): (AtomList, bool) = (kept.collect(), !said.is_open);
            let Some(dim) = value.dims.get_mut(d) else { continue };
            if said.priority > 0 {
                dim.is_closed = true;
                value.taken |= bits(&atoms);
                value.waiting.push(Waiting { priority: said.priority, dim: d, atoms, is_closed });
                continue;
            }
            dim.is_closed = is_closed;
            value.used |= bits(&atoms);
            dim.atoms = atoms;
        }
    }

    /// Whether the value has what the claim says.
    pub(crate) fn agrees_with(&self, value: &CutValue) -> bool {
        self.dims.len() == value.dims.len()
            && self.dims.iter().zip(&value.dims).all(|(said, dim)| match said.is_open {
                true => dim.atoms.starts_with(&said.atoms),
                false => dim.atoms == said.atoms,
            })
    }
}
