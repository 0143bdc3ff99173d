//! Gives every use of a constant array a constant of its own, and merges those that come out alike.
//!
//! Two ops that take the same zeros have nothing to do with one another, and computing the zeros twice costs nothing. Constant are
//! constants, iotas, repeated scalars, and what elementwise ops, broadcasts, reshapes and transposes make of these.

use cranelift_entity::EntitySet;
use hlo_analysis::code::code_computations;
use hlo_ir::module::{Instruction, Operands};
use hlo_ir::names::FixedHash;
use hlo_ir::op::FactorRule;
use hlo_ir::sharding::Sharding;
use hlo_ir::{CompId, InstId, Module, Opcode};
use indexmap::IndexMap;

/// Copies add at most as many instructions as the module has, or this many if it has fewer.
const MIN_BUDGET: usize = 4096;

/// The copies of constants, with what they are copies of.
#[derive(Debug, Default)]
pub(crate) struct ConstantCopies {
    /// By computation; of a constant that is computed from others, those come first.
    of: Vec<(CompId, Vec<(InstId, InstId)>)>,
}

impl ConstantCopies {
    /// Copies constant arrays until each has one use.
    ///
    /// # Errors
    /// An instruction that depends on itself, which no verified module has.
    pub(crate) fn split(module: &mut Module) -> Result<ConstantCopies, InstId> {
        let mut budget = module.n_instructions().max(MIN_BUDGET);
        let mut copies = ConstantCopies::default();
        for comp in code_computations(module) {
            let made = split_in(module, comp, &mut budget);
            if !made.is_empty() {
                module.restore_order(comp)?;
                copies.of.push((comp, made));
            }
        }
        Ok(copies)
    }

    /// Merges copies that are cut alike. Returns how many stay.
    pub(crate) fn merge(self, module: &mut Module) -> usize {
        let mut n_kept = 0;
        for (comp, made) in self.of {
            let mut new: IndexMap<InstId, InstId, FixedHash> = IndexMap::default();
            let mut known: IndexMap<(InstId, Option<Sharding>, Operands), InstId, FixedHash> = IndexMap::default();
            let key = |module: &Module, new: &IndexMap<InstId, InstId, FixedHash>, inst: InstId, original: InstId| {
                let operands = module.inst(inst).operands.iter().map(|o| new.get(o).copied().unwrap_or(*o));
                (original, module.sharding(inst).cloned(), operands.collect::<Operands>())
            };
            for &(_, original) in &made {
                known.insert(key(module, &new, original, original), original);
            }
            for (copy, original) in made {
                let one = *known.entry(key(module, &new, copy, original)).or_insert(copy);
                if one == copy {
                    n_kept += 1;
                } else {
                    new.insert(copy, one);
                }
            }
            if !new.is_empty() {
                redirect(module, comp, &new);
            }
        }
        n_kept
    }
}

/// Has all uses in a computation take others in place of some instructions, and removes these.
fn redirect(module: &mut Module, comp: CompId, new: &IndexMap<InstId, InstId, FixedHash>) {
    let now = |inst: InstId| new.get(&inst).copied().unwrap_or(inst);
    module.comp_mut(comp).insts.retain(|inst| !new.contains_key(inst));
    for inst in module.comp(comp).insts.clone() {
        module.map_operands(inst, now);
    }
    if let Some(root) = module.comp(comp).root.expand() {
        module.comp_mut(comp).root = Some(now(root)).into();
    }
}

fn split_in(module: &mut Module, comp: CompId, budget: &mut usize) -> Vec<(InstId, InstId)> {
    let (mut constant, mut claimed): (EntitySet<InstId>, EntitySet<InstId>) = (EntitySet::new(), EntitySet::new());
    let mut made = Vec::new();
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
                let copy = copy_parts(module, &parts, &mut made);
                module.set_operand(inst, place, copy);
            }
        }
    }
    made
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
    let rule = instruction.opcode.row().factors;
    if rule == FactorRule::Broadcast {
        // A repeated scalar has no dims to tie, wherever the scalar comes from.
        return instruction.operands.iter().all(|operand| is_known(operand) || !has_dims(*operand));
    }
    let is_computed = matches!(rule, FactorRule::Elementwise | FactorRule::Reshape | FactorRule::Transpose)
        && !instruction.operands.is_empty()
        && instruction.operands.iter().all(is_known);
    is_computed || rule == FactorRule::Iota || instruction.opcode == Opcode::Constant
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
fn copy_parts(module: &mut Module, parts: &[InstId], made: &mut Vec<(InstId, InstId)>) -> InstId {
    let mut copies: IndexMap<InstId, InstId> = IndexMap::new();
    let mut last = parts[parts.len() - 1];
    for &part in parts {
        let mut instruction: Instruction = module.inst(part).clone();
        let base = module.inst_name(part).to_string();
        instruction.name = module.names.fresh(&base);
        instruction.operands.iter_mut().for_each(|operand| *operand = copies.get(operand).copied().unwrap_or(*operand));
        last = module.add_instruction(instruction);
        copies.insert(part, last);
        made.push((last, part));
    }
    last
}
