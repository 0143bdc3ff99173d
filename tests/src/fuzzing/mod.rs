//! What is held against bytes that a fuzzer makes up: one check for each target of `fuzz/`.
//!
//! The targets call these checks, and an ordinary test calls them on the cases that are kept in `fuzz/corpus-min`. A check gives the
//! defect in words; a panic, an overflow of the stack or a hang is one as well. Bytes that are refused are no defect.

pub mod edits;
mod parse;
mod pipeline;
mod plan;
mod proto;
mod ranks;
mod verify;

use hlo_ir::Module;
use hlo_ir::diag::Diagnostic;
use std::path::{Path, PathBuf};

/// A target: what it is given, and what must hold.
pub struct Target {
    /// Also the name of the file in `fuzz/fuzz_targets` and of the folder in `fuzz/corpus-min`.
    pub name: &'static str,
    /// Holds the bytes against what is promised.
    pub check: fn(&[u8]) -> Result<(), String>,
}

/// All targets.
pub const TARGETS: [Target; 6] = [
    Target { name: "parse", check: parse::check },
    Target { name: "proto", check: proto::check },
    Target { name: "verify", check: verify::check },
    Target { name: "pipeline", check: pipeline::check },
    Target { name: "plan", check: plan::check },
    Target { name: "ranks", check: ranks::check },
];

/// The target of a name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// Runs a target on bytes of the fuzzer.
///
/// # Panics
/// The bytes show a defect.
pub fn run(name: &str, bytes: &[u8]) {
    let target = target(name).unwrap_or_else(|| panic!("expected a target, found `{name}`"));
    if let Err(defect) = (target.check)(bytes) {
        panic!("{name}: {defect}");
    }
}

/// Where the kept cases of a target are.
pub fn kept_cases(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus-min").join(target)
}

/// The module of a text that is read and verified; none if it is refused.
fn verified(text: &str) -> Option<Module> {
    let module = hlo_text::parse_module(text).ok()?.module;
    hlo_ir::verify::verify(&module).is_ok().then_some(module)
}

/// Diagnostics in a line.
fn in_words(diags: &[Diagnostic]) -> String {
    diags.iter().map(|diag| format!("[{}] {}", diag.rule, diag.message)).collect::<Vec<_>>().join("; ")
}

/// The values of the header lines `// key: value` before a module.
fn headers<'t>(text: &'t str, key: &'t str) -> impl Iterator<Item = &'t str> {
    let lines = text.lines().map_while(|line| line.strip_prefix("//"));
    lines.filter_map(|line| line.trim().split_once(':')).filter(move |(k, _)| *k == key).map(|(_, value)| value.trim())
}
