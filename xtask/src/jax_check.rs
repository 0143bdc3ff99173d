//! `cargo xtask jax-check`: what hlo-opt makes of fresh dumps of several versions of JAX (`oracle/jax_check.py`).
//!
//! JAX from 0.11 needs Python 3.12 or newer. Where none is found, those versions are left out, which is said; the dumps stored in
//! `ir-samples/dumps` are tested in any case.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// A version of JAX, and the least minor version of Python 3 that it runs on.
const VERSIONS: [(&str, u32); 3] = [("0.10.2", 11), ("0.11.2", 12), ("0.12.0.1", 12)];

struct Options {
    /// Versions that begin so; all if there are none.
    only: Vec<String>,
    tool: Option<PathBuf>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { only: Vec::new(), tool: None };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--only" => options.only.push(arguments.value(&flag)?),
                Word::Flag(flag) if flag == "--hlo-opt" => options.tool = Some(arguments.value(&flag)?.into()),
                Word::Flag(word) | Word::Plain(word) => return Err(unknown("jax-check", &word)),
            }
        }
        Ok(options)
    }
}

/// Runs the check: false if a version fails it.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    let is_wanted =
        |version: &str| options.only.is_empty() || options.only.iter().any(|only| version.starts_with(only));
    let wanted: Vec<_> = VERSIONS.into_iter().filter(|(version, _)| is_wanted(version)).collect();
    if wanted.is_empty() {
        let known = VERSIONS.map(|(version, _)| version).join(", ");
        return Err(format!("--only: expected the beginning of one of {known}"));
    }
    let tool = options.tool.map_or_else(workspace::build_tool, Ok)?;
    let (mut n_passed, mut n_failed, mut n_skipped) = (0, 0, 0);
    for (version, minor) in wanted {
        let Some(python) = python::with_jax(version, minor)? else {
            println!("jax {version}: skipped, it needs Python 3.{minor} or newer and none was found");
            n_skipped += 1;
            continue;
        };
        match check(&tool, version, &python)? {
            true => n_passed += 1,
            false => n_failed += 1,
        }
    }
    println!("{n_passed} passed, {n_failed} failed, {n_skipped} skipped");
    Ok(n_failed == 0)
}

fn check(tool: &Path, version: &str, python: &Path) -> Result<bool, String> {
    let folder = workspace::target_dir().join("jax-check").join(version);
    let script = python::oracle_dir().join("jax_check.py");
    let status = Command::new(python).arg("-B").args([script.as_path(), tool, &folder]).status();
    Ok(status.map_err(|e| format!("{}: {e}", python.display()))?.success())
}
