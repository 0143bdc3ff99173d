//! Gathers of what the loop hands on, an iteration ahead.

use cranelift_entity::EntitySet;
use hlo_analysis::carried_loop::{CarriedLoop, Copies};
use hlo_analysis::code::{is_annotated, pinned_by_control};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::op::{CollectiveForm, CollectiveSource, Flow};
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_spmd::{ChannelIds, is_rebuilt};

use super::sources::{Source, Sources};

/// The gathers of a loop that can run an iteration ahead.
pub(super) fn find(module: &Module, carried: &CarriedLoop, users: &UserMap, min_bytes: u64) -> Vec<InstId> {
    let sources = Sources::find(module, carried);
    let pinned = pinned_by_control(module, carried.body);
    let is_ahead = |inst: &InstId| {
        let instruction = module.inst(*inst);
        let Flow::Collective(rule) = instruction.opcode.row().flow else { return false };
        let is_gather = rule.form == CollectiveForm::Synchronous
            && instruction.opcode.row().collective.is_some_and(|c| c.gathers && c.source == CollectiveSource::Members);
        let [operand] = instruction.operands.as_slice() else { return false };
        is_gather
            && sources.of(*operand) == Source::Counted
            && matches!(module.shape(*inst), Shape::Array(_))
            && module.shape(*inst).size_bytes() >= min_bytes
            && !pinned.contains(*inst)
            && !is_annotated(module, *inst)
            // What only the next iteration takes is ahead already.
            && users[*inst].iter().any(|&user| user != carried.root)
    };
    module.comp(carried.body).insts.iter().copied().filter(is_ahead).collect()
}

/// Has the loop carry what it gathers.
///
/// # Errors
/// An instruction that depends on itself: a defect of the pass.
pub(super) fn pipeline(
    module: &mut Module,
    carried: &CarriedLoop,
    gathers: &[InstId],
    channels: &mut ChannelIds,
) -> Result<(), InstId> {
    let CarriedLoop { inst, body, init, root, .. } = *carried;
    let comp = module.inst(inst).parent;
    let (was_live, n_slots_before) = ([comp, body].map(|comp| module.live(comp)), module.n_inst_slots());
    let (first, next) = (module.inst(init).operands.to_vec(), module.inst(root).operands.to_vec());
    let begun = wait_for_loop(module, carried, gathers, &first);
    let mut copy_all = |module: &mut Module, mut copies: Copies<'_>| -> Vec<InstId> {
        // What is handed on as it is stays the same read of the state.
        gathers.iter().map(|&gather| copies.copy(module, gather, |attrs| channels.renew(attrs))).collect()
    };
    let begin = copy_all(module, Copies::new(carried, comp, &begun, ".first"));
    let n_slots = module.comp(body).insts.len();
    let handed_on = copy_all(module, Copies::new(carried, body, &next, ".next"));
    // What the next iteration takes is gathered first, beside all that this one does.
    module.comp_mut(body).insts.rotate_left(n_slots);
    let reads = carried.append(module, &begin);
    for ((&gather, &read), &value) in gathers.iter().zip(&reads).zip(&handed_on) {
        module.replace_all_uses(gather, read);
        module.inst_mut(root).operands.push(value);
    }
    for (comp, was_live) in [comp, body].into_iter().zip(&was_live) {
        module.remove_newly_dead(comp, was_live, n_slots_before);
        module.restore_order(comp)?;
    }
    Ok(())
}

/// What the loop begins with, as the first gathers take it: where something of it is computed, what the loop hands on as it is waits for
/// that. Else the first layer of a backward pass would be gathered, or merged with other gathers, before the forward pass.
fn wait_for_loop(module: &mut Module, carried: &CarriedLoop, gathers: &[InstId], first: &[InstId]) -> Vec<InstId> {
    let comp = module.inst(carried.inst).parent;
    let is_given = |inst: InstId| {
        matches!(module.inst(inst).opcode.row().flow, Flow::Parameter | Flow::Constant) || is_rebuilt(module, inst)
    };
    let insts = &module.comp(comp).insts;
    let place = |inst: &InstId| insts.iter().position(|other| other == inst);
    let is_waited = |index: &usize| !carried.is_handed_on(module, *index) && !is_given(first[*index]);
    let computed = (0..first.len()).filter(is_waited).max_by_key(|&index| place(&first[index]));
    let read = elements_behind(module, carried, gathers);
    let fixed: Vec<usize> = read.into_iter().filter(|&index| carried.is_handed_on(module, index)).collect();
    let (Some(computed), false) = (computed, fixed.is_empty()) else { return first.to_vec() };
    let operands: Vec<InstId> = fixed.iter().chain([&computed]).map(|&index| first[index]).collect();
    let shape = Shape::Tuple(operands.iter().map(|&inst| module.shape(inst).clone()).collect());
    let mut builder = Builder::new(module, comp);
    let both = builder.add("begun", Opcode::Tuple, shape.clone(), operands, Attrs::Plain);
    let barrier = builder.add("late", Opcode::OptimizationBarrier, shape, [both], Attrs::Plain);
    let mut begun = first.to_vec();
    for (place, &index) in fixed.iter().enumerate() {
        let (hint, shape) = (module.inst_name(first[index]).to_string(), module.shape(first[index]).clone());
        let attrs = TupleIndexAttrs { index: place as i64 };
        begun[index] = Builder::new(module, comp).add(&hint, Opcode::GetTupleElement, shape, [barrier], attrs);
    }
    begun
}

/// The elements of the state that the gathers follow from, in order.
fn elements_behind(module: &Module, carried: &CarriedLoop, gathers: &[InstId]) -> Vec<usize> {
    let (mut seen, mut work): (EntitySet<InstId>, Vec<InstId>) = (EntitySet::new(), gathers.to_vec());
    let mut elements = Vec::new();
    while let Some(inst) = work.pop() {
        if !seen.insert(inst) {
            continue;
        }
        match carried.element_read(module, inst) {
            Some(index) => elements.push(index),
            None => work.extend(module.inst(inst).operands.iter().copied()),
        }
    }
    elements.sort();
    elements.dedup();
    elements
}
