//! From a per-device module to a [`Plan`]: one step for each instruction that does something.
//!
//! The walk goes over ENTRY in text order, and into loops, branches and calls where they stand. Tuples are looked through:
//! a value is its array leaves. What moves no byte (tuple, get-tuple-element, bitcast, a reshape or transpose whose layouts
//! agree, a copy to the same layout) gives no step: its leaves are other views of the operand's buffers. Every other
//! instruction becomes a kernel, a product ([`dot`]), a collective ([`collective`]) or a loop or branch ([`control`]).
//!
//! Before the walk, [`legalize`] writes physical copies into a copy of the module where a step needs another layout than
//! the module has. After it, [`crate::buffers`] gives every value its place and every step what it waits for.
//!
//! **Errors** name the instruction: an op that nothing is written for, a reduction that the collective library has not, a
//! loop whose predicate is not proven to be the same on all devices.

pub mod boundaries;
pub mod collective;
pub mod control;
mod donors;
pub mod dot;
pub mod kernels;
pub mod legalize;
pub mod strides;
#[cfg(test)]
mod tests;

use crate::GpuError;
use crate::buffers::{self, Draft, Home};
use crate::plan::{BufferId, CommunicatorId, ConstantId, ParameterFacts, Plan, PlanValueId, Step, Stream, Work};
use cranelift_entity::SecondaryMap;
use hashbrown::HashMap;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::replication::Replication;
use hlo_analysis::time::predict;
use hlo_analysis::values::{LeafRun, Through, handed_on};
use hlo_ir::attrs::Attrs;
use hlo_ir::custom_target::{self, CustomTarget};
use hlo_ir::op::{Effects, Flow};
use hlo_ir::{ArrayShape, CompId, ConstantValue, InstId, Literal, Module, Opcode, Shape};
use hlo_mesh::Machine;
use kernels::{Emitter, KernelStore};
use smallvec::SmallVec;

/// The buffers of a value's leaves in order; `None` for a token.
pub type Leaves = SmallVec<[Option<BufferId>; 1]>;

/// How products of f32 are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Matmul {
    /// As f32.
    #[default]
    F32,
    /// On elements rounded to TF32, with f32 sums: several times as fast, three decimal digits.
    Tf32,
}

/// Choices of the lowering.
#[derive(Clone, Debug)]
pub struct LowerOptions {
    /// What the user says of the entry's parameters: loops need predicates that are the same on all devices.
    pub params: ParamFacts,
    /// What the user says of loops: predicted times count their rounds.
    pub frequency: FrequencyOptions,
    /// How much more memory than the most frugal order of steps takes, as a fraction, another may take before it counts as time does.
    pub memory_slack: f64,
    /// How products of f32 are computed.
    pub matmul: Matmul,
    /// What times are modelled for; the default machine where none is described.
    pub machine: Option<Machine>,
}

impl Default for LowerOptions {
    fn default() -> Self {
        // With a twentieth, no program of the corpus takes more than in XLA.
        LowerOptions {
            params: ParamFacts::default(),
            frequency: FrequencyOptions::default(),
            memory_slack: 0.05,
            matmul: Matmul::F32,
            machine: None,
        }
    }
}

/// Lowers a verified per-device module.
///
/// # Errors
/// The first instruction that cannot be lowered, and why.
pub fn lower(module: &Module, emitter: &mut dyn Emitter, options: &LowerOptions) -> Result<Plan, GpuError> {
    let machine = options.machine.clone().or_else(|| Machine::unnamed().ok());
    let critical_path = |machine| predict(module, &Frequencies::compute(module, options.frequency), machine).ok();
    let critical_path_s = machine.as_ref().and_then(critical_path).map(|time| time.critical_path_s);
    let mut module = module.clone();
    legalize::rewrite_module(&mut module)?;
    let Some(entry) = module.entry() else {
        return Err(GpuError::unsupported(&module.name, "expected an ENTRY, found none"));
    };
    let mut lowering = Lowering::new(&module, emitter, options);
    let arguments = lowering.entry_parameters(entry)?;
    let (mut steps, outputs) = lowering.computation(entry, arguments)?;
    lowering.bind_outputs(entry, &outputs, &mut steps)?;
    lowering.note_equal_parameters(entry);
    let mut draft = lowering.draft;
    (draft.plan.kernels, draft.plan.kernel_facts) = lowering.kernels.into_kernels();
    draft.plan.steps = steps;
    draft.plan.critical_path_s = critical_path_s;
    Ok(buffers::assign_fastest(draft, options.memory_slack))
}

/// What the walk knows.
pub(crate) struct Lowering<'a> {
    pub(crate) module: &'a Module,
    pub(crate) draft: Draft,
    pub(crate) kernels: KernelStore<'a>,
    leaves: SecondaryMap<InstId, Leaves>,
    constants: HashMap<(Literal, Option<Vec<i64>>), BufferId>,
    communicators: HashMap<Vec<Vec<u32>>, CommunicatorId>,
    device_ids: Option<PlanValueId>,
    replication: Option<Replication>,
    frequencies: Option<Frequencies>,
    pub(crate) options: &'a LowerOptions,
}

impl<'a> Lowering<'a> {
    fn new(module: &'a Module, emitter: &'a mut dyn Emitter, options: &'a LowerOptions) -> Lowering<'a> {
        let count = |n: i64| u32::try_from(n.max(1)).unwrap_or(u32::MAX);
        let plan = Plan {
            name: module.name.clone(),
            n_replicas: count(module.header.replica_count),
            n_partitions: count(module.header.num_partitions),
            machine: options.machine.clone(),
            aliases: donors::next_values(module),
            ..Plan::default()
        };
        Lowering {
            module,
            draft: Draft::new(plan),
            kernels: KernelStore::new(module, emitter),
            leaves: SecondaryMap::new(),
            constants: HashMap::new(),
            communicators: HashMap::new(),
            device_ids: None,
            replication: None,
            frequencies: None,
            options,
        }
    }

    /// An error about an instruction.
    pub(crate) fn unsupported(&self, inst: InstId, reason: impl Into<String>) -> GpuError {
        GpuError::unsupported(self.module.inst_name(inst), reason)
    }

    /// The facts about which devices hold equal values, computed when a loop or branch first asks.
    pub(crate) fn replication(&mut self) -> &Replication {
        let (module, params) = (self.module, &self.options.params);
        self.replication.get_or_insert_with(|| Replication::compute(module, params))
    }

    /// How often loops and branches run, computed when the first one asks.
    pub(crate) fn frequencies(&mut self) -> &Frequencies {
        let (module, options) = (self.module, self.options.frequency);
        self.frequencies.get_or_insert_with(|| Frequencies::compute(module, options))
    }

    /// A buffer for every leaf of ENTRY's parameters.
    fn entry_parameters(&mut self, entry: CompId) -> Result<Vec<Leaves>, GpuError> {
        let mut donated = vec![];
        for &param in &self.module.comp(entry).params {
            donated.extend(std::iter::repeat_n(false, self.module.shape(param).n_leaves()));
        }
        for leaf in donors::donated_leaves(self.module) {
            donated[leaf] = true;
        }
        let mut arguments = Vec::new();
        for &param in &self.module.comp(entry).params {
            let mut leaves = Leaves::new();
            for (k, shape) in array_leaves(self.module.shape(param)).into_iter().enumerate() {
                let Some(shape) = shape else {
                    return Err(self.unsupported(param, no_array(k)));
                };
                let leaf = self.draft.plan.parameters.len();
                let home = Home::Parameter { leaf: leaf as u32, is_donated: donated[leaf] };
                let facts = ParameterFacts { is_donated: donated[leaf], classes: Vec::new() };
                self.draft.plan.parameter_facts.push(facts);
                let buffer = self.draft.add_value(self.module.inst_name(param), shape, home);
                self.draft.plan.parameters.push(buffer);
                leaves.push(Some(buffer));
            }
            arguments.push(leaves);
        }
        Ok(arguments)
    }

    /// Says on which devices parameters are the same, if that was asked for.
    fn note_equal_parameters(&mut self, entry: CompId) {
        let Some(replication) = &self.replication else { return };
        let mut facts = self.draft.plan.parameter_facts.iter_mut();
        for &param in &self.module.comp(entry).params {
            for (leaf, facts) in (0..self.module.shape(param).n_leaves()).zip(&mut facts) {
                facts.classes = replication.classes(param, leaf).unwrap_or_default().to_vec();
            }
        }
    }

    /// Makes the root's leaves the plan's outputs; a leaf that is no block of its own is copied.
    fn bind_outputs(&mut self, entry: CompId, outputs: &Leaves, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let Some(root) = self.module.comp(entry).root.expand() else { return Ok(()) };
        let name = self.module.inst_name(root).to_string();
        let mut seen: Vec<PlanValueId> = Vec::new();
        for (k, &leaf) in outputs.iter().enumerate() {
            let Some(buffer) = leaf else {
                return Err(self.unsupported(root, no_array(k)));
            };
            let output = if self.draft.may_be_output(buffer) && !seen.contains(&self.draft.value_of[buffer]) {
                buffer
            } else {
                let shape = self.draft.plan.buffers[buffer].shape.clone();
                let copy = self.draft.add_value(&format!("{name}.{k}"), shape, Home::Temporary);
                self.copy(&name, buffer, copy, steps);
                copy
            };
            seen.push(self.draft.value_of[output]);
            self.draft.plan.outputs.push(output);
        }
        Ok(())
    }

    /// Lowers one run of a computation on given arguments: its steps and its root's leaves.
    pub(crate) fn computation(
        &mut self,
        comp: CompId,
        arguments: Vec<Leaves>,
    ) -> Result<(Vec<Step>, Leaves), GpuError> {
        let computation = self.module.comp(comp);
        for (&param, leaves) in computation.params.iter().zip(arguments) {
            self.bind(param, leaves)?;
        }
        let live = self.module.live(comp);
        let mut steps = Vec::new();
        for &inst in &computation.insts {
            if live.contains(inst) {
                self.instruction(inst, &mut steps)?;
            }
        }
        let Some(root) = computation.root.expand() else {
            return Err(GpuError::unsupported(self.module.comp_name(comp), "expected a root, found none"));
        };
        Ok((steps, self.leaves[root].clone()))
    }

    /// Says where an instruction's leaves lie. Their layouts must be those that the instruction states.
    pub(crate) fn bind(&mut self, inst: InstId, leaves: Leaves) -> Result<(), GpuError> {
        let stated = array_leaves(self.module.shape(inst));
        for (k, (leaf, stated)) in leaves.iter().zip(&stated).enumerate() {
            let (Some(buffer), Some(stated)) = (leaf, stated) else { continue };
            let found = &self.draft.plan.buffers[*buffer].shape;
            if stated.layout.as_ref().is_some_and(|layout| layout.element_size_in_bits > 0) {
                let reason = format!("expected a byte for each element, found a layout that packs {}", stated.dtype);
                return Err(self.unsupported(inst, reason));
            }
            if !strides::is_same_layout(found, stated) {
                let reason = format!("expected leaf {k} in layout {}, found {}", order_text(stated), order_text(found));
                return Err(self.unsupported(inst, reason));
            }
        }
        self.leaves[inst] = leaves;
        Ok(())
    }

    /// The buffers of an instruction's leaves.
    pub(crate) fn leaves(&self, inst: InstId) -> &Leaves {
        &self.leaves[inst]
    }

    /// The buffers of all operands' array leaves, in order.
    pub(crate) fn operand_buffers(&self, inst: InstId) -> Vec<BufferId> {
        self.module.inst(inst).operands.iter().flat_map(|&o| self.leaves[o].iter().copied().flatten()).collect()
    }

    /// The one buffer of an array-shaped operand.
    pub(crate) fn operand(&self, inst: InstId, k: usize) -> Result<BufferId, GpuError> {
        let operand = self.module.inst(inst).operands.get(k);
        let leaf = operand.and_then(|&o| self.leaves[o].first().copied().flatten());
        leaf.ok_or_else(|| self.unsupported(inst, format!("expected an array as operand {k}, found none")))
    }

    /// New buffers for an instruction's leaves.
    pub(crate) fn result_leaves(&mut self, inst: InstId) -> Leaves {
        let shapes = array_leaves(self.module.shape(inst));
        let name = self.module.inst_name(inst);
        shapes.into_iter().map(|s| s.map(|shape| self.draft.add_value(name, shape, Home::Temporary))).collect()
    }

    /// Adds a step on the compute stream.
    pub(crate) fn step(&self, name: &str, work: Work, steps: &mut Vec<Step>) {
        steps.push(Step { name: name.into(), stream: Stream::Compute, waits_for: Vec::new(), work });
    }

    /// Copies a buffer; the copy goes away if both can lie in one place.
    pub(crate) fn copy(&mut self, name: &str, from: BufferId, to: BufferId, steps: &mut Vec<Step>) {
        if self.draft.plan.buffers[to].shape.memory_bytes() > 0 {
            self.draft.allow_sharing(from, to);
            self.step(name, Work::Copy { from, to }, steps);
        }
    }

    /// The communicator of these groups.
    pub(crate) fn communicator(&mut self, groups: Vec<Vec<u32>>) -> CommunicatorId {
        let plan = &mut self.draft.plan;
        *self.communicators.entry(groups).or_insert_with_key(|groups| plan.communicators.push(groups.clone()))
    }

    fn instruction(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let instruction = self.module.inst(inst);
        let is_seen_outside = match instruction.opcode.row().effects {
            Effects::SideEffect => true,
            Effects::ByAttribute => custom_target::has_effect(&instruction.attrs),
            Effects::Pure | Effects::Random | Effects::Communicates | Effects::OfCallees => false,
        };
        if is_seen_outside {
            return Err(self.unsupported(
                inst,
                format!("{} has an effect outside of the program that no plan has", instruction.opcode.name()),
            ));
        }
        if let Some(CustomTarget::Move(_)) = CustomTarget::of(&instruction.attrs) {
            let reason =
                "no plan has arrays in the memory of the host: take the module as it was before `offload-state`";
            return Err(self.unsupported(inst, reason));
        }
        match instruction.opcode.row().flow {
            Flow::Parameter => Ok(()),
            Flow::Constant => self.constant(inst),
            Flow::Tuple | Flow::GetTupleElement | Flow::Identity => {
                let leaves = self.handed_on_leaves(inst);
                if instruction.opcode == Opcode::Copy && !self.is_laid_out_as_stated(inst, &leaves) {
                    return self.kernel(inst, steps);
                }
                self.bind(inst, leaves)
            }
            Flow::Call if instruction.opcode == Opcode::Fusion => self.kernel(inst, steps),
            Flow::Call => self.call(inst, steps),
            Flow::While => self.loop_(inst, steps),
            Flow::Conditional => self.conditional(inst, steps),
            Flow::ReplicaId => self.device_id(inst, 0),
            Flow::PartitionId => self.device_id(inst, 4),
            Flow::Collective(rule) => self.collective(inst, rule, steps),
            Flow::AsyncStart(_) | Flow::AsyncUpdate | Flow::AsyncDone => {
                Err(self.unsupported(inst, "expected synchronous instructions, found half of an asynchronous pair"))
            }
            Flow::All if self.is_view(inst) => {
                let (buffer, name) = (self.operand(inst, 0)?, self.module.inst_name(inst));
                let Some(shape) = self.module.shape(inst).as_array() else { return Ok(()) };
                let view = self.draft.add_view(name, shape.clone(), buffer, 0);
                self.bind(inst, SmallVec::from_elem(Some(view), 1))
            }
            Flow::All if instruction.opcode == Opcode::Dot => self.dot(inst, steps),
            Flow::All => self.kernel(inst, steps),
        }
    }

    /// Whether leaves lie as the instruction says that its result does.
    fn is_laid_out_as_stated(&self, inst: InstId, leaves: &Leaves) -> bool {
        array_leaves(self.module.shape(inst)).iter().zip(leaves).all(|(stated, leaf)| match (stated, leaf) {
            (Some(stated), Some(buffer)) => strides::is_same_layout(&self.draft.plan.buffers[*buffer].shape, stated),
            (_, _) => true,
        })
    }

    /// Whether an array-shaped result is its first operand's bytes.
    fn is_view(&self, inst: InstId) -> bool {
        hlo_ir::view::is_view(self.module, inst)
    }

    /// The buffers of what an instruction hands on.
    fn handed_on_leaves(&self, inst: InstId) -> Leaves {
        let runs = handed_on(self.module, inst, Through::COPIES);
        let of_run = |run: &LeafRun| self.leaves[run.operand].get(run.in_operand()).unwrap_or_default();
        runs.iter().flat_map(of_run).copied().collect()
    }

    fn constant(&mut self, inst: InstId) -> Result<(), GpuError> {
        let Attrs::Constant(value) = &self.module.inst(inst).attrs else {
            return Err(self.unsupported(inst, "expected a value, found none"));
        };
        let mut literals = Vec::new();
        if !flatten(value, &mut literals) {
            return Err(self.unsupported(inst, "expected the constant's elements, found {...}"));
        }
        let shapes = array_leaves(self.module.shape(inst));
        let name = self.module.inst_name(inst);
        let mut leaves = Leaves::new();
        for (literal, shape) in literals.into_iter().zip(shapes.into_iter().flatten()) {
            let is_row_major = strides::is_same_layout(&shape, &shape.clone().with_row_major());
            let layout = (!is_row_major).then(|| shape.minor_to_major().to_vec());
            let draft = &mut self.draft;
            let buffer = *self.constants.entry((literal.clone(), layout)).or_insert_with(|| {
                let id: ConstantId = draft.plan.constants.push(literal.clone());
                draft.add_value(name, shape, Home::Constant(id))
            });
            leaves.push(Some(buffer));
        }
        self.bind(inst, leaves)
    }

    fn device_id(&mut self, inst: InstId, offset_bytes: u64) -> Result<(), GpuError> {
        let shape = ArrayShape::new(hlo_ir::DType::U32, []);
        let draft = &mut self.draft;
        let value = *self.device_ids.get_or_insert_with(|| {
            let pair = ArrayShape::new(hlo_ir::DType::U32, [2]).with_row_major();
            let buffer = draft.add_value("device-ids", pair, Home::DeviceIds);
            draft.value_of[buffer]
        });
        let name = self.module.inst_name(inst);
        let buffer = draft.add_view_of(name, shape, value, offset_bytes);
        self.bind(inst, SmallVec::from_elem(Some(buffer), 1))
    }

    /// One kernel launch; nothing if all results are empty.
    pub(crate) fn kernel(&mut self, inst: InstId, steps: &mut Vec<Step>) -> Result<(), GpuError> {
        let operands = self.operand_buffers(inst);
        let leaves = self.result_leaves(inst);
        let results: Vec<BufferId> = leaves.iter().copied().flatten().collect();
        self.bind(inst, leaves)?;
        if results.iter().all(|&r| self.draft.plan.buffers[r].shape.n_elems() == 0) {
            return Ok(());
        }
        let emitted = self.kernels.emit(inst)?;
        for (operand, result) in emitted.updatable {
            let (Some(&from), Some(&to)) = (operands.get(operand), results.get(result)) else { continue };
            // The same value as another operand would be read elsewhere than where it is written.
            let value = self.draft.value_of[from];
            let is_read_once = operands.iter().filter(|&&o| self.draft.value_of[o] == value).count() == 1;
            if is_read_once {
                self.draft.allow_sharing(from, to);
            }
        }
        let arguments = operands.into_iter().chain(results).collect();
        self.step(self.module.inst_name(inst), Work::Launch { kernel: emitted.kernel, arguments }, steps);
        Ok(())
    }
}

/// The array leaves of a shape in order; `None` for tokens and handles.
pub fn array_leaves(shape: &Shape) -> Vec<Option<ArrayShape>> {
    let mut leaves = Vec::new();
    shape.for_each_leaf(&mut |_, leaf| leaves.push(leaf.as_array().cloned()));
    leaves
}

fn order_text(shape: &ArrayShape) -> String {
    let order: Vec<String> = shape.minor_to_major().iter().map(i64::to_string).collect();
    format!("{{{}}}", order.join(","))
}

fn no_array(leaf: usize) -> String {
    format!("expected array leaves, found a token, a buffer or an opaque value as leaf {leaf}")
}

/// Appends the arrays of a constant; false if elements are missing.
fn flatten<'v>(value: &'v ConstantValue, out: &mut Vec<&'v Literal>) -> bool {
    match value {
        ConstantValue::Array(literal) => out.push(literal),
        ConstantValue::Tuple(values) => return values.iter().all(|v| flatten(v, out)),
        ConstantValue::Elided => return false,
    }
    true
}
