//! `cargo xtask package-check`: builds the wheel of the Python package, installs it and runs its tests.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// A version of JAX, and the least minor version of Python 3 that it runs on.
const VERSIONS: [(&str, u32); 2] = [("0.10.2", 11), ("0.12.0.1", 12)];

/// Runs the check: false if a test fails.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut is_all = false;
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--all" => is_all = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("package-check", &word)),
        }
    }
    let versions = if is_all { &VERSIONS[..] } else { &VERSIONS[..1] };
    let mut wheel = None;
    let (mut n_passed, mut n_failed, mut n_skipped) = (0, 0, 0);
    for (version, minor) in versions {
        let Some(python) = python::with_package_tests(version, *minor)? else {
            println!("jax {version}: skipped, it needs Python 3.{minor} or newer and none was found");
            n_skipped += 1;
            continue;
        };
        // One wheel serves all versions of Python.
        let wheel = match &wheel {
            Some(wheel) => wheel,
            None => wheel.insert(build_wheel(&python)?),
        };
        match test(&python, wheel, is_all)? {
            true => n_passed += 1,
            false => n_failed += 1,
        }
    }
    println!("{n_passed} passed, {n_failed} failed, {n_skipped} skipped");
    Ok(n_failed == 0)
}

fn package_dir() -> PathBuf {
    workspace::root().join("crates/hlo-jax")
}

/// Runs a command, whose output is shown.
fn succeeds(command: &mut Command) -> Result<bool, String> {
    let status = command.status().map_err(|e| format!("{}: {e}", command.get_program().display()))?;
    Ok(status.success())
}

/// Builds the wheel with the workspace's development profile.
fn build_wheel(python: &Path) -> Result<PathBuf, String> {
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

/// Installs the wheel and runs the tests on it: with `is_all` those on several numbers of devices too.
fn test(python: &Path, wheel: &Path, is_all: bool) -> Result<bool, String> {
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall", "--no-deps"]);
    if !succeeds(install.arg(wheel))? {
        return Err("the wheel could not be installed".into());
    }
    let mut tests = Command::new(python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(package_dir().join("tests"));
    if !is_all {
        tests.args(["-m", "not more"]);
    }
    // The installed package is tested, and nothing is written beside the sources.
    tests.current_dir(workspace::target_dir()).env("PYTHONDONTWRITEBYTECODE", "1");
    succeeds(&mut tests)
}
