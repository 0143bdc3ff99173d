//! Where every value lies, and what every step waits for.
//!
//! 1. [`liveness`]: when each value lives, as intervals on the line of all steps.
//! 2. [`coalesce`]: values that may lie in one place do: state and its update, both ends of a copy, a loop's carried values,
//!    an operand that a kernel overwrites as it reads it. Copies inside one place go away.
//! 3. [`place`]: donated parameters and outputs are blocks of their own, free while nothing lives there; the rest goes to
//!    the arena, best fit.
//! 4. [`waits`]: a step waits for the last step of the other stream that touched the same bytes.

pub mod coalesce;
pub mod liveness;
pub mod place;
pub mod waits;

use crate::plan::{Buffer, BufferId, ConstantId, Place, Plan, Step, Work};
use cranelift_entity::{PrimaryMap, entity_impl};
use hashbrown::HashSet;
use hlo_ir::{ArrayShape, Module};

/// A value of the program: what one or several buffers are views of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(u32);
entity_impl!(ValueId, "v");

/// What a value is, before it has a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// An ENTRY parameter's leaf.
    Parameter {
        /// Which.
        leaf: u32,
        /// Whether it may be overwritten.
        is_donated: bool,
    },
    /// A constant.
    Constant(ConstantId),
    /// This device's numbers.
    DeviceIds,
    /// What steps compute.
    Temporary,
}

/// A value's size and kind.
#[derive(Clone, Debug)]
pub struct Value {
    /// Bytes of the whole.
    pub bytes: u64,
    /// What it is.
    pub home: Home,
}

/// A plan whose buffers have no place yet: offsets are distances from the beginning of their value.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    /// The plan so far.
    pub plan: Plan,
    /// The values.
    pub values: PrimaryMap<ValueId, Value>,
    /// The value of each buffer.
    pub value_of: PrimaryMap<BufferId, ValueId>,
    /// Pairs (read, written): the step that writes the second may do so over the first.
    pub shareable: HashSet<(ValueId, ValueId)>,
}

impl Draft {
    /// A draft of an empty plan.
    pub fn new(plan: Plan) -> Draft {
        Draft { plan, ..Draft::default() }
    }

    /// A new value and the buffer that is the whole of it.
    pub fn add_value(&mut self, name: &str, shape: ArrayShape, home: Home) -> BufferId {
        let value = self.values.push(Value { bytes: shape.memory_bytes(), home });
        self.add_view_of(name, shape, value, 0)
    }

    /// Another view of a buffer's value, `offset_bytes` after the buffer's beginning.
    pub fn add_view(&mut self, name: &str, shape: ArrayShape, buffer: BufferId, offset_bytes: u64) -> BufferId {
        let offset = self.plan.buffers[buffer].offset_bytes + offset_bytes;
        self.add_view_of(name, shape, self.value_of[buffer], offset)
    }

    /// A view of a value.
    pub fn add_view_of(&mut self, name: &str, shape: ArrayShape, value: ValueId, offset_bytes: u64) -> BufferId {
        self.value_of.push(value);
        self.plan.buffers.push(Buffer { name: name.into(), shape, place: Place::Arena, offset_bytes })
    }

    /// The step that writes `to` may do so over `from`, if nothing else reads it later.
    pub fn allow_sharing(&mut self, from: BufferId, to: BufferId) {
        self.shareable.insert((self.value_of[from], self.value_of[to]));
    }

    /// What a buffer's value is.
    pub fn home_of(&self, buffer: BufferId) -> Home {
        self.values[self.value_of[buffer]].home
    }

    /// Whether a buffer can be an output as it is: a whole value, and not memory that is only read.
    pub fn may_be_output(&self, buffer: BufferId) -> bool {
        let is_whole = self.plan.buffers[buffer].offset_bytes == 0
            && self.plan.buffers[buffer].shape.memory_bytes() == self.values[self.value_of[buffer]].bytes;
        is_whole
            && match self.home_of(buffer) {
                Home::Parameter { is_donated, .. } => is_donated,
                Home::Temporary => true,
                Home::Constant(_) | Home::DeviceIds => false,
            }
    }
}

/// Gives every value of a draft its place, takes superfluous copies away, and says what each step waits for.
/// `aliases` are pairs (output leaf, parameter leaf) that should share memory if they can.
pub fn assign(mut draft: Draft, aliases: &[(usize, usize)]) -> Plan {
    let lives = liveness::find_lives(&draft);
    let classes = coalesce::share(&draft, &lives, aliases);
    place::place(&mut draft, &classes);
    let Draft { mut plan, .. } = draft;
    let mut steps = std::mem::take(&mut plan.steps);
    remove_idle_copies(&plan, &mut steps);
    waits::add_waits(&plan, &mut steps);
    plan.steps = steps;
    plan
}

/// Takes away copies of a buffer to itself.
fn remove_idle_copies(plan: &Plan, steps: &mut Vec<Step>) {
    let at = |b: BufferId| (plan.buffers[b].place, plan.buffers[b].offset_bytes);
    steps.retain(|step| !matches!(step.work, Work::Copy { from, to } if at(from) == at(to)));
    for step in steps {
        match &mut step.work {
            Work::While { condition, body, .. } => {
                remove_idle_copies(plan, condition);
                remove_idle_copies(plan, body);
            }
            Work::Conditional { branches, .. } => branches.iter_mut().for_each(|b| remove_idle_copies(plan, b)),
            Work::Launch { .. } | Work::Gemm(_) | Work::Collective(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
    }
}

/// The number of a leaf among all ENTRY parameters' leaves.
fn parameter_leaf(module: &Module, param: i64, index: &[i64]) -> Option<usize> {
    let params = &module.comp(module.entry()?).params;
    let number = usize::try_from(param).ok()?;
    let before: usize = params.get(..number)?.iter().map(|&p| module.shape(p).n_leaves()).sum();
    Some(before + leaf_number(module.shape(*params.get(number)?), index)?)
}

/// The number of the leaf at a tuple index.
fn leaf_number(shape: &hlo_ir::Shape, index: &[i64]) -> Option<usize> {
    let (mut found, mut next) = (None, 0);
    shape.for_each_leaf(&mut |at, _| {
        if at == index {
            found = Some(next);
        }
        next += 1;
    });
    found
}

/// Leaves of ENTRY's parameters that may be overwritten: donors, and those with an alias.
pub fn donated_leaves(module: &Module) -> Vec<usize> {
    let donors = module.header.buffer_donor.iter().map(|donor| (donor.param, &donor.param_index));
    let aliased = module.header.input_output_alias.iter().map(|alias| (alias.param, &alias.param_index));
    donors.chain(aliased).filter_map(|(param, index)| parameter_leaf(module, param, index)).collect()
}

/// Pairs (output leaf, parameter leaf) that the header aliases.
pub fn aliased_leaves(module: &Module) -> Vec<(usize, usize)> {
    let root = module.entry().and_then(|entry| module.comp(entry).root.expand());
    let Some(root) = root else { return Vec::new() };
    let pair = |alias: &hlo_ir::header::AliasEntry| {
        let output = leaf_number(module.shape(root), &alias.output_index)?;
        Some((output, parameter_leaf(module, alias.param, &alias.param_index)?))
    };
    module.header.input_output_alias.iter().filter_map(pair).collect()
}
