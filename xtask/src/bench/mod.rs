//! `cargo xtask bench`: how fast HLO text is read and printed, and what memory it takes.
//!
//! With `--xla` the repetitions of ours and of XLA's parser and printer (`oracle/bench_peer.py`) take turns in one run,
//! so that both see the same machine. Times are CPU seconds of the whole process.

pub(crate) mod measure;
mod peer;
mod report;

use std::path::PathBuf;

use crate::arguments::{self, Arguments, Word};
use crate::{python, workspace};
use measure::Sample;
use peer::Peer;

/// The largest modules of the corpus that are measured if none is named.
const DEFAULT_FILES: usize = 3;

struct Options {
    xla: bool,
    files: Vec<PathBuf>,
    corpus: PathBuf,
    reps: usize,
}

/// Runs the command; false if a module could not be read.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut options = parse(words)?;
    if options.files.is_empty() {
        options.files = largest(&options.corpus)?;
    }
    let tool = workspace::build_tool().ok();
    let mut peer = if options.xla { Some(Peer::start(&python::interpreter()?)?) } else { None };
    println!("{}", report::HEADER);
    for file in &options.files {
        let mut sample = Sample::read(file)?;
        for _ in 0..options.reps {
            sample.measure_ours()?;
            if let Some(peer) = &mut peer {
                sample.xla_parse_s.push(peer.ask("parse", file)?);
                sample.xla_print_s.push(peer.ask("print", file)?);
            }
        }
        let peak_bytes = tool.as_deref().and_then(|tool| measure::peak_bytes(tool, file));
        print!("{}", report::rows(&sample, peak_bytes));
    }
    Ok(true)
}

fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let corpus = workspace::root().join("ir-samples/programs");
    let mut options = Options { xla: false, files: Vec::new(), corpus, reps: 15 };
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Plain(file) => options.files.push(file.into()),
            Word::Flag(flag) => match flag.as_str() {
                "--xla" => options.xla = true,
                "--corpus" => options.corpus = arguments.value(&flag)?.into(),
                "--reps" => options.reps = arguments.number(&flag)?,
                _ => return Err(arguments::unknown("bench", &flag)),
            },
        }
    }
    Ok(options)
}

/// The largest `.hlo` files of a folder.
fn largest(folder: &PathBuf) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<(u64, PathBuf)> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "hlo"))
        .filter_map(|entry| Some((entry.metadata().ok()?.len(), entry.path())))
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    Ok(files.into_iter().take(DEFAULT_FILES).map(|(_, path)| path).collect())
}
