//! The section with what differs between the modules, names aside: changed regions, as many as a page can bear.

use super::escape::{escaped, shortened};
use super::view::Views;
use crate::diff::{Mark, differences};
use std::fmt::Write;

/// Lines of the section at most.
const MOST_LINES: usize = 1_500;

/// Lines around each difference.
const CONTEXT: usize = 1;

/// A sentence and the lines.
pub(super) fn section(views: &Views) -> String {
    let Some(after) = &views.after else { return "<p>No pass changed the module.</p>\n".into() };
    let (counts, lines) = differences(&views.before.module, &after.module, CONTEXT);
    let n_more = lines.len().saturating_sub(MOST_LINES);
    let more = match n_more {
        0 => String::new(),
        n => format!(
            " The first {MOST_LINES} lines of differences are shown; {n} more are left out: hlo-opt diff shows them."
        ),
    };
    let mut out = format!("<p>Instructions: {counts}. Names alone are no difference.{more}</p>\n");
    if lines.is_empty() {
        return out;
    }
    out.push_str("<div class=\"diff\" tabindex=\"0\" role=\"region\" aria-label=\"Changed instructions\">\n");
    for (mark, line) in lines.iter().take(MOST_LINES) {
        let (class, sign) = match mark {
            Mark::Same => ("same", " "),
            Mark::Old => ("old", "−"),
            Mark::New => ("gained", "+"),
            Mark::Head => ("head", ""),
        };
        let _ = writeln!(out, "<div class=\"{class}\">{sign}{}</div>", escaped(&shortened(line)));
    }
    out.push_str("</div>\n");
    out
}
