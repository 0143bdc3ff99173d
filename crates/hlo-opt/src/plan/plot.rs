//! A picture of the predicted time of every program, a column of dots for each matrix, the single all-reduce as a line.

use super::time_text;
use std::collections::BTreeSet;
use std::fmt::Write;

/// One matrix.
pub(crate) struct Column {
    /// What to write below it.
    pub name: String,
    /// Predicted times of its programs, seconds.
    pub times: Vec<f64>,
    /// Predicted time of the single all-reduce, seconds.
    pub all_reduce_s: f64,
}

const HEIGHT: f64 = 420.0;
const TOP: f64 = 30.0;
const LEFT: f64 = 90.0;
const COLUMN: f64 = 110.0;
/// Dots of one column stand side by side in so many lanes.
const LANES: usize = 9;

/// The picture as SVG; times on a logarithmic scale.
pub(crate) fn svg(columns: &[Column]) -> String {
    let times =
        || columns.iter().flat_map(|c| c.times.iter().chain(std::iter::once(&c.all_reduce_s))).filter(|t| **t > 0.0);
    let (least, most) = times().fold((f64::INFINITY, 0.0f64), |(least, most), t| (least.min(*t), most.max(*t)));
    let (low, high) = if most > 0.0 { (least.log10() - 0.05, most.log10() + 0.05) } else { (-1.0, 1.0) };
    let y = |t: f64| TOP + HEIGHT * (high - t.log10()) / (high - low);
    let width = LEFT + COLUMN * columns.len() as f64 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        TOP + HEIGHT + 40.0
    );
    for tick in ticks(low, high) {
        let at = y(tick);
        let _ = writeln!(
            out,
            "<line x1=\"{LEFT}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>",
            width - 20.0
        );
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            time_text(tick)
        );
    }
    for (i, column) in columns.iter().enumerate() {
        let middle = LEFT + COLUMN * (i as f64 + 0.5);
        let _ = writeln!(
            out,
            "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            TOP + HEIGHT + 20.0,
            column.name
        );
        // Dots that would cover one another are drawn once.
        let dots: BTreeSet<(usize, i64)> = column
            .times
            .iter()
            .enumerate()
            .filter(|(_, t)| **t > 0.0)
            .map(|(n, t)| (n % LANES, (y(*t) * 2.0).round() as i64))
            .collect();
        for (lane, at) in dots {
            let x = middle + (lane as f64 - (LANES - 1) as f64 / 2.0) * 9.0;
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2\" fill=\"#36c\" fill-opacity=\"0.6\"/>",
                at as f64 / 2.0
            );
        }
        if column.all_reduce_s > 0.0 {
            let at = y(column.all_reduce_s);
            let (a, b) = (middle - 48.0, middle + 48.0);
            let _ = writeln!(
                out,
                "<line x1=\"{a:.1}\" x2=\"{b:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#c33\" stroke-width=\"1.5\"/>"
            );
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"18\">predicted time of every program; red: one all-reduce</text>\n</svg>"
    );
    out
}

/// One, two and five of each power of ten inside the scale.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = (low.floor() as i32)..=(high.ceil() as i32);
    powers
        .flat_map(|p| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(p)))
        .filter(|t| (low..=high).contains(&t.log10()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_and_lines_stand_inside_the_picture() {
        let column = |times: Vec<f64>| Column { name: "[[1]]".into(), times, all_reduce_s: 0.5 };
        let picture = svg(&[column(vec![0.1, 0.2, 0.9]), column(Vec::new())]);
        assert_eq!(picture.matches("<circle").count(), 3);
        assert_eq!(picture.matches("#c33").count(), 2);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert!(svg(&[]).ends_with("</svg>\n"));
    }
}
