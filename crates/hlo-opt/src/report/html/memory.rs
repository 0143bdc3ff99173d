//! The section about memory: the data of the curve, and what lives at the peak.

use serde_json::{Value, json};

use super::escape::{escaped, shortened};
use super::table::{Cell, Column, Table};
use super::view::View;
use crate::report::figures::Figures;
use crate::report::quantities::bytes;

/// One module's part of the chart.
pub(super) fn side(title: &str, view: &View, figures: &Figures) -> Value {
    let points = view.curve.points.iter().map(|(at, bytes, name)| json!([at, bytes, shortened(name)]));
    json!({
        "title": title,
        "peak_bytes": figures.peak_bytes,
        "given_bytes": figures.argument_bytes.saturating_add(figures.constant_bytes),
        "n_moments": view.curve.n_moments,
        "points": points.collect::<Vec<_>>(),
    })
}

const COLUMNS: [Column; 5] = [
    Column::text("buffer"),
    Column::text("kind"),
    Column::number("size"),
    Column::text("shape"),
    Column::text("op name"),
];

/// The largest buffers of the peak, with a heading.
pub(super) fn peak_table(title: &str, view: &View, id: &str) -> String {
    let facts = &view.memory;
    let path: Vec<String> = facts.peak_at.iter().map(|name| format!("%{name}")).collect();
    let place = if path.is_empty() { "the start".into() } else { escaped(&shortened(&path.join(" > "))) };
    let rows = facts.live_at_peak.iter().map(|fact| {
        vec![
            Cell::code(&fact.name()),
            Cell::word(fact.kind),
            Cell::number(bytes(fact.bytes), fact.bytes as f64),
            Cell::code(&fact.shape),
            Cell::path(fact.op_name.as_deref().unwrap_or_default()),
        ]
    });
    let n_more = facts.n_live_at_peak - facts.live_at_peak.len();
    let more = if n_more == 0 { String::new() } else { format!("; the {} largest", facts.live_at_peak.len()) };
    let heading = format!(
        "<div><h3>At the peak{} <small>at <code>{place}</code>, {} buffers live{more}</small></h3>\n",
        if title.is_empty() { String::new() } else { format!(", {title}") },
        facts.n_live_at_peak
    );
    heading + &Table { id: id.into(), columns: &COLUMNS, rows: rows.collect() }.html() + "</div>\n"
}
