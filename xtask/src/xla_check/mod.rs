//! `cargo xtask xla-check`: real XLA judges what `hlo-opt` prints, evaluates and transforms.
//!
//! Every module of a manifest is checked in a process of its own (`oracle/check_case.py`), because XLA ends the process
//! on input it does not like. The cases of a module:
//! - `text.*`: XLA reads our print as it reads the original.
//! - `eval`: the evaluator agrees with XLA on all outputs of all devices.
//! - `pass.*` (with `--pass`): the transformed module gives the untouched module's results; a second run changes nothing.
//! - `mutant.*` (with `--pass`): the same comparison sees corrupted results.
//!
//! With `--all` the weight-update sharding's whole matrix is checked instead: see [`matrix`]; with
//! `--decompose` collectives on several clusters: see [`decompose`]; with `--global` programs from before the partitioner: see [`global`].

pub(crate) mod content_hash;
mod decompose;
mod evaluator_sources;
mod global;
mod kept;
pub(crate) mod manifest;
mod matrix;
pub(crate) mod options;
pub(crate) mod table;
pub(crate) mod worker;

use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{python, workspace};
use manifest::Program;
use options::Options;
use table::{CaseResult, Status};

/// Runs the command; false if a case failed.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let mut programs = match options.is_global {
        true => global::programs(&options)?,
        false => manifest::read(&options)?,
    };
    let judges_text = options.stages.iter().any(|stage| stage == "text");
    programs.retain(|program| program.runnable || judges_text || options.is_global);
    if options.is_matrix {
        programs.retain(|program| program.runnable);
    }
    if options.is_decompose {
        decompose::select(&mut programs)?;
    }
    if programs.is_empty() {
        return Err("no module is selected: nothing would be checked".into());
    }
    let tool = match &options.tool {
        Some(tool) => tool.clone(),
        None => workspace::build_tool()?,
    };
    let python = python::interpreter()?;
    worker::check_the_judge(&python)?;
    let session = worker::Session { options: &options, tool, python };
    if options.is_matrix {
        return matrix::run(&session, &programs);
    }
    let memory = match options.is_decompose {
        true => Some(decompose::Memory::open(&session)?),
        false => None,
    };
    let mut results = check_all(&session, &programs, memory.as_ref())?;
    results.extend(never_seen(&results));
    print!("{}", table::render(&results));
    Ok(!results.iter().any(|r| r.status == Status::Failed))
}

/// Checks the programs, `jobs` at a time; results come in the programs' order.
fn check_all(
    session: &worker::Session,
    programs: &[Program],
    memory: Option<&decompose::Memory>,
) -> Result<Vec<CaseResult>, String> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, Vec<CaseResult>)>> = Mutex::new(Vec::new());
    let fault: Mutex<Result<(), String>> = Mutex::new(Ok(()));
    std::thread::scope(|scope| {
        for _ in 0..session.options.jobs.min(programs.len()) {
            scope.spawn(|| {
                while let Some((index, program)) = take(&next, programs) {
                    let results = match memory {
                        Some(memory) => memory.check(session, program),
                        None if session.options.is_global => Ok(session.check(&global::job(session, program)).0),
                        None => Ok(session.check(&session.job(program)).0),
                    };
                    let results = match results {
                        Ok(results) => results,
                        Err(message) => {
                            *fault.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Err(message);
                            return;
                        }
                    };
                    let mut done = done.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    done.push((index, results));
                    if let Some((_, results)) = done.last() {
                        show_progress(done.len(), programs.len(), program, results);
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(index, _)| *index);
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    fault.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner())?;
    Ok(done.into_iter().flat_map(|(_, results)| results).collect())
}

fn take<'p>(next: &AtomicUsize, programs: &'p [Program]) -> Option<(usize, &'p Program)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    programs.get(index).map(|program| (index, program))
}

/// One line that is written over on a terminal, a line for each module elsewhere.
fn show_progress(n_done: usize, n_programs: usize, program: &Program, results: &[CaseResult]) {
    let failed = results.iter().filter(|r| r.status == Status::Failed).count();
    let seconds = results.iter().fold(0.0, |sum, r| sum + r.seconds);
    let line =
        format!("[{n_done}/{n_programs}] {}: {} cases, {failed} failed, {seconds:.1} s", program.name(), results.len());
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K{line}");
    } else {
        eprintln!("{line}");
    }
}

/// A failure for each check that found nothing to work on in any module: the pass that never fires, and the corruption
/// that applies nowhere, would otherwise count as fine.
fn never_seen(results: &[CaseResult]) -> Vec<CaseResult> {
    let mut cases: Vec<&str> = results.iter().map(|r| r.case.as_str()).collect();
    let is_check_of_pass = |case: &str| case.starts_with("pass.") || case.starts_with("mutant.");
    cases.retain(|case| is_check_of_pass(case) || decompose::is_case(case));
    cases.sort_unstable();
    cases.dedup();
    let only_skipped = |case: &&str| results.iter().filter(|r| r.case == **case).all(|r| r.status == Status::Skipped);
    let reason = "skipped in every module: nothing was shown";
    cases.into_iter().filter(only_skipped).map(|case| CaseResult::failed("(all)", case, reason.into(), 0.0)).collect()
}
