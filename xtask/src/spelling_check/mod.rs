//! `cargo xtask spelling-check`: ways to write HLO (`spellings.txt`) and the stored samples of syntax, read by us and by jaxlib.
//!
//! What jaxlib reads and compiles we must read and verify, and jaxlib must read our print of it as the same module
//! (`oracle/spelling_check.py`). Refusals are listed by reason, and so is what we read and jaxlib does not.

mod grammar;
mod report;

use grammar::Spelling;
use hlo_ir::print::print_module;
use hlo_ir::verify::verify;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

const SPELLINGS: &str = include_str!("spellings.txt");

/// Every how many spellings the quick check takes one.
const QUICK_STEP: usize = 11;

/// What we make of a text.
enum Reading {
    /// The module as we print it.
    Read(String),
    /// The rule that it breaks, and what we say.
    Refused(String, String),
}

#[derive(Default)]
struct Options {
    quick: bool,
    only: Vec<String>,
    show: bool,
    jobs: usize,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut options = Options { jobs: cores, ..Options::default() };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--quick" => options.quick = true,
                Word::Flag(flag) if flag == "--show" => options.show = true,
                Word::Flag(flag) if flag == "--only" => options.only.push(arguments.value(&flag)?),
                Word::Flag(flag) if flag == "--jobs" => options.jobs = arguments.number(&flag)?,
                Word::Flag(word) | Word::Plain(word) => return Err(unknown("spelling-check", &word)),
            }
        }
        Ok(options)
    }
}

/// Runs the check: false if we read too little, or anything otherwise than jaxlib does.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let mut spellings = grammar::spellings(SPELLINGS)?;
    spellings.extend(samples()?);
    if options.quick {
        spellings = spellings.into_iter().step_by(QUICK_STEP).collect();
    }
    spellings.retain(|spelling| {
        options.only.is_empty() || options.only.iter().any(|part| spelling.name.contains(part.as_str()))
    });
    let readings: Vec<Reading> = spellings.iter().map(|spelling| read(&spelling.text)).collect();
    let folder = workspace::target_dir().join("spelling-check");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let answers = ask(&folder, &spellings, &readings, options.jobs)?;
    report::report(&spellings, &readings, &answers, options.show)
}

/// The stored samples of syntax; those that only a newer jaxlib reads are refused by this one.
fn samples() -> Result<Vec<Spelling>, String> {
    let folder = workspace::root().join("ir-samples/syntax");
    let entries = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "hlo"));
    files.sort();
    let read = |path: &Path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Spelling { name: format!("sample/{name}"), text })
    };
    files.iter().map(|path| read(path)).collect()
}

fn read(text: &str) -> Reading {
    let refused = |diag: &hlo_ir::diag::Diagnostic| Reading::Refused(diag.rule.to_string(), diag.message.clone());
    match hlo_text::parse_module(text) {
        Err(diags) => diags.first().map_or(Reading::Refused("none".into(), "no message".into()), refused),
        Ok(parsed) => match verify(&parsed.module) {
            Err(diags) => diags.first().map_or(Reading::Refused("none".into(), "no message".into()), refused),
            Ok(()) => Reading::Read(print_module(&parsed.module, &Default::default())),
        },
    }
}

/// What jaxlib says of each text.
fn ask(
    folder: &Path,
    spellings: &[Spelling],
    readings: &[Reading],
    n_jobs: usize,
) -> Result<Vec<serde_json::Value>, String> {
    let ours = |reading: &Reading| match reading {
        Reading::Read(print) => serde_json::Value::from(print.as_str()),
        Reading::Refused(..) => serde_json::Value::Null,
    };
    let cases: Vec<_> =
        spellings.iter().zip(readings).map(|(s, r)| serde_json::json!([s.text.as_str(), ours(r)])).collect();
    let cases_file = folder.join("cases.json");
    fs::write(&cases_file, serde_json::Value::from(cases).to_string()).map_err(|e| e.to_string())?;
    let python = python::interpreter()?;
    let start = |job: usize| -> Result<Child, String> {
        let mut command = Command::new(&python);
        command.arg("-B").arg(python::oracle_dir().join("spelling_check.py")).arg(&cases_file);
        command.arg(folder.join(format!("{job}.jsonl"))).args([job.to_string(), n_jobs.to_string()]);
        // jaxlib logs what it refuses.
        command.env("TF_CPP_MIN_LOG_LEVEL", "3").spawn().map_err(|e| format!("{}: {e}", python.display()))
    };
    let children: Vec<Child> = (0..n_jobs).map(start).collect::<Result<_, _>>()?;
    for mut child in children {
        if !child.wait().map_err(|e| e.to_string())?.success() {
            return Err("the judge failed".into());
        }
    }
    let mut answers = vec![serde_json::Value::Null; spellings.len()];
    for job in 0..n_jobs {
        let text = fs::read_to_string(folder.join(format!("{job}.jsonl"))).map_err(|e| e.to_string())?;
        for line in text.lines() {
            let answer: serde_json::Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
            let place = answer["case"].as_u64().and_then(|i| answers.get_mut(i as usize));
            *place.ok_or("an answer to no question")? = answer;
        }
    }
    Ok(answers)
}
