//! Gives every use of a constant array a constant of its own.
//!
//! Two ops that take the same zeros have nothing to do with one another, and computing the zeros twice costs nothing. Constant are
//! constants, iotas, repeated scalars, and what elementwise ops, broadcasts, reshapes and transposes make of these.

use cranelift_entity::EntitySet;
use hlo_analysis::code::code_computations;
use hlo_ir::module::Instruction;
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, InstId, Module, Opcode};
use indexmap::IndexMap;

/// Copies add at most as many instructions as the module has, or this many if it has fewer.
const MIN_BUDGET: usize = 4096;

/// Copies constant arrays until each has one use. Returns how many instructions that added.
///
/// # Errors
/// An instruction that depends on itself, which no verified module has.
pub(super) fn split_constants(module: &mut Module) -> Result<usize, InstId> {
    let mut budget = module.n_instructions().max(MIN_BUDGET);
    let mut n_added = 0;
    for comp in code_computations(module) {
        let added = split_in(module, comp, &mut budget);
        if added > 0 {
            module.restore_order(comp)?;
        }
        n_added += added;
    }
    Ok(n_added)
}

fn split_in(module: &mut Module, comp: CompId, budget: &mut usize) -> usize {
    let (mut constant, mut claimed): (EntitySet<InstId>, EntitySet<InstId>) = (EntitySet::new(), EntitySet::new());
    let before = *budget;
    for inst in module.comp(comp).insts.clone() {
        if is_constant(module, inst, &constant) {
            constant.insert(inst);
            continue;
        }
        for place in 0..module.inst(inst).operands.len() {
            let operand = module.inst(inst).operands[place];
            if !constant.contains(operand) {
                continue;
            }
            let parts = parts_of(module, operand);
            if !parts.iter().any(|&part| claimed.contains(part)) {
                claimed.extend(parts);
            } else if parts.len() <= *budget {
                *budget -= parts.len();
                let copy = copy_parts(module, &parts);
                module.set_operand(inst, place, copy);
            }
        }
    }
    before - *budget
}

/// Whether an instruction gives a constant array, and nobody said anything of it.
fn is_constant(module: &Module, inst: InstId, constant: &EntitySet<InstId>) -> bool {
    let instruction = module.inst(inst);
    let has_dims = |inst: InstId| module.shape(inst).as_array().is_some_and(|array| array.rank() > 0);
    if !has_dims(inst) || hlo_analysis::code::is_annotated(module, inst) || !instruction.opcode.is_pure() {
        return false;
    }
    let is_known = |&operand: &InstId| {
        constant.contains(operand) || (module.inst(operand).opcode == Opcode::Constant && !has_dims(operand))
    };
    match instruction.opcode.row().factors {
        FactorRule::Iota => true,
        // A repeated scalar has no dims to tie, wherever the scalar comes from.
        FactorRule::Broadcast => instruction.operands.iter().all(|o| is_known(o) || !has_dims(*o)),
        FactorRule::Elementwise | FactorRule::Reshape | FactorRule::Transpose => {
            !instruction.operands.is_empty() && instruction.operands.iter().all(is_known)
        }
        _ => instruction.opcode == Opcode::Constant,
    }
}

/// What a constant array is computed from, operands first, itself last: all that has dims.
fn parts_of(module: &Module, root: InstId) -> Vec<InstId> {
    let mut order: IndexMap<InstId, ()> = IndexMap::new();
    let mut stack = vec![(root, false)];
    while let Some((inst, is_done)) = stack.pop() {
        if is_done {
            order.insert(inst, ());
        } else if !order.contains_key(&inst) {
            stack.push((inst, true));
            let has_dims = |&operand: &InstId| module.shape(operand).as_array().is_some_and(|a| a.rank() > 0);
            stack.extend(module.inst(inst).operands.iter().copied().filter(has_dims).map(|operand| (operand, false)));
        }
    }
    order.into_keys().collect()
}

/// Copies of instructions that take each other's copies; the last one's copy.
fn copy_parts(module: &mut Module, parts: &[InstId]) -> InstId {
    let mut copies: IndexMap<InstId, InstId> = IndexMap::new();
    let mut last = parts[parts.len() - 1];
    for &part in parts {
        let mut instruction: Instruction = module.inst(part).clone();
        let base = module.inst_name(part).to_string();
        instruction.name = module.names.fresh(&base);
        instruction.operands.iter_mut().for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
        last = module.add_instruction(instruction);
        copies.insert(part, last);
    }
    last
}
