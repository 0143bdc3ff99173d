//! Finds an all-reduce of which every device reads at most half.
//!
//! Each device updates its shard of a weight, and takes it from the whole gradient:
//! ```text
//! %sum = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %shard = f32[16,32] dynamic-slice(%sum, %start, %zero), dynamic_slice_sizes={16,32}
//! ```
//! A reduce-scatter moves half of the bytes. Between sum and slice there may be ops on single elements, such as a mean.
//!
//! **Cost**: half of the all-reduce where slices differ by device; where they are the same, the part that nobody reads.
//!
//! **What it does not find**: sums of which more than half is read or that have other uses, arrays below 1 KiB, slices that overlap or
//! leave something out, since no reduce-scatter gives those.
//!
//! **How sure**: all uses are slices; their sizes are added up. It is advice, because XLA's pipelines for accelerators put reduce-scatters in place
//! of the plain forms after partitioning.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::slices::{Starts, find_slices, percent};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "sliced-all-reduce",
    level: Level::Advice,
    help: "an all-reduce of which each device reads at most half",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let sums = cx.collectives.iter().filter(|c| c.is_all_reduce() && !c.is_of_one_device());
    sums.flat_map(|sum| [Starts::ByDevice, Starts::Same].into_iter().filter_map(|starts| check(cx, sum, starts)))
        .collect()
}

/// The arrays of one all-reduce whose slices begin in this way.
fn check(cx: &AuditCx<'_>, sum: &Collective, starts: Starts) -> Option<Finding> {
    let (mut slices, mut shares, mut bytes, mut needless) = (Vec::new(), Vec::new(), 0u64, 0u64);
    for k in (0..sum.n_arrays(cx.module)).filter(|&k| cx.array_bytes(sum, k) >= SMALL_BYTES) {
        let found = cx.result(sum, k).and_then(|value| find_slices(cx, value, &sum.members.groups));
        let Some(found) = found.filter(|found| found.starts == starts) else { continue };
        if starts == Starts::ByDevice && !found.may_be_parts {
            continue;
        }
        // A reduce-scatter moves half of what an all-reduce does; a slice of one that is taken before it moves itself.
        let share = if starts == Starts::ByDevice { 0.5 } else { 1.0 - found.share };
        needless = needless.saturating_add((cx.array_bytes(sum, k) as f64 * share) as u64);
        bytes = bytes.saturating_add(cx.array_bytes(sum, k));
        shares.push(found.share);
        slices.extend(found.slices);
    }
    let most = shares.iter().copied().fold(0.0, f64::max);
    let remedy = match starts {
        Starts::ByDevice => cx.remedy("use a reduce-scatter", "split-tuple-all-reduce,all-reduce-to-reduce-scatter"),
        Starts::Same | Starts::Unknown => "take the slice before the sum".into(),
    };
    (!slices.is_empty()).then(|| Finding {
        check: &INFO,
        inst: sum.inst,
        message: format!(
            "{} gives every device {bytes} bytes, of which it reads {}, in {}",
            cx.name(sum.inst),
            percent(most),
            cx.names(&slices)
        ),
        also: slices,
        cost: sum.cost(needless, sum.n_runs),
        remedy,
    })
}
