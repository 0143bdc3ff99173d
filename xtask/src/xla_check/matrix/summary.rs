//! What ran, how far it was off, and what did not run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Row;
use super::combination::NotRun;
use crate::xla_check::table::{CaseResult, Status};

/// One row, for the progress.
pub(super) fn line(row: &Row) -> String {
    let seconds = row.results.iter().fold(0.0, |sum, r| sum + r.seconds);
    let kept = if row.is_kept { " (kept)" } else { "" };
    format!("{} {}: {}, {seconds:.1} s{kept}", row.module, row.combination, verdict(row))
}

/// A row for each module and combination; then failures, skips and what was not run, each with its reason; then counts.
pub(super) fn render(rows: &[Row], not_run: &[NotRun]) -> String {
    let module = rows.iter().map(|r| r.module.len()).max().unwrap_or(0).max(6);
    let name = rows.iter().map(|r| r.combination.len()).max().unwrap_or(0).max(11);
    let mut out = format!(
        "{:module$}  {:name$}  result   {:>8} {:>8} {:>8}  again    mutants  {:>8}\n",
        "module", "combination", "xla", "eval", "limit", "seconds"
    );
    for row in rows {
        let seconds = row.results.iter().fold(0.0, |sum, r| sum + r.seconds);
        let (xla, eval) = (find(row, "pass.xla"), find(row, "pass.eval").or(find(row, "original.eval")));
        let limit = eval.or(xla).and_then(|r| r.errors).map_or(String::new(), |e| short(e[2]));
        let again = find(row, "pass.again").map_or("-", |r| word(r.status));
        let _ = writeln!(
            out,
            "{:module$}  {:name$}  {:7}  {:>8} {:>8} {limit:>8}  {again:7}  {:7}  {seconds:>8.1}",
            row.module,
            row.combination,
            verdict(row),
            error(xla),
            error(eval),
            mutants(row),
        );
    }
    reasons(rows, Status::Failed, "failed", &mut out);
    reasons(rows, Status::Skipped, "skipped (nothing was shown)", &mut out);
    list_not_run(not_run, &mut out);
    out.push('\n');
    let all = || rows.iter().flat_map(|r| &r.results);
    let count = |status: Status| all().filter(|r| r.status == status).count();
    let whole = rows.iter().filter(|r| verdict(r) == "passed").count();
    let _ = writeln!(out, "{whole} of {} rows passed; {} combinations not run", rows.len(), not_run.len());
    let (passed, failed, skipped) = (count(Status::Passed), count(Status::Failed), count(Status::Skipped));
    out + &format!("{passed} passed, {failed} failed, {skipped} skipped\n")
}

fn find<'r>(row: &'r Row, case: &str) -> Option<&'r CaseResult> {
    row.results.iter().find(|r| r.case == case)
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Passed => "passed",
        Status::Failed => "FAILED",
        Status::Skipped => "skipped",
    }
}

/// A row whose pass case was skipped is not passed, whatever else was.
fn verdict(row: &Row) -> &'static str {
    let has = |status: Status| row.results.iter().any(|r| r.status == status && !r.case.starts_with("mutant."));
    let mutant_failed = row.results.iter().any(|r| r.status == Status::Failed);
    match (mutant_failed, has(Status::Passed), row.results.iter().any(is_skipped_proof)) {
        (true, _, _) => "FAILED",
        (false, true, false) => "passed",
        _ => "skipped",
    }
}

/// Comparisons, without which a row proves nothing. (A mutant or a parse that does not apply takes nothing away.)
fn is_skipped_proof(result: &CaseResult) -> bool {
    result.status == Status::Skipped && ["pass.xla", "pass.eval", "pass.again"].contains(&result.case.as_str())
}

fn short(value: f64) -> String {
    if value > 1e300 { "inf".into() } else { format!("{value:.1e}") }
}

fn error(result: Option<&CaseResult>) -> String {
    match result {
        None => "-".into(),
        Some(result) => result.errors.map_or_else(|| word(result.status).into(), |e| short(e[0])),
    }
}

/// `2/3`: seen of those that apply.
fn mutants(row: &Row) -> String {
    let applied = row.results.iter().filter(|r| r.case.starts_with("mutant.") && r.status != Status::Skipped);
    let (seen, all) = applied.fold((0, 0), |(s, n), r| (s + usize::from(r.status == Status::Passed), n + 1));
    if all == 0 { "-".into() } else { format!("{seen}/{all}") }
}

/// Each reason once, with the rows that have it.
fn reasons(rows: &[Row], status: Status, title: &str, out: &mut String) {
    let mut by_reason: Vec<(String, Vec<String>)> = Vec::new();
    for (row, result) in rows.iter().flat_map(|row| row.results.iter().map(move |r| (row, r))) {
        if result.status == status {
            let reason = format!("{}: {}", result.case, result.reason);
            file_under(&mut by_reason, reason, format!("{} {}", row.module, row.combination));
        }
    }
    list(title, by_reason, out);
}

/// Each reason once, with its modules and combinations.
fn list_not_run(not_run: &[NotRun], out: &mut String) {
    let mut by_reason: BTreeMap<&str, [BTreeSet<&str>; 2]> = BTreeMap::new();
    for one in not_run {
        let [modules, combinations] = by_reason.entry(&one.reason).or_default();
        modules.insert(&one.module);
        combinations.insert(&one.combination);
    }
    if !by_reason.is_empty() {
        out.push_str("\nnot run:\n");
    }
    for (reason, [modules, combinations]) in by_reason {
        let words = |set: BTreeSet<&str>| set.into_iter().map(String::from).collect::<Vec<_>>();
        let _ =
            writeln!(out, "  {reason}\n    {}\n    of {}", few(&words(combinations), 18), few(&words(modules), SHOWN));
    }
}

fn file_under(by_reason: &mut Vec<(String, Vec<String>)>, reason: String, place: String) {
    match by_reason.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, places)) => places.push(place),
        None => by_reason.push((reason, vec![place])),
    }
}

fn list(title: &str, by_reason: Vec<(String, Vec<String>)>, out: &mut String) {
    if by_reason.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}:");
    for (reason, places) in by_reason {
        let _ = writeln!(out, "  {reason}");
        let shown = if title == "failed" { places.len() } else { SHOWN };
        let _ = writeln!(out, "    {}", few(&places, shown));
    }
}

/// Places of a skip that are named.
const SHOWN: usize = 8;

fn few(words: &[String], most: usize) -> String {
    let named = words.iter().take(most).map(String::as_str).collect::<Vec<_>>().join("; ");
    match words.len().checked_sub(most) {
        None | Some(0) => named,
        Some(more) => format!("{named}; and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(results: &[(&str, &str)]) -> Row {
        let line = |(case, status): &(&str, &str)| json!({"case": case, "status": status, "reason": "why"});
        let results = results.iter().filter_map(|r| CaseResult::from_json("m.hlo", &line(r))).collect();
        Row { module: "m.hlo".into(), combination: "a/b/c".into(), results, is_kept: false }
    }

    #[test]
    fn a_row_without_its_comparisons_is_not_passed() {
        assert_eq!(verdict(&row(&[("pass.xla", "passed"), ("pass.eval", "passed")])), "passed");
        assert_eq!(verdict(&row(&[("pass.xla", "skipped"), ("pass.eval", "passed")])), "skipped");
        assert_eq!(verdict(&row(&[("pass.xla", "passed"), ("mutant.m", "skipped")])), "passed");
        assert_eq!(verdict(&row(&[("pass.xla", "passed"), ("mutant.m", "failed")])), "FAILED");
        assert_eq!(verdict(&row(&[])), "skipped");
        let text = render(&[row(&[("pass.xla", "skipped")])], &[]);
        assert!(text.contains("0 of 1 rows passed") && text.ends_with("0 passed, 0 failed, 1 skipped\n"), "{text}");
    }
}
