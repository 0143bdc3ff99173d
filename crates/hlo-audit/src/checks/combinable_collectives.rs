//! Finds small all-reduces that could be one, in a module that is scheduled.
//!
//! ```text
//! %a = f32[512] all-reduce(%local.a), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
//! %b = f32[512] all-reduce(%local.b), channel_id=2, replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! Each pays the latency of a collective.
//!
//! **Cost**: what they take one after the other beyond what one of all their bytes takes. It is advice, because one larger collective begins later.
//!
//! **What it does not find**: modules that XLA has not scheduled yet, because its own combiner runs after; all-reduces that depend on each other, of
//! other groups or element types, or together above 16 MiB; collectives whose combination makes the predicted step no faster.
//!
//! **How sure**: the pass `combine-collectives` did it on a copy of the module, and the copy is predicted faster.

use crate::collective::Collective;
use crate::context::AuditCx;
use crate::cost::{Cost, total_bytes};
use crate::finding::{CheckInfo, Finding, Level};
use hashbrown::HashMap;
use hlo_analysis::time::predict;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::runner::{RunOptions, bind, run_pipeline};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "combinable-collectives",
    level: Level::Advice,
    help: "small all-reduces that would be faster as one",
    run,
};

const PIPELINE: &str = "combine-collectives{mode=variadic,ops=all-reduce}";

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let sums = cx.collectives.iter().filter(|c| c.is_all_reduce() && !c.is_of_one_device());
    let by_name: HashMap<&str, &Collective> = sums.map(|c| (cx.module.inst_name(c.inst), c)).collect();
    if !cx.module.header.is_scheduled || by_name.len() < 2 {
        return Vec::new();
    }
    let decisions = combine(cx).map_or_else(Vec::new, |report| report.decisions);
    decisions.iter().filter_map(|decision| report(cx, &by_name, decision)).collect()
}

/// What the pass did, if the step is predicted faster for it.
fn combine(cx: &AuditCx<'_>) -> Option<PassReport> {
    let passes = bind(&parse_pipeline(PIPELINE).ok()?, hlo_collectives::PASSES).ok()?;
    let (mut copy, mut analyses) = (cx.module.clone(), cx.analyses());
    let summary = run_pipeline(&mut copy, &mut analyses, &passes, RunOptions::default()).ok()?;
    let report = summary.reports.into_iter().find(|report| report.changed)?;
    let machine = &cx.options.machine;
    let before = predict(cx.module, &cx.frequencies, machine).ok()?;
    let after = predict(&copy, &analyses.frequencies(&copy), machine).ok()?;
    (after.critical_path_s < before.critical_path_s).then_some(report)
}

fn report(cx: &AuditCx<'_>, by_name: &HashMap<&str, &Collective>, decision: &Decision) -> Option<Finding> {
    let removed = decision.collectives.iter().filter(|change| change.change == "removed");
    let parts: Vec<&Collective> =
        removed.filter_map(|change| by_name.get(change.instruction.as_str()).copied()).collect();
    let [first, rest @ ..] = parts.as_slice() else { return None };
    let bytes = total_bytes(parts.iter().map(|part| part.bytes));
    let apart_s: f64 = parts.iter().map(|part| part.run_s).sum();
    let exchange = hlo_mesh::Exchange::of(first.rule);
    let together_s = cx.network.exchange(exchange, &first.members.groups, &first.members.pairs).seconds(bytes as f64);
    if rest.is_empty() || together_s >= apart_s {
        return None;
    }
    Some(Finding {
        check: &INFO,
        inst: first.inst,
        also: rest.iter().map(|part| part.inst).collect(),
        message: format!(
            "{} and {} more all-reduces of the same devices could be one",
            cx.name(first.inst),
            rest.len()
        ),
        cost: Cost::Moved { bytes: bytes as f64 * first.n_runs, seconds: (apart_s - together_s) * first.n_runs },
        remedy: cx.remedy(
            "let one all-reduce take them all, as by XLA's combiner threshold",
            "combine-collectives{mode=variadic}",
        ),
    })
}
