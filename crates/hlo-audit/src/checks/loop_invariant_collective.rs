//! Finds a collective in a loop whose operands are the same in every iteration.
//!
//! A loop over microbatches gathers the same weights each time:
//! ```text
//! body:  %weight = f32[16,32] get-tuple-element(%state), index=1
//!        %whole = f32[64,32] all-gather(%weight), replica_groups={{0,1,2,3}}, dimensions={0}
//! ```
//!
//! **Cost**: all runs but one for each time that the loop runs. It is advice, because the result takes memory for the whole loop when it
//! is computed before it.
//!
//! **What it does not find**: operands that are slices by the loop's counter (each layer's own weights), arrays below 1 KiB.
//!
//! **How sure**: the operands are computed from constants and from what the loop hands on unchanged alone.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::follow::{MAX_STEPS, behind, is_function};
use hashbrown::HashSet;
use hlo_analysis::values::{CallSites, Origin, ValueId, condition_and_body};
use hlo_ir::{CompId, InstId};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "loop-invariant-collective",
    level: Level::Advice,
    help: "a collective in a loop that gives the same in every iteration",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    if cx.collectives.is_empty() {
        return Vec::new();
    }
    let sites = CallSites::find(cx.module, cx.module.post_order());
    let large = cx.collectives.iter().filter(|c| c.bytes >= SMALL_BYTES && !c.is_of_one_device());
    large.filter_map(|collective| check(cx, &sites, collective)).collect()
}

fn check(cx: &AuditCx<'_>, sites: &CallSites, collective: &Collective) -> Option<Finding> {
    let comp = cx.module.inst(collective.inst).parent;
    let [site] = sites.of(comp) else { return None };
    let (_, body) = condition_and_body(cx.module, site.inst)?;
    let n_trips = cx.frequencies.trip_count(site.inst)?.count;
    let operands = 0..collective.n_arrays(cx.module);
    let is_same = |k: usize| cx.operand(collective, k).is_some_and(|value| is_invariant(cx, site.inst, comp, value));
    if body != comp || n_trips <= 1 || !cx.values.is_live(collective.inst) || !operands.into_iter().all(is_same) {
        return None;
    }
    let runs = collective.n_runs * (1.0 - 1.0 / n_trips as f64);
    Some(Finding {
        check: &INFO,
        inst: collective.inst,
        also: vec![site.inst],
        message: format!(
            "{} takes and gives the same in each of {n_trips} iterations of {}",
            cx.name(collective.inst),
            cx.name(site.inst)
        ),
        cost: collective.cost(collective.bytes, runs),
        remedy: "do it once before the loop, if the memory suffices for the result to live through it".into(),
    })
}

/// Whether a value in the body of a loop is the same in every iteration.
fn is_invariant(cx: &AuditCx<'_>, the_loop: InstId, body: CompId, value: ValueId) -> bool {
    let values = &cx.values;
    let mut open = vec![value];
    let mut seen: HashSet<ValueId> = HashSet::from_iter([value]);
    while let Some(value) = open.pop() {
        let inst = values.inst(value);
        match values.values[value].origin {
            Origin::Carry if inst == the_loop => {
                // What the body hands on unchanged is no source of its own.
                let hands_itself_on = |&source: &ValueId| source == value;
                let n_others = values.sources[value].iter().filter(|source| !hands_itself_on(source)).count();
                if n_others > 1 {
                    return false;
                }
            }
            Origin::Carry | Origin::EntryParam => return false,
            Origin::Computed if !is_function(cx, inst) => return false,
            Origin::Computed | Origin::Param | Origin::CallResult => {
                let is_inside =
                    cx.module.inst(inst).parent == body || values.fused.contains(cx.module.inst(inst).parent);
                if !is_inside || seen.len() > MAX_STEPS {
                    return false;
                }
                open.extend(behind(cx, value).into_iter().filter(|&next| seen.insert(next)));
            }
        }
    }
    true
}
