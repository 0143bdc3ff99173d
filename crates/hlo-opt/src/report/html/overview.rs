//! The first section: what was done, and what a step costs before and after.

use std::fmt::Write;

use hlo_pass::report::WayChoice;

use super::escape::escaped;
use super::table::{Cell, Column, Table};
use crate::report::figures::{Figures, Totals};
use crate::report::quantities::{UNKNOWN, bytes, change, count, seconds};
use crate::report::summary::{deed, kinds, recommended};
use crate::report::{ModuleReport, Time};

/// A figure: its name in the JSON report, what it is called, how it is read, and how it is shown.
struct Figure {
    name: &'static str,
    title: &'static str,
    of: fn(&Figures) -> Option<f64>,
    shown: fn(f64) -> String,
}

fn of_time(figures: &Figures, of: fn(&Time) -> f64) -> Option<f64> {
    figures.time.as_ref().map(of)
}

fn size(value: f64) -> String {
    bytes(value.round() as u64)
}

const FIGURES: [Figure; 11] = [
    Figure {
        name: "critical_path_s",
        title: "time of a step",
        of: |f| of_time(f, |t| t.critical_path_s),
        shown: seconds,
    },
    Figure { name: "peak_bytes", title: "memory at the peak", of: |f| Some(f.peak_bytes as f64), shown: size },
    Figure { name: "sent_bytes", title: "bytes sent", of: |f| Some(f.sent_bytes), shown: size },
    Figure { name: "collectives", title: "collectives", of: |f| Some(f.n_collectives()), shown: count },
    Figure { name: "compute_s", title: "kernels run", of: |f| of_time(f, |t| t.compute_s), shown: seconds },
    Figure {
        name: "communication_s",
        title: "collectives run",
        of: |f| of_time(f, |t| t.communication_s),
        shown: seconds,
    },
    Figure { name: "argument_bytes", title: "memory: arguments", of: |f| Some(f.argument_bytes as f64), shown: size },
    Figure { name: "output_bytes", title: "memory: outputs", of: |f| Some(f.output_bytes as f64), shown: size },
    Figure { name: "alias_bytes", title: "outputs in arguments", of: |f| Some(f.alias_bytes as f64), shown: size },
    Figure { name: "constant_bytes", title: "memory: constants", of: |f| Some(f.constant_bytes as f64), shown: size },
    Figure { name: "temp_bytes", title: "memory: temporaries", of: |f| Some(f.temp_bytes as f64), shown: size },
];

/// Figures that stand at the top in large letters.
const N_TILES: usize = 4;

impl Figure {
    fn shown(&self, figures: &Figures) -> String {
        (self.of)(figures).map_or_else(|| UNKNOWN.into(), self.shown)
    }

    /// How much it changed, and whether that is better (they are costs), worse, or neither.
    fn change(&self, totals: &Totals) -> (String, &'static str) {
        let (before, after) = ((self.of)(&totals.before), (self.of)(&totals.after));
        let Some((before, after)) = before.zip(after) else { return (String::new(), "same") };
        let text = change(before, after);
        let class = match text.as_str() {
            "=" => "same",
            // One all-reduce is two of the others: more of them need not be worse.
            _ if self.name == "collectives" => "other",
            _ if after < before => "less",
            _ => "more",
        };
        (text, class)
    }
}

/// The section; without figures where nothing was measured.
pub(super) fn section(report: &ModuleReport, id: &str) -> String {
    let mut out = format!("<p class=\"deed\">{}</p>\n", escaped(&deed(report)));
    if let Some(totals) = &report.totals {
        tiles(totals, &mut out);
        let _ = writeln!(out, "<p>{}</p>", escaped(&machine_text(totals)));
        figures_table(totals, id, &mut out);
    }
    let advice = report.recommendation.iter().map(recommended).chain(report.note.clone());
    advice.for_each(|text| {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(&text));
    });
    report.choice.iter().for_each(|choice| ways(choice, id, &mut out));
    out
}

fn tiles(totals: &Totals, out: &mut String) {
    out.push_str("<dl class=\"tiles\">\n");
    for figure in &FIGURES[..N_TILES] {
        let (text, class) = figure.change(totals);
        let (before, after) = (figure.shown(&totals.before), figure.shown(&totals.after));
        let (text, was) =
            if class == "same" { ("", "as before".into()) } else { (text.as_str(), format!("was {before}")) };
        let more = if figure.name == "collectives" { kinds(&totals.after) } else { String::new() };
        let _ = writeln!(
            out,
            "<div><dt>{}</dt><dd class=\"value\">{}</dd><dd><span class=\"{class}\">{}</span> {}</dd><dd>{}</dd></div>",
            figure.title,
            escaped(&after),
            escaped(text),
            escaped(&was),
            escaped(&more)
        );
    }
    out.push_str("</dl>\n");
}

fn machine_text(totals: &Totals) -> String {
    let machine = format!("{} x {}", totals.n_devices, totals.machine);
    match (totals.before.time, totals.after.time) {
        (Some(before), Some(after)) if before.is_partial || after.is_partial => format!(
            "One step of one device. Times are predicted for {machine}, without custom calls and exchanges with the host."
        ),
        (Some(_), Some(_)) => {
            format!("One step of one device. Times are predicted for {machine}; they are not measured.")
        }
        (None, _) | (_, None) => {
            format!("No time: {} has another number of devices than the module's {}.", totals.machine, totals.n_devices)
        }
    }
}

fn figures_table(totals: &Totals, id: &str, out: &mut String) {
    let _ = write!(
        out,
        "<details><summary>All figures</summary>\n<div class=\"scroll\"><table id=\"{id}-figures\">\n<thead><tr>\
         <th scope=\"col\">figure</th><th scope=\"col\" class=\"number\">before</th><th scope=\"col\" class=\"number\">after\
         </th><th scope=\"col\" class=\"number\">change</th></tr></thead>\n<tbody>\n"
    );
    for figure in &FIGURES {
        let (text, class) = figure.change(totals);
        let cell = |figures: &Figures| {
            let value = (figure.of)(figures).map_or(String::new(), |value| format!(" data-value=\"{value}\""));
            format!("<td class=\"number\"{value}>{}</td>", escaped(&figure.shown(figures)))
        };
        let _ = writeln!(
            out,
            "<tr data-figure=\"{}\"><th scope=\"row\">{}</th>{}{}<td class=\"number\"><span class=\"{class}\">{}</span></td></tr>",
            figure.name,
            figure.title,
            cell(&totals.before),
            cell(&totals.after),
            escaped(&text)
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

const WAYS: [Column; 6] = [
    Column::text("way"),
    Column::number("time"),
    Column::number("kernels"),
    Column::number("collectives"),
    Column::number("memory"),
    Column::text("by hand"),
];

/// The ways that a preset compared.
fn ways(choice: &WayChoice, id: &str, out: &mut String) {
    let rows = choice.candidates.iter().enumerate().map(|(number, way)| {
        let mut name = way.way.to_string();
        if number == choice.chosen {
            name.push_str(" (taken)");
        }
        let by_hand = if way.pipeline.is_empty() { String::new() } else { format!("--pass '{}'", way.pipeline) };
        vec![
            Cell::text(&name),
            Cell::number(seconds(way.critical_path_s), way.critical_path_s),
            Cell::number(seconds(way.compute_s), way.compute_s),
            Cell::number(seconds(way.communication_s), way.communication_s),
            way.peak_bytes.map_or_else(|| Cell::text(UNKNOWN), |n| Cell::number(bytes(n), n as f64)),
            Cell::code(&by_hand),
        ]
    });
    let table = Table { id: format!("{id}-ways"), columns: &WAYS, rows: rows.collect() };
    let _ = write!(out, "<details><summary>The ways that were compared</summary>\n{}</details>\n", table.html());
}
