//! The program of one device, computation by computation.

use super::choose::ComputeRule;
use super::shifts::only_shifted;
use crate::error::PartitionError;
use crate::mesh::{ModuleMesh, ReadSharding};
use crate::prices::{Price, Prices};
use crate::sharding::{ArraySharding, AtomList};
use cranelift_entity::EntitySet;
use hlo_ir::attrs::{Attrs, DimsAttrs, ParameterAttrs};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::monoid::Monoid;
use hlo_ir::names::FixedHash;
use hlo_ir::op::Flow;
use hlo_ir::sharding::LeafSharding;
use hlo_ir::shardy::{self, Meshes};
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode, Shape};
use hlo_mesh::Machine;
use hlo_pass::Deadline;
use hlo_pass::report::Decision;
use hlo_spmd::redistribution::{Redistribution, RedistributionRequest, plan_redistribution};
use hlo_spmd::{ChannelIds, CollectiveChange, DeviceTables};
use indexmap::IndexMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;

/// One leaf of a value, as this device holds it.
#[derive(Clone, Debug)]
pub(super) struct TileValue {
    /// The instruction that computes it.
    pub inst: InstId,
    /// The whole value; within a manual region, whole along the other axes.
    pub whole: Shape,
    /// How it is cut, and over which atoms it is partial.
    pub sharding: ArraySharding,
    /// How partial results are combined.
    pub monoid: Monoid,
    /// The atoms along which the code is manual.
    pub manual: AtomList,
}

impl TileValue {
    /// What callers of a computation need to know of it.
    fn form(&self) -> LeafForm {
        LeafForm { whole: self.whole.clone(), sharding: self.sharding.clone(), manual: self.manual.clone() }
    }
}

/// How a parameter or a result of a computation is cut.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LeafForm {
    pub whole: Shape,
    pub sharding: ArraySharding,
    pub manual: AtomList,
}

/// Rows of a dim that devices send: the value, the dim, from and to which row, and who sends to whom.
pub(super) type SentRows = (InstId, usize, (i64, i64), Vec<(i64, i64)>);

/// The leaves of a value.
pub(super) type Leaves = SmallVec<[TileValue; 1]>;

/// The computation that is being written.
pub(super) struct Body {
    pub comp: CompId,
    /// The instruction of the global program that is being lowered.
    pub source: Option<InstId>,
    /// What the instructions of the global program have become.
    pub values: IndexMap<InstId, Leaves, FixedHash>,
    pub numbers: IndexMap<i64, InstId>,
    pub tables: DeviceTables,
    /// What values have been brought to: an instruction is another value within a manual region than outside.
    resharded: IndexMap<(InstId, LeafForm, ArraySharding), InstId>,
    /// What left manual regions: each device may have computed another value.
    pub(super) left: EntitySet<InstId>,
    /// Rows that were sent.
    pub sent: IndexMap<SentRows, InstId>,
    /// Whether a parameter is a value of a manual region.
    pub is_manual: bool,
}

impl Body {
    fn new(comp: CompId) -> Body {
        Body {
            comp,
            source: None,
            values: IndexMap::default(),
            numbers: IndexMap::new(),
            tables: DeviceTables::default(),
            resharded: IndexMap::new(),
            left: EntitySet::new(),
            sent: IndexMap::new(),
            is_manual: false,
        }
    }
}

/// A redistribution as a key: element type, dims, source, target, manual atoms, monoid.
type PlanKey = (DType, Vec<i64>, ArraySharding, ArraySharding, AtomList, Monoid);

/// A computation, how its parameters are cut, and how its results are wanted.
type Signature = (CompId, Vec<LeafForm>, Option<Vec<ArraySharding>>);

/// Lowers a global program, of which `module` is a copy that is written to.
pub(super) struct Lowering<'m> {
    pub module: &'m mut Module,
    pub mesh: ModuleMesh,
    pub meshes: Meshes,
    pub channels: ChannelIds,
    pub body: Body,
    /// Annotations that were read, with the ranks of what they cut.
    read: RefCell<IndexMap<(LeafSharding, usize), Option<ReadSharding>, FixedHash>>,
    plans: IndexMap<PlanKey, Rc<Redistribution>>,
    /// Computations that were lowered, by how their parameters are cut and their results are wanted.
    lowered: IndexMap<Signature, (CompId, Vec<LeafForm>)>,
    /// What decides how ops are cut.
    pub prices: Prices,
    /// How ops are cut.
    pub rule: ComputeRule,
    /// When to stop.
    deadline: Deadline,
    /// The atoms along which the regions of the module are manual.
    pub region_manual: AtomList,
    /// Instructions whose names are taken by what they became.
    named: EntitySet<InstId>,
    /// Slices that nothing but shifts reads.
    only_shifted: EntitySet<InstId>,
    pub order: Vec<CompId>,
    pub decisions: IndexMap<InstId, Decision>,
}

impl<'m> Lowering<'m> {
    pub(super) fn new(
        module: &'m mut Module,
        entry: CompId,
        ((price, machine), rule): ((Price, &Machine), ComputeRule),
        deadline: Deadline,
    ) -> Result<Lowering<'m>, PartitionError> {
        let mesh = ModuleMesh::of(module)?;
        let prices = price.of_devices(machine, mesh.n_devices())?;
        let meshes = Meshes::of(&module.header)
            .map_err(|error| PartitionError::about("sharding", Entity::Module, error.to_string()))?;
        module.header.num_partitions = mesh.n_devices() as i64;
        let channels = ChannelIds::free_in(module);
        let only_shifted = only_shifted(module);
        let mut lowering = Lowering {
            module,
            mesh,
            meshes,
            channels,
            body: Body::new(entry),
            read: RefCell::default(),
            plans: IndexMap::new(),
            lowered: IndexMap::new(),
            prices,
            rule,
            deadline,
            region_manual: AtomList::new(),
            named: EntitySet::new(),
            only_shifted,
            order: Vec::new(),
            decisions: IndexMap::new(),
        };
        lowering.region_manual = lowering.find_region_manual()?;
        Ok(lowering)
    }

    /// A defect of this pass, about the instruction that is being lowered.
    pub(super) fn defect(&self, what: String) -> PartitionError {
        match self.body.source {
            Some(inst) => self.refuse(inst, what),
            None => PartitionError::about("partition", Entity::Module, what),
        }
    }

    /// An error about an instruction of the global program.
    pub(super) fn refuse(&self, inst: InstId, what: impl AsRef<str>) -> PartitionError {
        let text = format!("`%{}`: {}", self.module.inst_name(inst), what.as_ref());
        PartitionError::about("partition", Entity::Inst(inst), text)
    }

    /// What the annotation of a leaf says; `None` where there is none.
    pub(super) fn annotation(&self, inst: InstId, leaf: usize) -> Result<Option<ReadSharding>, PartitionError> {
        let rank = match self.leaf_shape(inst, leaf) {
            Some(Shape::Array(array)) => array.rank(),
            Some(Shape::Tuple(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_)) | None => return Ok(None),
        };
        let marks = self.module.inst(inst).marks.as_deref();
        let attributes = marks.map_or(&[][..], |marks| &marks.frontend_attributes);
        if let Some(text) = shardy::attribute(attributes, shardy::SHARDING) {
            let all = self.meshes.shardings(text).map_err(|error| self.refuse(inst, error.to_string()))?;
            let one = if all.len() == 1 { all.first() } else { all.get(leaf) };
            let own = one.filter(|one| one.named.dims.len() == rank).map(|one| one.as_leaf());
            if let Some(own) = own {
                return self.mesh.read(&own, rank, Entity::Inst(inst));
            }
        }
        let Some(own) = self.module.sharding(inst).and_then(|sharding| sharding.leaf(leaf)) else { return Ok(None) };
        let key = (own.clone(), rank);
        if let Some(known) = self.read.borrow().get(&key) {
            return Ok(known.clone());
        }
        let read = self.mesh.read(own, rank, Entity::Inst(inst))?;
        self.read.borrow_mut().insert(key, read.clone());
        Ok(read)
    }

    fn leaf_shape(&self, inst: InstId, leaf: usize) -> Option<&Shape> {
        self.module.shapes.leaf(self.module.inst(inst).shape, leaf)
    }

    /// How a leaf is wanted: as annotated, without what is manual there.
    pub(super) fn wanted(&self, inst: InstId, leaf: usize) -> Result<Option<ArraySharding>, PartitionError> {
        Ok(self.annotation(inst, leaf)?.map(|read| read.sharding.resolved()))
    }

    /// The leaves of an operand.
    pub(super) fn leaves(&self, operand: InstId) -> Result<Leaves, PartitionError> {
        let known = self.body.values.get(&operand).cloned();
        known.ok_or_else(|| self.refuse(operand, "expected it before its users"))
    }

    /// The only leaf of an operand.
    pub(super) fn leaf(&self, operand: InstId) -> Result<TileValue, PartitionError> {
        match self.leaves(operand)?.as_slice() {
            [only] => Ok(only.clone()),
            _ => Err(self.refuse(operand, "expected an array, found a tuple")),
        }
    }

    /// Writes the computation for parameters cut like this, results cut as wanted (or as they come); gives it and how its results are cut.
    pub(super) fn lower_computation(
        &mut self,
        comp: CompId,
        params: &[LeafForm],
        wanted: Option<&[ArraySharding]>,
    ) -> Result<(CompId, Vec<LeafForm>), PartitionError> {
        let key = (comp, params.to_vec(), wanted.map(<[ArraySharding]>::to_vec));
        if let Some(known) = self.lowered.get(&key) {
            return Ok(known.clone());
        }
        let hint = self.module.comp_name(comp).to_string();
        let name = self.module.names.fresh(&hint);
        let new = self.module.add_computation(name);
        self.module.comp_mut(new).execution_thread = self.module.comp(comp).execution_thread.clone();
        let outer = std::mem::replace(&mut self.body, Body::new(new));
        let results = self.write_body(comp, params, wanted);
        self.body = outer;
        let results = results?;
        self.order.push(new);
        self.lowered.insert(key, (new, results.clone()));
        Ok((new, results))
    }

    fn write_body(
        &mut self,
        comp: CompId,
        params: &[LeafForm],
        wanted: Option<&[ArraySharding]>,
    ) -> Result<Vec<LeafForm>, PartitionError> {
        self.body.is_manual = params.iter().any(|form| !form.manual.is_empty());
        let mut given = params.iter();
        for (number, param) in self.module.comp(comp).params.clone().into_iter().enumerate() {
            let n_leaves = self.module.shape(param).n_leaves();
            let forms: Vec<LeafForm> = given.by_ref().take(n_leaves).cloned().collect();
            self.write_parameter(param, number, &forms)?;
        }
        for inst in self.module.comp(comp).insts.clone() {
            // Slices that shifts alone read are written where one of them needs them.
            if self.module.inst(inst).opcode != Opcode::Parameter && !self.only_shifted.contains(inst) {
                self.deadline.check()?;
                self.body.source = Some(inst);
                let leaves = self.lower(inst)?;
                self.body.values.insert(inst, leaves);
            }
        }
        let root = self.module.comp(comp).root.expand();
        let root = root.ok_or_else(|| self.defect("a computation without a root".into()))?;
        self.body.source = Some(root);
        let mut leaves = self.leaves(root)?;
        for (k, leaf) in leaves.iter_mut().enumerate() {
            let target = match wanted.and_then(|wanted| wanted.get(k)) {
                Some(wanted) => wanted.clone(),
                None => self.wanted(root, k)?.unwrap_or_else(|| leaf.sharding.resolved()),
            };
            *leaf = self.reshard(leaf, &target)?;
        }
        let shape = self.module.shape(root).clone();
        let new_root = self.whole_value(&shape, &leaves)?;
        self.module.comp_mut(self.body.comp).root = Some(new_root).into();
        Ok(leaves.iter().map(TileValue::form).collect())
    }

    fn write_parameter(&mut self, param: InstId, number: usize, forms: &[LeafForm]) -> Result<(), PartitionError> {
        self.body.source = Some(param);
        let shape = self.module.shape(param).clone();
        let local = self.local_shape(&shape, forms);
        let attrs = ParameterAttrs { number: number as i64, ..ParameterAttrs::default() };
        let new = Builder::new(self.module, self.body.comp).add("param", Opcode::Parameter, local, [], attrs);
        self.keep_name(new, param);
        self.keep_marks(new, param);
        let mut leaves = Leaves::new();
        let insts = self.elements(new);
        for (inst, form) in insts.into_iter().zip(forms) {
            let LeafForm { whole, sharding, manual } = form.clone();
            leaves.push(TileValue { inst, whole, sharding, monoid: Monoid::Add, manual });
        }
        self.body.values.insert(param, leaves);
        Ok(())
    }

    /// The shape with a tile in the place of each leaf, which keeps its layout.
    pub(super) fn local_shape(&self, shape: &Shape, forms: &[LeafForm]) -> Shape {
        fn walk<'a>(mesh: &ModuleMesh, shape: &Shape, forms: &mut impl Iterator<Item = &'a LeafForm>) -> Shape {
            match shape {
                Shape::Tuple(elements) => {
                    Shape::Tuple(elements.iter().map(|element| walk(mesh, element, forms)).collect())
                }
                Shape::Array(array) => {
                    let form = forms.next();
                    let dims = form.map(|form| form.sharding.tile_dims(mesh, &array.dims));
                    Shape::Array(ArrayShape { dims: dims.unwrap_or_else(|| array.dims.clone()), ..array.clone() })
                }
                Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
                    forms.next();
                    shape.clone()
                }
            }
        }
        walk(&self.mesh, shape, &mut forms.iter())
    }

    /// The leaves of a value, each taken out of the tuples round it.
    pub(super) fn elements(&mut self, value: InstId) -> Vec<InstId> {
        let Some(shapes) = self.module.shape(value).as_tuple().map(<[Shape]>::to_vec) else { return vec![value] };
        let mut out = Vec::new();
        for (index, shape) in shapes.iter().enumerate() {
            let element = self.element(value, index, shape);
            out.extend(self.elements(element));
        }
        out
    }

    /// The value of these leaves, in tuples as `shape` has them.
    pub(super) fn whole_value(&mut self, shape: &Shape, leaves: &[TileValue]) -> Result<InstId, PartitionError> {
        let Some(elements) = shape.as_tuple().map(<[Shape]>::to_vec) else {
            return leaves.first().map(|leaf| leaf.inst).ok_or_else(|| self.defect("a value without leaves".into()));
        };
        let (mut rest, mut parts) = (leaves, Vec::new());
        for element in &elements {
            let (own, others) = rest.split_at(element.n_leaves().min(rest.len()));
            parts.push(self.whole_value(element, own)?);
            rest = others;
        }
        let shape = Shape::Tuple(parts.iter().map(|&part| self.module.shape(part).clone()).collect());
        Ok(Builder::new(self.module, self.body.comp).add("tuple", Opcode::Tuple, shape, parts, Attrs::Plain))
    }

    /// The new instruction bears the name of the old one, unless another copy of its computation has it.
    pub(super) fn keep_name(&mut self, new: InstId, old: InstId) {
        if self.named.insert(old) {
            let name = self.module.inst(old).name;
            self.module.inst_mut(new).name = name;
        }
    }

    /// The new instruction has the marks of the old one that hold on each device.
    pub(super) fn keep_marks(&mut self, new: InstId, old: InstId) {
        let Some(marks) = self.module.inst(old).marks.clone() else { return };
        *self.module.marks_mut(new) = (*marks).clone();
        let marks = self.module.marks_mut(new);
        marks.sharding = None;
        marks.frontend_attributes.retain(|(key, _)| !key.starts_with("xla.sdy."));
        if marks.is_empty() {
            self.module.inst_mut(new).marks = None;
        }
    }

    /// The value as `target` cuts it.
    pub(super) fn reshard(&mut self, value: &TileValue, target: &ArraySharding) -> Result<TileValue, PartitionError> {
        let Shape::Array(whole) = &value.whole else { return Ok(value.clone()) };
        if value.sharding == *target {
            return Ok(value.clone());
        }
        let key = (value.inst, value.form(), target.clone());
        if let Some(&inst) = self.body.resharded.get(&key) {
            return Ok(TileValue { inst, sharding: target.clone(), ..value.clone() });
        }
        let inst = match self.rebuilt(value, whole, target) {
            Some(rebuilt) => rebuilt,
            None => match self.redistributed(value, whole, target) {
                Ok(inst) => inst,
                Err(error) => self.in_steps(value, target)?.ok_or(error)?,
            },
        };
        self.body.resharded.insert(key, inst);
        Ok(TileValue { inst, sharding: target.clone(), ..value.clone() })
    }

    /// The value brought to `target` by way of another sharding, where no plan goes there at once: partial results are combined first, and
    /// then the array is gathered. Tiles of few elements that do not lie on one another need this.
    fn in_steps(&mut self, value: &TileValue, target: &ArraySharding) -> Result<Option<InstId>, PartitionError> {
        let (resolved, whole) = (value.sharding.resolved(), ArraySharding::replicated(value.sharding.dims.len()));
        let between = match (value.sharding.partial.is_empty(), value.sharding == whole || *target == whole) {
            (false, _) if *target != resolved => resolved,
            (true, false) => whole,
            (_, _) => return Ok(None),
        };
        let between = self.reshard(value, &between)?;
        self.reshard(&between, target).map(|value| Some(value.inst))
    }

    /// A scalar that is repeated has any tile at once, if it is the same on all devices, and so has an array without elements.
    fn rebuilt(&mut self, value: &TileValue, whole: &ArrayShape, target: &ArraySharding) -> Option<InstId> {
        let node = self.module.inst(value.inst);
        let tile = target.tile_shape(&self.mesh, whole);
        let is_repeated = node.opcode == Opcode::Broadcast && value.sharding.partial.is_empty();
        let is_equal = |scalar: InstId| {
            !self.body.left.contains(value.inst) || self.module.inst(scalar).opcode == Opcode::Constant
        };
        let scalar = node.operands.first().copied().filter(|&o| is_repeated && self.rank(o) == Some(0) && is_equal(o));
        let scalar = match scalar {
            Some(scalar) => scalar,
            None if whole.n_elems() == 0 => self.scalar("zero", whole.dtype, hlo_ir::Scalar::Pred(false)),
            None => return None,
        };
        Some(self.add("broadcast", Opcode::Broadcast, tile, &[scalar], DimsAttrs::default()))
    }

    fn rank(&self, inst: InstId) -> Option<usize> {
        self.module.shape(inst).as_array().map(ArrayShape::rank)
    }

    /// The value brought to `target` by the planner's steps.
    fn redistributed(
        &mut self,
        value: &TileValue,
        whole: &ArrayShape,
        target: &ArraySharding,
    ) -> Result<InstId, PartitionError> {
        let is_truth = whole.dtype == DType::Pred && value.monoid == Monoid::Add;
        let monoid = if is_truth { Monoid::Or } else { value.monoid };
        let plan = self.plan(whole, &value.sharding, target, &value.manual, monoid)?;
        let n_before = self.module.comp(self.body.comp).insts.len();
        let new = plan
            .append_to(self.module, value.inst, &mut self.channels)
            .map_err(|error| self.defect(format!("a redistribution: {error}")))?;
        let added = self.module.comp(self.body.comp).insts[n_before..].to_vec();
        let (from, to) = (self.mesh.leaf(&value.sharding, &value.manual), self.mesh.leaf(target, &value.manual));
        for inst in added {
            if self.module.inst(inst).attrs.collective().is_some() {
                let (received, bound) = (plan.price.bytes, plan.bound_bytes);
                self.explain(inst, || {
                    format!("from {from} to {to}: {received} bytes received per device, at least {bound} lacked")
                });
            }
        }
        Ok(new)
    }

    fn plan(
        &mut self,
        whole: &ArrayShape,
        source: &ArraySharding,
        target: &ArraySharding,
        manual: &[crate::sharding::Atom],
        monoid: Monoid,
    ) -> Result<Rc<Redistribution>, PartitionError> {
        let manual: AtomList = manual.iter().copied().collect();
        let key = (whole.dtype, whole.dims.to_vec(), source.clone(), target.clone(), manual, monoid);
        if let Some(known) = self.plans.get(&key) {
            return Ok(known.clone());
        }
        let (from, to) = (self.mesh.axes(source, &key.4), self.mesh.axes(target, &key.4));
        let request = RedistributionRequest {
            shape: whole,
            source: &from,
            target: &to,
            monoid: Some(monoid),
            cluster: self.prices.cluster(),
            allows_pieces: false,
        };
        let plan = plan_redistribution(&request).map_err(|error| self.defect(format!("a redistribution: {error}")))?;
        let plan = Rc::new(plan);
        self.plans.insert(key, plan.clone());
        Ok(plan)
    }

    /// Says in the report why a collective is there.
    pub(super) fn explain(&mut self, collective: InstId, because: impl FnOnce() -> String) {
        let Some(source) = self.body.source else { return };
        let change = CollectiveChange::inserted(self.module, collective, because());
        let (module, decisions) = (&*self.module, &mut self.decisions);
        let decision = decisions.entry(source).or_insert_with(|| {
            let place = module.inst(source).marks.as_ref().and_then(|marks| marks.op_name());
            let reason = place.map_or("its operands or users are cut otherwise".to_string(), |name| {
                format!("{name}: its operands or users are cut otherwise")
            });
            Decision::about(module, source, "communicates", reason)
        });
        decision.collectives.push(change);
    }

    /// What an instruction becomes.
    fn lower(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        let node = self.module.inst(inst);
        if !node.control_predecessors().is_empty() {
            return Err(self.refuse(inst, "expected no control predecessors, found some"));
        }
        let operands = node.operands.clone();
        match node.opcode.row().flow {
            Flow::Parameter => Err(self.refuse(inst, "a parameter among other instructions")),
            Flow::Constant => self.lower_constant(inst),
            Flow::Tuple => {
                let mut leaves = Leaves::new();
                for &operand in &operands {
                    leaves.extend(self.leaves(operand)?);
                }
                Ok(leaves)
            }
            Flow::GetTupleElement => {
                let [tuple] = operands.as_slice() else { return Err(self.refuse(inst, "expected one operand")) };
                let index = hlo_ir::attrs::TupleIndexAttrs::of(&node.attrs).map_or(0, |attrs| attrs.index as usize);
                let range = self.module.shapes.element_leaves(self.module.inst(*tuple).shape, index);
                // A large tuple is taken apart leaf by leaf: only these are copied.
                let leaves = self.body.values.get(tuple);
                let leaves = leaves.ok_or_else(|| self.refuse(*tuple, "expected it before its users"))?;
                Ok(leaves.get(range).unwrap_or(&[]).iter().cloned().collect())
            }
            Flow::Identity => self.lower_identity(inst, &operands),
            Flow::Call => self.lower_call(inst),
            Flow::While => self.lower_while(inst),
            Flow::Conditional => self.lower_conditional(inst),
            Flow::ReplicaId | Flow::PartitionId => self.lower_device_number(inst),
            Flow::Collective(rule) => self.lower_collective(inst, rule),
            Flow::AsyncStart(_) | Flow::AsyncUpdate | Flow::AsyncDone => {
                Err(self.refuse(inst, "expected a program without asynchronous pairs, as front ends write it"))
            }
            Flow::All => self.lower_op(inst),
        }
    }

    fn lower_constant(&mut self, inst: InstId) -> Result<Leaves, PartitionError> {
        let node = self.module.inst(inst);
        let (shape, attrs) = (self.module.shape(inst).clone(), node.attrs.clone());
        let mut builder = Builder::new(self.module, self.body.comp);
        let new = builder.add("constant", Opcode::Constant, shape.clone(), [], attrs);
        self.keep_name(new, inst);
        self.keep_marks(new, inst);
        let manual = self.annotation(inst, 0)?.map(|read| read.manual).unwrap_or_default();
        Ok(self.replicated_leaves(new, &shape, &manual))
    }

    /// The leaves of a value that is whole on all devices.
    pub(super) fn replicated_leaves(&mut self, value: InstId, shape: &Shape, manual: &AtomList) -> Leaves {
        let mut wholes = Vec::new();
        shape.for_each_leaf(&mut |_, leaf| wholes.push(leaf.clone()));
        let insts = self.elements(value);
        let leaf = |(inst, whole): (InstId, Shape)| {
            let rank = whole.as_array().map_or(0, ArrayShape::rank);
            let sharding = ArraySharding::replicated(rank);
            TileValue { inst, whole, sharding, monoid: Monoid::Add, manual: manual.clone() }
        };
        insts.into_iter().zip(wholes).map(leaf).collect()
    }

    fn lower_identity(&mut self, inst: InstId, operands: &[InstId]) -> Result<Leaves, PartitionError> {
        let first = operands.first().ok_or_else(|| self.refuse(inst, "expected an operand"))?;
        let mut leaves = self.leaves(*first)?;
        for (k, leaf) in leaves.iter_mut().enumerate() {
            let target = self.wanted(inst, k)?.unwrap_or_else(|| leaf.sharding.resolved());
            *leaf = self.reshard(leaf, &target)?;
        }
        if self.module.inst(inst).opcode == Opcode::OptimizationBarrier {
            let shape = self.module.shape(inst).clone();
            let value = self.whole_value(&shape, &leaves)?;
            let local = self.module.shape(value).clone();
            let mut builder = Builder::new(self.module, self.body.comp);
            let new = builder.add("barrier", Opcode::OptimizationBarrier, local, [value], Attrs::Plain);
            self.keep_name(new, inst);
            let insts = self.elements(new);
            leaves.iter_mut().zip(insts).for_each(|(leaf, inst)| leaf.inst = inst);
        }
        Ok(leaves)
    }
}
