//! Stages: numbers that make fusions free of cycles.
//!
//! `stage(user) ≥ stage(operand)` along fusable edges, and `>` along all others, and from what an instruction waits for by a control
//! dependency. Instructions that are fused together have one
//! stage; an edge between different fusions is not fusable or leads from one stage to another, so it leads to a later
//! stage: no path can come back.
//!
//! Instructions first take the earliest stage that they can. Then, from the last to the first, those whose users are later
//! move to the first of them. They move if they can be fused there, and if that keeps no more bytes alive than their result
//! would take: `beta × moment` needs no gradient, but is best computed where the gradient arrives.

use super::edges::Edges;
use super::role::Role;
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode};
use smallvec::SmallVec;

/// The stage of each instruction.
pub(super) type Stages = InstMap<u32>;

/// For each user of each instruction whether all its edges from there are fusable: what [`Edges::fusable_users`] finds.
pub(super) type FusableUsers = InstMap<SmallVec<[bool; 4]>>;

/// Numbers the instructions. Gives what it has found of their users with the numbers.
pub(super) fn find_stages(module: &Module, comp: CompId, edges: &Edges) -> (Stages, FusableUsers) {
    let mut finder = StageFinder {
        module,
        edges,
        fusable_users: edges.fusable_users(module, comp),
        stages: InstMap::of(module, comp),
        last_read: InstMap::of(module, comp),
    };
    for &inst in &edges.order {
        let waits = module.inst(inst).control_predecessors();
        let after = waits.iter().map(|&predecessor| finder.stages[predecessor] + 1).max().unwrap_or(0);
        let operands = module.inst(inst).operands.iter().zip(&edges.is_fusable[inst]);
        let least = operands.map(|(&operand, &is_fusable)| finder.stages[operand] + u32::from(!is_fusable));
        finder.put(inst, least.max().unwrap_or(0).max(after).max(edges.earliest[inst]));
    }
    for &inst in edges.order.iter().rev() {
        if edges.roles[inst] == Role::Fusable
            && !edges.is_waited_for[inst]
            && let Some(stage) = finder.moved(inst)
        {
            finder.put(inst, stage);
        }
    }
    (finder.stages, finder.fusable_users)
}

/// How far back an instruction that might move too is looked through.
const MAX_DEPTH: u32 = 6;

struct StageFinder<'e> {
    module: &'e Module,
    edges: &'e Edges,
    fusable_users: FusableUsers,
    stages: Stages,
    /// One more than the last stage in which a value is read; 0 if never.
    last_read: InstMap<u32>,
}

impl StageFinder<'_> {
    /// Notes the stage of an instruction; it never becomes earlier.
    fn put(&mut self, inst: InstId, stage: u32) {
        self.stages[inst] = stage;
        for &operand in &self.module.inst(inst).operands {
            self.last_read[operand] = self.last_read[operand].max(stage + 1);
        }
    }

    /// The later stage to which an instruction should move.
    fn moved(&self, inst: InstId) -> Option<u32> {
        let (module, stages) = (self.module, &self.stages);
        let users = || self.edges.users[inst].iter().zip(&self.fusable_users[inst]);
        let latest = |(&user, &is_fusable): (&InstId, &bool)| stages[user].saturating_sub(u32::from(!is_fusable));
        let target = users().map(latest).min()?;
        let joins = users().any(|(&user, &is_fusable)| is_fusable && stages[user] == target);
        if self.edges.root == Some(inst) || target <= stages[inst] || !joins {
            return None;
        }
        let own_bytes = module.shape(inst).memory_bytes();
        let mut operands = module.inst(inst).operands.to_vec();
        operands.sort_unstable();
        operands.dedup();
        let kept_bytes: u64 = operands.into_iter().map(|o| self.bytes_kept(o, target, 0)).sum();
        (kept_bytes <= own_bytes).then_some(target)
    }

    /// Bytes that a value takes longer if it is read at stage `target`; of what would move along, its operands' bytes.
    fn bytes_kept(&self, value: InstId, target: u32, depth: u32) -> u64 {
        let (module, edges) = (self.module, self.edges);
        let opcode = module.inst(value).opcode;
        let is_there_anyway = opcode == Opcode::Parameter || opcode == Opcode::Constant;
        if is_there_anyway || self.last_read[value] > target {
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
        let kept = operands.into_iter().map(|o| self.bytes_kept(o, target, depth + 1));
        // A repeatable value is as large as its users, but need not be kept.
        let kept = kept.sum::<u64>();
        if edges.roles[value] == Role::Fusable { kept.min(own_bytes) } else { kept }
    }
}
