//! Scatters with what their arrays and updates are: the gradient of a table of embeddings begins with zeros, which need not lie in memory, and
//! adds rows that are slices of another gradient, or its numbers in another type. The kernel reads each update once.

use super::has_order;
use crate::kernel::keeps_runs;
use hlo_analysis::fusion::Group;
use hlo_ir::module::UserMap;
use hlo_ir::op::FactorRule;
use hlo_ir::view::is_view;
use hlo_ir::{CompId, InstId, Module, Opcode};

/// Maps of one operand that a scatter takes in at most.
const MOST_MAPS: usize = 16;

/// A fusion for each scatter of which an array is a broadcast scalar, or of which updates are maps of others that nobody else reads.
pub(super) fn find_scatters(module: &Module, comp: CompId) -> Vec<Group> {
    let insts = &module.comp(comp).insts;
    let is_scatter = |&inst: &InstId| module.inst(inst).opcode == Opcode::Scatter && !has_order(module, inst);
    let scatters: Vec<InstId> = insts.iter().copied().filter(is_scatter).collect();
    if scatters.is_empty() {
        return Vec::new(); // the users of all of the module are asked for scatters alone
    }
    let (users, waited_for) = (module.users(), super::waited_for(module, comp));
    let root = module.comp(comp).root.expand();
    let is_free = |inst: InstId| !has_order(module, inst) && !waited_for.contains(&inst);
    let group = |scatter: InstId| {
        let operands = &module.inst(scatter).operands;
        let n_arrays = operands.len() / 2;
        let (mut members, mut fills) = (vec![scatter], Vec::new());
        for &array in operands.iter().take(n_arrays) {
            fills.extend(fill_of(module, array).into_iter().flatten().filter(|&inst| is_free(inst)));
        }
        for &updates in operands.iter().skip(n_arrays + 1) {
            let (mut at, mut user) = (updates, scatter);
            let mut n_maps = 0;
            while takes_map(module, at)
                && is_private(&users, at, user)
                && root != Some(at)
                && is_free(at)
                && n_maps < MOST_MAPS
            {
                members.push(at);
                user = at;
                n_maps += 1;
                let Some(&next) = module.inst(at).operands.first() else { break };
                at = next;
            }
        }
        let is_in = |inst: &InstId| members.contains(inst) || fills.contains(inst);
        let all: Vec<InstId> = insts.iter().copied().filter(is_in).collect();
        let mut inputs: Vec<InstId> = Vec::new();
        for &operand in all.iter().flat_map(|&inst| &module.inst(inst).operands) {
            if !is_in(&operand) && !inputs.contains(&operand) {
                inputs.push(operand);
            }
        }
        let members = insts.iter().copied().filter(|inst| members.contains(inst)).collect();
        (all.len() > 1).then(|| Group { members, all, inputs, outputs: vec![scatter] })
    };
    scatters.into_iter().filter_map(group).collect()
}

/// A broadcast scalar constant, and what it is made of.
fn fill_of(module: &Module, inst: InstId) -> Option<Vec<InstId>> {
    let (mut all, mut at) = (Vec::new(), inst);
    while module.inst(at).opcode == Opcode::Broadcast {
        all.push(at);
        at = *module.inst(at).operands.first()?;
    }
    let is_scalar = module.shape(at).as_array().is_some_and(|array| array.n_elems() == 1);
    all.push(at);
    (module.inst(at).opcode == Opcode::Constant && is_scalar).then_some(all)
}

/// Whether an element of a value is one element of its operand, neighbours in memory stay neighbours, and no more is written than without the
/// map: a kernel that computes the operand would write all of it, and in its own type.
fn takes_map(module: &Module, inst: InstId) -> bool {
    let node = module.inst(inst);
    let is_array = module.shape(inst).as_array().is_some_and(|array| array.dynamic == 0);
    let keeps = [Opcode::Slice, Opcode::Broadcast, Opcode::Convert].contains(&node.opcode);
    let is_map = is_array && (keeps || is_view(module, inst) || keeps_runs(module, inst));
    let bytes = |inst: InstId| module.shape(inst).memory_bytes();
    is_map && node.operands.first().is_some_and(|&of| bytes(of) <= bytes(inst) || is_in_memory(module, of))
}

/// Whether a value lies in memory whoever reads it.
fn is_in_memory(module: &Module, inst: InstId) -> bool {
    let mut at = inst;
    while is_view(module, at)
        && let Some(&of) = module.inst(at).operands.first()
    {
        at = of;
    }
    let opcode = module.inst(at).opcode;
    let row = opcode.row();
    let is_alone =
        [FactorRule::Dot, FactorRule::Convolution, FactorRule::Scatter, FactorRule::Sort].contains(&row.factors);
    is_alone || [Opcode::Parameter, Opcode::GetTupleElement].contains(&opcode) || row.collective.is_some()
}

fn is_private(users: &UserMap, inst: InstId, user: InstId) -> bool {
    users[inst].iter().all(|&other| other == user)
}
