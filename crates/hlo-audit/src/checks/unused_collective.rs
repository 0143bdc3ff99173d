//! Finds a collective whose result nothing needs.
//!
//! ```text
//! %norm = f32[4096] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! with no user of `%norm`.
//!
//! **Cost**: the whole collective, unless a later compiler removes it.
//!
//! **What it does not find**: results that a loop carries and nobody reads.
//!
//! **How sure**: neither the root nor an instruction with an effect is computed from it.

use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo =
    CheckInfo { id: "unused-collective", level: Level::Fault, help: "a collective whose result nothing needs", run };

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let unused = cx.collectives.iter().filter(|c| {
        cx.values.knows(cx.module.inst(c.inst).parent) && !cx.values.is_live(c.inst) && !c.is_of_one_device()
    });
    let report = |c: &crate::collective::Collective| Finding {
        check: &INFO,
        inst: c.inst,
        also: Vec::new(),
        message: format!("{} gives a result that nothing needs", cx.name(c.inst)),
        cost: c.whole_cost(),
        remedy: "leave it out, or run `--pass dce`".into(),
    };
    unused.map(report).collect()
}
