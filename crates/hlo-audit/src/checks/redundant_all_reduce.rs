//! Finds an all-reduce or reduce-scatter of what all devices of its groups hold already.
//!
//! Automatic differentiation has summed the gradient, and the training step sums it again:
//! ```text
//! %gradient = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %again = f32[64,32] all-reduce(%gradient), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! The second is four times the first, or, with `max`, the first itself.
//!
//! **Cost**: the whole collective. Where it is a sum, the result may also not be what was meant.
//!
//! **What it does not find**: arrays below 1 KiB that ride with others in one collective.
//!
//! **How sure**: the replication analysis proves the operand equal within each group.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::cost::total_bytes;
use crate::finding::{CheckInfo, Finding, Level};
use hlo_ir::monoid::Monoid;

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "redundant-all-reduce",
    level: Level::Fault,
    help: "a reduction over devices that hold the same value already, as a sum of a sum",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let reductions = cx.collectives.iter().filter(|c| c.rule.reduces() && !c.is_of_one_device());
    reductions.filter_map(|collective| check(cx, collective)).collect()
}

fn check(cx: &AuditCx<'_>, collective: &Collective) -> Option<Finding> {
    let operands = &cx.module.inst(collective.inst).operands;
    let is_equal = |k: &usize| cx.replication.is_equal_within(operands[*k], 0, &collective.members.groups);
    let equal: Vec<usize> = (0..operands.len()).filter(is_equal).collect();
    let bytes = total_bytes(equal.iter().map(|&k| cx.array_bytes(collective, k)));
    let is_alone = equal.len() == operands.len();
    if equal.is_empty() || (!is_alone && bytes < SMALL_BYTES) {
        return None;
    }
    let of = match equal.as_slice() {
        [one] => cx.name(operands[*one]),
        several => format!("{} operands", several.len()),
    };
    let n = collective.members.groups.iter().map(Vec::len).max().unwrap_or(1);
    let gives = match collective.reducer {
        Some(Monoid::Add) => format!("{n} times it"),
        Some(Monoid::Maximum | Monoid::Minimum | Monoid::And | Monoid::Or) => "the same again".into(),
        Some(Monoid::Multiply) => "a power of it".into(),
        None => "a function of it".into(),
    };
    Some(Finding {
        check: &INFO,
        inst: collective.inst,
        also: equal.iter().map(|&k| operands[k]).collect(),
        message: format!(
            "{} reduces {of} over {n} devices that hold the same value of it already, which gives {gives}",
            cx.name(collective.inst)
        ),
        cost: collective.cost(bytes, collective.n_runs),
        remedy: cx.remedy("take the value itself", "split-tuple-all-reduce,fold-all-reduce-of-all-reduce"),
    })
}
