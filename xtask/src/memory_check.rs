//! `cargo xtask memory-check`: what our launch plans take of a device's memory, beside what XLA takes for the same module.
//!
//! Both sides count arguments + outputs + temporaries − what lies in one place as an argument and an output, and both honour
//! the donated parameters of the module's header. A module of which our plan takes more fails the check. XLA's figures
//! are kept under the build folder by the module's contents, because it may take minutes to compile one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::arguments::{Arguments, Word, unknown};
use crate::xla_check::content_hash::ContentHash;
use crate::xla_check::manifest::{self, Program};
use crate::{python, workspace};

struct Options {
    corpus: PathBuf,
    /// Parts of file names; all modules if there are none.
    only: Vec<String>,
    tool: Option<PathBuf>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let own = workspace::root().join("ir-samples/programs");
        let mut options = Options { corpus: own, only: Vec::new(), tool: None };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--only" => options.only.push(arguments.value(&flag)?),
                Word::Flag(flag) if flag == "--corpus" => options.corpus = arguments.value(&flag)?.into(),
                Word::Flag(flag) if flag == "--hlo-opt" => options.tool = Some(arguments.value(&flag)?.into()),
                Word::Flag(word) | Word::Plain(word) => return Err(unknown("memory-check", &word)),
            }
        }
        Ok(options)
    }
}

/// Bytes on one device.
#[derive(Clone, Copy)]
struct Memory {
    argument: u64,
    output: u64,
    temp: u64,
    alias: u64,
}

impl Memory {
    fn of(value: &Value, names: [&str; 4]) -> Option<Memory> {
        let [argument, output, temp, alias] = names.map(|name| value.get(name).and_then(Value::as_u64));
        Some(Memory { argument: argument?, output: output?, temp: temp?, alias: alias? })
    }

    fn sum(&self) -> u64 {
        (self.argument + self.output + self.temp).saturating_sub(self.alias)
    }
}

/// Runs the check: false if a plan takes more than XLA, or a module could not be measured.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let mut programs = manifest::read_folder(&options.corpus, None)?;
    let is_wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part));
    programs.retain(|program| program.runnable && is_wanted(&program.name()));
    if programs.is_empty() {
        return Err("no per-device module is selected: nothing would be checked".into());
    }
    let tool = options.tool.map_or_else(workspace::build_tool, Ok)?;
    let python = python::interpreter()?;
    println!("{:>14} {:>14} {:>14} {:>14} {:>7}  module", "plan", "its arena", "XLA", "its temp", "ratio");
    let (mut n_good, mut worst): (usize, f64) = (0, 0.0);
    for program in &programs {
        let name = program.name();
        let measured = of_plan(&tool, program).and_then(|ours| Ok((ours, of_xla(&python, &program.file)?)));
        match measured {
            Ok((ours, xla)) => {
                let ratio = ours.sum() as f64 / xla.sum().max(1) as f64;
                worst = worst.max(ratio);
                let is_good = ours.sum() <= xla.sum();
                n_good += usize::from(is_good);
                let verdict = if is_good { "" } else { "  TOO MUCH" };
                println!(
                    "{:>14} {:>14} {:>14} {:>14} {ratio:>7.4}  {name}{verdict}",
                    ours.sum(),
                    ours.temp,
                    xla.sum(),
                    xla.temp
                );
            }
            Err(reason) => println!("{name}: {reason}"),
        }
    }
    println!("{n_good} of {} modules take no more than in XLA; the largest ratio is {worst:.4}", programs.len());
    Ok(n_good == programs.len())
}

/// What our plan says that it takes.
fn of_plan(tool: &Path, program: &Program) -> Result<Memory, String> {
    let mut command = Command::new(tool);
    command.arg(&program.file).args(["--emit", "plan-json"]);
    if let Some(like) = &program.like {
        command.arg("--replicated-params").arg(format!("like:{}", like.display()));
    }
    let output = command.output().map_err(|e| format!("{}: {e}", tool.display()))?;
    if !output.status.success() {
        return Err(format!("hlo-opt: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let plan: Value = serde_json::from_slice(&output.stdout).map_err(|e| format!("the plan: {e}"))?;
    let names = ["argument_bytes", "output_bytes", "arena_bytes", "alias_bytes"];
    Memory::of(&plan["memory"], names).ok_or_else(|| "the plan: expected its memory, found none".into())
}

/// What XLA takes, from an earlier run if the module and the script are the same.
fn of_xla(python: &Path, file: &Path) -> Result<Memory, String> {
    let oracle = python::oracle_dir();
    let script = oracle.join("memory_stats.py");
    let hash = ContentHash::new().add_file(file)?.add_file(&script)?.add_file(&oracle.join("hlo_oracle.py"))?;
    let digits = hash.add_file(&oracle.join("requirements.txt"))?.digits();
    let folder = workspace::target_dir().join("memory-check");
    let kept = folder.join(format!("{digits}.json"));
    let names = ["argument", "output", "temp", "alias"];
    let read = |text: &str| serde_json::from_str(text).ok().and_then(|value| Memory::of(&value, names));
    if let Some(memory) = fs::read_to_string(&kept).ok().and_then(|text| read(&text)) {
        return Ok(memory);
    }
    let mut command = Command::new(python);
    command.arg("-B").arg(&script).arg(file).stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("{}: {e}", python.display()))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let found = text.lines().last().and_then(|line| read(line).map(|memory| (line, memory)));
    let Some((line, memory)) = found.filter(|_| output.status.success()) else {
        return Err(format!("XLA: {}: {}", output.status, errors.lines().last().unwrap_or("no message")));
    };
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    fs::write(&kept, line).map_err(|e| format!("{}: {e}", kept.display()))?;
    Ok(memory)
}
