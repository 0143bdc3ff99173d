//! Runs whole programs on the host executor and compares them with the evaluator; or, with `--sanitize`, the op samples
//! with kernels that are compiled with the address and undefined-behaviour sanitizers.
//!
//! The comparisons are tests of `hlo-run`, which run here with other programs and surroundings: its `programs` test, and its
//! `kernels` test with the sanitizer's runtime loaded first, as the test's own executable is not sanitized. There each
//! value has an allocation of exactly its size, so that an overrun is seen.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;

const SANITIZERS: &str = "address,undefined";

struct Options {
    corpus: PathBuf,
    only: String,
    is_sanitized: bool,
}

fn options(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut arguments = Arguments::new(words);
    let own = workspace::root().join("ir-samples/programs");
    let mut options = Options { corpus: own, only: ".hlo".to_string(), is_sanitized: false };
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--corpus" => options.corpus = arguments.value(&flag)?.into(),
            Word::Flag(flag) if flag == "--only" => options.only = arguments.value(&flag)?,
            Word::Flag(flag) if flag == "--sanitize" => options.is_sanitized = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("host-check", &word)),
        }
    }
    options.corpus = options.corpus.canonicalize().map_err(|e| format!("{}: {e}", options.corpus.display()))?;
    Ok(options)
}

/// Builds a test of `hlo-run` and gives its executable.
fn build_test(name: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["test", "--package", "hlo-run", "--test", name, "--no-run", "--message-format", "json"])
        .current_dir(workspace::root())
        .output()
        .map_err(|e| format!("cargo test: {e}"))?;
    if !output.status.success() {
        return Err(format!("the test {name} does not build: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == *name && message["target"]["kind"][0] == "test";
        message["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    };
    let found = String::from_utf8_lossy(&output.stdout).lines().find_map(executable);
    found.ok_or_else(|| format!("cargo named no executable of the test {name}"))
}

/// Where the compiler's runtime of the address sanitizer lies.
fn sanitizer_runtime() -> Result<PathBuf, String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_string());
    let output = Command::new(&compiler).arg("-print-file-name=libasan.so").output();
    let output = output.map_err(|e| format!("{compiler}: {e}"))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A compiler that has no such file prints the name alone.
    if path.is_absolute() { Ok(path) } else { Err(format!("expected libasan.so with {compiler}, found none")) }
}

/// Runs the check: whether everything agrees and, with `--sanitize`, nothing is out of bounds or undefined.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = options(words)?;
    let start = Instant::now();
    let mut command = if options.is_sanitized {
        let mut command = Command::new(build_test("kernels")?);
        command.env("LD_PRELOAD", sanitizer_runtime()?).env("HLO_GPU_SANITIZE", SANITIZERS);
        // Rust's test harness keeps memory until its end.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    } else {
        let mut command = Command::new(build_test("programs")?);
        command.env("HLO_GPU_CORPUS", &options.corpus).env("HLO_GPU_PROGRAMS", &options.only);
        command
    };
    let status = command.arg("--nocapture").current_dir(workspace::root().join("crates/hlo-gpu")).status();
    let status = status.map_err(|e| format!("the test does not start: {e}"))?;
    println!("host-check: {:.1} s", start.elapsed().as_secs_f64());
    Ok(status.success())
}
