//! Finds collectives that are in flight at once and share more than one device.
//!
//! ```text
//! %one.start = ((f32[64]), f32[64]) async-start(%x), calls=%sum_of_all
//! %two.start = ((f32[64]), f32[64]) async-start(%y), calls=%another_sum_of_all
//! %one.done = f32[64] async-done(%one.start)
//! ```
//!
//! **Cost**: a device may run the first before the second, and another the second before the first; then each waits for the other for ever
//! (openxla/xla issue 19026). It is advice, because a back end that gives both to one stream, as XLA does by default, runs them in order on
//! all devices.
//!
//! **What it does not find**: collectives that meet in an order other than that of the text.
//!
//! **How sure**: see [`hlo_analysis::in_flight`]; the text is taken as the schedule.

use crate::context::AuditCx;
use crate::cost::Cost;
use crate::finding::{CheckInfo, Finding, Level};
use hlo_analysis::in_flight::{Meeting, meetings};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "collectives-in-flight",
    level: Level::Advice,
    help: "collectives in flight at once on several devices that take part in both",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let report = |Meeting { earlier, later, devices: (a, b) }: Meeting| Finding {
        check: &INFO,
        inst: later,
        also: vec![earlier],
        message: format!(
            "{} begins while {} is in flight, and devices {a} and {b} take part in both",
            cx.name(later),
            cx.name(earlier)
        ),
        cost: Cost::Held { bytes: cx.module.shape(later).memory_bytes() },
        remedy: "end the one before the other begins (`schedule-collectives` does), or give both to one stream".into(),
    };
    meetings(cx.module).into_iter().map(report).collect()
}
