//! `cargo xtask reshard-check`: redistribution plans of random pairs of shardings against the lower bound, and beside what XLA's
//! partitioner and Shardy make of them (`oracle/reshard_check.py`); some plans run in XLA.

use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// Runs the check: false if a plan is above XLA's or Shardy's, or gives wrong tiles.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut n_pairs, mut n_compared, mut n_run): (usize, usize, usize) = (1000, 50, 6);
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--pairs" => n_pairs = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--compared" => n_compared = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--run" => n_run = arguments.number(&flag)?,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("reshard-check", &word)),
        }
    }
    let folder = workspace::target_dir().join("reshard-check");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut planned = Command::new(cargo);
    planned.args([
        "run",
        "--profile",
        "unwinding",
        "--quiet",
        "--package",
        "hlo-spmd",
        "--example",
        "redistribution_pairs",
        "--",
    ]);
    planned.arg(&folder).arg(n_pairs.to_string()).arg(n_run.to_string()).current_dir(workspace::root());
    if !succeeds(&mut planned)? {
        return Err("redistribution_pairs: expected plans, found an error".into());
    }
    let mut compared = Command::new(python::interpreter()?);
    compared.arg(python::oracle_dir().join("reshard_check.py")).arg(&folder).arg(n_compared.to_string());
    succeeds(&mut compared)
}

fn succeeds(command: &mut Command) -> Result<bool, String> {
    command
        .status()
        .map(|status| status.success())
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))
}
