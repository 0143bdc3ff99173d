//! Manual regions: where the front end's code is already that of each device, along some axes.
//!
//! A value within a region is whole along the manual axes, each device's own; it may be cut along the others. On the way in and out
//! nothing moves but what the annotations ask for: the tile stays, and only what counts as whole changes.

use super::lowering::{Leaves, Lowering, TileValue};
use crate::error::PartitionError;
use crate::sharding::{ArraySharding, Atom, AtomList};
use hlo_ir::attrs::Attrs;
use hlo_ir::custom_target::{Boundary, CustomTarget};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::groups::AxisRef;
use hlo_ir::monoid::Monoid;
use hlo_ir::op::CollectiveRule;
use hlo_ir::sharding::{LeafSharding, NamedDim, NamedSharding, ShardingKind};
use hlo_ir::shardy::{self, attribute};
use hlo_ir::{ArrayShape, InstId, Shape};

/// Why a call is refused of which the front end alone knows what it computes.
const NOT_IN_MODULE: &str = "expected operations that the module defines, found the custom call `CustomSPMDPartitioning`: only the function \
    that JAX's `custom_partitioning` registered knows what each device computes. Partition in the process that registered it (`hlo_opt.jax`), or \
    write the operation without `custom_partitioning`";

/// What an end of a region says of its values.
struct RegionEnd {
    /// How each whole value is cut, along all axes that are named.
    wholes: Vec<ArraySharding>,
    /// The atoms along which the code within is manual.
    manual: AtomList,
}

impl Lowering<'_> {
    /// What an instruction becomes that says how a value is cut, or that begins or ends a region; `None` for all others.
    pub(super) fn lower_region_end(&mut self, inst: InstId) -> Result<Option<Leaves>, PartitionError> {
        let Some(target) = CustomTarget::of(&self.module.inst(inst).attrs) else { return Ok(None) };
        if !target.is_of_partitioner() {
            return Ok(None);
        }
        let mut leaves = Leaves::new();
        for operand in self.module.inst(inst).operands.clone() {
            leaves.extend(self.leaves(operand)?);
        }
        match target {
            CustomTarget::Move(_) => Ok(None),
            CustomTarget::Callback => Err(self.refuse(inst, NOT_IN_MODULE)),
            CustomTarget::Group => Ok(Some(Leaves::new())),
            CustomTarget::Annotation => {
                for (k, leaf) in leaves.iter_mut().enumerate() {
                    let target = self.wanted(inst, k)?.unwrap_or_else(|| leaf.sharding.resolved());
                    *leaf = self.reshard(leaf, &target)?;
                }
                Ok(Some(leaves))
            }
            CustomTarget::Boundary(boundary) => {
                let end = match self.attributes_end(inst, boundary)? {
                    Some(end) => end,
                    None => self.annotated_end(inst, boundary, &leaves)?,
                };
                self.cross(inst, boundary, leaves, &end).map(Some)
            }
        }
    }

    /// An end that Shardy's attributes describe.
    fn attributes_end(&self, inst: InstId, boundary: Boundary) -> Result<Option<RegionEnd>, PartitionError> {
        let marks = self.module.inst(inst).marks.as_deref();
        let attributes = marks.map_or(&[][..], |marks| &marks.frontend_attributes);
        let key = match boundary {
            Boundary::Begin => shardy::IN_SHARDINGS,
            Boundary::End => shardy::OUT_SHARDINGS,
        };
        let Some(text) = attribute(attributes, key) else { return Ok(None) };
        let wrong = |error: shardy::Error| self.refuse(inst, error.to_string());
        let shardings = self.meshes.shardings(text).map_err(wrong)?;
        let names = attribute(attributes, shardy::MANUAL_AXES).map(shardy::manual_axes).transpose().map_err(wrong)?;
        let names = names.unwrap_or_default();
        let (mut wholes, mut manual) = (Vec::new(), AtomList::new());
        for sharding in &shardings {
            let rank = sharding.named.dims.len();
            let read = self.mesh.read(&sharding.as_leaf(), rank, Entity::Inst(inst))?;
            wholes.push(read.map(|read| read.sharding.resolved()).unwrap_or_else(|| ArraySharding::replicated(rank)));
            for name in &names {
                let axis = AxisRef { name: name.clone(), sub: None };
                let dims = vec![NamedDim { axes: vec![axis], is_open: false }];
                let named = NamedSharding { mesh: sharding.named.mesh.clone(), dims, ..NamedSharding::default() };
                let leaf = LeafSharding::new(ShardingKind::Named(Box::new(named)));
                let read = self.mesh.read(&leaf, 1, Entity::Inst(inst))?;
                manual.extend(read.iter().flat_map(|read| read.sharding.cutting()));
            }
        }
        manual.sort();
        manual.dedup();
        Ok(Some(RegionEnd { wholes, manual }))
    }

    /// The atoms along which the regions of the module are manual; none if there is no region. A region without operands only has
    /// an end.
    pub(super) fn find_region_manual(&self) -> Result<AtomList, PartitionError> {
        let mut manual = AtomList::new();
        for &inst in self.module.computations().iter().flat_map(|&comp| &self.module.comp(comp).insts) {
            let node = self.module.inst(inst);
            let (boundary, inside) = match CustomTarget::of(&node.attrs) {
                Some(CustomTarget::Boundary(Boundary::Begin)) => (Boundary::Begin, inst),
                Some(CustomTarget::Boundary(Boundary::End)) => {
                    (Boundary::End, node.operands.first().copied().unwrap_or(inst))
                }
                Some(_) | None => continue,
            };
            match self.attributes_end(inst, boundary)? {
                Some(end) => manual.extend(end.manual),
                None => match (self.annotation(inside, 0)?.filter(|read| !read.manual.is_empty()), boundary) {
                    (Some(read), _) => manual.extend(read.manual),
                    (None, Boundary::Begin) => manual.extend(self.mesh.atoms()),
                    (None, Boundary::End) => {}
                },
            }
        }
        manual.sort();
        manual.dedup();
        Ok(manual)
    }

    /// An end that `sharding=` of operand and result describe.
    fn annotated_end(&self, inst: InstId, boundary: Boundary, leaves: &Leaves) -> Result<RegionEnd, PartitionError> {
        let operand = self.module.inst(inst).operands.first().copied().unwrap_or(inst);
        let (outside, inside) = match boundary {
            Boundary::Begin => (operand, inst),
            Boundary::End => (inst, operand),
        };
        let all: AtomList = self.mesh.atoms().collect();
        let within = self.annotation(inside, 0)?;
        let known = leaves.first().map(|leaf| leaf.manual.clone()).filter(|_| boundary == Boundary::End);
        let manual = match (&within, known) {
            (Some(read), _) if !read.manual.is_empty() => read.manual.clone(),
            (_, Some(known)) if !known.is_empty() => known,
            (_, _) => all,
        };
        let outer = self.annotation(outside, 0)?;
        let rank = leaves.first().and_then(|leaf| leaf.whole.as_array()).map_or(0, ArrayShape::rank);
        let mut whole = outer.map(|read| read.sharding.resolved()).unwrap_or_else(|| ArraySharding::replicated(rank));
        // The manual part of what the outside says, and what is cut within.
        whole.dims.iter_mut().for_each(|atoms| atoms.retain(|atom| manual.contains(atom)));
        let auto = match boundary {
            Boundary::Begin => within.map(|read| read.sharding),
            Boundary::End => leaves.first().map(|leaf| leaf.sharding.resolved()),
        };
        for (atoms, more) in whole.dims.iter_mut().zip(auto.iter().flat_map(|auto| &auto.dims)) {
            atoms.extend(more.iter().copied().filter(|atom| !manual.contains(atom)));
        }
        Ok(RegionEnd { wholes: vec![whole], manual })
    }

    /// Values cross an end of a region.
    fn cross(
        &mut self,
        inst: InstId,
        boundary: Boundary,
        leaves: Leaves,
        end: &RegionEnd,
    ) -> Result<Leaves, PartitionError> {
        let mut wholes = Vec::new();
        self.module.shape(inst).for_each_leaf(&mut |_, shape| wholes.push(shape.clone()));
        if leaves.len() != wholes.len() || end.wholes.len() != wholes.len() {
            let text = format!("expected shardings of {} values, found {}", wholes.len(), end.wholes.len());
            return Err(self.refuse(inst, text));
        }
        let mut out = Leaves::new();
        for ((leaf, whole), said) in leaves.into_iter().zip(wholes).zip(&end.wholes) {
            let crossed = match boundary {
                Boundary::Begin => self.enter(inst, &leaf, whole, said, &end.manual)?,
                Boundary::End => self.leave(inst, &leaf, whole, said, &end.manual)?,
            };
            out.push(crossed);
        }
        Ok(out)
    }

    fn enter(
        &mut self,
        inst: InstId,
        leaf: &TileValue,
        whole: Shape,
        said: &ArraySharding,
        manual: &[Atom],
    ) -> Result<TileValue, PartitionError> {
        let dims = whole.as_array().map(|array| array.dims.clone()).unwrap_or_default();
        let said = &self.cut_evenly_within(said, &dims, manual);
        let cut = self.reshard(leaf, said)?;
        let mut sharding = said.clone();
        for (dim, atoms) in sharding.dims.iter_mut().enumerate() {
            let n_manual = atoms.iter().take_while(|atom| manual.contains(atom)).count();
            if atoms[n_manual..].iter().any(|atom| manual.contains(atom)) {
                let text = format!("dim {dim}: expected manual axes before the others, found them after");
                return Err(self.refuse(inst, text));
            }
            atoms.drain(..n_manual);
        }
        let mut all: AtomList = leaf.manual.iter().chain(manual).copied().collect();
        all.sort();
        all.dedup();
        let inside = TileValue { inst: cut.inst, whole, sharding, monoid: Monoid::Add, manual: all };
        self.check_tile(inst, &inside)?;
        Ok(inside)
    }

    /// A sharding without axes that would cut the tiles of a manual axis unevenly: such tiles of tiles are not those of the whole dim,
    /// whose last devices alone hold less.
    fn cut_evenly_within(&self, said: &ArraySharding, dims: &[i64], manual: &[Atom]) -> ArraySharding {
        let mut out = said.clone();
        for (atoms, size) in out.dims.iter_mut().zip(dims) {
            let n_inner: i64 =
                atoms.iter().filter(|atom| !manual.contains(atom)).map(|&atom| self.mesh.size(atom)).product();
            if atoms.iter().any(|atom| manual.contains(atom)) && size % n_inner != 0 {
                atoms.retain(|atom| manual.contains(atom));
            }
        }
        out
    }

    fn leave(
        &mut self,
        inst: InstId,
        leaf: &TileValue,
        whole: Shape,
        said: &ArraySharding,
        manual: &[Atom],
    ) -> Result<TileValue, PartitionError> {
        let mut resolved = leaf.sharding.resolved();
        let dims = leaf.whole.as_array().map(|array| array.dims.clone()).unwrap_or_default();
        for (dim, size) in dims.iter().enumerate() {
            let is_joined = said.dims.get(dim).is_some_and(|atoms| atoms.iter().any(|atom| manual.contains(atom)));
            if is_joined && size % resolved.n_tiles(&self.mesh, dim) != 0 {
                resolved.dims[dim].clear();
            }
        }
        let leaf = self.reshard(leaf, &resolved)?;
        let mut sharding = leaf.sharding.clone();
        for (atoms, said) in sharding.dims.iter_mut().zip(&said.dims) {
            let inner = std::mem::take(atoms);
            atoms.extend(said.iter().copied().filter(|atom| manual.contains(atom)));
            atoms.extend(inner);
        }
        self.body.left.insert(leaf.inst);
        let left = leaf.manual.iter().copied().filter(|atom| !manual.contains(atom)).collect();
        let outside = TileValue { inst: leaf.inst, whole, sharding, monoid: Monoid::Add, manual: left };
        self.check_tile(inst, &outside)?;
        let target = self.wanted(inst, 0)?.filter(|_| self.module.shape(inst).as_tuple().is_none());
        match target {
            Some(target) => self.reshard(&outside, &target),
            None => self.reshard(&outside, said),
        }
    }

    /// The tile that a device holds is that of the value on both sides.
    fn check_tile(&self, inst: InstId, value: &TileValue) -> Result<(), PartitionError> {
        let Some(whole) = value.whole.as_array() else { return Ok(()) };
        let (expected, found) = (value.sharding.tile_dims(&self.mesh, &whole.dims), self.array(value.inst)?.dims);
        match expected == found {
            true => Ok(()),
            false => Err(self.refuse(
                inst,
                format!(
                    "expected tiles {:?} of {:?}, found {:?}",
                    expected.as_slice(),
                    whole.dims.as_slice(),
                    found.as_slice()
                ),
            )),
        }
    }

    /// A collective of a manual region: its groups are those of the manual axes, and what the other axes cut stays cut where the
    /// collective takes each element for itself.
    pub(super) fn lower_collective(&mut self, inst: InstId, rule: CollectiveRule) -> Result<Leaves, PartitionError> {
        let mut operands = Leaves::new();
        for operand in self.module.inst(inst).operands.clone() {
            operands.push(self.leaf(operand)?);
        }
        if operands.iter().all(|operand| operand.manual.is_empty()) && !self.region_manual.is_empty() {
            // The operands are constants of the region.
            operands.iter_mut().for_each(|operand| operand.manual = self.region_manual.clone());
        }
        if operands.iter().all(|operand| operand.manual.is_empty()) {
            return Err(self.refuse(inst, "expected a collective within a manual region, found one outside"));
        }
        let dims: Vec<i64> = match self.module.inst(inst).attrs.collective() {
            Some(view) if rule.has_dim() => view.dimensions.to_vec(),
            Some(_) | None => Vec::new(),
        };
        // A tuple-shaped exchange has no dim: whole operands change places.
        let first = operands.first().map(|operand| operand.sharding.resolved()).unwrap_or_default();
        let is_elementwise = self.is_within_groups(inst, &first);
        let mut insts = Vec::new();
        let mut shardings = Vec::new();
        for operand in &operands {
            let mut target = operand.sharding.resolved();
            for (dim, atoms) in target.dims.iter_mut().enumerate() {
                if !is_elementwise || dims.contains(&(dim as i64)) {
                    atoms.clear();
                }
            }
            insts.push(self.reshard(operand, &target)?.inst);
            shardings.push(target);
        }
        let shape = self.module.shape(inst).clone();
        let mut forms = Vec::new();
        let manual = operands.first().map(|operand| operand.manual.clone()).unwrap_or_default();
        shape.for_each_leaf(&mut |_, whole| {
            let sharding = shardings.get(forms.len()).or(shardings.first()).cloned().unwrap_or_default();
            forms.push(super::lowering::LeafForm { whole: whole.clone(), sharding, manual: manual.clone() });
        });
        let local = self.local_shape(&shape, &forms);
        let (opcode, attrs): (_, Attrs) = (self.module.inst(inst).opcode, self.module.inst(inst).attrs.clone());
        let new = Builder::new(self.module, self.body.comp).add("collective", opcode, local, insts, attrs);
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        let insts = self.elements(new);
        let mut leaves = Leaves::new();
        for (k, (inst_of_leaf, form)) in insts.into_iter().zip(forms).enumerate() {
            let super::lowering::LeafForm { whole, sharding, manual } = form;
            let leaf = TileValue { inst: inst_of_leaf, whole, sharding, monoid: Monoid::Add, manual };
            leaves.push(match self.wanted(inst, k)? {
                Some(wanted) => self.reshard(&leaf, &wanted)?,
                None => leaf,
            });
        }
        Ok(leaves)
    }

    /// Whether all members of each group hold tiles of the same place.
    fn is_within_groups(&self, inst: InstId, sharding: &ArraySharding) -> bool {
        let atoms: AtomList = sharding.cutting().collect();
        if atoms.is_empty() {
            return true;
        }
        let places = self.mesh.places(&atoms);
        let Ok(groups) = self.module.device_groups(inst) else { return false };
        groups.groups.iter().all(|group| {
            let mut of_members = group.iter().map(|&device| places.get(device as usize));
            let first = of_members.next();
            of_members.all(|place| Some(place) == first)
        })
    }

    /// The number of this device: only a manual region may ask for it.
    pub(super) fn lower_device_number(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        let (opcode, shape) = (self.module.inst(inst).opcode, self.module.shape(inst).clone());
        let manual: AtomList = match self.annotation(inst, 0)? {
            Some(read) if !read.manual.is_empty() => read.manual,
            // Front ends write it in a function of its own, without an annotation.
            Some(_) | None if !self.region_manual.is_empty() => self.region_manual.clone(),
            Some(_) | None if self.body.is_manual => self.mesh.atoms().collect(),
            Some(_) | None => {
                return Err(
                    self.refuse(inst, "expected the number of a device within a manual region, found it outside")
                );
            }
        };
        let new = Builder::new(self.module, self.body.comp).add("id", opcode, shape.clone(), [], Attrs::Plain);
        self.keep_name(new, inst);
        Ok(self.replicated_leaves(new, &shape, &manual))
    }
}
