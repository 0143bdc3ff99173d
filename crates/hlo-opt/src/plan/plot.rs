//! A picture of the predicted time of every program: a column of dots for each matrix, a ring around the best, the single all-reduce
//! as a line.

use super::time_text;
use std::collections::BTreeSet;
use std::fmt::Write;

/// One matrix.
pub(crate) struct Column {
    /// Lines to write below it.
    pub labels: Vec<String>,
    /// Predicted times of its programs, seconds.
    pub times: Vec<f64>,
    /// Predicted time of the single all-reduce, seconds.
    pub all_reduce_s: f64,
    /// Predicted time of the best program, seconds.
    pub best_s: f64,
}

const HEIGHT: f64 = 420.0;
const TOP: f64 = 70.0;
const LEFT: f64 = 90.0;
const COLUMN: f64 = 150.0;
/// Width of the title's letters.
const LETTER: f64 = 7.5;
/// Height of a line below a column.
const LINE: f64 = 15.0;
/// Dots of one column stand side by side in so many lanes.
const LANES: usize = 9;

/// The picture as SVG under a title; times on a logarithmic scale.
pub(crate) fn svg(title: &str, columns: &[Column]) -> String {
    let times =
        || columns.iter().flat_map(|c| c.times.iter().chain(std::iter::once(&c.all_reduce_s))).filter(|t| **t > 0.0);
    let (least, most) = times().fold((f64::INFINITY, 0.0f64), |(least, most), t| (least.min(*t), most.max(*t)));
    let (low, high) = if most > 0.0 { (least.log10() - 0.05, most.log10() + 0.05) } else { (-1.0, 1.0) };
    let y = |t: f64| TOP + HEIGHT * (high - t.log10()) / (high - low);
    let plain = LEFT + COLUMN * columns.len() as f64 + 20.0;
    let width = plain.max(title.chars().count() as f64 * LETTER + 20.0).max(560.0);
    let n_lines = columns.iter().map(|column| column.labels.len()).max().unwrap_or(0);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        TOP + HEIGHT + 20.0 + LINE * n_lines as f64
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
            tick_text(tick)
        );
    }
    for (i, column) in columns.iter().enumerate() {
        let middle = LEFT + COLUMN * (i as f64 + 0.5);
        for (line, label) in column.labels.iter().enumerate() {
            let at = TOP + HEIGHT + 20.0 + LINE * line as f64;
            let _ =
                writeln!(out, "<text x=\"{middle:.1}\" y=\"{at:.1}\" text-anchor=\"middle\">{}</text>", escaped(label));
        }
        // Dots that would cover one another are drawn once.
        let dots: BTreeSet<(usize, i64)> = column
            .times
            .iter()
            .enumerate()
            .filter(|(_, t)| **t > 0.0)
            .map(|(n, t)| (n % LANES, (y(*t) * 2.0).round() as i64))
            .collect();
        for (lane, at) in dots {
            let x = dot_x(middle, lane);
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
        let best = column.times.iter().position(|t| *t == column.best_s).filter(|_| column.best_s > 0.0);
        if let Some(n) = best {
            let (x, at) = (dot_x(middle, n % LANES), y(column.best_s));
            // Above the ring where there is no room below.
            let words = if at + 30.0 > TOP + HEIGHT { at - 12.0 } else { at + 20.0 };
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{at:.1}\" r=\"5\" fill=\"none\" stroke=\"#187a3c\" stroke-width=\"2\"/>\n\
                 <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#187a3c\" font-weight=\"bold\">best {}</text>",
                words,
                time_text(column.best_s)
            );
        }
    }
    let _ = writeln!(
        out,
        "<text x=\"10\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>\n\
         <text x=\"10\" y=\"40\" fill=\"#444\">a dot for each program, by its predicted time; the ring is the best, the red line is one \
         all-reduce</text>\n</svg>",
        escaped(title)
    );
    out
}

/// Where the dots of a lane stand.
fn dot_x(middle: f64, lane: usize) -> f64 {
    middle + (lane as f64 - (LANES - 1) as f64 / 2.0) * 9.0
}

/// A round time, without zeros after the point.
fn tick_text(seconds: f64) -> String {
    let text = time_text(seconds);
    let (number, unit) = text.split_once(' ').unwrap_or((&text, ""));
    let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    format!("{number} {unit}")
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
        let column = |times: Vec<f64>, best_s: f64| Column {
            labels: vec!["axis 0: 2 node x 4 gpu".into(), "[[2,4]]".into()],
            times,
            all_reduce_s: 0.5,
            best_s,
        };
        let picture = svg("a machine", &[column(vec![0.1, 0.2, 0.9], 0.1), column(Vec::new(), 0.0)]);
        assert_eq!(picture.matches("r=\"2\"").count(), 3);
        assert_eq!((picture.matches("r=\"5\"").count(), picture.matches("best 100.000 ms").count()), (1, 1));
        assert_eq!(picture.matches("#c33").count(), 2);
        assert!(!picture.contains("NaN") && !picture.contains("inf"));
        assert!(picture.contains(">500 ms<") && !picture.contains(">500.000 ms<"), "{picture}");
        assert!(svg("", &[]).ends_with("</svg>\n"));
    }
}
