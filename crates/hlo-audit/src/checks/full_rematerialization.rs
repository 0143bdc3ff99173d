//! Finds an all-gather of a whole array of which each device then takes the slice of its number: XLA's "involuntary full
//! rematerialization", where a sharding changes into another by way of the whole array.
//!
//! ```text
//! %whole = f32[64,64] all-gather(%rows), replica_groups={{0,1,2,3}}, dimensions={0}
//! %columns = f32[64,16] dynamic-slice(%whole, %zero, %column), dynamic_slice_sizes={64,16}
//! ```
//! With `%column` computed from `partition-id`, an all-to-all of `%rows` gives the same.
//!
//! **Cost**: what the gather moves beyond the slices, and the memory of the whole array.
//!
//! **What it does not find**: gathers with other uses, slices of more than half, starts that are not computed from the device's number,
//! arrays below 1 KiB.
//!
//! **How sure**: all uses are slices; a start differs within the groups and depends on `partition-id` or `replica-id`.

use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::slices::{SlicedGather, Starts, percent, sliced_gathers};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "full-rematerialization",
    level: Level::Fault,
    help: "an all-gather of a whole array of which each device takes its own slice",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    sliced_gathers(cx, Starts::ByDevice).map(|sliced| finding(cx, sliced)).collect()
}

fn finding(cx: &AuditCx<'_>, sliced: SlicedGather<'_>) -> Finding {
    let needless = sliced.needless_bytes();
    let SlicedGather { gather, bytes, found } = sliced;
    Finding {
        check: &INFO,
        inst: gather.inst,
        message: format!(
            "{} gathers the whole array of {bytes} bytes, of which each device takes {} by its number, in {}",
            cx.name(gather.inst),
            percent(found.share),
            cx.names(&found.slices)
        ),
        also: found.slices,
        cost: gather.cost(needless, gather.n_runs),
        remedy: "change the sharding by an all-to-all or a collective-permute: give the array one sharding on both sides, or \
                 constrain it (`jax.lax.with_sharding_constraint`) between them"
            .into(),
    }
}
