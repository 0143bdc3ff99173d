//! `cargo xtask preset-check`: the predicted times of what the presets make of per-device modules, beside the modules' own.
//!
//! Each time is that of a printed module, read anew. `data-parallel` and `sharded-state{objective=time}` must never be slower than the
//! input; plain `sharded-state` asks for memory, and its price is shown.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::time_check::{number, succeeded};
use crate::workspace;
use crate::xla_check::manifest;

/// How much slower than its input a result may be predicted: the presets compare the same figures, so only by rounding.
const MOST: f64 = 1.0 + 1e-9;

/// The presets, and whether each must not be slower than the input.
const PRESETS: [(&str, bool); 3] =
    [("data-parallel", true), ("sharded-state{objective=time}", true), ("sharded-state", false)];

/// Whether a preset writes several files.
fn is_folder(preset: &str) -> bool {
    preset.starts_with("sharded-state")
}

/// A module and its sibling that says which parameters are replicated.
struct Case {
    file: PathBuf,
    like: Option<PathBuf>,
}

struct Options {
    cases: Vec<Case>,
    tool: Option<PathBuf>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let (mut cases, mut corpora, mut only, mut tool) = (Vec::new(), Vec::new(), Vec::new(), None);
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--corpus" => corpora.push(PathBuf::from(arguments.value(&flag)?)),
                Word::Flag(flag) if flag == "--only" => only.push(arguments.value(&flag)?),
                Word::Flag(flag) if flag == "--hlo-opt" => tool = Some(arguments.value(&flag)?.into()),
                Word::Flag(word) => return Err(unknown("preset-check", &word)),
                Word::Plain(file) => cases.push(Case { file: file.into(), like: None }),
            }
        }
        if corpora.is_empty() && cases.is_empty() {
            corpora.push(workspace::root().join("ir-samples/programs"));
        }
        for corpus in corpora {
            let programs = manifest::read_folder(&corpus, None)?.into_iter().filter(|program| program.runnable);
            cases.extend(programs.map(|program| Case { like: program.like, file: program.file }));
        }
        cases.retain(|case| only.is_empty() || only.iter().any(|part| case.name().contains(part)));
        match cases.is_empty() {
            true => Err("no per-device module is selected: nothing would be checked".into()),
            false => Ok(Options { cases, tool }),
        }
    }
}

impl Case {
    fn name(&self) -> String {
        self.file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// The predicted seconds of what a preset makes of the module.
    fn after(&self, tool: &Path, preset: &str) -> Result<f64, String> {
        let place = workspace::target_dir().join("preset-check");
        // The directory of an earlier run would be written into.
        let _ = std::fs::remove_dir_all(&place);
        std::fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        let is_folder = is_folder(preset);
        let output = place.join(if is_folder { "parts" } else { "module.hlo" });
        let mut command = Command::new(tool);
        command.arg(&self.file).args(["--preset", preset, "-o"]).arg(&output);
        if let Some(like) = &self.like {
            command.arg("--replicated-params").arg(format!("like:{}", like.display()));
        }
        succeeded(command.output(), tool)?;
        seconds(tool, &if is_folder { output.join("main.hlo") } else { output })
    }
}

/// Runs the check: false if a preset makes a module slower that it must not, or fails.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let tool = options.tool.map_or_else(workspace::build_tool, Ok)?;
    println!("{:>12} {:>14} {:>14} {:>14}  module", "input us", "data-parallel", "state, time", "state, memory");
    let (mut n_bad, mut n_faster) = (0, [0; PRESETS.len()]);
    for case in &options.cases {
        let before_s = match seconds(&tool, &case.file) {
            Ok(before_s) => before_s,
            Err(reason) => {
                println!("{}: {reason}", case.name());
                n_bad += 1;
                continue;
            }
        };
        let (mut row, mut remarks) = (format!("{:>12.1}", before_s * 1e6), String::new());
        for (number, (preset, is_bound)) in PRESETS.into_iter().enumerate() {
            match case.after(&tool, preset).map(|after_s| after_s / before_s) {
                Ok(ratio) => {
                    let is_slower = is_bound && ratio > MOST;
                    n_bad += usize::from(is_slower);
                    n_faster[number] += usize::from(ratio < 1.0);
                    row += &format!(" {ratio:>13.3}{}", if is_slower { '!' } else { ' ' });
                }
                Err(reason) => {
                    n_bad += 1;
                    row += &format!(" {:>14}", "failed");
                    remarks += &format!("\n    {preset}: {}", reason.lines().next().unwrap_or_default());
                }
            }
        }
        println!("{row}  {}{remarks}", case.name());
    }
    let [data_parallel, by_time, by_memory] = n_faster;
    println!(
        "of {} modules {data_parallel} are predicted to be faster with data-parallel, {by_time} with sharded-state for time, \
         {by_memory} with sharded-state; {n_bad} slower or failed",
        options.cases.len()
    );
    Ok(n_bad == 0)
}

/// The predicted seconds of one step.
fn seconds(tool: &Path, file: &Path) -> Result<f64, String> {
    let output = Command::new(tool).args(["analyze", "time", "--format", "json"]).arg(file).output();
    number(&succeeded(output, tool)?, "critical_path_s")
}
