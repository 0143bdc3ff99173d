//! Budgets: what a step may move and hold at the most.

use crate::arguments::AuditArgs;
use hlo_audit::Totals;
use serde::Serialize;

/// One budget and what was found.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Budget {
    /// The option that sets it.
    pub(super) option: &'static str,
    pub(super) limit: u64,
    pub(super) found: f64,
    pub(super) is_exceeded: bool,
}

/// The budgets that are given.
pub(super) fn of(args: &AuditArgs, totals: &Totals) -> Vec<Budget> {
    let all = [
        ("--max-collective-bytes", args.max_collective_bytes, totals.collective_bytes),
        ("--max-collectives", args.max_collectives, totals.n_collectives),
        ("--max-peak-bytes", args.max_peak_bytes, totals.peak_bytes as f64),
    ];
    let given = all.into_iter().filter_map(|(option, limit, found)| Some((option, limit?, found)));
    given.map(|(option, limit, found)| Budget { option, limit, found, is_exceeded: found > limit as f64 }).collect()
}
