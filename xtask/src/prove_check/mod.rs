//! `cargo xtask prove-check`: whether the prover proves what pipelines make of per-device modules, and whether what it proves is so.
//!
//! The first is a table: a row for each module and pipeline. The second is tried in two ways, with the evaluator as judge:
//! *mutants*, small changes of transformed modules that the prover must refuse unless they are equal after all, and *random* modules
//! beside rewrites of them, and pairs of [families](family).

mod certificates;
pub(crate) mod edit;
mod family;
mod global;
pub(crate) mod judge;
mod mutation;
mod pipelines;
pub(crate) mod proof;
mod random;
mod wild;

use std::path::PathBuf;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;
use crate::xla_check::manifest;

/// A module on disk, and the words that say how its inputs are drawn.
pub(crate) struct Program {
    file: PathBuf,
    draw: String,
}

impl Program {
    fn name(&self) -> String {
        self.file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }
}

/// What is asked for.
enum Task {
    Pipelines,
    Mutants(usize),
    Random(usize),
    /// This certificate, of the modules that are named.
    Certificate(PathBuf),
}

struct Options {
    programs: Vec<Program>,
    /// Whether global programs among the samples count too, because no file is named.
    has_samples: bool,
    only: Vec<String>,
    task: Task,
    /// Whether certificates are checked instead of proofs.
    is_certified: bool,
    seed: u64,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let (mut programs, mut only, mut task, mut seed) = (Vec::new(), Vec::new(), Task::Pipelines, 1);
        let mut is_certified = false;
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--only" => only.push(arguments.value(&flag)?),
                Word::Flag(flag) if flag == "--certificate" => {
                    task = Task::Certificate(arguments.value(&flag)?.into());
                }
                Word::Flag(flag) if flag == "--certificates" => is_certified = true,
                Word::Flag(flag) if flag == "--mutants" => task = Task::Mutants(arguments.number(&flag)?),
                Word::Flag(flag) if flag == "--random" => task = Task::Random(arguments.number(&flag)?),
                Word::Flag(flag) if flag == "--seed" => seed = arguments.number(&flag)? as u64,
                Word::Flag(word) => return Err(unknown("prove-check", &word)),
                Word::Plain(file) => programs.push(Program { file: file.into(), draw: String::new() }),
            }
        }
        let has_samples = programs.is_empty();
        if has_samples {
            let corpus = workspace::root().join("ir-samples/programs");
            let listed = manifest::read_folder(&corpus, None)?;
            // Replicas have no shardings that would say which of their inputs are equal.
            let own = listed.into_iter().filter(|program| program.runnable && program.like.is_none());
            programs.extend(own.map(|program| Program { file: program.file, draw: program.draw }));
        }
        programs.retain(|program| program.is_among(&only));
        let has_globals = has_samples && !global::pairs(&only)?.is_empty();
        match programs.is_empty() && !has_globals {
            true => Err("no module is selected: nothing would be checked".into()),
            false => Ok(Options { programs, has_samples, only, task, is_certified, seed }),
        }
    }
}

/// Runs the check: false if an output is neither proved nor known to be unknown, or if something is proved that is not so.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let Options { programs, has_samples, only, task, is_certified, seed } = Options::parse(words)?;
    proof::on_a_large_stack(move || match task {
        Task::Pipelines if is_certified => certificates::run(&programs, seed),
        Task::Pipelines => {
            let is_fine = pipelines::run(&programs)?;
            Ok(is_fine & (!has_samples || global::run(&only)? == 0))
        }
        Task::Mutants(n) => {
            // Certificates of global programs are not read yet.
            let globals = if has_samples && !is_certified { global::pairs(&only)? } else { Vec::new() };
            mutation::run(&programs, globals, n, seed, is_certified)
        }
        Task::Certificate(file) => {
            let files: Vec<PathBuf> = programs.into_iter().map(|program| program.file).collect();
            certificates::check_file(&file, &files, seed)
        }
        Task::Random(n) => random::run(n, seed),
    })
}
