//! Only the command line, the libraries that others load, the runner of plans, the chores and the tests read files, run processes or
//! print.

use super::Finding;
use super::source::Tree;

const MAY: [&str; 4] = ["crates/hlo-jax/", "crates/hlo-opt/", "crates/hlo-pjrt/", "crates/hlo-run/"];
const MARKS: [&str; 8] =
    ["std::fs", "std::net", "std::process", "std::env", "println!(", "print!(", "std::io::stdin", "std::io::stdout"];

/// Findings about input and output in the `src` of the other crates, their unit tests aside.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let silent = |path: &str| path.contains("/src/") && !MAY.iter().any(|crate_dir| path.starts_with(crate_dir));
    let files = tree.below("crates").filter(|f| f.path.ends_with(".rs") && silent(&f.path));
    for file in files.filter(|f| !tree.is_only_tests(f)) {
        for (number, line) in file.lines_before_tests().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            if let Some(mark) = MARKS.iter().find(|mark| line.contains(*mark)) {
                let message =
                    format!("expected no input or output in this crate, found `{}`", mark.trim_end_matches('('));
                findings.push(Finding::new("io", file.at(number), message));
            }
        }
    }
    findings
}
