//! The section about weights and other things that passes decided on.

use hlo_pass::report::{Decision, PassReport, PredictedFor};

use super::table::{Cell, Column, Table, largest};
use crate::report::quantities::{UNKNOWN, bytes, seconds};

/// Rows of the table at most.
const MOST_ROWS: usize = 1_500;

const COLUMNS: [Column; 9] = [
    Column::text("subject"),
    Column::text("weights"),
    Column::number("bytes"),
    Column::text("action"),
    Column::text("format"),
    Column::text("reason"),
    Column::number("time before"),
    Column::number("time after"),
    Column::text("pass"),
];

fn cells((report, decision): &(&PassReport, &Decision)) -> Vec<Cell> {
    let of = match decision.predicted_for {
        PredictedFor::Subject => "",
        PredictedFor::Step => " (step)",
    };
    let time = |ns: Option<f64>| match ns {
        Some(ns) => Cell::number(format!("{}{of}", seconds(ns / 1e9)), ns),
        None => Cell::text(UNKNOWN),
    };
    vec![
        Cell::code(&decision.subject),
        Cell::code(&decision.weights.join(", ")),
        Cell::number(bytes(decision.bytes), decision.bytes as f64),
        Cell::word(&decision.action),
        Cell::text(decision.format.as_deref().unwrap_or_default()),
        Cell::sentence(&decision.reason),
        time(decision.predicted_before_ns),
        time(decision.predicted_after_ns),
        Cell::word(&report.pass),
    ]
}

/// A sentence and the table.
pub(super) fn section(reports: &[PassReport], id: &str) -> String {
    let all: Vec<(&PassReport, &Decision)> =
        reports.iter().flat_map(|report| report.decisions.iter().map(move |decision| (report, decision))).collect();
    if all.is_empty() {
        let whys =
            reports.iter().filter_map(|report| Some((report.pass.as_str(), report.unchanged_because.as_deref()?)));
        let whys: Vec<String> = whys.map(|(pass, why)| format!("{pass}: {why}")).collect();
        let why = if whys.is_empty() { String::new() } else { format!(" ({})", whys.join("; ")) };
        return format!("<p>No pass decided on a weight or another value{}.</p>\n", super::escape::escaped(&why));
    }
    let n = all.len();
    let (rows, n_more, more_bytes) = largest(all, MOST_ROWS, |(_, decision)| decision.bytes);
    let more = match n_more {
        0 => String::new(),
        n => format!("; {n} more, of {} together, are only in the JSON report", bytes(more_bytes)),
    };
    let table = Table { id: id.into(), columns: &COLUMNS, rows: rows.iter().map(cells).collect() };
    let things = if n == 1 { "decision" } else { "decisions" };
    format!("<p>{n} {things}, the largest values first{more}. Times are predicted by the pass.</p>\n{}", table.html())
}
