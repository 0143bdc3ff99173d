//! Finds all-reduces whose results are only added to each other: one all-reduce of the sum gives the same.
//!
//! Both uses of a tied weight reduce their part of its gradient:
//! ```text
//! %a = f32[64,32] all-reduce(%local.a), replica_groups={{0,1,2,3}}, to_apply=%add
//! %b = f32[64,32] all-reduce(%local.b), replica_groups={{0,1,2,3}}, to_apply=%add
//! %gradient = f32[64,32] add(%a, %b)
//! ```
//!
//! **Cost**: all of them but one. It is advice, because XLA's pipelines for accelerators can reassociate sums.
//!
//! **What it does not find**: parts that are converted or scaled differently before they are added, arrays below 1 KiB.
//!
//! **How sure**: each result has one use, in the same tree of additions, and the groups are the same. Floating-point sums change by the
//! order of additions.

use super::all_reduce_in_loop::scales;
use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::follow::{Next, next, only_moves};
use hlo_analysis::time::Members;
use hlo_analysis::values::ValueId;
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, InstId, Opcode};
use hlo_spmd::{Splat, find_scaling};
use indexmap::IndexMap;

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "added-all-reduces",
    level: Level::Advice,
    help: "all-reduces whose results are only added, as the parts of a tied weight's gradient",
    run,
};

/// What must be the same of two sums that can be one: the last addition, the computation and the groups.
type Key<'c> = (InstId, CompId, &'c Members);

/// An array of a collective, and what its sum is scaled by.
type Term<'c> = (&'c Collective, usize, Option<Splat>);

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let mut terms: IndexMap<Key<'_>, Vec<Term<'_>>> = IndexMap::new();
    let sums = |c: &&Collective| c.is_all_reduce() && c.reducer == Some(Monoid::Add) && !c.is_of_one_device();
    for collective in cx.collectives.iter().filter(sums) {
        for k in 0..collective.n_arrays(cx.module) {
            let Some(value) = cx.result(collective, k) else { continue };
            if cx.array_bytes(collective, k) < SMALL_BYTES {
                continue;
            }
            if let Some((last, splat)) = last_addition(cx, collective, value) {
                let key = (last, cx.module.inst(collective.inst).parent, &collective.members);
                terms.entry(key).or_default().push((collective, k, splat));
            }
        }
    }
    terms.into_iter().filter_map(|((last, ..), terms)| report(cx, last, &terms)).collect()
}

fn report(cx: &AuditCx<'_>, last: InstId, terms: &[Term<'_>]) -> Option<Finding> {
    let (first, _, splat) = terms.first()?;
    let alike: Vec<_> = terms.iter().filter(|(_, _, other)| other == splat).collect();
    let [_, (second, k, _), ..] = alike.as_slice() else { return None };
    let n_needless = (alike.len() - 1) as f64;
    let mut summing: Vec<InstId> = alike.iter().map(|(collective, ..)| collective.inst).collect();
    summing.dedup();
    Some(Finding {
        check: &INFO,
        inst: first.inst,
        message: format!(
            "{} sums over the same devices {} arrays whose sums are only added afterwards, in {}",
            cx.names(&summing),
            alike.len(),
            cx.name(last)
        ),
        also: summing.into_iter().skip(1).chain([last]).collect(),
        cost: second.cost(cx.array_bytes(second, *k), second.n_runs * n_needless),
        remedy: cx.remedy("add first and sum over devices once", "split-tuple-all-reduce,reassociate-all-reduce"),
    })
}

/// The last of the additions that alone use a value, and what it is scaled by before the first.
fn last_addition(cx: &AuditCx<'_>, collective: &Collective, value: ValueId) -> Option<(InstId, Option<Splat>)> {
    let (mut last, mut splat, mut at) = (None, None, value);
    while let Some(Next::Op(inst, operand)) = next(&cx.values, at) {
        if cx.module.inst(inst).opcode == Opcode::Add {
            last = Some(inst);
        } else if last.is_none() && splat.is_none() && scales(cx, collective, inst, operand) {
            splat = find_scaling(cx.module, inst, *cx.module.inst(inst).operands.get(operand)?).map(|s| s.splat);
        } else if last.is_some() || !only_moves(cx, inst) {
            break;
        }
        at = cx.values.of(inst)?;
    }
    last.map(|last| (last, splat))
}
