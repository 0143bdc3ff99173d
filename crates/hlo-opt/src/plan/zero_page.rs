//! The table of `plan zero` as a page for a browser: the picture, and all rows to sort.

use super::time_text;
use super::zero_row::{Row, Table, size_text};
use crate::report::html::{Cell, Column, Table as HtmlTable, page_of_sections};
use std::fmt::Write;

const COLUMNS: [Column; 10] = [
    Column::number("devices"),
    Column::text("form"),
    Column::number("shards"),
    Column::number("arguments MiB"),
    Column::number("temporaries MiB"),
    Column::number("peak MiB"),
    Column::number("sent MiB"),
    Column::number("step"),
    Column::number("step of the fastest"),
    Column::text("verdict"),
];

/// The page; `picture` is the table as SVG.
pub(super) fn page(title: &str, file: &str, table: &Table<'_>, picture: &str) -> String {
    let id = "m0-forms-table".to_string();
    let rows = table.rows.iter().map(|row| cells(row, table.rows)).collect();
    let mut forms = HtmlTable { id, columns: &COLUMNS, rows }.html();
    for note in table.notes() {
        let _ = writeln!(forms, "<p>{}</p>", super::plot::escaped(&note));
    }
    let _ = writeln!(forms, "<p>A device has {} for the step.</p>", size_text(table.memory_bytes));
    let picture = format!("<div class=\"scroll\">\n{picture}</div>\n");
    page_of_sections(title, file, &[("picture", "Memory and time", &picture), ("forms", "Forms", &forms)])
}

fn cells(row: &Row, all: &[Row]) -> Vec<Cell> {
    let mib = |bytes: f64| {
        let mib = bytes / (1u64 << 20) as f64;
        Cell::number(format!("{mib:.1}"), mib)
    };
    let of_these = all.iter().filter(|other| other.n_devices == row.n_devices && other.fits);
    let least_s = of_these.map(|other| other.step_s).fold(f64::INFINITY, f64::min);
    let ratio = row.step_s / least_s;
    let star = if row.is_modelled { "*" } else { "" };
    let verdict = match (row.is_best, row.fits) {
        (true, _) => "fastest that fits",
        (false, true) => "fits",
        (false, false) => "does not fit",
    };
    vec![
        Cell::number(format!("{}{star}", row.n_devices), row.n_devices as f64),
        Cell::text(row.form),
        Cell::number(row.n_shards.to_string(), row.n_shards as f64),
        mib(row.argument_bytes as f64),
        mib(row.temp_bytes as f64),
        mib(row.peak_bytes as f64),
        mib(row.sent_bytes),
        Cell::number(time_text(row.step_s), row.step_s),
        if ratio.is_finite() { Cell::number(format!("{ratio:.2}"), ratio) } else { Cell::text("") },
        Cell::text(verdict),
    ]
}
