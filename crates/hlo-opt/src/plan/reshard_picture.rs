//! A picture of a redistribution: a column for each state, a row for each device, and in it a bar for each dim that shows which
//! indices the device holds.

use hlo_ir::ArrayShape;
use hlo_spmd::redistribution::{HeldParts, Redistribution};
use std::fmt::Write;

const LEFT: f64 = 70.0;
const TOP: f64 = 76.0;
const BAR: f64 = 80.0;
const BAR_HEIGHT: f64 = 9.0;
const COLUMN: f64 = 130.0;
const GAP: f64 = 5.0;
/// A colour for each dim, from dark to light as they come; distinct in grey as well.
const COLOURS: [&str; 4] = ["#1f5a99", "#c4622d", "#3f8f4f", "#8a6bb0"];

/// The picture as SVG under a title.
pub(super) fn svg(title: &str, shape: &ArrayShape, plan: &Redistribution) -> String {
    let states = plan.held_parts();
    let row = BAR_HEIGHT * shape.rank().max(1) as f64 + GAP;
    let n_devices = states.first().map_or(0, |state| state.devices.len());
    let width = (LEFT + COLUMN * states.len() as f64).max(title.chars().count() as f64 * 7.0 + 20.0);
    let height = TOP + row * n_devices as f64 + 60.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let _ = writeln!(out, "<text x=\"10\" y=\"18\" font-size=\"13\">{}</text>", super::plot::escaped(title));
    for device in 0..n_devices {
        let y = TOP + row * device as f64 + BAR_HEIGHT;
        let _ = writeln!(out, "<text x=\"10\" y=\"{y:.1}\">device {device}</text>");
    }
    for (column, state) in states.iter().enumerate() {
        let x = LEFT + COLUMN * column as f64;
        heading(plan, state, x, &mut out);
        for (device, parts) in state.devices.iter().enumerate() {
            for (dim, (ranges, &size)) in parts.iter().zip(&shape.dims).enumerate() {
                let y = TOP + row * device as f64 + BAR_HEIGHT * dim as f64;
                bar(ranges, size, dim, (x, y), &mut out);
            }
        }
    }
    for (dim, size) in shape.dims.iter().enumerate() {
        let x = LEFT + 90.0 * dim as f64;
        let colour = COLOURS[dim % COLOURS.len()];
        let y = TOP + row * n_devices as f64 + 24.0;
        let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\" fill=\"{colour}\"/>", y - 9.0);
        let _ = writeln!(out, "<text x=\"{:.1}\" y=\"{y:.1}\">dim {dim}: {size}</text>", x + 13.0);
    }
    out.push_str("</svg>\n");
    out
}

/// The step that led to a state, and what it costs.
fn heading(plan: &Redistribution, state: &HeldParts, x: f64, out: &mut String) {
    let step = state.step.and_then(|step| plan.steps.get(step));
    let lines = match step {
        None => ["source".to_string(), String::new(), String::new()],
        Some(step) => [step.kind.name().to_string(), format!("{} B", step.price.bytes), step.state.clone()],
    };
    for (k, line) in lines.iter().enumerate() {
        let y = 38.0 + 14.0 * k as f64;
        let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", super::plot::escaped(line));
    }
}

/// The whole dim in grey, and what the device holds of it in the dim's colour.
fn bar(ranges: &[(i64, i64)], size: i64, dim: usize, (x, y): (f64, f64), out: &mut String) {
    let height = BAR_HEIGHT - 2.0;
    let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{BAR}\" height=\"{height}\" fill=\"#e4e4e4\"/>");
    for (low, high) in ranges {
        let at = |index: i64| BAR * index as f64 / size.max(1) as f64;
        let colour = COLOURS[dim % COLOURS.len()];
        let (from, width) = (x + at(*low), at(high - low));
        let _ = writeln!(
            out,
            "<rect x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height}\" fill=\"{colour}\"/>"
        );
    }
}
