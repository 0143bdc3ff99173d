//! What counts as a function of its operands: equal operands give equal results, on whatever device and in whatever layout.
//!
//! This is the one place that decides what an instruction may call if it is read as a whole or by units. An op counts only
//! if its columns in the op table say all of it: the evaluator computes it from the elements of its operands alone.

use hlo_ir::custom_target::{self, CustomTarget};
use hlo_ir::op::{Effects, EvalRoutine, EvalRule, FactorRule, LockstepRoutine};
use hlo_ir::{ArrayShape, CompId, ConstantValue, InstId, Module, Shape};

/// Whether equal operands of an instruction give equal results. An exchange is a function of the operands of all devices;
/// a custom call without side effects is one of its operands and their layouts.
pub(crate) fn is_function(module: &Module, inst: InstId) -> bool {
    is_repeatable(module, inst) && !has_elided(module, inst) && calls_functions(module, inst)
}

/// The place of the chain of what is seen from outside.
pub(crate) const SEEN: usize = 0;
/// The place of the chain of random draws.
pub(crate) const DRAWN: usize = 1;

/// Which chains of effects an instruction adds to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Effect {
    is_seen: bool,
    draws: bool,
}

impl Effect {
    /// Whether it adds to this chain.
    pub(crate) fn touches(self, world: usize) -> bool {
        match world {
            SEEN => self.is_seen,
            DRAWN => self.draws,
            _ => false,
        }
    }

    fn and(self, other: Effect) -> Effect {
        Effect { is_seen: self.is_seen || other.is_seen, draws: self.draws || other.draws }
    }
}

/// The effect of an instruction and of all that it calls; `None` if it has none. Annotations for partitioners have
/// none, whatever they say.
pub(crate) fn effect_of(module: &Module, inst: InstId) -> Option<Effect> {
    if !module.inst(inst).attrs.format().names_comps() {
        return Some(own_effect(module, inst)).filter(|effect| *effect != Effect::default());
    }
    let called = module.callees_first(&module.called(inst));
    let insts = called.iter().flat_map(|&comp| module.comp(comp).insts.iter().copied());
    let effect = insts.fold(own_effect(module, inst), |effect, inst| effect.and(own_effect(module, inst)));
    (effect != Effect::default()).then_some(effect)
}

fn own_effect(module: &Module, inst: InstId) -> Effect {
    let attrs = &module.inst(inst).attrs;
    match module.inst(inst).opcode.row().effects {
        Effects::Pure | Effects::OfCallees | Effects::Communicates => Effect::default(),
        Effects::Random => Effect { draws: true, ..Effect::default() },
        Effects::SideEffect => Effect { is_seen: true, ..Effect::default() },
        Effects::ByAttribute => {
            let is_opaque = matches!(CustomTarget::of(attrs), None | Some(CustomTarget::Callback));
            Effect { is_seen: custom_target::has_effect(attrs) && is_opaque, ..Effect::default() }
        }
    }
}

/// Whether an instruction with effects is a function of its operands and of the worlds: it and what it calls exchange
/// nothing with other devices and have all their constants.
pub(crate) fn is_read_whole(module: &Module, inst: InstId) -> bool {
    let called = module.callees_first(&module.called(inst));
    let within = called.iter().flat_map(|&comp| module.comp(comp).insts.iter().copied());
    let is_known = |inst: InstId| {
        module.inst(inst).opcode.row().effects != Effects::Communicates
            && !has_elided(module, inst)
            && !depends_on_memory(module, inst)
    };
    module.inst(inst).opcode.row().effects != Effects::Communicates && within.into_iter().all(is_known)
}

/// Whether a computation has effects or hidden state, so that equal arguments need not give equal results, even on the same device.
pub(crate) fn may_differ(module: &Module, comp: CompId) -> bool {
    let all = module.callees_first(&[comp]);
    all.iter().any(|&comp| module.comp(comp).insts.iter().any(|&inst| !is_repeatable(module, inst)))
}

/// Whether an instruction gives the same again on the same operands, on the same device.
fn is_repeatable(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    match instruction.opcode.row().effects {
        Effects::Pure | Effects::OfCallees | Effects::Communicates => true,
        Effects::Random | Effects::SideEffect => false,
        Effects::ByAttribute => !custom_target::has_effect(&instruction.attrs),
    }
}

/// Whether all that an instruction calls, and all that is called there, computes from its operands' elements alone.
fn calls_functions(module: &Module, inst: InstId) -> bool {
    let called = module.callees_first(&module.called(inst));
    called.iter().all(|&comp| module.comp(comp).insts.iter().all(|&inst| is_function_of_elements(module, inst)))
}

/// Whether an instruction of a called computation does, but for what it calls itself.
fn is_function_of_elements(module: &Module, inst: InstId) -> bool {
    let row = module.inst(inst).opcode.row();
    let is_pure = match row.effects {
        Effects::Pure | Effects::OfCallees => true,
        Effects::Communicates | Effects::Random | Effects::SideEffect | Effects::ByAttribute => false,
    };
    let sees_operands_alone = match row.eval {
        EvalRule::Unary(_) | EvalRule::Binary(_) => true,
        EvalRule::Routine(routine) => match routine {
            EvalRoutine::Parameter
            | EvalRoutine::Constant
            | EvalRoutine::Elementwise(_)
            | EvalRoutine::Shaping(_)
            | EvalRoutine::OneArray(_)
            | EvalRoutine::SeveralArrays(_)
            | EvalRoutine::Structure(_) => true,
            EvalRoutine::Lockstep(routine) => match routine {
                LockstepRoutine::Call
                | LockstepRoutine::While
                | LockstepRoutine::Conditional
                | LockstepRoutine::Scan => true,
                LockstepRoutine::CustomCall
                | LockstepRoutine::Collective(_)
                | LockstepRoutine::ReplicaId
                | LockstepRoutine::PartitionId
                | LockstepRoutine::AsyncStart
                | LockstepRoutine::AsyncUpdate
                | LockstepRoutine::AsyncDone => false,
            },
        },
        EvalRule::NotEvaluated(_) => false,
    };
    is_pure && sees_operands_alone && !has_elided(module, inst) && !depends_on_memory(module, inst)
}

/// Whether the result depends on more than the elements of the operands: on their order in memory, or on how many of them
/// are in use.
fn depends_on_memory(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let arrays = || instruction.operands.iter().chain([&inst]).map(|&inst| module.shape(inst));
    let mut is_dynamic = false;
    arrays().for_each(|shape| shape.for_each_leaf(&mut |_, leaf| is_dynamic |= is_dynamic_leaf(leaf)));
    let is_one_element = |shape: &Shape| shape.as_array().is_some_and(|array| array.n_elems() == 1);
    let dims = |shape: &Shape| shape.as_array().map(|array: &ArrayShape| array.dims.clone());
    let reads_layout = match instruction.opcode.row().factors {
        FactorRule::Bitcast => !arrays().all(is_one_element),
        FactorRule::BitcastConvert => !arrays().all(|shape| dims(shape) == dims(module.shape(inst))),
        // Of several dims the layout says where each element lies.
        FactorRule::CustomCall => !arrays().all(has_one_layout),
        FactorRule::Elementwise
        | FactorRule::Broadcast
        | FactorRule::Reshape
        | FactorRule::Transpose
        | FactorRule::Reverse
        | FactorRule::Slice
        | FactorRule::DynamicSlice
        | FactorRule::DynamicUpdateSlice
        | FactorRule::Pad
        | FactorRule::Concatenate
        | FactorRule::Iota
        | FactorRule::Dot
        | FactorRule::Convolution
        | FactorRule::Reduce
        | FactorRule::ReduceWindow
        | FactorRule::SelectAndScatter
        | FactorRule::Sort
        | FactorRule::Gather
        | FactorRule::Scatter
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::BatchNorm
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => false,
    };
    is_dynamic || reads_layout
}

/// Whether all arrays of a shape have one dim or none.
fn has_one_layout(shape: &Shape) -> bool {
    let mut has_one = true;
    shape.for_each_leaf(&mut |_, leaf| has_one &= leaf.as_array().is_none_or(|array| array.rank() <= 1));
    has_one
}

fn is_dynamic_leaf(leaf: &Shape) -> bool {
    match leaf {
        Shape::Array(array) | Shape::Buffer(array) => array.dynamic != 0,
        Shape::Tuple(_) | Shape::Token | Shape::Opaque => false,
    }
}

/// Whether elements of a constant are left out: then nothing is known of it.
fn has_elided(module: &Module, inst: InstId) -> bool {
    fn is_elided(value: &ConstantValue) -> bool {
        match value {
            ConstantValue::Array(_) => false,
            ConstantValue::Tuple(values) => values.iter().any(is_elided),
            ConstantValue::Elided => true,
        }
    }
    module.inst(inst).attrs.as_constant().is_some_and(is_elided)
}
