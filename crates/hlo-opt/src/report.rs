//! Reports, counters and times as text for people and as JSON for programs.

use hlo_ir::Module;
use hlo_ir::op::Effects;
use hlo_pass::report::{Decision, PassReport, WayChoice};
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
    /// The ways of the preset and their predicted times, if there was one to choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<WayChoice>,
    /// Another command that is predicted to be better.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// One entry for each pass.
    pub reports: Vec<PassReport>,
    /// Phases and how long they took; never part of a report, so that reports of equal runs are equal.
    #[serde(skip)]
    pub times: Vec<(String, Duration)>,
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
        let (reports, times) = (Vec::new(), Vec::new());
        ModuleReport { module: module.name.clone(), before, after, choice: None, note: None, reports, times }
    }
}

/// The report as one JSON document.
pub(crate) fn as_json(document: &Document) -> String {
    // Maps have text keys and numbers are finite or become null, so this cannot fail.
    serde_json::to_string_pretty(document).map_or_else(|e| format!("{{\"error\":\"{e}\"}}\n"), |json| json + "\n")
}

/// The report as text: a paragraph for each pass, a few lines for each decision.
pub(crate) fn as_text(document: &Document) -> String {
    let mut out = String::new();
    for module in &document.modules {
        if document.modules.len() > 1 {
            let _ = writeln!(out, "module {}", module.module);
        }
        module.choice.iter().for_each(|choice| choice_text(choice, &mut out));
        module.note.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
        for report in &module.reports {
            pass_text(report, &mut out);
        }
    }
    out
}

/// A line for each way, the one taken marked; and its pipeline.
fn choice_text(choice: &WayChoice, out: &mut String) {
    let _ = writeln!(out, "predicted for one step on {}:", choice.machine);
    let width = choice.candidates.iter().map(|c| c.way.len()).max().unwrap_or(0).max(3);
    let title = ["critical path", "compute", "communication", "peak memory"];
    let [path, compute, communication, peak] = title;
    let _ = writeln!(out, "    {:width$} {path:>14} {compute:>12} {communication:>14} {peak:>12}", "way");
    for (number, candidate) in choice.candidates.iter().enumerate() {
        let us = |seconds: f64| microseconds(seconds * 1e9);
        let _ = writeln!(
            out,
            "  {} {:width$} {:>14} {:>12} {:>14} {:>12}{}",
            if number == choice.chosen { '*' } else { ' ' },
            candidate.way,
            us(candidate.critical_path_s),
            us(candidate.compute_s),
            us(candidate.communication_s),
            candidate.peak_bytes.map_or_else(String::new, bytes),
            if candidate.is_partial { "  without custom calls and exchanges with the host" } else { "" }
        );
    }
    if let Some(taken) = choice.taken() {
        let by_hand = if taken.pipeline.is_empty() { "no pass".into() } else { format!("--pass '{}'", taken.pipeline) };
        let _ = writeln!(out, "  * is taken; by hand: {by_hand}");
    }
}

fn pass_text(report: &PassReport, out: &mut String) {
    let outcome = if report.changed { "changed" } else { "unchanged" };
    let _ = match &report.unchanged_because {
        Some(why) => writeln!(out, "{}: {outcome}: {why}", report.pass),
        None => writeln!(out, "{}: {outcome}", report.pass),
    };
    if let Some(memory) = &report.memory {
        let (before, after) = (bytes(memory.peak_before_bytes), bytes(memory.peak_after_bytes));
        let _ = writeln!(out, "  peak memory of one device: {before} before, {after} after");
    }
    for decision in &report.decisions {
        decision_text(decision, out);
    }
}

fn decision_text(decision: &Decision, out: &mut String) {
    let Decision { subject, computation, action, reason, .. } = decision;
    let _ = writeln!(out, "  {action:<8} {subject} in %{computation}: {reason}");
    if let Some(format) = &decision.format {
        let _ = writeln!(out, "    format    {format}");
    }
    let names: Vec<String> = decision.collectives.iter().map(|c| format!("{} %{}", c.op, c.instruction)).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    for (change, name) in decision.collectives.iter().zip(&names) {
        let _ = writeln!(
            out,
            "    {:<9} {name:<width$}  {:>10}  {:>3} devices  {:>12}  {}",
            change.change,
            bytes(change.bytes),
            change.group_size,
            change.predicted_ns.map_or_else(|| UNKNOWN.into(), microseconds),
            change.because
        );
    }
    if let (Some(before), Some(after)) = (decision.predicted_before_ns, decision.predicted_after_ns) {
        let _ = writeln!(out, "    predicted {} before, {} after", microseconds(before), microseconds(after));
    }
    for other in &decision.rejected {
        let _ = writeln!(out, "    rejected  {}: {}", other.what, other.because);
    }
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

fn bytes(n: u64) -> String {
    let scaled = |shift: u32| n as f64 / (1u64 << shift) as f64;
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", scaled(10)),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", scaled(20)),
        _ => format!("{:.1} GiB", scaled(30)),
    }
}

/// Passes without a cost model give no number.
/// Where a report has no time.
const UNKNOWN: &str = "–";

fn microseconds(ns: f64) -> String {
    if ns.is_finite() { format!("{:.1} µs", ns / 1e3) } else { UNKNOWN.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_scaled() {
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 20), "8.0 MiB");
        assert_eq!(microseconds(1234.0), "1.2 µs");
        assert_eq!(microseconds(f64::NAN), "–");
    }
}
