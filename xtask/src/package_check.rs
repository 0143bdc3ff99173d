//! `cargo xtask package-check`: builds the wheel of the Python package, installs it and runs its tests.

use std::path::Path;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, wheel};

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
    let mut built = None;
    let (mut n_passed, mut n_failed, mut n_skipped) = (0, 0, 0);
    for (version, minor) in versions {
        let Some(python) = python::with_package_tests(version, *minor)? else {
            println!("jax {version}: skipped, it needs Python 3.{minor} or newer and none was found");
            n_skipped += 1;
            continue;
        };
        let built = match &built {
            Some(built) => built,
            None => built.insert(wheel::build(&python)?),
        };
        match test(&python, built, is_all)? {
            true => n_passed += 1,
            false => n_failed += 1,
        }
    }
    println!("{n_passed} passed, {n_failed} failed, {n_skipped} skipped");
    Ok(n_failed == 0)
}

/// Installs the wheel and runs the tests on it: with `is_all` those on several numbers of devices too.
fn test(python: &Path, built: &Path, is_all: bool) -> Result<bool, String> {
    wheel::install(python, built)?;
    let mut tests = wheel::command(python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).arg(wheel::package_dir().join("tests"));
    if !is_all {
        tests.args(["-m", "not more"]);
    }
    wheel::succeeds(&mut tests)
}
