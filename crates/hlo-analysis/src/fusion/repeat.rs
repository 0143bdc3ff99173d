//! Cheap values that are needed late: compute them again there, instead of keeping them in memory until then.
//!
//! What a training step's backward pass reads of its forward pass is often a function of something else that it reads too:
//! ```text
//! x  = add(dot, bias)          read by the backward pass
//! x2 = multiply(x, x)          read by the backward pass: one multiplication away from x
//! ```
//! Fusions of later stages may read a value of a stage. It is computed again for them if that takes at most
//! [`MAX_OPERATIONS`] elementwise operations, on constants and on one value that is kept for as long anyway. The stages then move
//! the copy to where it is read.

use super::edges::Edges;
use super::groups::StagedEdges;
use super::role::Role;
use super::stages::{Stages, find_stages};
use crate::values::tuple_elements;
use hlo_ir::edit::Builder;
use hlo_ir::op::{CostRule, FactorRule};
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode};

/// Operations that are cheaper than to write, keep and read a value.
const MAX_OPERATIONS: usize = 3;

/// Repeats cheap values for their late users; gives how many values no longer have any. Where there are none, the module is as it was,
/// and what was found out about it comes back too.
pub(super) fn repeat_cheap_values(module: &mut Module, comp: CompId) -> Result<(usize, Option<StagedEdges>), InstId> {
    let edges = Edges::of(module, comp);
    let (stages, fusable_users) = find_stages(module, comp, &edges);
    // The last stage at which each value is read.
    let mut late: InstMap<u32> = InstMap::of(module, comp);
    for &inst in &edges.order {
        late[inst] = edges.users[inst].iter().map(|&user| stages[user]).max().unwrap_or(0);
    }
    if let Some(root) = edges.root {
        late[root] = u32::MAX;
        // What the root hands on is kept to the end.
        let elements = tuple_elements(module, root).unwrap_or_default();
        elements.iter().for_each(|&element| late[element] = u32::MAX);
    }
    let mut n_repeated = 0;
    for &inst in &edges.order {
        if edges.roles[inst] != Role::Fusable || late[inst] == u32::MAX || late[inst] <= stages[inst] {
            continue;
        }
        let Some(far) = far_users(&edges, &fusable_users[inst], &stages, inst) else { continue };
        let mut chain = Vec::new();
        let Some(source) = find_source(module, &edges, &late, inst, late[inst], &mut chain) else { continue };
        repeat(module, comp, &stages, &far, &chain);
        late[source] = late[source].max(late[inst]);
        late[inst] = stages[inst];
        n_repeated += 1;
    }
    if n_repeated > 0 {
        module.restore_order(comp)?;
    }
    Ok((n_repeated, (n_repeated == 0).then_some(StagedEdges { edges, stages })))
}

/// The users of later stages; `None` if one of them cannot compute the value itself. `is_fusable` is for each user.
fn far_users(edges: &Edges, is_fusable: &[bool], stages: &Stages, inst: InstId) -> Option<Vec<InstId>> {
    let users = edges.users[inst].iter().copied().zip(is_fusable);
    let far: Vec<(InstId, &bool)> = users.filter(|(user, _)| stages[*user] > stages[inst]).collect();
    let can_all = far.iter().all(|&(user, &is_fusable)| is_fusable && edges.roles[user] == Role::Fusable);
    (!far.is_empty() && can_all).then(|| far.into_iter().map(|(user, _)| user).collect())
}

/// The value, kept until stage `until`, from which `inst` is computed by the operations of `chain`, the last one first.
fn find_source(
    module: &Module,
    edges: &Edges,
    late: &InstMap<u32>,
    inst: InstId,
    until: u32,
    chain: &mut Vec<InstId>,
) -> Option<InstId> {
    let mut at = inst;
    loop {
        let row = module.inst(at).opcode.row();
        let is_cheap = matches!(row.cost, CostRule::PerElement(flops) if flops <= 2);
        if row.factors != FactorRule::Elementwise || !is_cheap || chain.len() == MAX_OPERATIONS {
            return None;
        }
        chain.push(at);
        let mut operands: Vec<InstId> = module.inst(at).operands.to_vec();
        operands.retain(|&operand| !is_constant(module, edges, operand));
        operands.dedup();
        let &[operand] = operands.as_slice() else { return None };
        let shapes = (module.shape(operand).as_array(), module.shape(inst).as_array());
        let is_alike = matches!(shapes, (Some(a), Some(b)) if a.dims == b.dims);
        if !is_alike {
            return None;
        }
        if late[operand] >= until {
            return Some(operand);
        }
        at = operand;
    }
}

/// Whether a value is a constant, or one in other dims.
fn is_constant(module: &Module, edges: &Edges, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    instruction.opcode == Opcode::Constant
        || edges.roles[inst] == Role::Repeatable
            && !instruction.operands.is_empty()
            && instruction.operands.iter().all(|&operand| is_constant(module, edges, operand))
}

/// Writes copies of a chain of operations, the last one first, for the users of each stage.
fn repeat(module: &mut Module, comp: CompId, stages: &Stages, far: &[InstId], chain: &[InstId]) {
    let mut wanted: Vec<u32> = far.iter().map(|&user| stages[user]).collect();
    wanted.sort_unstable();
    wanted.dedup();
    for stage in wanted {
        let mut renamed: Option<(InstId, InstId)> = None;
        for &inst in chain.iter().rev() {
            let mut operands = module.inst(inst).operands.to_vec();
            if let Some((old, new)) = renamed {
                operands.iter_mut().filter(|operand| **operand == old).for_each(|operand| *operand = new);
            }
            let instruction = module.inst(inst);
            let (opcode, attrs) = (instruction.opcode, instruction.attrs.clone());
            let (shape, hint) = (module.shape(inst).clone(), format!("{}.again", module.inst_name(inst)));
            renamed = Some((inst, Builder::new(module, comp).add(&hint, opcode, shape, operands, attrs)));
        }
        let Some((inst, new)) = renamed else { return };
        for &user in far.iter().filter(|&&user| stages[user] == stage) {
            module.inst_mut(user).operands.iter_mut().filter(|o| **o == inst).for_each(|o| *o = new);
        }
    }
}
