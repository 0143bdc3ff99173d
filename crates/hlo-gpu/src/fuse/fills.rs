//! Reductions of several operands with the fills among these: the indices of an argmax are an iota, which need not lie in
//! memory.

use hlo_analysis::fusion::{Group, is_reduce};
use hlo_ir::{CompId, InstId, Module, Opcode};

/// A fusion for each reduction of several operands that reads iotas, or broadcasts or reshapes of these.
pub(super) fn find_filled_reductions(module: &Module, comp: CompId) -> Vec<Group> {
    let insts = &module.comp(comp).insts;
    insts
        .iter()
        .copied()
        .filter(|&inst| is_variadic(module, inst))
        .filter_map(|inst| group(module, comp, inst))
        .collect()
}

fn is_variadic(module: &Module, inst: InstId) -> bool {
    let has_order = module.inst(inst).marks.as_ref().is_some_and(|m| !m.control_predecessors.is_empty());
    is_reduce(module, inst) && module.inst(inst).operands.len() > 2 && !has_order
}

fn group(module: &Module, comp: CompId, reduce: InstId) -> Option<Group> {
    let (mut all, mut inputs) = (vec![reduce], Vec::new());
    let operands = &module.inst(reduce).operands;
    for &operand in operands.iter().take(operands.len() / 2) {
        let mut fill = Vec::new();
        let mut at = operand;
        while is_map(module, at) {
            fill.push(at);
            at = *module.inst(at).operands.first()?;
        }
        if module.inst(at).opcode == Opcode::Iota {
            fill.push(at);
            all.extend(fill.into_iter().filter(|inst| !all.contains(inst)).collect::<Vec<InstId>>());
        }
    }
    if all.len() == 1 {
        return None;
    }
    for &operand in operands {
        if !all.contains(&operand) && !inputs.contains(&operand) {
            inputs.push(operand);
        }
    }
    let all: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(|inst| all.contains(inst)).collect();
    Some(Group { members: vec![reduce], all, inputs, outputs: vec![reduce] })
}

/// Whether an instruction gives elements of its operand, all of which a kernel can compute by an index.
fn is_map(module: &Module, inst: InstId) -> bool {
    [Opcode::Broadcast, Opcode::Reshape].contains(&module.inst(inst).opcode)
}
