//! Broadcasts that carry a row's value back to the row: one for each user, so that each can stand in its user's fusion.

use hlo_ir::edit::Builder;
use hlo_ir::{CompId, InstId, Module, Opcode};

use super::edges::Edges;
use super::role::Role;
use super::rows::{is_elementwise_of, spread_class};

/// Gives every user that computes rows its own broadcast of a row's value, so that each can stand in its user's fusion. Returns
/// whether there were any to give.
pub(super) fn part_spreads(module: &mut Module, comp: CompId) -> bool {
    let edges = Edges::of(module, comp);
    let mut has_parted = false;
    for &inst in &edges.order {
        let is_spread = spread_class(module, &edges.rows, inst).is_some()
            && module.inst(inst).opcode == Opcode::Broadcast
            && edges.users[inst].len() > 1;
        if !is_spread {
            continue;
        }
        let of_rows = |user: &&InstId| edges.roles[**user] == Role::Fusable && is_elementwise_of(module, **user, inst);
        let users: Vec<InstId> = edges.users[inst].iter().filter(of_rows).copied().collect();
        let keeps_first = users.len() == edges.users[inst].len() && edges.root != Some(inst);
        for user in users.into_iter().skip(usize::from(keeps_first)) {
            let broadcast = module.inst(inst);
            let (operand, attrs, shape) =
                (broadcast.operands.to_vec(), broadcast.attrs.clone(), module.shape(inst).clone());
            let hint = module.inst_name(inst).to_string();
            let own = Builder::new(module, comp).add(&hint, Opcode::Broadcast, shape, operand, attrs);
            module.inst_mut(user).operands.iter_mut().filter(|o| **o == inst).for_each(|o| *o = own);
            has_parted = true;
        }
    }
    has_parted
}
