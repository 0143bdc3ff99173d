//! The table: a row for each program, number of devices and way to a plan, columns apart by tabs.

use std::fmt;

use super::figures::{ByKind, Figures, Sent};

/// Opcodes and how the table calls them.
const KINDS: [(&str, &str); 5] = [
    ("all-reduce", "ar"),
    ("reduce-scatter", "rs"),
    ("all-gather", "ag"),
    ("all-to-all", "a2a"),
    ("collective-permute", "cp"),
];

/// Plans of one program on so many devices.
pub(super) struct Row {
    program: String,
    n_devices: usize,
    what: String,
    pub n_tried: usize,
    pub n_same: usize,
    claimed: ByKind,
    realized: ByKind,
    /// Largest and sum of memory as counted / as planned.
    worst_ratio: f64,
    sum_of_ratios: f64,
    n_deferred: usize,
}

/// The names of the columns.
pub(super) fn head() -> String {
    let kinds = KINDS.map(|(_, short)| format!("{short} n\t{short} MB"));
    let fixed = "program\tdevices\tplans\ttried\tsame\tmemory mean\tmemory worst";
    format!(
        "# memory: as `analyze memory` counts it / as planned; collectives: claimed>realized, sums over the plans\n{fixed}\t{}\tbytes ratio\tdifferences",
        kinds.join("\t")
    )
}

impl Row {
    pub(super) fn new(program: &str, n_devices: usize, what: &str) -> Row {
        Row {
            program: program.to_string(),
            n_devices,
            what: what.to_string(),
            n_tried: 0,
            n_same: 0,
            claimed: ByKind::new(),
            realized: ByKind::new(),
            worst_ratio: 0.0,
            sum_of_ratios: 0.0,
            n_deferred: 0,
        }
    }

    /// Adds what one plan claims and has.
    pub(super) fn add(&mut self, figures: &Figures) {
        let pairs = [(&mut self.claimed, &figures.claimed), (&mut self.realized, &figures.realized)];
        for (all, one) in pairs {
            one.iter().for_each(|(kind, sent)| all.entry(kind).or_default().add(*sent));
        }
        let ratio = figures.counted_bytes as f64 / figures.planned_bytes.max(1) as f64;
        self.worst_ratio = self.worst_ratio.max(ratio);
        self.sum_of_ratios += ratio;
        self.n_deferred += figures.n_deferred;
    }

    fn of(&self, kind: &str) -> (Sent, Sent) {
        let get = |all: &ByKind| all.get(kind).copied().unwrap_or_default();
        (get(&self.claimed), get(&self.realized))
    }

    /// Why claimed and realized collectives differ, as far as their numbers show it.
    fn differences(&self) -> Vec<String> {
        let [reduce, scatter, gather, moved, permute] = KINDS.map(|(kind, _)| self.of(kind));
        let more = |(claimed, realized): (Sent, Sent)| realized.n_runs - claimed.n_runs;
        let mut out = Vec::new();
        if more(scatter) < -0.5 && more(reduce) > 0.5 {
            out.push(format!("{:.0} reduce-scatters became all-reduces and slices", -more(scatter)));
        }
        let n_reduces = more(reduce) + more(scatter);
        if n_reduces > 0.5 {
            let deferred = self.n_deferred;
            out.push(format!("{n_reduces:.0} more reductions ({deferred} sums were to be reduced later)"));
        } else if n_reduces < -0.5 {
            out.push(format!("{:.0} fewer reductions", -n_reduces));
        }
        for (name, pair) in [("all-gathers", gather), ("all-to-alls", moved), ("permutes", permute)] {
            let n = more(pair);
            if n.abs() > 0.5 {
                out.push(format!("{:.0} {} {name}", n.abs(), if n > 0.0 { "more" } else { "fewer" }));
            }
        }
        out
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.n_same.max(1) as f64;
        write!(f, "{}\t{}\t{}\t{}\t{}", self.program, self.n_devices, self.what, self.n_tried, self.n_same)?;
        write!(f, "\t{:.2}\t{:.2}", self.sum_of_ratios / n, self.worst_ratio)?;
        for (kind, _) in KINDS {
            let (claimed, realized) = self.of(kind);
            let mb = |sent: Sent| sent.bytes / 1e6;
            write!(f, "\t{:.0}>{:.0}\t{:.3}>{:.3}", claimed.n_runs, realized.n_runs, mb(claimed), mb(realized))?;
        }
        let sum = |all: &ByKind| all.values().map(|sent| sent.bytes).sum::<f64>();
        let ratio = sum(&self.realized) / sum(&self.claimed).max(1.0);
        write!(f, "\t{ratio:.2}\t{}", self.differences().join("; "))
    }
}
