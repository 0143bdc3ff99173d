//! The timeline's data: tasks of both modules, few enough for a browser.

use hlo_analysis::time::{Lane, Span};
use hlo_ir::Opcode;
use hlo_ir::op::CostRule;
use hlo_mesh::Exchange;
use serde_json::{Value, json};

use super::escape::shortened;
use super::view::View;
use crate::report::figures::Figures;

/// Spans that one module's timeline draws at most.
const MOST_SPANS: usize = 12_000;

/// What spans show, in the order of their numbers: the words of the legend, and the names of their colours.
pub(super) const KINDS: [(&str, &str); 10] = [
    ("kernel", "kernel"),
    ("matrix product", "product"),
    ("asynchronous copy", "copy"),
    ("all-reduce", "all-reduce"),
    ("reduce-scatter", "reduce-scatter"),
    ("all-gather", "all-gather"),
    ("all-to-all", "all-to-all"),
    ("permute or broadcast", "permute"),
    ("more rounds of a loop", "rounds"),
    ("branches, or a call", "rounds"),
];

fn kind(span: &Span) -> usize {
    let row = span.opcode.row();
    match (span.lane, row.collective) {
        (None, _) => {
            if span.opcode == Opcode::While {
                8
            } else {
                9
            }
        }
        (Some(Lane::Copy), _) => 2,
        (Some(Lane::Communication), Some(rule)) => match Exchange::of(rule) {
            Exchange::AllReduce => 3,
            Exchange::ReduceScatter => 4,
            Exchange::AllGather => 5,
            Exchange::AllToAll => 6,
            Exchange::Broadcast | Exchange::Permute => 7,
        },
        (Some(Lane::Compute | Lane::Communication), _) => {
            usize::from(matches!(row.cost, CostRule::Dot | CostRule::Convolution))
        }
    }
}

/// One rectangle: a task, or neighbours that are too narrow to be seen apart.
#[derive(Clone, PartialEq, Debug)]
struct Bar {
    start_s: f64,
    end_s: f64,
    kind: usize,
    /// The task's, or the longest's.
    name: String,
    n_instructions: usize,
    n_runs: f64,
    n_tasks: usize,
    /// Seconds in which the tasks run.
    busy_s: f64,
    /// Of the longest task.
    longest_s: f64,
}

impl Bar {
    fn of(span: &Span) -> Bar {
        let duration_s = span.end_s - span.start_s;
        Bar {
            start_s: span.start_s,
            end_s: span.end_s,
            kind: kind(span),
            name: shortened(&span.name),
            n_instructions: span.n_instructions,
            n_runs: span.n_runs,
            n_tasks: 1,
            busy_s: duration_s,
            longest_s: duration_s,
        }
    }

    fn take_in(&mut self, next: Bar) {
        if next.longest_s > self.longest_s {
            (self.kind, self.name, self.longest_s) = (next.kind, next.name, next.longest_s);
        }
        self.end_s = self.end_s.max(next.end_s);
        self.n_tasks += next.n_tasks;
        self.n_instructions += next.n_instructions;
        self.busy_s += next.busy_s;
    }

    /// Microseconds and what else is told, without what is as usual.
    fn json(&self) -> Value {
        let (start, width) = (micros(self.start_s), micros(self.end_s - self.start_s));
        match (self.n_tasks, self.n_instructions, self.n_runs == 1.0) {
            (1, 1, true) => json!([start, width, self.kind, self.name]),
            (1, n, _) => json!([start, width, self.kind, self.name, n, self.n_runs]),
            (n_tasks, n, _) => {
                json!([start, width, self.kind, self.name, n, self.n_runs, n_tasks, micros(self.busy_s)])
            }
        }
    }
}

/// Microseconds with four digits after the point.
fn micros(seconds: f64) -> f64 {
    (seconds * 1e10).round() / 1e4
}

/// Neighbours as one bar where both together take at most `narrow_s`.
fn merged(bars: &[Bar], narrow_s: f64) -> Vec<Bar> {
    let mut out: Vec<Bar> = Vec::new();
    for bar in bars {
        match out.last_mut() {
            Some(last) if bar.end_s.max(last.end_s) - last.start_s <= narrow_s => last.take_in(bar.clone()),
            Some(_) | None => out.push(bar.clone()),
        }
    }
    out
}

/// Bars of all lanes, at most [`MOST_SPANS`]: two neighbours that stay apart are wider together than what is merged, so that few
/// stay apart once that is wide enough.
fn bounded(lanes: Vec<Vec<Bar>>, end_s: f64) -> Vec<Vec<Bar>> {
    let n_bars = |lanes: &[Vec<Bar>]| lanes.iter().map(Vec::len).sum::<usize>();
    let mut out = lanes.clone();
    let mut narrow_s = end_s / f64::from(1 << 24);
    while n_bars(&out) > MOST_SPANS && narrow_s <= end_s {
        out = lanes.iter().map(|bars| merged(bars, narrow_s)).collect();
        narrow_s *= 2.0;
    }
    out
}

/// One module's part of the timeline; none where its time is not known.
pub(super) fn side(title: &str, view: &View, figures: &Figures) -> Option<Value> {
    let (spans, time) = (view.spans.as_ref()?, figures.time?);
    let lanes = [
        (Some(Lane::Compute), "compute"),
        (Some(Lane::Communication), "communication"),
        (Some(Lane::Copy), "copies"),
        (None, "all"),
    ];
    let bars_of = |wanted: Option<Lane>| {
        let mut bars: Vec<Bar> = spans.iter().filter(|span| span.lane == wanted).map(Bar::of).collect();
        bars.sort_by(|a, b| a.start_s.total_cmp(&b.start_s));
        bars
    };
    let bars = bounded(lanes.iter().map(|(lane, _)| bars_of(*lane)).collect(), time.critical_path_s);
    // Copies have a row of their own only where there are some.
    let shown = lanes.iter().zip(bars).filter(|((lane, _), bars)| *lane != Some(Lane::Copy) || !bars.is_empty());
    let lanes: Vec<Value> = shown
        .map(|((_, name), bars)| json!({"name": name, "spans": bars.iter().map(Bar::json).collect::<Vec<_>>()}))
        .collect();
    Some(json!({
        "title": title,
        "critical_path_s": time.critical_path_s,
        "compute_s": time.compute_s,
        "communication_s": time.communication_s,
        "lanes": lanes,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(start_s: f64, end_s: f64) -> Bar {
        let name = format!("k{start_s}");
        let duration_s = end_s - start_s;
        Bar {
            start_s,
            end_s,
            kind: 0,
            name,
            n_instructions: 2,
            n_runs: 1.0,
            n_tasks: 1,
            busy_s: duration_s,
            longest_s: duration_s,
        }
    }

    #[test]
    fn narrow_neighbours_are_one_bar_that_counts_them() {
        let bars = [bar(0.0, 1.0), bar(1.0, 1.5), bar(1.6, 3.6), bar(9.0, 9.5)];
        let merged = merged(&bars, 4.0);
        let [first, last] = merged.as_slice() else { panic!("two bars: {merged:?}") };
        assert_eq!((first.n_tasks, first.end_s, first.busy_s, first.name.as_str()), (3, 3.6, 3.5, "k1.6"));
        assert_eq!(first.json(), json!([0.0, 3_600_000.0, 0, "k1.6", 6, 1.0, 3, 3_500_000.0]));
        assert_eq!(last, &bars[3]);
    }

    #[test]
    fn any_number_of_tasks_becomes_a_bounded_number_of_bars() {
        let n = 50 * MOST_SPANS;
        let many: Vec<Bar> = (0..n).map(|i| bar(i as f64 * 1e-6, i as f64 * 1e-6 + 9e-7)).collect();
        let bars = bounded(vec![many.clone(), Vec::new(), many], n as f64 * 1e-6);
        assert!(bars.iter().map(Vec::len).sum::<usize>() <= MOST_SPANS && bars[0].len() > 1000, "{}", bars[0].len());
        assert_eq!(bars[0].iter().map(|bar| bar.n_tasks).sum::<usize>(), n);
    }
}
