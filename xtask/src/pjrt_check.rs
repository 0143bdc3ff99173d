//! `cargo xtask pjrt-check`: the wrapper plugin round XLA's plugin for CPUs: our own client, and JAX.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// Prints where the plugin's shared object lies.
const FIND_PLUGIN: &str = "import pathlib, xla_plugins.xla_cpu_pjrt as p; \
     print(next(pathlib.Path(p.__path__[0]).glob('*.so')))";

/// Runs the check: false if a test fails.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    if let Some(Word::Flag(word) | Word::Plain(word)) = Arguments::new(words).next_word() {
        return Err(unknown("pjrt-check", &word));
    }
    let tests = workspace::root().join("crates/hlo-pjrt/tests");
    let python = python::environment("pjrt-venv", &tests.join("requirements.txt"))?;
    let plugin = plugin_of(&python)?;

    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(&cargo);
    if !succeeds(build.args(["build", "--quiet", "--package", "hlo-pjrt"]).current_dir(workspace::root()))? {
        return Err("the wrapper does not build".into());
    }
    let mut client = Command::new(&cargo);
    client.args(["test", "--quiet", "--package", "hlo-pjrt"]).current_dir(workspace::root());
    let is_client_fine = succeeds(client.env("HLO_PJRT_TEST_PLUGIN", &plugin))?;

    let wrapper = format!("{}hlo_pjrt{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let wrapper = workspace::target_dir().join("debug").join(wrapper);
    let mut training = Command::new(&python);
    training.arg(tests.join("jax_training.py")).arg(&wrapper).arg(&plugin);
    let is_training_fine = succeeds(training.env("PYTHONDONTWRITEBYTECODE", "1"))?;
    Ok(is_client_fine && is_training_fine)
}

/// The plugin that this Python has.
fn plugin_of(python: &Path) -> Result<PathBuf, String> {
    let found = Command::new(python).args(["-c", FIND_PLUGIN]).stderr(Stdio::inherit()).output();
    let found = found.map_err(|e| format!("{}: {e}", python.display()))?;
    match String::from_utf8(found.stdout) {
        Ok(path) if found.status.success() => Ok(PathBuf::from(path.trim())),
        _ => Err("expected a plugin in the package xla-cpu-pjrt, found none".into()),
    }
}

/// Runs a command, whose output is shown.
fn succeeds(command: &mut Command) -> Result<bool, String> {
    let status = command.status().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    Ok(status.success())
}
