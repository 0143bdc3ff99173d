//! The table of `plan zero` as a picture: for each number of devices a bar of memory for each form, with the step's time above it.

use super::plot::escaped;
use super::time_text;
use super::zero_row::Row;
use std::fmt::Write;

const HEIGHT: f64 = 300.0;
const TOP: f64 = 60.0;
const LEFT: f64 = 80.0;
const BAR: f64 = 34.0;
const GAP: f64 = 8.0;
/// Between numbers of devices.
const GROUP_GAP: f64 = 36.0;
/// Width of the title's letters.
const LETTER: f64 = 7.5;

const ARGUMENTS: &str = "#4e79a7";
const REST: &str = "#a0cbe8";
const LIMIT: &str = "#c00";

/// The picture as SVG.
pub(crate) fn svg(title: &str, rows: &[Row], memory_bytes: f64) -> String {
    let most = rows.iter().map(|row| row.peak_bytes as f64).fold(0.0, f64::max).max(1.0);
    // A limit that is far away would leave the bars flat.
    let shows_limit = memory_bytes <= 2.0 * most;
    let scale = if shows_limit { most.max(memory_bytes) } else { most } * 1.3;
    let y = |bytes: f64| TOP + HEIGHT * (1.0 - bytes / scale);
    let mut places = Vec::with_capacity(rows.len());
    let (mut at, mut last) = (LEFT + GAP, rows.first().map_or(0, |row| row.n_devices));
    for row in rows {
        if row.n_devices != last {
            (at, last) = (at + GROUP_GAP, row.n_devices);
        }
        places.push(at);
        at += BAR + GAP;
    }
    let width = (at + 20.0).max(title.chars().count() as f64 * LETTER + 20.0).max(480.0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n\
         <text x=\"10\" y=\"38\">peak of a device: <tspan fill=\"{ARGUMENTS}\">arguments</tspan>, <tspan fill=\"{REST}\">the rest</tspan>; \
         above it the step; bold: the fastest that fits</text>\n",
        TOP + HEIGHT + 110.0,
        escaped(title)
    );
    for tick in 0..=4 {
        let bytes = scale * f64::from(tick) / 4.0;
        let (at, gib) = (y(bytes), bytes / (1u64 << 30) as f64);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{gib:.2} GiB</text>",
            width - 10.0,
            LEFT - 6.0,
            at + 4.0
        );
    }
    let mut labelled = None;
    for (row, &x) in rows.iter().zip(&places) {
        bar(row, x, &y, &mut out);
        if labelled != Some(row.n_devices) {
            labelled = Some(row.n_devices);
            let star = if row.is_modelled { "*" } else { "" };
            let _ = writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{:.1}\" font-size=\"12\">{}{star} devices</text>",
                TOP + HEIGHT + 98.0,
                row.n_devices
            );
        }
    }
    if shows_limit {
        let at = y(memory_bytes);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"{LIMIT}\" stroke-dasharray=\"5 3\"/>",
            width - 10.0
        );
    }
    out.push_str("</svg>\n");
    out
}

fn bar(row: &Row, x: f64, y: &impl Fn(f64) -> f64, out: &mut String) {
    let (top, held, foot) = (y(row.peak_bytes as f64), y(row.argument_bytes as f64), y(0.0));
    let weight = if row.is_best { " font-weight=\"bold\"" } else { "" };
    let middle = x + BAR / 2.0;
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{BAR}\" height=\"{:.1}\" fill=\"{REST}\"/>\n\
         <rect x=\"{x:.1}\" y=\"{held:.1}\" width=\"{BAR}\" height=\"{:.1}\" fill=\"{ARGUMENTS}\"/>\n\
         <text transform=\"translate({middle:.1},{:.1}) rotate(-60)\"{weight}>{}</text>\n\
         <text transform=\"translate({:.1},{:.1}) rotate(50)\"{weight}>{}</text>",
        (foot - top).max(0.0),
        (foot - held).max(0.0),
        top - 4.0,
        time_text(row.step_s),
        x + 8.0,
        foot + 14.0,
        row.form
    );
}
