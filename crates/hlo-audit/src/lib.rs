//! What is wrong with a per-device program: findings as data. Nothing is changed and nothing is printed.
//!
//! A check looks for one fault. It reports only what the module proves, so that a finding on a sound program is a defect of the
//! check. One file of [`checks`] is one check, and [`CHECKS`] lists them. What they share:
//!
//! - [`AuditCx`] holds the module and its analyses: which devices hold equal values, how often things run, the graph of values;
//! - `collective` lists the collectives with their groups, bytes and predicted time;
//! - `follow` walks from a value to its only use, or back to what computes it, through fusions, calls and tuples;
//! - `slices` says which part of a value is read;
//! - `state` pairs entry parameters with the outputs that are their next values.
//!
//! Some checks run a pass on a copy of the module and report what it found to do.

pub mod checks;
mod collective;
mod context;
mod cost;
mod finding;
mod follow;
mod gathered;
mod slices;
mod state;

pub use checks::CHECKS;
pub use context::AuditCx;
pub use cost::Cost;
pub use finding::{CheckInfo, Finding, Level};

use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::memory::memory_sizes;
use hlo_ir::Module;
use hlo_mesh::{Machine, SizeMismatch};

/// What an audit assumes.
#[derive(Clone, Debug)]
pub struct AuditOptions {
    /// What the user says of the entry's parameters.
    pub params: ParamFacts,
    /// Trips of loops that the module does not tell.
    pub frequency: FrequencyOptions,
    /// What times are predicted for.
    pub machine: Machine,
}

/// What a step moves and holds, for budgets. Collectives of one device move nothing.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Totals {
    /// Runs of collectives in a step.
    pub n_collectives: f64,
    /// Bytes of whole arrays that one device puts into them or gets from them in a step, whichever is more.
    pub collective_bytes: f64,
    /// Seconds that they are predicted to take.
    pub collective_s: f64,
    /// The most that lives at one time on one device.
    pub peak_bytes: u64,
}

/// What an audit found.
#[derive(Clone, Debug)]
pub struct AuditReport {
    /// The findings, in text order.
    pub findings: Vec<Finding>,
    /// What budgets are held against.
    pub totals: Totals,
}

/// Runs `checks` on a verified module of one device.
///
/// # Errors
/// The machine has another number of devices than the module runs on.
pub fn audit(module: &Module, options: &AuditOptions, checks: &[&CheckInfo]) -> Result<AuditReport, SizeMismatch> {
    let cx = AuditCx::new(module, options)?;
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| (check.run)(&cx)).collect();
    // Instructions are numbered as they are read.
    findings.sort_by_key(|finding| finding.inst);
    let mut totals = Totals { peak_bytes: memory_sizes(module).peak_bytes, ..Totals::default() };
    for collective in cx.collectives.iter().filter(|c| !c.is_of_one_device()) {
        totals.n_collectives += collective.n_runs;
        totals.collective_bytes += collective.n_runs * collective.bytes as f64;
        totals.collective_s += collective.n_runs * collective.run_s;
    }
    Ok(AuditReport { findings, totals })
}
