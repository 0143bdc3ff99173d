//! The report as text: what each pass did. Decisions of one kind are told together, or each for itself.

use super::groups::{Group, groups};
use super::quantities::{UNKNOWN, bytes, microseconds};
use super::summary::summary;
use super::{Document, ModuleReport};
use hlo_pass::report::{Decision, PassReport, PredictedFor, WayChoice};
use hlo_spmd::CollectiveChange;
use std::fmt::Write;

/// How much a report tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Detail {
    /// Decisions of one kind together; passes that did nothing in one line.
    Grouped,
    /// Every decision, with what was rejected; why each pass did nothing.
    Everything,
}

/// The report: a summary, the ways of a preset, and what each pass did.
pub(crate) fn as_text(document: &Document, detail: Detail) -> String {
    let mut out = String::new();
    for module in &document.modules {
        out.push_str(&summary(module));
        module.choice.iter().for_each(|choice| choice_text(choice, &mut out));
        module.note.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
        match detail {
            Detail::Grouped => grouped(module, &mut out),
            Detail::Everything => module.reports.iter().for_each(|report| pass_text(report, detail, &mut out)),
        }
    }
    out
}

/// The summaries and notes of all modules.
pub(crate) fn summaries(document: &Document) -> String {
    let mut out = String::new();
    for module in &document.modules {
        out.push_str(&summary(module));
        module.note.iter().for_each(|note| out.push_str(&format!("note: {note}\n")));
    }
    out
}

/// What each pass did, and in one line which did nothing and considered nothing.
fn grouped(module: &ModuleReport, out: &mut String) {
    let is_silent = |report: &&PassReport| !report.changed && report.decisions.is_empty();
    module.reports.iter().filter(|report| !is_silent(report)).for_each(|report| {
        pass_text(report, Detail::Grouped, out);
    });
    let silent: Vec<&PassReport> = module.reports.iter().filter(is_silent).collect();
    match silent.as_slice() {
        [] => {}
        [only] => pass_text(only, Detail::Grouped, out),
        several => {
            let names: Vec<&str> = several.iter().map(|report| report.pass.as_str()).collect();
            let _ = writeln!(out, "unchanged: {} (--verbose says why)", names.join(", "));
        }
    }
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
    for failed in &choice.failed {
        let _ = writeln!(out, "  left out: {}: {}", failed.way, failed.reason);
    }
    if let Some(taken) = choice.taken() {
        let by_hand = if taken.pipeline.is_empty() { "no pass".into() } else { format!("--pass '{}'", taken.pipeline) };
        let _ = writeln!(out, "  * is taken; by hand: {by_hand}");
    }
}

fn pass_text(report: &PassReport, detail: Detail, out: &mut String) {
    let outcome = if report.changed { "changed" } else { "unchanged" };
    let _ = match &report.unchanged_because {
        Some(why) => writeln!(out, "{}: {outcome}: {why}", report.pass),
        None => writeln!(out, "{}: {outcome}", report.pass),
    };
    if let Some(memory) = &report.memory {
        let (before, after) = (bytes(memory.peak_before_bytes), bytes(memory.peak_after_bytes));
        let _ = writeln!(out, "  peak memory of one device: {before} before, {after} after");
    }
    match detail {
        Detail::Everything => report.decisions.iter().for_each(|decision| decision_text(decision, out)),
        Detail::Grouped => groups(&report.decisions).iter().for_each(|group| group_text(group, out)),
    }
}

fn decision_text(decision: &Decision, out: &mut String) {
    subject_text(decision, out);
    collectives_text(&decision.collectives, |change| format!("{} %{}", change.op, change.instruction), out);
    predicted_text(decision.predicted_for, [decision.predicted_before_ns, decision.predicted_after_ns], out);
    for other in &decision.rejected {
        let _ = writeln!(out, "    rejected  {}: {}", other.what, other.because);
    }
}

fn subject_text(decision: &Decision, out: &mut String) {
    let Decision { subject, computation, action, reason, .. } = decision;
    let _ = writeln!(out, "  {action:<8} {subject} in %{computation}: {reason}");
    if let Some(format) = &decision.format {
        let _ = writeln!(out, "    format    {format}");
    }
    weights_text(&[decision], usize::MAX, out);
}

/// Names of weights and state that a group tells.
const MAX_WEIGHTS: usize = 6;

/// What the framework calls the weights and the state of decisions, at most so many.
fn weights_text(decisions: &[&Decision], max: usize, out: &mut String) {
    let all: Vec<&str> = decisions.iter().flat_map(|decision| &decision.weights).map(String::as_str).collect();
    let shown = all.iter().take(max).copied().collect::<Vec<_>>().join(", ");
    let _ = match all.len().saturating_sub(max) {
        _ if all.is_empty() => Ok(()),
        0 => writeln!(out, "    of        {shown}"),
        n_more => writeln!(out, "    of        {shown} and {n_more} more"),
    };
}

/// Decisions of one kind in a few lines, the largest as an example.
fn group_text(group: &Group<'_>, out: &mut String) {
    let [first, rest @ ..] = group.decisions.as_slice() else { return };
    let Decision { action, subject, computation, reason, .. } = first;
    let size = if group.bytes == 0 { String::new() } else { format!(", {}", bytes(group.bytes)) };
    let n = group.decisions.len();
    match (rest, group.has_one_reason) {
        ([], _) => subject_text(first, out),
        (_, true) => {
            let _ =
                writeln!(out, "  {action:<8} {n} values{size}: {reason}; the largest is {subject} in %{computation}");
        }
        (_, false) => {
            let _ =
                writeln!(out, "  {action:<8} {n} values{size}; the largest is {subject} in %{computation}: {reason}");
        }
    }
    if !rest.is_empty() {
        weights_text(&group.decisions, MAX_WEIGHTS, out);
    }
    collectives_text(&group.collectives, |change| change.instruction.clone(), out);
    predicted_text(group.predicted_for, group.predicted_ns, out);
}

fn collectives_text(changes: &[CollectiveChange], name: impl Fn(&CollectiveChange) -> String, out: &mut String) {
    let names: Vec<String> = changes.iter().map(name).collect();
    let width = names.iter().map(|n| n.chars().count()).max().unwrap_or(0);
    for (change, name) in changes.iter().zip(&names) {
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
}

fn predicted_text(what: PredictedFor, [before_ns, after_ns]: [Option<f64>; 2], out: &mut String) {
    if let (Some(before), Some(after)) = (before_ns, after_ns) {
        let what = match what {
            PredictedFor::Subject => "",
            PredictedFor::Step => "step ",
        };
        let _ = writeln!(out, "    predicted {what}{} before, {} after", microseconds(before), microseconds(after));
    }
}
