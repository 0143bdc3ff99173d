//! Finds a collective in which every device has a group of its own.
//!
//! ```text
//! %same = f32[64,32] all-reduce(%x), replica_groups={{0},{1},{2},{3}}, to_apply=%add
//! ```
//!
//! **Cost**: a launch and perhaps a copy. A mesh axis of one device is a common cause; so is a wrong list of groups, and then the result is
//! wrong too. It is advice, because XLA's simplifier removes such collectives.
//!
//! **What it does not find**: groups of which some have several devices.
//!
//! **How sure**: the groups are written in the instruction.

use crate::collective::Collective;
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "one-device-collective",
    level: Level::Advice,
    help: "a collective over groups of one device",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let is_written = |c: &&Collective| !(c.members.groups.is_empty() && c.members.pairs.is_empty());
    let alone = cx.collectives.iter().filter(|c| c.is_of_one_device()).filter(is_written);
    let report = |c: &Collective| Finding {
        check: &INFO,
        inst: c.inst,
        also: Vec::new(),
        message: format!("{} has groups of one device, so that nothing is exchanged", cx.name(c.inst)),
        cost: c.whole_cost(),
        remedy: "check that the groups are the ones that are meant, and leave the collective out if they are".into(),
    };
    alone.map(report).collect()
}
