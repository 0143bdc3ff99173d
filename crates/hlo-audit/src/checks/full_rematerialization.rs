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

use super::sliced_all_gather::percent;
use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::slices::{Starts, find_slices};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "full-rematerialization",
    level: Level::Fault,
    help: "an all-gather of a whole array of which each device takes its own slice",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let gathers = cx.collectives.iter().filter(|c| c.is_all_gather() && !c.is_of_one_device());
    gathers.flat_map(|gather| (0..gather.n_arrays(cx.module)).filter_map(|k| check(cx, gather, k))).collect()
}

fn check(cx: &AuditCx<'_>, gather: &Collective, k: usize) -> Option<Finding> {
    let bytes = cx.array_bytes(gather, k);
    let found = find_slices(cx, cx.result(gather, k)?, &gather.members.groups)?;
    if found.starts != Starts::ByDevice || bytes < SMALL_BYTES {
        return None;
    }
    let needless = (bytes as f64 * (1.0 - found.share)) as u64;
    Some(Finding {
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
    })
}
