//! `cargo xtask time-check`: the predicted time of each module beside that of its launch plan.
//!
//! Both ask the same machine. The module's clock groups instructions as the fusion pass would, the plan has the kernels that
//! are really launched. A module whose times differ by more than [`MOST`] fails the check. The clock knows no limit of memory, so a
//! plan that gave up a faster order for its memory is compared by that order, and listed.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;
use crate::xla_check::manifest::{self, Program};

/// The largest difference, as a part of the plan's time.
const MOST: f64 = 0.10;

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
                Word::Flag(word) | Word::Plain(word) => return Err(unknown("time-check", &word)),
            }
        }
        Ok(options)
    }
}

/// Runs the check: false if a difference is too large, or a time is missing.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let mut programs = manifest::read_folder(&options.corpus, None)?;
    let is_wanted = |name: &str| options.only.is_empty() || options.only.iter().any(|part| name.contains(part));
    programs.retain(|program| program.runnable && is_wanted(&program.name()));
    if programs.is_empty() {
        return Err("no per-device module is selected: nothing would be checked".into());
    }
    let tool = options.tool.map_or_else(workspace::build_tool, Ok)?;
    println!("{:>12} {:>12} {:>7}  module", "module us", "plan us", "ratio");
    let (mut n_bad, mut n_listed, mut ratios) = (0, 0, Vec::new());
    for program in &programs {
        let name = program.name();
        match of_module(&tool, program).and_then(|module_s| Ok((module_s, of_plan(&tool, program)?))) {
            Ok((module_s, plan)) => {
                let ratio = module_s / plan.time_s;
                ratios.push(ratio);
                let is_near = |plan_s: f64| (module_s / plan_s - 1.0).abs() <= MOST;
                let verdict = if is_near(plan.time_s) {
                    String::new()
                } else if is_near(plan.in_more_memory_s) {
                    n_listed += 1;
                    format!("  the plan's order that takes more memory: {:.1} us", plan.in_more_memory_s * 1e6)
                } else {
                    n_bad += 1;
                    "  TOO FAR".to_string()
                };
                println!("{:>12.1} {:>12.1} {ratio:>7.3}  {name}{verdict}", module_s * 1e6, plan.time_s * 1e6);
            }
            Err(reason) => {
                n_bad += 1;
                println!("{name}: {reason}");
            }
        }
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN);
    let n = programs.len();
    println!(
        "{} of {n} modules are within {MOST} of their plans, {n_listed} of an order that takes more memory, {n_bad} of neither; \
         median ratio {median:.3}",
        n - n_bad - n_listed
    );
    Ok(n_bad == 0)
}

/// The module's own predicted time, after the passes that every plan begins with.
fn of_module(tool: &Path, program: &Program) -> Result<f64, String> {
    let pipeline = "inline-calls,simplify-tuples,cse,dce";
    let folder = workspace::target_dir().join("time-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let inlined = folder.join("inlined.hlo");
    let output = Command::new(tool).arg(&program.file).args(["--pass", pipeline, "-o"]).arg(&inlined).output();
    succeeded(output, tool)?;
    let output =
        Command::new(tool).args(["analyze", "time", "--as-written", "--format", "json"]).arg(&inlined).output();
    number(&succeeded(output, tool)?, "critical_path_s")
}

/// What a launch plan says of the module's own collectives, none combined.
struct PlanTime {
    time_s: f64,
    /// Seconds of the fastest order, which may take more memory.
    in_more_memory_s: f64,
}

fn of_plan(tool: &Path, program: &Program) -> Result<PlanTime, String> {
    let mut command = Command::new(tool);
    command.arg(&program.file).args(["--emit", "plan-json"]);
    if let Some(like) = &program.like {
        command.arg("--replicated-params").arg(format!("like:{}", like.display()));
    }
    let json = succeeded(command.output(), tool)?;
    let time_s = number(&json, "modelled_s_not_combined")?;
    Ok(PlanTime { time_s, in_more_memory_s: number(&json, "modelled_s_not_combined_in_more_memory")? })
}

/// What the tool printed.
pub(crate) fn succeeded(output: std::io::Result<std::process::Output>, tool: &Path) -> Result<Vec<u8>, String> {
    let output = output.map_err(|e| format!("{}: {e}", tool.display()))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => Err(format!("hlo-opt: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A positive number of a JSON object.
pub(crate) fn number(json: &[u8], name: &str) -> Result<f64, String> {
    parsed(json)?[name]
        .as_f64()
        .filter(|s| *s > 0.0)
        .ok_or_else(|| format!("hlo-opt: expected a positive {name}, found none"))
}

fn parsed(json: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(json).map_err(|e| format!("hlo-opt: {e}"))
}
