//! Finds state that is the same on all devices when it comes in and differs when it goes out, because a sum over devices is missing.
//!
//! Each device adds the gradient of its own examples to a weight that all devices are said to share:
//! ```text
//! %w = f32[64,32] parameter(0), sharding={replicated}
//! %x = f32[8,64] parameter(1), sharding={devices=[4,1]<=[4]}
//! %gradient = f32[64,32] dot(%x, %dy), lhs_contracting_dims={0}, rhs_contracting_dims={0}
//! ROOT %next = f32[64,32] subtract(%w, %gradient)
//! ```
//! The dot adds up over a dim of which each device holds a part, and nothing adds the parts.
//!
//! **Cost**: wrong results. The devices' weights drift apart, and a runtime that takes them for equal keeps any of them.
//!
//! **What it does not find**: outputs that nothing declares equal: without `sharding={replicated}` on the parameter, `--replicated-params`, or a
//! replicated sharding of the root; differences with another source than a partial sum (a random number, the device's number, data that
//! reaches the output unsummed), which may be meant; values behind custom calls and other collectives.
//!
//! **How sure**: every way by which the output can differ between devices goes through such a partial sum: if each were summed over the devices that
//! hold the parts, the output would be equal. That the output is the parameter's next value is read off the data flow ([`crate::state`]) or the
//! header's aliases. A test takes 255 sums out of sound training steps, one at a time: each is missed, and put where the finding stands it makes all
//! outputs equal again.

mod partial_sums;

use crate::context::AuditCx;
use crate::cost::Cost;
use crate::finding::{CheckInfo, Finding, Level};
use crate::state::{EntryState, root};
use hashbrown::HashSet;
use hlo_ir::InstId;
use indexmap::IndexMap;
use partial_sums::PartialSums;

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "missing-all-reduce",
    level: Level::Fault,
    help: "replicated state whose next value differs between devices for want of a sum",
    run,
};

/// An output that is declared equal on all devices of each group.
struct Declared {
    output: usize,
    groups: Vec<Vec<u32>>,
    /// What declares it.
    by: InstId,
}

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let Some(root) = root(cx).filter(|_| cx.module.n_devices() > 1) else { return Vec::new() };
    let mut sums = PartialSums::new(cx);
    let mut outputs_of_sum: IndexMap<InstId, Vec<(usize, InstId)>> = IndexMap::new();
    for Declared { output, groups, by } in declared(cx, root) {
        let value = cx.values.leaves(root).get(output).and_then(|value| value.expand());
        let is_equal = cx.replication.is_equal_within(root, output, &groups);
        if let (Some(value), false) = (value, is_equal)
            && let Some(missing) = sums.missing(value, &groups)
        {
            missing.into_iter().for_each(|sum| outputs_of_sum.entry(sum).or_default().push((output, by)));
        }
    }
    outputs_of_sum.into_iter().map(|(sum, outputs)| report(cx, sum, &outputs)).collect()
}

fn report(cx: &AuditCx<'_>, sum: InstId, outputs: &[(usize, InstId)]) -> Finding {
    let mut also: Vec<InstId> = outputs.iter().map(|(_, by)| *by).collect();
    also.dedup();
    let (output, by) = outputs[0];
    let more = match outputs.len() {
        1 => String::new(),
        n => format!(" (and {} more outputs)", n - 1),
    };
    Finding {
        check: &INFO,
        inst: sum,
        message: format!(
            "{} is a sum over this device's part alone, so that output {output}{more}, the next value of {}, differs between devices \
             that hold the same now",
            cx.name(sum),
            cx.name(by)
        ),
        also,
        cost: Cost::Wrong { bytes: cx.module.shape(sum).size_bytes() },
        remedy: "sum it over the devices before it is used: `jax.lax.psum` or `pmean` over the axis of the data".into(),
    }
}

/// The outputs that are declared equal, and where.
fn declared(cx: &AuditCx<'_>, root: InstId) -> Vec<Declared> {
    let state = EntryState::find(cx);
    let by_flow = state.pairs.iter().map(|pair| (pair.param, pair.output));
    let mut pairs: Vec<(usize, usize)> = state.aliases.iter().copied().chain(by_flow).collect();
    pairs.sort_by_key(|&(_, output)| output);
    pairs.dedup_by_key(|&mut (_, output)| output);
    let mut found = Vec::new();
    for (param, output) in pairs {
        let leaf = state.leaf(param);
        let groups = cx.replication.classes(leaf.inst, leaf.leaf_idx as usize).map_or_else(Vec::new, groups_of);
        if !groups.is_empty() {
            found.push(Declared { output, groups, by: leaf.inst });
        }
    }
    let p = cx.module.header.num_partitions.max(1) as u32;
    let of_partitions = (0..cx.module.n_devices() as u32 / p).map(|replica| (replica * p..(replica + 1) * p).collect());
    let of_partitions: Vec<Vec<u32>> = of_partitions.collect();
    let is_replicated = |output: usize| {
        let sharding = cx.module.sharding(root).and_then(|sharding| sharding.leaf(output));
        p > 1 && sharding.is_some_and(|leaf| leaf.kind.is_replicated())
    };
    let known: HashSet<usize> = found.iter().map(|declared: &Declared| declared.output).collect();
    let outputs = (0..cx.module.shape(root).n_leaves()).filter(|output| !known.contains(output));
    for output in outputs.filter(|&output| is_replicated(output)) {
        found.push(Declared { output, groups: of_partitions.clone(), by: root });
    }
    found
}

/// The classes of more than one device.
fn groups_of(labels: &[u32]) -> Vec<Vec<u32>> {
    let mut groups: IndexMap<u32, Vec<u32>> = IndexMap::new();
    for (device, &label) in (0..).zip(labels) {
        groups.entry(label).or_default().push(device);
    }
    groups.into_values().filter(|group| group.len() > 1).collect()
}
