//! The outcome of an audit as text, a few lines for each finding, as linters print them.

use super::{Facts, FindingFact};
use std::fmt::Write;

pub(super) fn render(facts: &Facts) -> String {
    let mut out = String::new();
    for finding in &facts.findings {
        render_finding(&facts.file, finding, &mut out);
    }
    let n_of = |level: &str| facts.findings.iter().filter(|finding| finding.level == level).count();
    let faults = match n_of("fault") {
        1 => "1 fault".to_string(),
        n => format!("{n} faults"),
    };
    let n_denied = facts.findings.iter().filter(|finding| finding.is_denied).count();
    let denied = if n_denied > 0 { format!(", {n_denied} denied") } else { String::new() };
    let _ = writeln!(out, "{}: {faults}, {} advice{denied}", facts.file, n_of("advice"));
    let totals = &facts.totals;
    let _ = writeln!(
        out,
        "a step: {} collectives of {} bytes, {} predicted on {} x {}; peak memory {} bytes",
        totals.collectives,
        totals.collective_bytes,
        time(totals.collective_s),
        facts.n_devices,
        facts.machine,
        totals.peak_bytes
    );
    for budget in &facts.budgets {
        let verdict = if budget.is_exceeded { "exceeded" } else { "kept" };
        let _ = writeln!(out, "{} {}: {verdict}, found {}", budget.option, budget.limit, budget.found);
    }
    out
}

fn render_finding(file: &str, finding: &FindingFact, out: &mut String) {
    let FindingFact { place, level, check, message, .. } = finding;
    let denied = if finding.is_denied { ", denied" } else { "" };
    let _ = writeln!(out, "{file}:{}:{}: {level}[{check}]{denied}: {message}", place.line, place.column);
    let seconds = finding.predicted_s.map_or(String::new(), |seconds| format!(", {} a step", time(seconds)));
    let _ = writeln!(out, "  in %{}: {} bytes {}{seconds}", place.computation, finding.bytes, finding.bytes_are);
    let _ = writeln!(out, "  remedy: {}", finding.remedy);
}

fn time(seconds: f64) -> String {
    format!("{:.1} us", seconds * 1e6)
}
