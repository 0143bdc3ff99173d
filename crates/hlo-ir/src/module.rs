//! The module graph: computations of instructions, module-wide dense ids, no pointers.
//!
//! Instructions live in one arena of the module, so an analysis is one `SecondaryMap<InstId, _>`. A computation lists
//! its instructions in text order, operands before users. Removing an instruction takes it off that list; its
//! slot in the arena stays, so ids are never reused.

use crate::attrs::{Attrs, Marks, ParameterAttrs};
use crate::calls::KnownCalls;
use crate::chunks::Chunks;
pub use crate::ids::{CompId, InstId};

use crate::header::Header;
use crate::names::{Name, NamePool};
use crate::op::Opcode;
use crate::shape::{Shape, ShapeId, ShapePool};
use cranelift_entity::packed_option::PackedOption;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use smallvec::SmallVec;
use std::sync::Arc;

/// Operands of an instruction, two inline.
pub type Operands = SmallVec<[InstId; 2]>;

/// One HLO instruction.
#[derive(Clone, Debug)]
pub struct Instruction {
    /// What it does.
    pub opcode: Opcode,
    /// Shape of its result.
    pub shape: ShapeId,
    /// Its name, unique in the module.
    pub name: Name,
    /// The computation that holds it.
    pub parent: CompId,
    /// Its operands, of the same computation.
    pub operands: Operands,
    /// Attributes of its opcode.
    pub attrs: Attrs,
    /// Attributes that any instruction can have. Copies of an instruction share them until one of them is written to.
    pub marks: Option<Arc<Marks>>,
}

impl Instruction {
    /// Instructions that must have run before, beside its operands.
    pub fn control_predecessors(&self) -> &[InstId] {
        self.marks.as_ref().map_or(&[], |marks| &marks.control_predecessors)
    }

    /// Instructions that must have run before, to be replaced by others.
    pub fn control_predecessors_mut(&mut self) -> &mut [InstId] {
        match &mut self.marks {
            Some(marks) if !marks.control_predecessors.is_empty() => &mut Arc::make_mut(marks).control_predecessors,
            Some(_) | None => &mut [],
        }
    }
}

/// One computation: a list of instructions with parameters and a root.
#[derive(Clone, Debug)]
pub struct Computation {
    /// Its name, unique among computations.
    pub name: Name,
    /// Its instructions in text order, operands before users.
    pub insts: Vec<InstId>,
    /// Its parameters by number.
    pub params: Vec<InstId>,
    /// The instruction whose value it returns; set once the computation is whole.
    pub root: PackedOption<InstId>,
    /// Thread on which it runs, if not the main one.
    pub execution_thread: Option<String>,
    pub(crate) calls: KnownCalls,
}

/// The users of every instruction, once per operand slot.
pub type UserMap = SecondaryMap<InstId, SmallVec<[InstId; 2]>>;

/// Which of XLA's two printed forms a text has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum TextForm {
    /// `%name`, computation signatures.
    #[default]
    Long,
    /// Bare names, no signatures.
    Short,
}

/// A whole HLO program. Copies share instructions until one of them is written to.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Its name.
    pub name: String,
    /// What stands in the first line and the header tables.
    pub header: Header,
    /// The form of the text it was read from.
    pub form: TextForm,
    /// Distinct shapes.
    pub shapes: ShapePool,
    /// Names of instructions and computations.
    pub names: NamePool,
    insts: Chunks<InstId, Instruction>,
    comps: PrimaryMap<CompId, Computation>,
    order: Vec<CompId>,
    entry: PackedOption<CompId>,
}

impl Module {
    /// An empty module.
    pub fn new(name: impl Into<String>) -> Module {
        Module { name: name.into(), ..Module::default() }
    }

    /// Makes room for the names of `n_insts` more instructions.
    pub fn reserve(&mut self, n_insts: usize) {
        self.names.reserve(n_insts);
    }

    /// Adds an empty computation at the end of the print order.
    pub fn add_computation(&mut self, name: Name) -> CompId {
        let comp = self.comps.push(Computation {
            name,
            insts: Vec::new(),
            params: Vec::new(),
            root: None.into(),
            execution_thread: None,
            calls: KnownCalls::default(),
        });
        self.order.push(comp);
        comp
    }

    /// Appends an instruction to its `parent`; a parameter also takes its place among the parameters.
    #[inline]
    pub fn add_instruction(&mut self, inst: Instruction) -> InstId {
        let parent = inst.parent;
        let is_param = inst.opcode == Opcode::Parameter;
        let parameter = ParameterAttrs::of(&inst.attrs).filter(|_| is_param);
        let number = parameter.and_then(|p| usize::try_from(p.number).ok());
        let id = self.insts.push(inst);
        let comp = &mut self.comps[parent];
        comp.calls.forget();
        comp.insts.push(id);
        if number == Some(comp.params.len()) {
            comp.params.push(id);
        }
        id
    }

    /// Lists the parameters of `comp` by number anew, after parameters were added out of order or removed.
    ///
    /// # Errors
    /// The first number that is missing or stands twice.
    pub fn renumber_params(&mut self, comp: CompId) -> Result<(), i64> {
        let mut params: Vec<(i64, InstId)> = Vec::new();
        for &id in &self.comps[comp].insts {
            if let Attrs::Parameter(p) = &self.insts[id].attrs {
                params.push((p.number, id));
            }
        }
        params.sort();
        for (i, &(number, _)) in params.iter().enumerate() {
            if number != i as i64 {
                return Err(if number < i as i64 { number } else { i as i64 });
            }
        }
        self.comps[comp].params = params.into_iter().map(|(_, id)| id).collect();
        Ok(())
    }

    /// The entry computation; `None` only while a module is being built.
    pub fn entry(&self) -> Option<CompId> {
        self.entry.expand()
    }

    /// Makes `comp` the entry computation.
    pub fn set_entry(&mut self, comp: CompId) {
        self.entry = Some(comp).into();
    }

    /// The computations in print order.
    pub fn computations(&self) -> &[CompId] {
        &self.order
    }

    /// Sets the print order; computations left out are removed.
    pub fn set_computation_order(&mut self, order: Vec<CompId>) {
        self.order = order;
    }

    /// A computation.
    #[inline]
    pub fn comp(&self, comp: CompId) -> &Computation {
        &self.comps[comp]
    }

    /// A computation, mutably.
    pub fn comp_mut(&mut self, comp: CompId) -> &mut Computation {
        let computation = &mut self.comps[comp];
        computation.calls.forget();
        computation
    }

    /// An instruction.
    #[inline]
    pub fn inst(&self, inst: InstId) -> &Instruction {
        &self.insts[inst]
    }

    /// An instruction, mutably.
    #[inline]
    pub fn inst_mut(&mut self, inst: InstId) -> &mut Instruction {
        let instruction = &mut self.insts[inst];
        self.comps[instruction.parent].calls.forget();
        instruction
    }

    /// One more than the largest instruction index, removed ones included: the size of a dense map.
    pub fn n_inst_slots(&self) -> usize {
        self.insts.len()
    }

    /// One more than the largest computation index.
    pub fn n_comp_slots(&self) -> usize {
        self.comps.len()
    }

    /// Number of instructions in all computations.
    pub fn n_instructions(&self) -> usize {
        self.order.iter().map(|&c| self.comps[c].insts.len()).sum()
    }

    /// What must have run before an instruction: its operands and control predecessors.
    pub fn needed(&self, inst: InstId) -> impl Iterator<Item = InstId> {
        let instruction = self.inst(inst);
        instruction.operands.iter().chain(instruction.control_predecessors()).copied()
    }

    /// The shape of an instruction's result.
    #[inline]
    pub fn shape(&self, inst: InstId) -> &Shape {
        self.shapes.get(self.insts[inst].shape)
    }

    /// The text name of an instruction, without `%`.
    pub fn inst_name(&self, inst: InstId) -> &str {
        self.names.get(self.insts[inst].name)
    }

    /// The text name of a computation, without `%`.
    pub fn comp_name(&self, comp: CompId) -> &str {
        self.names.get(self.comps[comp].name)
    }

    /// Marks of an instruction, made if there are none.
    pub fn marks_mut(&mut self, inst: InstId) -> &mut Marks {
        Arc::make_mut(self.insts[inst].marks.get_or_insert_default())
    }

    /// Removes the sharding of an instruction.
    pub fn forget_sharding(&mut self, inst: InstId) {
        if self.sharding(inst).is_some() {
            self.marks_mut(inst).sharding = None;
        }
    }

    /// The sharding of an instruction.
    #[inline]
    pub fn sharding(&self, inst: InstId) -> Option<&crate::sharding::Sharding> {
        self.insts[inst].marks.as_ref()?.sharding.as_ref()
    }

    /// The shape that a computation returns.
    pub fn result_shape(&self, comp: CompId) -> Option<ShapeId> {
        Some(self.insts[self.comps[comp].root.expand()?].shape)
    }

    /// Devices on which the module runs: replicas × partitions.
    pub fn n_devices(&self) -> usize {
        (self.header.replica_count.max(1) as usize).saturating_mul(self.header.num_partitions.max(1) as usize)
    }

    /// The computations that an instruction calls, in print order of its attributes.
    #[inline]
    pub fn called(&self, inst: InstId) -> SmallVec<[CompId; 2]> {
        let mut out = SmallVec::new();
        self.insts[inst].attrs.for_each_comp(&mut |c| out.push(c));
        out
    }

    /// Users of every instruction, each user once per operand slot, in text order.
    pub fn users(&self) -> UserMap {
        let mut users: UserMap = SecondaryMap::with_capacity(self.insts.len());
        for &comp in &self.order {
            for &inst in &self.comps[comp].insts {
                for &operand in &self.insts[inst].operands {
                    users[operand].push(inst);
                }
            }
        }
        users
    }
}
