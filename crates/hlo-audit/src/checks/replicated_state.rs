//! Finds optimizer state and weights that every device holds whole, although each device could hold a part of them between steps.
//!
//! Adam on eight devices holds two moments of each weight eight times. With a sharded interface (ZeRO; Xu et al. 2020, §4.2) each device
//! holds an eighth:
//! ```text
//! before:  %m = f32[4096,4096] parameter(1), sharding={replicated}
//! after:   %m = f32[512,4096] parameter(1)
//! ```
//!
//! **Cost**: the parameters' memory that is saved on one device. It is advice, because the step's interface changes: the training script keeps shards
//! between steps.
//!
//! **What it does not find**: less than 1 MiB; in modules of up to 100,000 instructions, state that `shard-weight-update` leaves (`--report text` says why).
//!
//! **How sure**: outputs are the parameters' next values ([`crate::state`]), devices hold these alike by the replication analysis, and the pass
//! `shard-weight-update` put them in shards in a copy of the module. In larger modules the bytes are those of all such parameters.

use super::donation_missed::MIN_SAVED_BYTES;
use crate::collective::SMALL_BYTES;
use crate::context::AuditCx;
use crate::cost::{Cost, total_bytes};
use crate::finding::{CheckInfo, Finding, Level};
use crate::state::EntryState;
use hashbrown::HashMap;
use hlo_analysis::annotations::ParamLeaf;
use hlo_ir::{InstId, Module};
use hlo_pass::PassInfo;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "replicated-state",
    level: Level::Advice,
    help: "state that every device holds whole, of which a sharded interface would give each a part",
    run,
};

/// In larger modules the parameters are counted that could be in shards, and the pass does not run: it would take most of the audit's time.
const MAX_INSTRUCTIONS: usize = 100_000;

/// As the preset `sharded-state` begins.
const PIPELINE: &str = "inline-calls,simplify-tuples,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                        fold-all-reduce-of-all-reduce,sink-all-reduce,all-reduce-to-reduce-scatter,dce,\
                        shard-weight-update{state=auto}";

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let large =
        |c: &&crate::collective::Collective| c.is_all_reduce() && c.bytes >= SMALL_BYTES && !c.is_of_one_device();
    if cx.collectives.iter().filter(large).count() == 0 {
        return Vec::new();
    }
    find(cx).into_iter().collect()
}

fn find(cx: &AuditCx<'_>) -> Option<Finding> {
    let state = replicated(cx);
    let possible = total_bytes(state.iter().map(|(_, bytes)| *bytes));
    if possible < MIN_SAVED_BYTES {
        return None;
    }
    let saved = match cx.module.n_instructions() > MAX_INSTRUCTIONS {
        true => possible,
        false => param_bytes(cx.module).saturating_sub(param_bytes(&run_on_copy(cx, PIPELINE)?)),
    };
    let &(inst, _) = state.iter().max_by_key(|(inst, bytes)| (*bytes, std::cmp::Reverse(*inst)))?;
    if saved < MIN_SAVED_BYTES {
        return None;
    }
    Some(Finding {
        check: &INFO,
        inst,
        also: state.iter().map(|(other, _)| *other).filter(|&other| other != inst).collect(),
        message: format!(
            "{} and {} more parameters are state that devices hold alike; in shards they would take {saved} bytes less",
            cx.name(inst),
            state.len() - 1
        ),
        cost: Cost::Held { bytes: saved },
        remedy: "keep the state in shards: `hlo-opt --preset sharded-state FILE -o DIRECTORY`".into(),
    })
}

/// Parameter leaves that have a next value and are equal on several devices, with what one device would save if those shared it.
fn replicated(cx: &AuditCx<'_>) -> Vec<(InstId, u64)> {
    let state = EntryState::find(cx);
    let going_on = state.going_on();
    let saved = |leaf: &ParamLeaf| {
        let labels = cx.replication.classes(leaf.param, leaf.leaf_idx)?;
        let mut n_of_label: HashMap<u32, u64> = HashMap::new();
        labels.iter().for_each(|&label| *n_of_label.entry(label).or_insert(0) += 1);
        let n_equal = labels.iter().map(|label| n_of_label[label]).min()?;
        let bytes = cx.module.shapes.leaf(cx.module.inst(leaf.param).shape, leaf.leaf_idx)?.size_bytes();
        (n_equal > 1).then(|| (leaf.param, bytes - bytes.div_ceil(n_equal)))
    };
    let leaves = state.leaves.iter().enumerate().filter(|(number, _)| going_on.contains(number));
    leaves.filter_map(|(_, leaf)| saved(leaf)).collect()
}

/// The bytes of the entry's parameters.
fn param_bytes(module: &Module) -> u64 {
    let entry = module.entry().map(|entry| &module.comp(entry).params);
    total_bytes(entry.into_iter().flatten().map(|&param| module.shape(param).size_bytes()))
}

/// What a pipeline makes of a copy of the module; none where it changes nothing or cannot run.
pub(super) fn run_on_copy(cx: &AuditCx<'_>, pipeline: &str) -> Option<Module> {
    let registry: Vec<&'static PassInfo> =
        [hlo_simplify::PASSES, hlo_collectives::PASSES, hlo_wus::PASSES].into_iter().flatten().copied().collect();
    let passes = bind(&parse_pipeline(pipeline).ok()?, &registry).ok()?;
    let mut copy = cx.module.clone();
    let summary = run_pipeline(&mut copy, &mut cx.analyses(), &passes, RunOptions::default()).ok()?;
    summary.reports.iter().any(|report| report.changed).then_some(copy)
}
