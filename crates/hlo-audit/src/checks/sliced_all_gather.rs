//! Finds an all-gather of which every device reads at most half, at places that are the same on all devices.
//!
//! The logits of the last token alone are needed, and those of all tokens are gathered:
//! ```text
//! %whole = f32[8,1024,512] all-gather(%local), replica_groups={{0,1,2,3}}, dimensions={2}
//! %last = f32[8,1,512] slice(%whole), slice={[0:8], [1023:1024], [0:512]}
//! ```
//!
//! **Cost**: the part of the gather that nobody reads.
//!
//! **What it does not find**: gathers of which more than half is read (the end of a padded dim), lookups by data, arrays below 1 KiB.
//! Slices at places that the device's number says are [`super::full_rematerialization`]'s.
//!
//! **How sure**: all uses are slices, perhaps behind transposes, reshapes and conversions; their sizes are added up.

use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::slices::{SlicedGather, Starts, percent, sliced_gathers};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "sliced-all-gather",
    level: Level::Fault,
    help: "an all-gather of which at most half is read",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    sliced_gathers(cx, Starts::Same).map(|sliced| finding(cx, sliced)).collect()
}

fn finding(cx: &AuditCx<'_>, sliced: SlicedGather<'_>) -> Finding {
    let needless = sliced.needless_bytes();
    let SlicedGather { gather, bytes, found } = sliced;
    Finding {
        check: &INFO,
        inst: gather.inst,
        message: format!(
            "{} gathers {bytes} bytes, of which {} read {}",
            cx.name(gather.inst),
            cx.names(&found.slices),
            percent(found.share)
        ),
        also: found.slices,
        cost: gather.cost(needless, gather.n_runs),
        remedy: cx.remedy("take the slice of the local part first, and gather that", "shrink-collectives"),
    }
}
