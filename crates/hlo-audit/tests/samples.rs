//! The audit finds what the marks in `ir-samples/audit` say, on the lines that they stand on, and nothing else.

use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_audit::{AuditOptions, CHECKS, audit};
use hlo_mesh::Machine;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The folder of the samples.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/audit")
}

/// The samples of a check, by name.
fn samples(check: &str) -> Vec<(String, String)> {
    let files = std::fs::read_dir(folder().join(check)).unwrap_or_else(|e| panic!("samples of {check}: {e}"));
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    paths.sort();
    let name = |path: &Path| format!("{check}/{}", path.file_stem().unwrap_or_default().to_string_lossy());
    paths.iter().map(|path| (name(path), std::fs::read_to_string(path).expect("a sample"))).collect()
}

/// Line and check of each mark.
fn marks(text: &str) -> BTreeSet<(usize, String)> {
    let lines = text.lines().enumerate().filter_map(|(idx, line)| Some((idx + 1, line.split_once("  // finds: ")?.1)));
    lines.flat_map(|(line, checks)| checks.split(", ").map(move |check| (line, check.to_string()))).collect()
}

fn header<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix("// ")?.strip_prefix(key)?.strip_prefix(": "))
}

fn options() -> AuditOptions {
    AuditOptions {
        params: ParamFacts::default(),
        frequency: FrequencyOptions::default(),
        machine: Machine::unnamed().expect("a machine"),
    }
}

/// What is found in a sample: line, check and bytes.
fn found(name: &str, text: &str) -> Vec<(usize, String, u64)> {
    let parsed = hlo_text::parse_bytes(text.as_bytes()).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
    let module = &parsed.module;
    hlo_ir::verify::verify(module).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
    assert_eq!(header(text, "devices").unwrap_or("1"), module.n_devices().to_string(), "{name}");
    let report = audit(module, &options(), CHECKS).unwrap_or_else(|error| panic!("{name}: {error}"));
    let line = |inst| hlo_text::line_and_column(text, parsed.sources.insts[inst]).0;
    report.findings.iter().map(|f| (line(f.inst), f.check.id.to_string(), f.cost.bytes())).collect()
}

#[test]
fn every_mark_is_found_and_nothing_else() {
    let mut failures = String::new();
    for check in CHECKS {
        let (mut n_fires, mut n_silent) = (0, 0);
        for (name, text) in samples(check.id) {
            let (expected, found) = (marks(&text), found(&name, &text));
            let is_silent = header(&text, "expect") == Some("nothing");
            assert_eq!(expected.is_empty(), is_silent, "{name}: marks, or `// expect: nothing`");
            n_fires += usize::from(!is_silent);
            n_silent += usize::from(is_silent);
            let places: BTreeSet<(usize, String)> =
                found.iter().map(|(line, check, _)| (*line, check.clone())).collect();
            if places != expected || places.len() != found.len() {
                let _ = writeln!(failures, "{name}: expected {expected:?}, found {found:?}");
            }
            if let Some(bytes) = header(&text, "bytes")
                && found.first().is_none_or(|(.., found)| found.to_string() != bytes)
            {
                let _ = writeln!(failures, "{name}: expected {bytes} bytes, found {found:?}");
            }
        }
        assert!(
            n_fires > 0 && n_silent > 0,
            "{}: expected a sample that it fires on and one that it does not",
            check.id
        );
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[test]
fn every_folder_is_a_check() {
    for entry in std::fs::read_dir(folder()).expect("the samples") {
        let name = entry.expect("a folder").file_name().to_string_lossy().to_string();
        assert!(CHECKS.iter().any(|check| check.id == name), "{name}");
    }
}
