//! Every sample parses, and every invalid one fails on the line that says so.

use std::path::{Path, PathBuf};

fn samples(folder: &str) -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples").join(folder);
    let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a directory entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "hlo"));
    paths.sort();
    assert!(!paths.is_empty(), "no samples in {}", dir.display());
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(&path).expect("a readable sample"))).collect()
}

fn assert_all_parse(folder: &str) {
    let mut failures = String::new();
    for (path, text) in samples(folder) {
        if let Err(diags) = hlo_text::parse_module(&text) {
            failures.push_str(&hlo_text::render(&diags, &path.display().to_string(), &text, false));
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn ops_parse() {
    assert_all_parse("ops");
}

#[test]
fn syntax_parses() {
    assert_all_parse("syntax");
}

#[test]
fn programs_parse() {
    assert_all_parse("programs");
}

#[test]
fn modules_that_break_rules_of_the_verifier_parse() {
    assert_all_parse("invalid/verify");
}

#[test]
fn syntax_errors_are_found_on_their_line() {
    let mut failures = String::new();
    for (path, text) in samples("invalid/parse") {
        let name = path.display();
        let marked = text.lines().position(|line| line.contains("// error:")).map(|i| i + 1);
        let marked = marked.unwrap_or_else(|| panic!("{name}: no line is marked"));
        match hlo_text::parse_module(&text) {
            Ok(_) => failures.push_str(&format!("{name}: parsed, expected an error on line {marked}\n")),
            Err(diags) => {
                let first = diags.first().expect("an error has a diagnostic");
                let offset = first.span.map_or(0, |span| span.start);
                let (line, _) = hlo_text::line_and_column(&text, offset);
                if line != marked {
                    let shown = hlo_text::render(&diags, &name.to_string(), &text, false);
                    failures.push_str(&format!("expected line {marked}, found {line}:\n{shown}\n"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}
