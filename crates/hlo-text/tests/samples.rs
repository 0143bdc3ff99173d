//! Every sample parses.

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
fn programs_parse() {
    assert_all_parse("programs");
}
