//! Finds all-gathers of the same value over the same groups along the same dim, in one computation.
//!
//! ```text
//! %for_forward = f32[64,32] all-gather(%weight), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={0}
//! %for_backward = f32[64,32] all-gather(%weight), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
//! ```
//! XLA does not merge collectives on different channels.
//!
//! **Cost**: all of them but one. It is advice, because one gather lives from its first use to its last, and takes memory for that.
//!
//! **What it does not find**: gathers that the program repeats on purpose, behind an `opt-barrier` or in a computation that is done again to save
//! memory (`jax.checkpoint`, XLA's rematerialization), and arrays below 1 KiB.
//!
//! **How sure**: the operands are one value by the data flow.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::follow::origin;
use hlo_analysis::time::Members;
use hlo_analysis::values::{InstLeaf, Through, ValueId, follow};
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, InstId, Opcode};
use indexmap::IndexMap;

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "repeated-all-gather",
    level: Level::Advice,
    help: "the same value gathered twice over the same groups",
    run,
};

/// What is the same of two gathers that give the same.
type Key<'c> = (CompId, ValueId, &'c Members, Option<usize>);

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let mut alike: IndexMap<Key<'_>, Vec<&Collective>> = IndexMap::new();
    for gather in cx.collectives.iter().filter(|c| c.is_all_gather() && !c.is_of_one_device()) {
        let is_meant = is_done_again(cx, gather.inst) || is_behind_barrier(cx, gather.inst);
        let ([_], Some(value)) = (cx.module.inst(gather.inst).operands.as_slice(), cx.operand(gather, 0)) else {
            continue;
        };
        if !is_meant && gather.bytes >= SMALL_BYTES && cx.values.is_live(gather.inst) {
            let key = (cx.module.inst(gather.inst).parent, origin(&cx.values, value), &gather.members, gather.dim);
            alike.entry(key).or_default().push(gather);
        }
    }
    alike.into_values().filter_map(|gathers| report(cx, &gathers)).collect()
}

fn report(cx: &AuditCx<'_>, gathers: &[&Collective]) -> Option<Finding> {
    let [first, second, ..] = gathers else { return None };
    let also: Vec<InstId> = gathers.iter().map(|gather| gather.inst).filter(|&inst| inst != second.inst).collect();
    let runs = second.n_runs * (gathers.len() - 1) as f64;
    Some(Finding {
        check: &INFO,
        inst: second.inst,
        message: format!("{} gathers what {} has gathered already", cx.name(second.inst), cx.name(first.inst)),
        also,
        cost: second.cost(second.bytes, runs),
        remedy: "gather it once and keep it, if the memory suffices".into(),
    })
}

/// Whether the metadata or the name says that the computation is done again to save memory.
fn is_done_again(cx: &AuditCx<'_>, inst: InstId) -> bool {
    const WORDS: [&str; 3] = ["rematted_computation", "checkpoint", "remat"];
    let op_name = cx.module.inst(inst).marks.as_ref().and_then(|marks| marks.op_name()).unwrap_or_default();
    WORDS.iter().any(|word| op_name.contains(word)) || cx.module.inst_name(inst).contains(".remat")
}

/// Whether a barrier stands between the value and the gather.
fn is_behind_barrier(cx: &AuditCx<'_>, inst: InstId) -> bool {
    let Some(&operand) = cx.module.inst(inst).operands.first() else { return false };
    let is_marker = |at: InstId| {
        let row = cx.module.inst(at).opcode.row();
        matches!(row.factors, FactorRule::Structural(_)) && cx.module.inst(at).opcode == Opcode::OptimizationBarrier
    };
    is_marker(follow(cx.module, InstLeaf::new(operand, 0), Through::ALL, is_marker).inst)
}
