//! `cargo xtask gpu-compile-check`: compiles training scripts for eight H100s that are only described, as they are and with
//! `hlo_opt.jax.zero` and `enable`, and checks the final modules. No GPU is needed, and none runs anything.

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, wheel};

/// The version of JAX whose compiler for GPUs is asked, and the least minor version of Python 3 that it runs on.
const VERSION: &str = "0.12.0.1";
const MINOR: u32 = 12;

/// Runs the check: false if something that is promised does not hold.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut is_all = false;
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--all" => is_all = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("gpu-compile-check", &word)),
        }
    }
    let Some(python) = python::with_gpu_compiler(VERSION, MINOR)? else {
        println!("jax {VERSION}: skipped, it needs Python 3.{MINOR} or newer and none was found");
        return Ok(true);
    };
    let wheel = wheel::build(&python)?;
    wheel::install(&python, &wheel)?;
    let mut check = wheel::command(&python);
    check.arg(wheel::package_dir().join("tests/gpu_compile.py"));
    if is_all {
        check.arg("--all");
    }
    let mut hook = wheel::command(&python);
    hook.arg(wheel::package_dir().join("tests/gpu_hook.py"));
    Ok(wheel::succeeds(&mut check)? & wheel::succeeds(&mut hook)?)
}
