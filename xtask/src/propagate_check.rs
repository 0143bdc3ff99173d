//! `cargo xtask propagate-check`: shardings of random programs after `propagate-shardings{order=shardy}`, beside those that Shardy's own
//! passes give them (`oracle/propagate_check.py`).

use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// Runs the check: false if more than one value in twenty is cut otherwise.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut n_programs, mut seed): (usize, usize) = (300, 1);
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--programs" => n_programs = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--seed" => seed = arguments.number(&flag)?,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("propagate-check", &word)),
        }
    }
    let folder = workspace::target_dir().join("propagate-check");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let script = python::oracle_dir().join("propagate_check.py");
    let mut written = Command::new(python::interpreter()?);
    written.arg(&script).arg("write").arg(&folder).arg(n_programs.to_string()).arg(seed.to_string());
    if !succeeds(&mut written)? {
        return Err("propagate_check.py: expected programs, found an error".into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut propagated = Command::new(cargo);
    propagated.args(["run", "--quiet", "--package", "hlo-partition", "--example", "propagate_folder", "--"]);
    propagated.arg(&folder).current_dir(workspace::root());
    if !succeeds(&mut propagated)? {
        return Err("propagate_folder: expected shardings, found an error".into());
    }
    let mut compared = Command::new(python::interpreter()?);
    succeeds(compared.arg(&script).arg("compare").arg(&folder))
}

fn succeeds(command: &mut Command) -> Result<bool, String> {
    command
        .status()
        .map(|status| status.success())
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))
}
