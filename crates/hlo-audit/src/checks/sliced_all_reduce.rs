//! Finds an all-reduce of which every device reads at most half.
//!
//! Each device updates its shard of a weight, and takes it from the whole gradient:
//! ```text
//! %sum = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %shard = f32[16,32] dynamic-slice(%sum, %start, %zero), dynamic_slice_sizes={16,32}
//! ```
//! A reduce-scatter moves half of the bytes.
//!
//! **Cost**: half of the all-reduce where slices differ by device; where they are the same, the part that nobody reads.
//!
//! **What it does not find**: sums of which more than half is read or that have other uses, arrays below 1 KiB.
//!
//! **How sure**: all uses are slices; their sizes are added up. It is advice, because XLA's pipelines for accelerators put reduce-scatters in place
//! of the plain forms after partitioning.

use super::sliced_all_gather::percent;
use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::slices::{Starts, find_slices};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "sliced-all-reduce",
    level: Level::Advice,
    help: "an all-reduce of which each device reads at most half",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let sums = cx.collectives.iter().filter(|c| c.is_all_reduce() && !c.is_of_one_device());
    sums.flat_map(|sum| (0..sum.n_arrays(cx.module)).filter_map(|k| check(cx, sum, k))).collect()
}

fn check(cx: &AuditCx<'_>, sum: &Collective, k: usize) -> Option<Finding> {
    let bytes = cx.array_bytes(sum, k);
    let found = find_slices(cx, cx.result(sum, k)?, &sum.members.groups)?;
    let (needless_share, remedy) = match found.starts {
        Starts::ByDevice => {
            (0.5, cx.remedy("use a reduce-scatter", "split-tuple-all-reduce,all-reduce-to-reduce-scatter"))
        }
        Starts::Same => (1.0 - found.share, "take the slice before the sum".into()),
        Starts::Unknown => return None,
    };
    if bytes < SMALL_BYTES {
        return None;
    }
    Some(Finding {
        check: &INFO,
        inst: sum.inst,
        message: format!(
            "{} gives every device {bytes} bytes, of which it reads {}, in {}",
            cx.name(sum.inst),
            percent(found.share),
            cx.names(&found.slices)
        ),
        also: found.slices,
        cost: sum.cost((bytes as f64 * needless_share) as u64, sum.n_runs),
        remedy,
    })
}
