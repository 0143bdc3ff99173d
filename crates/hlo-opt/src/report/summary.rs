//! The summary: what a run did to a module and what that is worth, in at most [`MAX_LINES`] lines.

use super::figures::{Figures, Totals};
use super::quantities::{bytes, change, count, parts_of, seconds};
use super::{ModuleReport, Recommendation};
use hlo_pass::report::PassReport;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Lines of a summary.
#[cfg(test)]
const MAX_LINES: usize = 12;

/// Passes that one line names.
const MAX_PASSES: usize = 4;

/// What a pass calls a thing that it did not do.
const LEFT: &str = "left";

/// Values below this are not worth a word where nothing else happened.
const LEAST_BYTES: u64 = 1 << 10;

/// The summary of a module; empty where its figures were not wanted, or no preset ran and nothing of size was done or declined.
pub(super) fn summary(report: &ModuleReport) -> String {
    let mut out = String::new();
    let Some(totals) = report.totals.as_ref().filter(|_| is_worth_a_word(report)) else { return out };
    let _ = writeln!(out, "{}: {}", report.module, deed(report));
    table(totals, &mut out);
    let baseline = totals.baseline.as_ref().map_or(String::new(), |how| format!("; {how}"));
    let machine = format!("{} x {}{baseline}", totals.n_devices, totals.machine);
    let _ = match (totals.before.time, totals.after.time) {
        (Some(before), Some(after)) if before.is_partial || after.is_partial => {
            writeln!(
                out,
                "  time for {machine}, without custom calls and exchanges with the host; --machine names another"
            )
        }
        (Some(_), Some(_)) => writeln!(out, "  time for {machine}; --machine names another"),
        (None, _) | (_, None) => {
            writeln!(
                out,
                "  no time: {} has another number of devices than the module's {}",
                totals.machine, totals.n_devices
            )
        }
    };
    if let Some(recommendation) = &report.recommendation {
        let _ = writeln!(out, "  {}", recommended(recommendation));
    }
    out
}

fn is_worth_a_word(report: &ModuleReport) -> bool {
    let is_of_size = |pass: &PassReport| pass.decisions.iter().any(|decision| decision.bytes >= LEAST_BYTES);
    report.choice.is_some() || report.reports.iter().any(|pass| pass.changed || is_of_size(pass))
}

/// What was done, in one sentence.
pub(super) fn deed(report: &ModuleReport) -> String {
    let changed: Vec<&PassReport> = report.reports.iter().filter(|pass| pass.changed).collect();
    let way = report.choice.as_ref().and_then(|choice| choice.taken()).map(|taken| taken.way);
    if changed.is_empty() {
        return match way {
            // The way taken has passes, and all of them left the module as it is.
            Some(_) if report.reports.iter().any(|pass| pass.unchanged_because.is_some()) => {
                format!("left as it is{}", reason(report).map_or(String::new(), |why| format!(": {why}")))
            }
            Some(_) => "left as it is: no other way to run it is predicted to be faster".into(),
            None => format!("left as it is{}", reason(report).map_or(String::new(), |why| format!(": {why}"))),
        };
    }
    let (with, without): (Vec<&PassReport>, Vec<&PassReport>) =
        changed.iter().partition(|pass| pass.decisions.iter().any(|decision| decision.action != LEFT));
    let mut deeds: Vec<String> = with.iter().take(MAX_PASSES).map(|pass| done_by(pass)).collect();
    match (deeds.is_empty(), with.len().saturating_sub(MAX_PASSES) + without.len()) {
        (true, _) => deeds.push(format!("changed by {}", names(&without))),
        (false, 0) => {}
        (false, 1) => deeds.push("one more pass changed it".into()),
        (false, n) => deeds.push(format!("{n} more passes changed it")),
    }
    let deeds = deeds.join("; ");
    way.map_or(deeds.clone(), |way| format!("{way}: {deeds}"))
}

/// Why nothing was done: what the pass says that declined most.
fn reason(report: &ModuleReport) -> Option<String> {
    let declined = |pass: &&PassReport| pass.decisions.iter().map(|decision| decision.bytes).sum::<u64>();
    let pass = report.reports.iter().max_by_key(declined)?;
    match (&pass.unchanged_because, pass.decisions.iter().max_by_key(|decision| decision.bytes)) {
        (Some(why), _) => Some(format!("{}: {why}", pass.pass)),
        (None, Some(largest)) => {
            Some(format!("{}: {} {}: {}", pass.pass, largest.action, largest.subject, largest.reason))
        }
        (None, None) => None,
    }
}

/// `shard-weight-update sharded 2 and left 1`.
fn done_by(pass: &PassReport) -> String {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    for decision in &pass.decisions {
        *numbers.entry(&decision.action).or_insert(0) += 1;
    }
    let n_left = numbers.remove(LEFT);
    let mut parts: Vec<String> = numbers.iter().map(|(action, n)| format!("{action} {n}")).collect();
    parts.extend(n_left.map(|n| format!("{LEFT} {n}")));
    format!("{} {}", pass.pass, parts.join(", "))
}

/// The first few names, and how many more there are.
fn names(passes: &[&PassReport]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for pass in passes {
        if !distinct.contains(&pass.pass.as_str()) {
            distinct.push(&pass.pass);
        }
    }
    match distinct.len().saturating_sub(MAX_PASSES) {
        0 => distinct.join(", "),
        n_more => format!("{} and {n_more} more", distinct[..MAX_PASSES].join(", ")),
    }
}

/// A line for each figure, before and after.
fn table(totals: &Totals, out: &mut String) {
    let Totals { before, after, .. } = totals;
    let mut row = |what: &str, values: [String; 2], change: &str| {
        let [before, after] = values;
        let line = format!("  {what:<24} {before:>12} {after:>12}   {change}");
        let _ = writeln!(out, "{}", line.trim_end());
    };
    row("one step of one device", ["before".into(), "after".into()], "against before");
    let both = |of: fn(&Figures) -> f64| [of(before), of(after)];
    let size = |values: [f64; 2]| values.map(|value| bytes(value.round() as u64));
    let percent = |[before, after]: [f64; 2]| change(before, after);
    let sent = both(|figures| figures.sent_bytes);
    row("bytes sent", size(sent), &percent(sent));
    row("collectives", both(Figures::n_collectives).map(count), &kinds(after));
    let peaks = both(|figures| figures.peak_bytes as f64);
    row("memory, at the peak", size(peaks), &percent(peaks));
    let names = ["  arguments", "  outputs, constants", "  temporaries"];
    let [parts_before, parts_after] = [before, after].map(parts_of_peak);
    let [texts_before, texts_after] =
        [(before, parts_before), (after, parts_after)].map(|(figures, parts)| parts_of(figures.peak_bytes, parts));
    for (i, what) in names.into_iter().enumerate() {
        let sizes = [parts_before[i], parts_after[i]].map(|bytes| bytes as f64);
        let is_none = |text: &String| text.starts_with("0.0 ") || text.starts_with("0 ");
        if !(is_none(&texts_before[i]) && is_none(&texts_after[i])) {
            row(what, [texts_before[i].clone(), texts_after[i].clone()], &percent(sizes));
        }
    }
    let on_host = both(|figures| figures.host_bytes as f64);
    if on_host != [0.0; 2] {
        row("  beside, on the host", size(on_host), "");
    }
    if let (Some(before), Some(after)) = (before.time, after.time) {
        let values = [before, after].map(|time| time.critical_path_s);
        row("time, predicted", values.map(seconds), &percent(values));
    }
}

/// The summands of the peak: arguments, outputs that lie in no argument with constants, and temporaries.
fn parts_of_peak(figures: &Figures) -> [u64; 3] {
    let Figures { peak_bytes, argument_bytes, temp_bytes, .. } = *figures;
    [argument_bytes, peak_bytes.saturating_sub(argument_bytes + temp_bytes), temp_bytes]
}

/// The collectives that run, the most frequent first.
pub(super) fn kinds(figures: &Figures) -> String {
    let mut kinds: Vec<(&str, f64)> = figures.collectives.iter().map(|(kind, n)| (*kind, *n)).collect();
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    kinds.iter().map(|(kind, n)| format!("{} {kind}", count(*n))).collect::<Vec<_>>().join(", ")
}

pub(super) fn recommended(recommendation: &Recommendation) -> String {
    let Recommendation { command, time_s, peak_bytes } = recommendation;
    let mut gains = Vec::new();
    gains.extend(peak_bytes.map(|[now, then]| format!("memory {}", change(now as f64, then as f64))));
    gains.push(format!("time {}", change(time_s[0], time_s[1])));
    format!("try {command}: {} against this", gains.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hlo_pass::report::{Decision, WayChoice};

    fn figures(sent_bytes: f64) -> Figures {
        let collectives = [("all-gather", 4.0), ("all-reduce", 2.5)].into();
        Figures { sent_bytes, collectives, peak_bytes: 3 << 20, ..Figures::default() }
    }

    fn report_of(passes: &[(&str, &[&str])]) -> ModuleReport {
        let passes = passes.iter().map(|(name, actions)| {
            let decision = |action: &&str| Decision { action: action.to_string(), bytes: 4096, ..Decision::default() };
            let decisions: Vec<Decision> = actions.iter().map(decision).collect();
            let changed = actions.is_empty() || actions.iter().any(|action| *action != LEFT);
            PassReport { changed, decisions, ..PassReport::new(name) }
        });
        let totals = Totals {
            machine: "h200, one switch".into(),
            baseline: None,
            n_devices: 8,
            before: figures(4096.0),
            after: figures(2048.0),
        };
        let empty = hlo_ir::Module::default();
        ModuleReport { reports: passes.collect(), totals: Some(totals), ..ModuleReport::new(&empty) }
    }

    #[test]
    fn a_summary_names_passes_by_what_they_did() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "a"];
        let mut passes: Vec<(&str, &[&str])> = names.iter().map(|name| (*name, [].as_slice())).collect();
        passes.insert(1, ("shard", &["sharded", "left", "sharded"]));
        let mut report = report_of(&passes);
        report.choice =
            Some(WayChoice { machine: String::new(), candidates: Vec::new(), chosen: 0, failed: Vec::new() });
        report.recommendation =
            Some(Recommendation { command: "--preset x".into(), time_s: [2.0, 1.0], peak_bytes: Some([4, 1]) });
        let text = summary(&report);
        assert!(text.lines().count() <= MAX_LINES, "{text}");
        assert!(text.contains("shard sharded 2, left 1; 8 more passes changed it"), "{text}");
        let clean_ups = report_of(&passes[2..]);
        assert!(summary(&clean_ups).starts_with(": changed by b, c, d, e and 3 more\n"), "{}", summary(&clean_ups));
        assert!(text.contains("2.0 KiB   −50 %") && text.contains("4 all-gather, 2.5 all-reduce"), "{text}");
        assert!(text.contains("try --preset x: memory −75 %, time −50 %"), "{text}");
    }

    #[test]
    fn what_was_declined_is_said_where_it_is_of_size() {
        let mut report = report_of(&[("shard", &["left"])]);
        assert!(summary(&report).contains("left as it is: shard: left"), "{}", summary(&report));
        report.reports[0].decisions[0].bytes = 4;
        assert_eq!(summary(&report), "");
        report.reports[0].decisions[0].bytes = 4096;
        report.totals = None;
        assert_eq!(summary(&report), "");
    }
}
