//! Reductions and sorts of several operands with the fills among these: the indices of an argmax, or the positions that a sort takes along, are an
//! iota, which need not lie in memory. Of sorts of which the first elements are wanted, no others are written.

use super::has_order;
use crate::kernel::sorted_operand;
use hlo_analysis::fusion::{Group, is_reduce};
use hlo_ir::{CompId, InstId, Module, Opcode};

/// A fusion for each reduction of several operands that reads iotas, or broadcasts or reshapes of these.
pub(super) fn find_filled_reductions(module: &Module, comp: CompId) -> Vec<Group> {
    let n_arrays = |inst: InstId| module.inst(inst).operands.len() / 2;
    let reductions = module.comp(comp).insts.iter().copied().filter(|&inst| is_reduce(module, inst));
    let variadic = reductions.filter(|&inst| n_arrays(inst) > 1 && !has_order(module, inst));
    variadic.filter_map(|inst| group(module, comp, inst, n_arrays(inst))).filter(|group| group.all.len() > 1).collect()
}

/// A fusion for each sort that reads iotas, or broadcasts or reshapes of these, or of which the first elements alone are wanted.
pub(super) fn find_sorts(module: &Module, comp: CompId) -> Vec<Group> {
    let is_sort = |&inst: &InstId| module.inst(inst).opcode == Opcode::Sort && !has_order(module, inst);
    let sorts: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(is_sort).collect();
    if sorts.is_empty() {
        return Vec::new(); // the users of all of the module are asked for sorts alone
    }
    let users = module.users();
    let grouped = |sort: InstId| {
        let mut group = group(module, comp, sort, module.inst(sort).operands.len())?;
        let is_array = module.shape(sort).as_array().is_some();
        let elements: Vec<InstId> = if is_array { vec![sort] } else { users[sort].to_vec() };
        let readers: Vec<InstId> = elements.iter().flat_map(|&element| users[element].iter().copied()).collect();
        let is_first = |&reader: &InstId| {
            module.inst(reader).opcode == Opcode::Slice
                && sorted_operand(module, (reader, 0), &|_| false).is_some_and(|(of, _)| of == sort)
        };
        let dims = |reader: &InstId| module.shape(*reader).as_array().map(|array| &array.dims);
        let root = module.comp(comp).root.expand();
        let is_read_in_part = readers.iter().all(is_first)
            && readers.windows(2).all(|two| dims(&two[0]) == dims(&two[1]))
            && !elements.iter().chain(&readers).any(|inst| has_order(module, *inst))
            && !elements.iter().any(|&element| root == Some(element))
            && elements.iter().all(|&element| is_array || module.inst(element).opcode == Opcode::GetTupleElement);
        if is_read_in_part && !readers.is_empty() {
            let inside = |inst: &InstId| *inst == sort || elements.contains(inst) || readers.contains(inst);
            let insts = &module.comp(comp).insts;
            group.members = insts.iter().copied().filter(|inst| inside(inst)).collect();
            group.all = insts.iter().copied().filter(|inst| inside(inst) || group.all.contains(inst)).collect();
            group.outputs = insts.iter().copied().filter(|inst| readers.contains(inst)).collect();
        }
        (group.all.len() > 1).then_some(group)
    };
    sorts.into_iter().filter_map(grouped).collect()
}

fn group(module: &Module, comp: CompId, user: InstId, n_arrays: usize) -> Option<Group> {
    let (mut all, mut inputs) = (vec![user], Vec::new());
    let operands = &module.inst(user).operands;
    for &operand in operands.iter().take(n_arrays) {
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
    for &operand in operands {
        if !all.contains(&operand) && !inputs.contains(&operand) {
            inputs.push(operand);
        }
    }
    let all: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(|inst| all.contains(inst)).collect();
    Some(Group { members: vec![user], all, inputs, outputs: vec![user] })
}

/// Whether an instruction gives elements of its operand, all of which a kernel can compute by an index.
fn is_map(module: &Module, inst: InstId) -> bool {
    [Opcode::Broadcast, Opcode::Reshape].contains(&module.inst(inst).opcode)
}
