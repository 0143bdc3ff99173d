//! Reports, counters and times as text for people and as JSON for programs.

mod figures;
mod format;
mod groups;
pub(crate) mod html;
mod quantities;
mod summary;
mod text;

pub(crate) use figures::{Before, Predicted, Pricing, Scope, Time, Totals};
pub(crate) use format::DocumentFormat;
pub(crate) use html::page;
pub(crate) use quantities::bytes;
pub(crate) use text::{Detail, as_text, summaries};

use hlo_ir::Module;
use hlo_ir::op::Effects;
use hlo_pass::report::{PassReport, WayChoice};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The JSON report: one document for a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Document {
    /// The file, or `<stdin>`.
    pub file: String,
    /// The pipeline as given.
    pub pipeline: String,
    /// One entry for each module of the file.
    pub modules: Vec<ModuleReport>,
}

/// What happened to one module.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ModuleReport {
    /// Its name.
    pub module: String,
    /// Sizes before all passes.
    pub before: Size,
    /// Sizes after them.
    pub after: Size,
    /// What a step costs before and after all passes, where it was wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub totals: Option<Totals>,
    /// A command that is predicted to do better, if one is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recommendation: Option<Recommendation>,
    /// The ways of the preset and their predicted times, if there was one to choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<WayChoice>,
    /// That another command is predicted to be faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// One entry for each pass.
    pub reports: Vec<PassReport>,
    /// What a page shows of the module, where one was wanted.
    #[serde(skip)]
    pub views: Option<html::Views>,
    /// Phases and how long they took; never part of a report, so that reports of equal runs are equal.
    #[serde(skip)]
    pub times: Vec<(String, Duration)>,
}

/// A command and what it is predicted to gain.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Recommendation {
    /// Its options, as the command line takes them.
    pub command: String,
    /// Predicted seconds of a step: now, and with it.
    pub time_s: [f64; 2],
    /// Peak memory of one device: now, and with it.
    pub peak_bytes: Option<[u64; 2]>,
}

/// How large a module is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Size {
    /// Computations.
    pub computations: usize,
    /// Instructions in all of them.
    pub instructions: usize,
    /// Instructions that wait for other devices, by opcode.
    pub collectives: BTreeMap<&'static str, usize>,
}

impl Size {
    /// The size of a module.
    pub(crate) fn of(module: &Module) -> Size {
        let mut collectives = BTreeMap::new();
        for &comp in module.computations() {
            for &inst in &module.comp(comp).insts {
                let row = module.inst(inst).opcode.row();
                if row.effects == Effects::Communicates {
                    *collectives.entry(row.name).or_insert(0) += 1;
                }
            }
        }
        Size { computations: module.computations().len(), instructions: module.n_instructions(), collectives }
    }
}

impl ModuleReport {
    /// A report of a module to which nothing happened yet.
    pub(crate) fn new(module: &Module) -> ModuleReport {
        let size = Size::of(module);
        let (before, after) = (size.clone(), size);
        ModuleReport {
            module: module.name.clone(),
            before,
            after,
            totals: None,
            recommendation: None,
            choice: None,
            note: None,
            reports: Vec::new(),
            views: None,
            times: Vec::new(),
        }
    }
}

/// The report as one JSON document.
pub(crate) fn as_json(document: &Document) -> String {
    // Maps have text keys and numbers are finite or become null, so this cannot fail.
    serde_json::to_string_pretty(document).map_or_else(|e| format!("{{\"error\":\"{e}\"}}\n"), |json| json + "\n")
}

/// Counters of the passes and sizes before and after.
pub(crate) fn stats(document: &Document) -> String {
    let mut rows: Vec<(String, String, String)> = Vec::new();
    for module in &document.modules {
        let (before, after) = (&module.before, &module.after);
        let mut row = |what: &str, a: usize, b: usize| rows.push((a.to_string(), b.to_string(), what.to_string()));
        row("computations", before.computations, after.computations);
        row("instructions", before.instructions, after.instructions);
        let ops: std::collections::BTreeSet<_> = before.collectives.keys().chain(after.collectives.keys()).collect();
        for op in ops {
            let count = |size: &Size| size.collectives.get(*op).copied().unwrap_or(0);
            row(op, count(before), count(after));
        }
        for report in &module.reports {
            rows.extend(report.stats.iter().map(|(what, n)| (String::new(), n.to_string(), what.clone())));
        }
    }
    let mut out = format!("{:>12} {:>12}\n", "before", "after");
    for (before, after, what) in rows {
        let _ = writeln!(out, "{before:>12} {after:>12}  {what}");
    }
    out
}

/// How long everything took.
pub(crate) fn times(document: &Document) -> String {
    let mut out = String::new();
    let all = document.modules.iter().flat_map(|m| &m.times);
    let total: Duration = all.clone().map(|(_, time)| *time).sum();
    for (what, time) in all.chain([&("total".to_string(), total)]) {
        let _ = writeln!(out, "{:>12.3} ms  {what}", time.as_secs_f64() * 1e3);
    }
    out
}
