//! Which computations passes visit, and which instructions they leave alone.

use cranelift_entity::EntitySet;
use hlo_ir::{CompId, InstId, Module, Opcode};

/// The computations that run as code: the entry and what `call`, `while` and `conditional` run from there; callees first.
///
/// Left out is what has a fixed form: reducers and comparators (their form is what backends recognise), fused computations
/// (a fusion's extent was chosen by whoever fused) and computations wrapped by async ops (they hold exactly one op). A
/// computation that is used in both ways is left out too.
pub fn code_computations(module: &Module) -> Vec<CompId> {
    let reached = module.post_order();
    let (mut as_code, mut as_form): (EntitySet<CompId>, EntitySet<CompId>) = (EntitySet::new(), EntitySet::new());
    as_code.extend(module.entry());
    for &comp in &reached {
        for &(opcode, callee) in module.calls_of(comp) {
            let runs_code = opcode != Opcode::Fusion && opcode.row().flow.entry().is_some();
            let set = if runs_code { &mut as_code } else { &mut as_form };
            set.insert(callee);
        }
    }
    // What a fused or wrapped computation calls belongs to it.
    for &comp in reached.iter().rev() {
        if as_form.contains(comp) {
            as_form.extend(module.calls_of(comp).iter().map(|&(_, callee)| callee));
        }
    }
    reached.into_iter().filter(|&c| as_code.contains(c) && !as_form.contains(c)).collect()
}

/// Instructions of a computation that must stay as they are: those that take part in a control dependency.
pub fn pinned_by_control(module: &Module, comp: CompId) -> EntitySet<InstId> {
    let mut pinned = EntitySet::new();
    for &inst in &module.comp(comp).insts {
        let predecessors = module.inst(inst).control_predecessors();
        if !predecessors.is_empty() {
            pinned.insert(inst);
            pinned.extend(predecessors.iter().copied());
        }
    }
    pinned
}

/// What XLA's partitioner says of the collectives that it puts in. It promises nothing of them.
const MADE_BY_PARTITIONER: &str = "is_spmd_generated";

/// Whether somebody said something of the instruction that would be lost with it: a sharding or a front end's attribute.
pub fn is_annotated(module: &Module, inst: InstId) -> bool {
    let marks = module.inst(inst).marks.as_ref();
    let says = |(name, _): &(String, String)| name != MADE_BY_PARTITIONER;
    marks.is_some_and(|m| m.sharding.is_some() || m.frontend_attributes.iter().any(says))
}
