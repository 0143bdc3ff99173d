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

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::slices::{Starts, find_slices};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "sliced-all-gather",
    level: Level::Fault,
    help: "an all-gather of which at most half is read",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let gathers = cx.collectives.iter().filter(|c| c.is_all_gather() && !c.is_of_one_device());
    gathers.flat_map(|gather| (0..gather.n_arrays(cx.module)).filter_map(|k| check(cx, gather, k))).collect()
}

fn check(cx: &AuditCx<'_>, gather: &Collective, k: usize) -> Option<Finding> {
    let bytes = cx.array_bytes(gather, k);
    let found = find_slices(cx, cx.result(gather, k)?, &gather.members.groups)?;
    if found.starts != Starts::Same || bytes < SMALL_BYTES {
        return None;
    }
    let needless = (bytes as f64 * (1.0 - found.share)) as u64;
    Some(Finding {
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
        remedy: "take the slice of the local part first, and gather that".into(),
    })
}

/// A share in words.
pub(super) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent < 1.0 => "less than 1 %".into(),
        percent => format!("at most {percent:.0} %"),
    }
}
