//! `cargo xtask compare OLD NEW`: two builds of the tool print the same bytes, whatever they are asked for.
//!
//! Every sample, and every module of the named corpora, goes through all kinds of output: printing, presets, sample
//! pipelines, reports, launch plans, CUDA, analyses. Exit code, stdout, stderr and written files are compared. Words that were
//! renamed on purpose stand in `renamed.tsv` beside this file: old and new, whole words, applied to the old build's bytes.

mod cases;
mod outcome;
mod words;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::arguments::{Arguments, Word, unknown};
use cases::Case;
use outcome::Outcome;
use words::Renamed;

/// Differences that are printed whole; of the rest only the number is said.
const MOST_SHOWN: usize = 20;

struct Options {
    tools: Vec<PathBuf>,
    corpora: Vec<PathBuf>,
    only: String,
    n_jobs: usize,
}

fn options(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut arguments = Arguments::new(words);
    let n_jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { tools: Vec::new(), corpora: Vec::new(), only: String::new(), n_jobs };
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--corpus" => options.corpora.push(arguments.value(&flag)?.into()),
            Word::Flag(flag) if flag == "--only" => options.only = arguments.value(&flag)?,
            Word::Flag(flag) if flag == "--jobs" => options.n_jobs = arguments.number(&flag)?,
            Word::Flag(word) => return Err(unknown("compare", &word)),
            Word::Plain(word) => options.tools.push(word.into()),
        }
    }
    for path in options.tools.iter_mut().chain(&mut options.corpora) {
        *path = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
    }
    match options.tools.len() {
        2 => Ok(options),
        n => Err(format!("compare: expected two built tools, the old and the new one, found {n}")),
    }
}

/// Runs the comparison: whether nothing differs.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = options(words)?;
    let renamed = Renamed::read()?;
    let mut cases = cases::all(&options.corpora)?;
    cases.retain(|case| case.label.contains(&options.only));
    let start = Instant::now();
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.n_jobs {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(difference) = compare(case, &options, &renamed)
                        && let Ok(mut failures) = failures.lock()
                    {
                        failures.push((case, difference));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().map_err(|_| "a comparing thread panicked")?;
    failures.sort_by_key(|(case, _)| &case.label);
    for (case, difference) in failures.iter().take(MOST_SHOWN) {
        println!("{}\n    {difference}", case.label);
    }
    if failures.len() > MOST_SHOWN {
        println!("… and {} more", failures.len() - MOST_SHOWN);
    }
    let mut of_args: BTreeMap<&str, usize> = BTreeMap::new();
    failures.iter().for_each(|(case, _)| *of_args.entry(case.form()).or_default() += 1);
    of_args.iter().for_each(|(args, n)| println!("{n:>6} differ with {args}"));
    let seconds = start.elapsed().as_secs_f64();
    println!("compare: {} calls, {} differ, {seconds:.1} s", cases.len(), failures.len());
    Ok(failures.is_empty() && !cases.is_empty())
}

/// Runs one call with both tools.
fn compare(case: &Case, options: &Options, renamed: &Renamed) -> Result<(), String> {
    let [old, new] = options.tools.as_slice() else { return Err("expected two tools".into()) };
    let old = Outcome::of(old, case)?.renamed(renamed);
    let new = Outcome::of(new, case)?;
    old.first_difference(&new).map_or(Ok(()), Err)
}
