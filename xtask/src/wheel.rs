//! The wheel of the Python package: built once, installed into environments.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace;

/// The folder of the Python package.
pub(crate) fn package_dir() -> PathBuf {
    workspace::root().join("crates/hlo-jax")
}

/// Runs a command, whose output is shown.
pub(crate) fn succeeds(command: &mut Command) -> Result<bool, String> {
    let status = command.status().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    Ok(status.success())
}

/// Builds the wheel with the workspace's development profile. One wheel serves all versions of Python.
pub(crate) fn build(python: &Path) -> Result<PathBuf, String> {
    let out = workspace::target_dir().join("wheels");
    let failed = |e: std::io::Error| format!("{}: {e}", out.display());
    if out.exists() {
        fs::remove_dir_all(&out).map_err(failed)?;
    }
    let mut build = Command::new(python);
    build.args(["-m", "maturin", "build", "--quiet", "--profile", "dev", "--interpreter"]).arg(python);
    build.arg("--manifest-path").arg(package_dir().join("Cargo.toml")).arg("--out").arg(&out);
    if !succeeds(&mut build)? {
        return Err("the wheel could not be built".into());
    }
    let found = fs::read_dir(&out).map_err(failed)?.filter_map(|entry| Some(entry.ok()?.path()));
    let wheels: Vec<PathBuf> = found.filter(|path| path.extension() == Some(OsStr::new("whl"))).collect();
    match <[PathBuf; 1]>::try_from(wheels) {
        Ok([wheel]) => Ok(wheel),
        Err(wheels) => Err(format!("{}: expected one wheel, found {}", out.display(), wheels.len())),
    }
}

/// Installs the wheel into the environment of `python`, which has what the package needs.
pub(crate) fn install(python: &Path, wheel: &Path) -> Result<(), String> {
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"]);
    if !succeeds(install.arg(wheel))? {
        return Err("the wheel could not be installed".into());
    }
    Ok(())
}

/// A command of `python` that takes the installed package and writes nothing beside the sources.
pub(crate) fn command(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.current_dir(workspace::target_dir()).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}
