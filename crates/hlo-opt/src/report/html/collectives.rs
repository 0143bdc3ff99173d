//! The section about collectives: those that passes removed and inserted, with the reasons, and those that no pass touched.

use std::collections::{HashMap, HashSet};

use hlo_pass::report::PassReport;
use hlo_spmd::CollectiveChange;

use super::table::{Cell, Column, Table, largest};
use super::view::{CollectiveFact, Origin, Views};
use crate::report::quantities::{UNKNOWN, bytes, count, seconds};

/// Rows of the table at most.
const MOST_ROWS: usize = 1_500;

const COLUMNS: [Column; 10] = [
    Column::text("change"),
    Column::text("op"),
    Column::text("instruction"),
    Column::number("bytes"),
    Column::number("devices"),
    Column::number("time"),
    Column::number("runs"),
    Column::text("why"),
    Column::text("source"),
    Column::text("op name"),
];

/// A collective and what happened to it.
struct Row<'r> {
    /// `removed`, `inserted`, `kept` or `new`.
    change: &'static str,
    record: &'r CollectiveChange,
    /// The pass that says so.
    pass: &'r str,
    /// What the module says of it, where it is still or was at first.
    fact: Option<&'r CollectiveFact>,
}

/// Names of the collectives of a module.
fn by_name(facts: &[CollectiveFact]) -> HashMap<&str, &CollectiveFact> {
    facts.iter().map(|fact| (fact.record.instruction.as_str(), fact)).collect()
}

fn rows<'r>(reports: &'r [PassReport], views: &'r Views) -> Vec<Row<'r>> {
    let (before, now) = (by_name(&views.before.collectives), by_name(&views.now().collectives));
    let mut rows = Vec::new();
    for report in reports {
        for record in report.decisions.iter().flat_map(|decision| &decision.collectives) {
            let of_module = if record.change == "removed" { &before } else { &now };
            let fact = of_module.get(record.instruction.as_str()).copied();
            rows.push(Row { change: record.change, record, pass: &report.pass, fact });
        }
    }
    let told: HashSet<&str> = rows.iter().map(|row| row.record.instruction.as_str()).collect();
    let untold = views.now().collectives.iter().filter(|fact| !told.contains(fact.record.instruction.as_str()));
    let untold = untold.map(|fact| {
        let change = if before.contains_key(fact.record.instruction.as_str()) { "kept" } else { "new" };
        Row { change, record: &fact.record, pass: "", fact: Some(fact) }
    });
    rows.extend(untold.collect::<Vec<_>>());
    rows
}

fn cells(row: &Row<'_>) -> Vec<Cell> {
    let Row { change, record, pass, fact } = row;
    // What the pass predicted when it decided; else what the timeline says.
    let predicted_s = record.predicted_ns.map(|ns| ns / 1e9).or(fact.and_then(|fact| fact.seconds));
    let origin = fact.map(|fact| &fact.origin);
    let why = if pass.is_empty() { String::new() } else { format!("{pass}: {}", record.because) };
    vec![
        Cell::badge(change),
        Cell::word(&record.op),
        Cell::code(&format!("%{}", record.instruction)),
        Cell::number(bytes(record.bytes), record.bytes as f64),
        Cell::number(record.group_size.to_string(), record.group_size as f64),
        match predicted_s {
            Some(s) => Cell::number(seconds(s), s),
            None => Cell::text(UNKNOWN),
        },
        match fact {
            Some(fact) => Cell::number(count(fact.n_runs), fact.n_runs),
            None => Cell::text(UNKNOWN),
        },
        Cell::sentence(&why),
        Cell::code(origin.and_then(|origin| origin.source.as_deref()).unwrap_or_default()),
        Cell::path(origin.and_then(|origin| origin.op_name.as_deref()).unwrap_or_default()),
    ]
}

/// A sentence and the table.
pub(super) fn section(reports: &[PassReport], views: &Views, id: &str) -> String {
    let rows = rows(reports, views);
    if rows.is_empty() {
        return "<p>The module has no collective.</p>\n".into();
    }
    let n_of = |change: &str| rows.iter().filter(|row| row.change == change).count();
    let changes = ["removed", "inserted", "kept", "new"].map(|change| (n_of(change), change));
    let told: Vec<String> = changes.iter().filter(|(n, _)| *n > 0).map(|(n, change)| format!("{n} {change}")).collect();
    let is_placed = |row: &Row<'_>| row.fact.is_some_and(|fact| fact.origin != Origin::default());
    let places = if rows.iter().any(is_placed) { "" } else { " The module does not say which lines they come from." };
    let (rows, n_more, more_bytes) = largest(rows, MOST_ROWS, |row| row.record.bytes);
    let more = match n_more {
        0 => String::new(),
        n => format!("; {n} more, of {} together, are only in the JSON report", bytes(more_bytes)),
    };
    let table = Table { id: id.into(), columns: &COLUMNS, rows: rows.iter().map(cells).collect() };
    format!(
        "<p>{}. Bytes are those of the whole tensor on one device, the time is that of one run{more}.{places}</p>\n{}",
        told.join(", "),
        table.html()
    )
}
