//! Writing the module: moves, what they wait for, and the layouts of the header.

use super::find::State;
use super::order::grouped_order;
use crate::error::WusError;
use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::{Attrs, CustomAttrs, QuotedText, TupleIndexAttrs};
use hlo_ir::diag::Entity;
use hlo_ir::header::EntryLayout;
use hlo_ir::op::Flow;
use hlo_ir::shape::MemorySpace;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_pass::PassError;
use hlo_spmd::{Appender, is_rebuilt};

/// How many arrays are on the device beside the one whose update runs: an array waits for the update of the one this many before it.
const N_AHEAD: usize = 2;

/// Moves these arrays to the memory of the host.
///
/// # Errors
/// The module has no entry, or a value depends on itself.
pub(super) fn offload(module: &mut Module, states: &[State]) -> Result<(), PassError> {
    let entry = module.entry().ok_or_else(|| WusError::NoEntry.about(Entity::Module))?;
    let root = module.comp(entry).root.expand().ok_or_else(|| WusError::NoRoot.about(Entity::Module))?;
    module.comp_mut(entry).insts = grouped_order(module, entry, states);
    let mut position: SecondaryMap<InstId, usize> = SecondaryMap::new();
    let order = module.comp(entry).insts.clone();
    order.iter().enumerate().for_each(|(at, &inst)| position[inst] = at);
    let first_use = |state: &State| state.dependents.iter().map(|&inst| position[inst]).min().unwrap_or(0);
    let mut sorted: Vec<&State> = states.iter().collect();
    sorted.sort_by_key(|state| (first_use(state), state.param_number));
    // What is new before and behind an instruction.
    let mut before: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
    let mut behind: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
    for (place, state) in sorted.iter().enumerate() {
        let at = first_use(state);
        let is_there = |&inst: &InstId| position[inst] < at && is_waited_for(module, inst);
        let needs = state.dependents.iter().flat_map(|&inst| module.inst(inst).operands.iter().copied());
        let ready = needs.filter(is_there).max_by_key(|&inst| position[inst]);
        let earlier = place.checked_sub(N_AHEAD).map(|earlier| sorted[earlier]);
        let done = earlier.and_then(|e| e.dependents.iter().copied().filter(is_there).max_by_key(|&i| position[i]));
        let mut waits_for: Vec<InstId> = ready.into_iter().chain(done).collect();
        waits_for.dedup();
        let first = order[at];
        let (new, moved) = bring(module, entry, state, &waits_for);
        for &inst in state.dependents.iter().chain([&root]) {
            module.map_operands(inst, |operand| if operand == state.param { moved } else { operand });
        }
        before[first].extend(new);
        let next = module.inst(root).operands[state.root_operand];
        let hint = format!("{}.host", module.inst_name(next));
        let kept = move_to(module, Appender::standing_for(entry, next), &hint, next, MemorySpace::Host);
        module.set_operand(root, state.root_operand, kept);
        behind[next].push(kept);
    }
    let mut insts = Vec::with_capacity(module.comp(entry).insts.len());
    for &inst in &order {
        insts.append(&mut before[inst]);
        insts.push(inst);
        insts.append(&mut behind[inst]);
    }
    module.comp_mut(entry).insts = insts;
    state_layouts(module, entry, states);
    module
        .restore_order(entry)
        .map_err(|inst| WusError::DependsOnItself { name: module.inst_name(inst).into() }.about(Entity::Inst(inst)))
}

/// Whether waiting for a value means waiting for work: an array that something computes.
fn is_waited_for(module: &Module, inst: InstId) -> bool {
    let is_given = matches!(module.inst(inst).opcode.row().flow, Flow::Parameter | Flow::Constant);
    module.shape(inst).as_array().is_some() && !is_given && !is_rebuilt(module, inst)
}

/// Brings an array to the device once `waits_for` is there. What is new, in order, and the array on the device.
fn bring(module: &mut Module, entry: CompId, state: &State, waits_for: &[InstId]) -> (Vec<InstId>, InstId) {
    let at = Appender::standing_for(entry, state.param);
    let name = module.inst_name(state.param).to_string();
    let mut new = Vec::new();
    let mut source = state.param;
    if !waits_for.is_empty() {
        let parts: Vec<InstId> = std::iter::once(state.param).chain(waits_for.iter().copied()).collect();
        let all = Shape::Tuple(parts.iter().map(|&part| module.shape(part).clone()).collect());
        let both = at.add_any(module, ("both", Opcode::Tuple), all.clone(), &parts, Attrs::Plain);
        let late = at.add_any(module, ("late", Opcode::OptimizationBarrier), all, &[both], Attrs::Plain);
        let first = Attrs::TupleIndex(Box::new(TupleIndexAttrs { index: 0 }));
        let shape = module.shape(state.param).clone();
        source = at.add_any(module, (&format!("{name}.late"), Opcode::GetTupleElement), shape, &[late], first);
        new.extend([both, late, source]);
    }
    let moved = move_to(module, at, &format!("{name}.device"), source, MemorySpace::Device);
    new.push(moved);
    (new, moved)
}

fn move_to(module: &mut Module, at: Appender, hint: &str, value: InstId, space: MemorySpace) -> InstId {
    let target = match space {
        MemorySpace::Device => "MoveToDevice",
        MemorySpace::Host => "MoveToHost",
    };
    let shape = module.shape(value).clone();
    at.add_any(
        module,
        (hint, Opcode::CustomCall),
        shape,
        &[value],
        CustomAttrs { custom_call_target: QuotedText(target.into()), ..CustomAttrs::default() },
    )
}

/// Puts the parameters and their next values into the memory of the host, in the header.
fn state_layouts(module: &mut Module, entry: CompId, states: &[State]) {
    let stated = module.header.entry_computation_layout.take();
    let own = |module: &Module| {
        let params = module.comp(entry).params.iter().map(|&param| module.inst(param).shape).collect();
        Some(EntryLayout { params, result: module.result_shape(entry)? })
    };
    let Some(mut layout) = stated.or_else(|| own(module)) else { return };
    let mut result = module.shapes.get(layout.result).clone();
    for state in states {
        if let Some(param) = layout.params.get_mut(state.param_number)
            && let Some(array) = module.shapes.get(*param).as_array()
        {
            let shape = Shape::Array(array.in_memory(MemorySpace::Host));
            *param = module.shapes.intern(shape);
        }
        if let Shape::Tuple(elements) = &mut result
            && let Some(Shape::Array(array)) = elements.get_mut(state.root_operand)
        {
            *array = array.in_memory(MemorySpace::Host);
        }
    }
    layout.result = module.shapes.intern(result);
    module.header.entry_computation_layout = Some(layout);
}
