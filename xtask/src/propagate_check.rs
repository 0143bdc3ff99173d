//! `cargo xtask propagate-check [--order shardy|gspmd]`: shardings of random programs after `propagate-shardings`, beside those that Shardy's
//! own passes (`oracle/propagate_check.py`) or XLA's propagation (`oracle/gspmd_check.py`) give them.

use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// Runs the check: false if more than one value in twenty is cut otherwise, beside XLA one in ten.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut n_programs, mut seed): (usize, usize) = (300, 1);
    let mut order = "shardy".to_string();
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--programs" => n_programs = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--seed" => seed = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--order" => order = arguments.value(&flag)?,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("propagate-check", &word)),
        }
    }
    let script = match order.as_str() {
        "shardy" => "propagate_check.py",
        "gspmd" => "gspmd_check.py",
        other => return Err(format!("propagate-check: expected --order shardy or gspmd, found '{other}'")),
    };
    let folder = workspace::target_dir().join("propagate-check").join(&order);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let script = python::oracle_dir().join(script);
    let mut written = Command::new(python::interpreter()?);
    written.arg(&script).arg("write").arg(&folder).arg(n_programs.to_string()).arg(seed.to_string());
    if !succeeds(&mut written)? {
        return Err(format!("{}: expected programs, found an error", script.display()));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut propagated = Command::new(cargo);
    propagated.args(["run", "--quiet", "--package", "hlo-partition", "--example", "propagate_folder", "--"]);
    propagated.arg(&folder).arg(&order).current_dir(workspace::root());
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
