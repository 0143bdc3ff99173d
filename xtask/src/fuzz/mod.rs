//! `cargo xtask fuzz`: the targets of `fuzz/` in rounds of LLVM's libFuzzer, until they find nothing new.
//!
//! A target stops when 30 CPU-minutes gave no new edge, once it has had 60, and at 180 in any case; a finding stops it too, to be mended
//! first. A case may take 20 seconds of CPU time. What was reached is kept in `target/fuzz-state`: the next call goes on there. A target that is built anew keeps
//! its corpus and its CPU time, but its 30 minutes begin again.

mod round;
mod seeds;
mod state;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;
use round::{Ending, Program};
use state::State;

/// The targets, their longest cases in bytes, and what their seeds are.
const TARGETS: [(&str, usize, seeds::Kind); 6] = [
    ("parse", 8192, seeds::Kind::Text),
    ("proto", 8192, seeds::Kind::Proto),
    ("verify", 8192, seeds::Kind::Text),
    ("pipeline", 8192, seeds::Kind::Text),
    ("plan", 8192, seeds::Kind::Text),
    ("ranks", 4096, seeds::Kind::None),
];

/// CPU-minutes without a new edge that end a target.
const QUIET_MINUTES: f64 = 30.0;
/// CPU-minutes that a target has in any case.
const LEAST_MINUTES: f64 = 60.0;
/// CPU-minutes that a target has at most.
const MOST_MINUTES: f64 = 180.0;
/// Seconds of a round: what is lost at most where a call is killed.
const ROUND_S: f64 = 300.0;
/// The stack that the command line gives its passes.
const STACK_BYTES: u64 = 256 << 20;
/// Kept cases of one target.
const MAX_KEPT_CASES: usize = 100;
/// Their bytes, all together.
const MAX_KEPT_BYTES: u64 = 160 << 10;

/// Runs targets: false if there is a finding.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut only, mut most_minutes, mut keeps) = (Vec::new(), f64::INFINITY, false);
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--target" => only.push(arguments.value(&flag)?),
            Word::Flag(flag) if flag == "--cpu-minutes" => most_minutes = arguments.number(&flag)? as f64,
            Word::Flag(flag) if flag == "--keep" => keeps = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("fuzz", &word)),
        }
    }
    let is_target = |name: &String| TARGETS.iter().any(|(target, ..)| target == name);
    if let Some(name) = only.iter().find(|name| !is_target(name)) {
        let names = TARGETS.map(|(target, ..)| target).join(", ");
        return Err(format!("fuzz: expected a target ({names}), found '{name}'"));
    }
    let chosen = TARGETS.iter().filter(|(name, ..)| only.is_empty() || only.iter().any(|o| o == name));
    let mut is_clean = true;
    for &(name, max_bytes, kind) in chosen {
        let folder = workspace::target_dir().join("fuzz-state").join(name);
        let program = build(name)?;
        seeds::write(kind, &folder.join("seeds"), max_bytes)?;
        let program = Program { name, program, folder, max_bytes };
        if keeps {
            keep(&program)?;
        } else {
            is_clean &= fuzz(&program, most_minutes)?;
        }
    }
    Ok(is_clean)
}

/// Builds a target by nightly Rust, with the address sanitizer and debug assertions.
fn build(target: &str) -> Result<PathBuf, String> {
    let output = workspace::target_dir().join("fuzz-build");
    let status = Command::new("cargo")
        .args(["+nightly", "fuzz", "build", "--fuzz-dir", "fuzz", "--target-dir"])
        .args([output.as_os_str(), target.as_ref()])
        // This chore is run by another cargo, whose choices are not those of the nightly one.
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .current_dir(workspace::root())
        .status()
        .map_err(|e| format!("cargo +nightly fuzz: {e}"))?;
    if !status.success() {
        return Err(format!(
            "the target {target} does not build: it needs a nightly compiler of rustup and `cargo install cargo-fuzz`"
        ));
    }
    let triple = fs::read_dir(&output).map_err(|e| format!("{}: {e}", output.display()))?;
    let built = triple.filter_map(Result::ok).map(|entry| entry.path().join("release").join(target));
    built.filter(|path| path.is_file()).max().ok_or_else(|| format!("{}: expected {target}", output.display()))
}

/// Runs rounds until a rule stops the target, and says which.
fn fuzz(program: &Program, most_minutes: f64) -> Result<bool, String> {
    let mut state = State::read(&program.folder, &program.program)?;
    let begin_s = state.cpu_s;
    let stopped = loop {
        if let Some(reason) = reason_to_stop(&state, begin_s, most_minutes) {
            break reason;
        }
        let left_s = (begin_s + most_minutes * 60.0 - state.cpu_s).clamp(1.0, ROUND_S);
        match round::run(program, &mut state, left_s)? {
            Ending::Time => {}
            Ending::Finding if is_all_starved(program)? => {}
            Ending::Finding => break "a finding, to be mended first".to_string(),
        }
    };
    let (minutes, quiet) = (state.cpu_s / 60.0, (state.cpu_s - state.edge_cpu_s) / 60.0);
    println!(
        "{}: {minutes:.1} CPU-minutes, {} edges, {} runs, the last new edge {quiet:.1} CPU-minutes ago; stopped by {stopped}",
        program.name, state.edges, state.runs
    );
    let findings = findings(&program.folder)?;
    for finding in &findings {
        println!("  cargo run --release -p hlo-tests --example replay -- {} {}", program.name, finding.display());
    }
    Ok(findings.is_empty())
}

fn reason_to_stop(state: &State, begin_s: f64, most_minutes: f64) -> Option<String> {
    let minutes = state.cpu_s / 60.0;
    let quiet = (state.cpu_s - state.edge_cpu_s) / 60.0;
    if minutes >= MOST_MINUTES {
        return Some(format!("{MOST_MINUTES} CPU-minutes in all"));
    }
    if minutes >= LEAST_MINUTES && quiet >= QUIET_MINUTES {
        return Some(format!("{QUIET_MINUTES} CPU-minutes without a new edge"));
    }
    ((state.cpu_s - begin_s) / 60.0 >= most_minutes).then(|| format!("--cpu-minutes {most_minutes}"))
}

/// The cases that broke something, by name. Slow ones within the limit are none.
fn findings(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = folder.join("findings");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|path| !path.file_name().unwrap_or_default().to_string_lossy().starts_with("slow-unit"));
    files.sort();
    Ok(files)
}

/// Removes the cases that waited for the processor rather than took it: whether no finding is left.
fn is_all_starved(program: &Program) -> Result<bool, String> {
    for case in findings(&program.folder)? {
        let name = case.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("timeout-") && round::is_within_cpu_time(program, &case)? {
            fs::remove_file(&case).map_err(|e| format!("{}: {e}", case.display()))?;
            println!("{}: {name} waited for the processor: no finding", program.name);
        }
    }
    Ok(findings(&program.folder)?.is_empty())
}

/// Adds to `fuzz/corpus-min` the cases that reach more than seeds and kept cases do, the shortest first.
fn keep(program: &Program) -> Result<(), String> {
    let merged = program.folder.join("merged");
    let kept = workspace::root().join("fuzz/corpus-min").join(program.name);
    let fail = |e: std::io::Error| format!("{}: {e}", merged.display());
    let _ = fs::remove_dir_all(&merged);
    fs::create_dir_all(&merged).map_err(fail)?;
    fs::create_dir_all(&kept).map_err(fail)?;
    let known = [program.folder.join("seeds"), kept.clone()];
    for (i, folder) in known.iter().enumerate() {
        for (n, file) in fs::read_dir(folder).map_err(fail)?.filter_map(Result::ok).enumerate() {
            fs::copy(file.path(), merged.join(format!("known-{i}-{n}"))).map_err(fail)?;
        }
    }
    round::merge(program, &merged)?;
    let mut found = Vec::new();
    for file in fs::read_dir(&merged).map_err(fail)?.filter_map(Result::ok) {
        if !file.file_name().to_string_lossy().starts_with("known-") {
            found.push((file.metadata().map_err(fail)?.len(), file.path()));
        }
    }
    found.sort();
    let (mut left, mut n_before) = (MAX_KEPT_BYTES, 0);
    for file in fs::read_dir(&kept).map_err(fail)?.filter_map(Result::ok) {
        left = left.saturating_sub(file.metadata().map_err(fail)?.len());
        n_before += 1;
    }
    let mut n_kept = 0;
    for (n_bytes, file) in found.iter().take(MAX_KEPT_CASES.saturating_sub(n_before)) {
        let Some(rest) = left.checked_sub(*n_bytes) else { break };
        fs::copy(file, kept.join(file.file_name().unwrap_or_default())).map_err(fail)?;
        (left, n_kept) = (rest, n_kept + 1);
    }
    println!("{}: kept {n_kept} of {} cases that reach more than the seeds", program.name, found.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_stops_when_it_is_quiet_and_at_the_most() {
        let state = |cpu_minutes: f64, edge_minutes: f64| State {
            cpu_s: cpu_minutes * 60.0,
            edge_cpu_s: edge_minutes * 60.0,
            ..State::default()
        };
        let reason = |cpu, edge| reason_to_stop(&state(cpu, edge), 0.0, f64::INFINITY);
        assert_eq!(reason(59.0, 1.0), None);
        assert_eq!(reason(61.0, 40.0), None);
        assert!(reason(61.0, 30.0).is_some_and(|reason| reason.contains("without a new edge")));
        assert!(reason(180.0, 179.0).is_some_and(|reason| reason.contains("in all")));
        assert!(reason_to_stop(&state(15.0, 15.0), 600.0, 5.0).is_some());
    }
}
