//! Finds an all-gather for work that does each part by itself, of which each device then keeps its own part.
//!
//! A grouped convolution that XLA's partitioner does not cut along the batch:
//! ```text
//! %batch = f32[16,6,6,16] all-gather(%local), replica_groups={{0,1,2,3}}, dimensions={0}
//! %all = f32[16,6,6,16] convolution(%batch, %kernel), feature_group_count=4, dim_labels=b01f_01io->b01f
//! %own = f32[4,6,6,16] dynamic-slice(%all, %start, …)
//! ```
//! Every device does the work of all of them, and gets the batch of all for it.
//!
//! **Cost**: the gather; the repeated work comes on top.
//!
//! **What it does not find**: parts that overlap (windows), results of which more than one part is kept, arrays below 1 KiB.
//!
//! **How sure**: the gathered dim is followed by the ops' factors ([`hlo_ir::factors`]); all uses end in slices of one part at a place that
//! is computed from the device's number.

use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::gathered::{GatheredParts, gathered_parts};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "repeated-work",
    level: Level::Fault,
    help: "an all-gather for work of which each device keeps its own part",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let is_repeated = |found: &GatheredParts<'_>| {
        found.ends.sums.is_empty() && !found.ends.works.is_empty() && !found.ends.slices.is_empty()
    };
    gathered_parts(cx).filter(is_repeated).map(|found| finding(cx, found)).collect()
}

fn finding(cx: &AuditCx<'_>, found: GatheredParts<'_>) -> Finding {
    let GatheredParts { gather, bytes, dim, ends } = found;
    Finding {
        check: &INFO,
        inst: gather.inst,
        message: format!(
            "{} gathers dim {dim} of {bytes} bytes for {}, which does each part of it by itself; each device keeps its own part, in {}",
            cx.name(gather.inst),
            cx.names(&ends.works),
            cx.names(&ends.slices)
        ),
        also: ends.works.into_iter().chain(ends.slices).collect(),
        cost: gather.cost(bytes, gather.n_runs),
        remedy: "do the work on each device's part: `--preset auto-spmd` on the program from before the partitioner cuts it so, or write it \
                 under `jax.shard_map`"
            .into(),
    }
}
