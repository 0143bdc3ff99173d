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
//! **What it does not find**: less than 1 MiB; state that `shard-weight-update` leaves (`--report text` says why).
//!
//! **How sure**: the pass `shard-weight-update` did it on a copy of the module, and outputs are the parameters' next values ([`crate::state`]).

use super::donation_missed::MIN_SAVED_BYTES;
use crate::collective::SMALL_BYTES;
use crate::context::AuditCx;
use crate::cost::Cost;
use crate::finding::{CheckInfo, Finding, Level};
use crate::state::EntryState;
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::memory::peak_memory;
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

/// As the preset `sharded-state` begins.
const PIPELINE: &str = "inline-calls,simplify-tuples,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
                        fold-all-reduce-of-all-reduce,sink-all-reduce,all-reduce-to-reduce-scatter,dce,\
                        shard-weight-update{interface=sharded}";

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let large =
        |c: &&crate::collective::Collective| c.is_all_reduce() && c.bytes >= SMALL_BYTES && !c.is_of_one_device();
    if cx.collectives.iter().filter(large).count() == 0 {
        return Vec::new();
    }
    find(cx).into_iter().collect()
}

fn find(cx: &AuditCx<'_>) -> Option<Finding> {
    let sharded = run_on_copy(cx, PIPELINE)?;
    let going_on = EntryState::find(cx).going_on();
    let (before, after) = (param_bytes(cx.module), param_bytes(&sharded));
    let numbers = 0..before.len();
    let smaller: Vec<(InstId, u64)> = match before.len() == after.len() {
        true => numbers
            .filter(|&number| going_on.contains(&number) && before[number].1 > after[number].1)
            .map(|number| (before[number].0, before[number].1 - after[number].1))
            .collect(),
        false => Vec::new(),
    };
    let saved: u64 = smaller.iter().map(|(_, bytes)| bytes).sum();
    let &(inst, _) = smaller.iter().max_by_key(|(inst, bytes)| (*bytes, std::cmp::Reverse(*inst)))?;
    if saved < MIN_SAVED_BYTES {
        return None;
    }
    let peaks = [cx.module, &sharded].map(|module| peak_memory(module).peak_bytes);
    Some(Finding {
        check: &INFO,
        inst,
        also: smaller.iter().map(|(other, _)| *other).filter(|&other| other != inst).collect(),
        message: format!(
            "{} and {} more parameters are state that every device holds whole (peak memory {} bytes, in shards {})",
            cx.name(inst),
            smaller.len() - 1,
            peaks[0],
            peaks[1]
        ),
        cost: Cost::Held { bytes: saved },
        remedy: "keep the state in shards: `hlo-opt --preset sharded-state FILE -o DIRECTORY`".into(),
    })
}

/// The bytes of each leaf of the entry's parameters.
fn param_bytes(module: &Module) -> Vec<(InstId, u64)> {
    let leaves = entry_leaves(module).into_iter();
    let bytes =
        |inst: InstId, leaf_idx: usize| module.shapes.leaf(module.inst(inst).shape, leaf_idx).map(|s| s.size_bytes());
    leaves.filter_map(|leaf| Some((leaf.param, bytes(leaf.param, leaf.leaf_idx)?))).collect()
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
