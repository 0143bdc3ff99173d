//! Gives each operand of a collective that takes several arrays a collective of its own.

use crate::collective::check_free;
use crate::group_attrs::ChannelIds;
use crate::obstacle::Obstacle;
use crate::record::CollectiveChange;
use crate::rewrite::{DependsOnItself, Rewrite};
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_ir::{InstId, Module, Opcode, Shape};

/// A collective of several arrays.
#[derive(Clone, Debug)]
pub struct TupleCollective {
    /// The collective. Where it was split it stands in no computation any more; its name and shape can still be asked
    /// for.
    pub inst: InstId,
    /// The collectives that took its place, and it; or what keeps it as it is.
    pub outcome: Result<Vec<CollectiveChange>, Obstacle>,
}

/// Returns whether a collective takes several arrays.
pub fn takes_several(module: &Module, inst: InstId, ops: &[Opcode]) -> bool {
    ops.contains(&module.inst(inst).opcode) && module.shape(inst).as_tuple().is_some()
}

/// Splits the collectives of these opcodes that take several arrays: one for each operand, on channels of their own.
/// Reads of an element take it, other users a tuple of all. A layout that is fixed stays fixed for each array. Returns
/// those that were met; linear.
///
/// # Errors
/// An instruction would depend on itself.
pub fn split_tuples(module: &mut Module, ops: &[Opcode]) -> Result<Vec<TupleCollective>, DependsOnItself> {
    let users = module.users();
    let mut channels = ChannelIds::free_in(module);
    let mut met = Vec::new();
    for comp in code_computations(module) {
        let pinned = pinned_by_control(module, comp);
        let mut rewrite = Rewrite::new(module, comp);
        let mut n_split = 0;
        for inst in rewrite.live_insts(module) {
            if !takes_several(module, inst, ops) {
                continue;
            }
            // Each part keeps the layout that is fixed for it.
            let obstacle = check_free(module, inst, &pinned).err().filter(|&o| o != Obstacle::ConstrainsLayout);
            if let Some(obstacle) = obstacle {
                met.push(TupleCollective { inst, outcome: Err(obstacle) });
                continue;
            }
            let mut changes = vec![CollectiveChange::removed(module, inst, "takes several arrays")];
            let parts = split(module, &mut rewrite, &mut channels, inst, &mut changes);
            rewrite.redirect_tuple(module, &users[inst], inst, &parts);
            met.push(TupleCollective { inst, outcome: Ok(changes) });
            n_split += 1;
        }
        if n_split > 0 {
            rewrite.finish(module)?;
        }
    }
    Ok(met)
}

/// The collectives of the operands.
fn split(
    module: &mut Module,
    rewrite: &mut Rewrite,
    channels: &mut ChannelIds,
    inst: InstId,
    changes: &mut Vec<CollectiveChange>,
) -> Vec<InstId> {
    let source = module.inst(inst).clone();
    let shapes: Vec<Shape> = module.shape(inst).as_tuple().map(<[Shape]>::to_vec).unwrap_or_default();
    let rule = source.opcode.row().collective;
    let n_exchanged = rule.map_or(shapes.len(), |rule| module.n_exchanged(inst, rule));
    let mut parts = Vec::with_capacity(shapes.len());
    for (idx, (shape, &operand)) in shapes.into_iter().zip(&source.operands).enumerate() {
        // Scalars that stand behind arrays are handed on.
        if idx >= n_exchanged {
            parts.push(operand);
            continue;
        }
        let hint = format!("{}.{idx}", module.inst_name(inst));
        let mut attrs = source.attrs.clone();
        channels.renew(&mut attrs);
        let part = rewrite.add(module, inst, (&hint, source.opcode), shape, &[operand], attrs);
        changes.push(CollectiveChange::inserted(module, part, format!("takes operand {idx}")));
        parts.push(part);
    }
    parts
}
