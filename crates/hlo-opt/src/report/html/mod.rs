//! The report as one page for a browser: no network, no other file. The tables are whole without scripts; the page's own script
//! sorts them, and draws the timeline and the memory over time from data that stands in the page.

mod changes;
mod collectives;
mod decisions;
mod escape;
mod memory;
mod overview;
mod table;
mod timeline;
mod view;

pub(crate) use table::{Cell, Column, Table};
pub(crate) use view::{View, Views};

use super::{Document, ModuleReport};
use escape::{escaped, script_json};
use serde_json::json;
use std::fmt::Write;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("style.css");
/// One after the other they are one script.
const SCRIPT: [&str; 5] = [
    include_str!("chart.js"),
    include_str!("timeline.js"),
    include_str!("memory.js"),
    include_str!("tables.js"),
    include_str!("script.js"),
];

/// The page.
pub(crate) fn page(document: &Document) -> String {
    let names: Vec<&str> = document.modules.iter().map(|module| module.module.as_str()).collect();
    let title = format!("{}: before and after", names.join(", "));
    let modules: String = document.modules.iter().enumerate().map(|(number, module)| article(number, module)).collect();
    let data: Vec<_> = document.modules.iter().map(data).collect();
    let pipeline = if document.pipeline.is_empty() { "no pass" } else { &document.pipeline };
    let source = format!("<code>{}</code>, <code>{}</code>", escaped(&document.file), escaped(pipeline));
    filled(
        PAGE,
        &[
            ("title", &escaped(&title)),
            ("style", STYLE),
            ("source", &source),
            ("modules", &modules),
            ("data", &script_json(&json!(data).to_string())),
            ("script", &SCRIPT.concat()),
        ],
    )
}

/// A page of sections that were made elsewhere: of each its name in the page, its title and its HTML.
pub(crate) fn page_of_sections(title: &str, source: &str, sections: &[(&str, &str, &str)]) -> String {
    let mut article = format!("<article id=\"m0\" data-module=\"0\">\n<h1>{}</h1>\n", escaped(title));
    for (name, title, html) in sections {
        let _ = writeln!(article, "<section id=\"m0-{name}\">\n<h2>{title}</h2>\n{html}</section>");
    }
    article.push_str("</article>\n");
    filled(
        PAGE,
        &[
            ("title", &escaped(title)),
            ("style", STYLE),
            ("source", &format!("<code>{}</code>", escaped(source))),
            ("modules", &article),
            ("data", "[{}]"),
            ("script", &SCRIPT.concat()),
        ],
    )
}

/// A template with what stands for each `{{name}}`, in one go: what is filled in is never looked at.
fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + values.iter().map(|(_, value)| value.len()).sum::<usize>());
    let mut rest = template;
    while let Some((text, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        out.push_str(text);
        out.push_str(values.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value));
        rest = after;
    }
    out + rest
}

/// What the script draws of one module.
fn data(report: &ModuleReport) -> serde_json::Value {
    let (Some(totals), Some(views)) = (&report.totals, &report.views) else { return json!({}) };
    let sides = sides(views, totals);
    let timeline: Vec<_> =
        sides.iter().filter_map(|(title, view, figures)| timeline::side(title, view, figures)).collect();
    let memory: Vec<_> = sides.iter().map(|(title, view, figures)| memory::side(title, view, figures)).collect();
    json!({"totals": totals, "kinds": timeline::KINDS, "timeline": timeline, "memory": memory})
}

/// The modules to show: before and after, or the one that there is.
fn sides<'v>(
    views: &'v Views,
    totals: &'v super::Totals,
) -> Vec<(&'static str, &'v View, &'v super::figures::Figures)> {
    match &views.after {
        Some(after) => vec![("before", &*views.before, &totals.before), ("after", &**after, &totals.after)],
        None => vec![("", &*views.before, &totals.before)],
    }
}

/// One module's part of the page.
fn article(number: usize, report: &ModuleReport) -> String {
    let id = format!("m{number}");
    let mut out = format!("<article id=\"{id}\" data-module=\"{number}\">\n<h1>{}</h1>\n", escaped(&report.module));
    let mut section = |name: &str, title: &str, html: &str| {
        let _ = writeln!(out, "<section id=\"{id}-{name}\">\n<h2>{title}</h2>\n{html}</section>");
    };
    section("summary", "Summary", &overview::section(report, &id));
    let (Some(totals), Some(views)) = (&report.totals, &report.views) else { return out + "</article>\n" };
    section("timeline", "Time", &chart("timeline", "Tasks of one device over the time of a step"));
    let peaks = sides(views, totals);
    let peaks = peaks.iter().map(|(title, view, _)| memory::peak_table(title, view, &format!("{id}-peak-{title}")));
    let peaks: String = peaks.collect();
    section(
        "memory",
        "Memory",
        &(chart("memory", "Memory of one device over a step") + "<div class=\"peaks\">\n" + &peaks + "</div>\n"),
    );
    let collectives = collectives::section(&report.reports, views, &format!("{id}-collectives-table"));
    section("collectives", "Collectives", &collectives);
    section("weights", "Weights", &decisions::section(&report.reports, &format!("{id}-weights-table")));
    section("changes", "Changes", &changes::section(views));
    out + "</article>\n"
}

/// A place for a drawing, which the script fills.
fn chart(kind: &str, label: &str) -> String {
    format!(
        "<div class=\"chart\" data-chart=\"{kind}\" data-label=\"{label}\"><noscript>A browser with scripts shows a drawing here.\
         </noscript></div>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_is_not_a_template() {
        assert_eq!(filled("a {{x}} b {{y}}{{z}}", &[("x", "{{y}}"), ("y", "2")]), "a {{y}} b 2");
    }
}
