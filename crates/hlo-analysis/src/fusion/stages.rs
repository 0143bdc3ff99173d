//! Stages: numbers that make fusions free of cycles.
//!
//! `stage(user) ≥ stage(operand)` along fusable edges, and `>` along all others. Instructions that are fused together have one
//! stage; an edge between different fusions is not fusable or leads from one stage to another, so it leads to a later
//! stage: no path can come back.
//!
//! Instructions first take the earliest stage that they can. Then, from the last to the first, those whose users are later
//! move to the first of them. They move if they can be fused there, and if that keeps no more bytes alive than their result
//! would take: `beta × moment` needs no gradient, but is best computed where the gradient arrives.

use super::edges::{Edges, Role};
use cranelift_entity::SecondaryMap;
use hlo_ir::{InstId, Module, Opcode};

/// The stage of each instruction.
pub(super) type Stages = SecondaryMap<InstId, u32>;

/// Numbers the instructions.
pub(super) fn find_stages(module: &Module, edges: &Edges) -> Stages {
    let mut stages = Stages::new();
    for &inst in &edges.order {
        let operands = module.inst(inst).operands.iter().zip(&edges.is_fusable[inst]);
        let least = operands.map(|(&operand, &is_fusable)| stages[operand] + u32::from(!is_fusable));
        stages[inst] = least.max().unwrap_or(0);
    }
    for &inst in edges.order.iter().rev() {
        if edges.roles[inst] == Role::Fusable {
            stages[inst] = moved(module, edges, &stages, inst).unwrap_or(stages[inst]);
        }
    }
    stages
}

/// The later stage to which an instruction should move.
fn moved(module: &Module, edges: &Edges, stages: &Stages, inst: InstId) -> Option<u32> {
    let slot_is_fusable = |user: InstId| {
        let slots = module.inst(user).operands.iter().zip(&edges.is_fusable[user]);
        slots.filter(|(operand, _)| **operand == inst).all(|(_, &is_fusable)| is_fusable)
    };
    let users = &edges.users[inst];
    let latest = |user: InstId| stages[user].saturating_sub(u32::from(!slot_is_fusable(user)));
    let target = users.iter().map(|&user| latest(user)).min()?;
    let joins = users.iter().any(|&user| slot_is_fusable(user) && stages[user] == target);
    if edges.root == Some(inst) || target <= stages[inst] || !joins {
        return None;
    }
    let own_bytes = module.shape(inst).memory_bytes();
    let mut operands = module.inst(inst).operands.to_vec();
    operands.sort_unstable();
    operands.dedup();
    let kept_bytes: u64 = operands.into_iter().map(|o| bytes_kept(module, edges, stages, o, target, 0)).sum();
    (kept_bytes <= own_bytes).then_some(target)
}

/// How far back an instruction that might move too is looked through.
const MAX_DEPTH: u32 = 6;

/// Bytes that a value takes longer if it is read at stage `target`; of what would move along, its operands' bytes.
fn bytes_kept(module: &Module, edges: &Edges, stages: &Stages, value: InstId, target: u32, depth: u32) -> u64 {
    let opcode = module.inst(value).opcode;
    let is_there_anyway = opcode == Opcode::Parameter || opcode == Opcode::Constant;
    if is_there_anyway || edges.users[value].iter().any(|&user| stages[user] >= target) {
        return 0;
    }
    let own_bytes = module.shape(value).memory_bytes();
    let moves_along = match edges.roles[value] {
        Role::Repeatable => true,
        Role::Fusable => edges.users[value].len() == 1,
        Role::Alone => opcode == Opcode::GetTupleElement || opcode == Opcode::Copy,
    };
    if !moves_along || depth == MAX_DEPTH {
        return own_bytes;
    }
    let mut operands = module.inst(value).operands.to_vec();
    operands.sort_unstable();
    operands.dedup();
    let kept = operands.into_iter().map(|o| bytes_kept(module, edges, stages, o, target, depth + 1));
    // A repeatable value is as large as its users, but need not be kept.
    let kept = kept.sum::<u64>();
    if edges.roles[value] == Role::Fusable { kept.min(own_bytes) } else { kept }
}
