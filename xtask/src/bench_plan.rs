//! `cargo xtask bench-plan`: how long whole commands of the planners take, and what memory, against limits.
//!
//! First the planner of reductions, then the launch plan of the largest per-device program (of a folder, if one is named).
//!
//! Each command builds its state graph anew. Time is the best of some runs: on a machine with other work the others say more about
//! that work.

use crate::arguments::{Arguments, Word, unknown};
use crate::bench::measure::watch_memory;
use crate::workspace;
use crate::xla_check::manifest;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Runs of each command.
const RUNS: usize = 7;
/// Memory that each command may take.
const MOST_BYTES: f64 = (1u64 << 30) as f64;

/// A command with its limits.
struct Case {
    what: &'static str,
    /// After `plan reduction`.
    arguments: &'static [&'static str],
    most_s: f64,
}

const FOUR: &str = "[(a,8),(b,8),(c,8),(d,8)]";
const FIVE: &str = "[(a,10),(b,10),(c,10),(d,10),(e,10)]";
const CASES: [Case; 6] = [
    Case {
        what: "two levels, 64 devices, one axis (the paper's longest: 1.16 s)",
        arguments: &["--machine", "p2-a100", "--axes", "64", "--reduce", "0"],
        most_s: 0.01,
    },
    Case {
        what: "four levels, 4,096 devices, two axes, one of them reduced, 44 matrices",
        arguments: &["--machine", FOUR, "--axes", "64,64", "--reduce", "0"],
        most_s: 1.0,
    },
    Case {
        what: "the same, both reduced together",
        arguments: &["--machine", FOUR, "--axes", "64,64", "--reduce", "0,1"],
        most_s: 1.0,
    },
    Case {
        what: "five levels, 100,000 devices, two axes, one of them reduced, 100 matrices",
        arguments: &["--machine", FIVE, "--axes", "1000,100", "--reduce", "0"],
        most_s: 5.0,
    },
    Case {
        what: "the same, both reduced together, the better of both lowerings",
        arguments: &["--machine", FIVE, "--axes", "1000,100", "--reduce", "0,1"],
        most_s: 5.0,
    },
    Case {
        what: "five levels, 100,000 devices, one axis",
        arguments: &["--machine", FIVE, "--axes", "100000", "--reduce", "0"],
        most_s: 5.0,
    },
];

/// What a launch plan may take.
const LAUNCH_MOST_S: f64 = 2.0;

/// Runs the command; false if a limit is passed.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut arguments = Arguments::new(words);
    let mut corpus = workspace::root().join("ir-samples/programs");
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--corpus" => corpus = arguments.value(&flag)?.into(),
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("bench-plan", &word)),
        }
    }
    let tool = workspace::build_tool()?;
    let mut is_fine = true;
    println!("{:>10}  {:>10}  {:>9}  command", "best", "limit", "peak");
    for case in &CASES {
        let command = || {
            let mut command = Command::new(&tool);
            command.args(["plan", "reduction", "--format", "json"]).args(case.arguments);
            command
        };
        is_fine &= measure(&command, case.most_s, case.what)?;
    }
    let programs = manifest::read_folder(&corpus, None)?;
    if let Some(largest) = programs.iter().rfind(|program| program.runnable) {
        let command = || {
            let mut command = Command::new(&tool);
            command.arg(&largest.file).args(["--emit", "plan"]);
            if let Some(like) = &largest.like {
                command.arg("--replicated-params").arg(format!("like:{}", like.display()));
            }
            command
        };
        is_fine &= measure(&command, LAUNCH_MOST_S, &format!("launch plan of {}", largest.name()))?;
    }
    Ok(is_fine)
}

/// Times a command and prints its line: whether it keeps its limits.
fn measure(command: &dyn Fn() -> Command, most_s: f64, what: &str) -> Result<bool, String> {
    let mut best_s = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        let status = command().stdout(Stdio::null()).status().map_err(|e| format!("hlo-opt: {e}"))?;
        best_s = best_s.min(start.elapsed().as_secs_f64());
        if !status.success() {
            return Err(format!("{what}: {status}"));
        }
    }
    let peak = watch_memory(&mut command()).map(|bytes| bytes as f64);
    let is_within = best_s <= most_s && peak.is_none_or(|bytes| bytes <= MOST_BYTES);
    let peak = peak.map_or("?".into(), |bytes| format!("{:.0} MiB", bytes / f64::from(1 << 20)));
    let verdict = if is_within { "" } else { "  TOO MUCH" };
    println!("{:>7.1} ms  {:>7.0} ms  {peak:>9}  {what}{verdict}", best_s * 1e3, most_s * 1e3);
    Ok(is_within)
}
