//! Words that must not stand in the tree: paths of a machine, addresses of registries, tests that cannot fail.
//!
//! The words are written in two halves here, so that this file does not break its own rule.

use super::Finding;
use super::source::Tree;

/// (word, why not).
const ANYWHERE: [(&str, &str); 9] = [
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/."), "a path of one machine"),
    (concat!("/ho", "me/"), "a path of one machine"),
    (concat!("../sha", "red"), "a path outside of the repository"),
    (concat!("index", "-url"), "an address of a registry"),
    (concat!("replace", "-with"), "an address of a registry"),
    (concat!("files.python", "hosted"), "an address of a registry"),
    (concat!("static.crates", ".io"), "an address of a registry"),
    (concat!("artif", "actory"), "an address of a registry"),
];

/// (word, why not), in Rust files.
const IN_RUST: [(&str, &str); 5] = [
    (concat!("#[ign", "ore"), "a test that does not run proves nothing; one that takes long says so as others do"),
    (concat!("#[should", "_panic"), "assert on an error instead"),
    (concat!("todo", "!("), "what is missing says so in an error"),
    (concat!("unimplemented", "!("), "what is missing says so in an error"),
    (concat!("dbg", "!("), "a trace of debugging"),
];

/// How a test that takes long says so.
const LONG: &str = concat!("#[ign", "ore = \"takes long: .ci/nightly runs it\"]");

/// Findings about words, line by line.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|f| !f.path.ends_with("Cargo.lock")) {
        let rust: &[(&str, &str)] = if file.path.ends_with(".rs") { &IN_RUST } else { &[] };
        for (word, why) in ANYWHERE.iter().chain(rust) {
            let found = file.text.match_indices(word).find(|(at, _)| !file.text[*at..].starts_with(LONG));
            if let Some((at, _)) = found {
                let line = file.text[..at].lines().count().max(1);
                findings.push(Finding::new("word", file.at(line), format!("expected no `{word}`: {why}")));
            }
        }
    }
    findings
}
