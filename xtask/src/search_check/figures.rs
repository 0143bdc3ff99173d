//! What a plan claims, beside what the program of each device has: memory, and collectives by kind.

use std::collections::BTreeMap;

use hlo_analysis::Analyses;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::traffic::Traffic;
use hlo_ir::Module;
use hlo_search::PlanReport;

/// How often collectives of one kind run, and what a device sends in them.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    pub n_runs: f64,
    pub bytes: f64,
}

impl Sent {
    /// Adds others.
    pub(super) fn add(&mut self, other: Sent) {
        self.n_runs += other.n_runs;
        self.bytes += other.bytes;
    }
}

/// Collectives by opcode.
pub(super) type ByKind = BTreeMap<&'static str, Sent>;

/// Both sides of one plan.
pub(super) struct Figures {
    pub claimed: ByKind,
    pub realized: ByKind,
    pub planned_bytes: u64,
    pub counted_bytes: u64,
    /// Partial sums that the plan hands on before they are reduced.
    pub n_deferred: usize,
}

impl Figures {
    /// What the plan says, and what the program of each device has.
    pub(super) fn of(report: &PlanReport, local: &Module) -> Figures {
        let frequencies = Frequencies::compute(local, FrequencyOptions::default());
        let traffic = Traffic::find(local, &frequencies);
        let sent = |kind| Sent {
            n_runs: traffic.n_runs.get(kind).copied().unwrap_or(0.0),
            bytes: traffic.sent_by.get(kind).copied().unwrap_or(0.0),
        };
        let claims = report.exchanges.iter();
        Figures {
            claimed: claims.map(|claim| (claim.kind, Sent { n_runs: claim.n_runs, bytes: claim.sent_bytes })).collect(),
            realized: traffic.n_runs.keys().map(|&kind| (kind, sent(kind))).collect(),
            planned_bytes: report.peak_bytes,
            counted_bytes: Analyses::default().memory(local).peak_bytes,
            n_deferred: report.n_deferred_sums,
        }
    }
}
