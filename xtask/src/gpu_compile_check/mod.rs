//! `cargo xtask gpu-compile-check`: compiles training scripts for eight H100s that are only described, as they are and with
//! `hlo_opt.jax.zero` and `enable`, checks the final modules, and proves what XLA's own passes do to collectives. No GPU is
//! needed, and none runs anything.

mod passes;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, wheel};

/// The version of JAX whose compiler for GPUs is asked, and the least minor version of Python 3 that it runs on.
const VERSION: &str = "0.12.0.1";
const MINOR: u32 = 12;

/// The scripts of which XLA's passes are proved without `--all`.
const QUICK: [&str; 3] = ["plain_pytree", "accumulation", "batch_norm"];

/// Runs the check: false if something that is promised does not hold.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut is_all, mut only_passes) = (false, false);
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--all" => is_all = true,
            Word::Flag(flag) if flag == "--passes" => only_passes = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("gpu-compile-check", &word)),
        }
    }
    let Some(python) = python::with_gpu_compiler(VERSION, MINOR)? else {
        println!("jax {VERSION}: skipped, it needs Python 3.{MINOR} or newer and none was found");
        return Ok(true);
    };
    let wheel = wheel::build(&python)?;
    wheel::install(&python, &wheel)?;
    let scripts = match is_all {
        true => passes::scripts(&python)?,
        false => QUICK.map(String::from).to_vec(),
    };
    if only_passes {
        return passes::run(&python, &scripts);
    }
    let mut check = wheel::command(&python);
    check.arg(wheel::package_dir().join("tests/gpu_compile.py"));
    if is_all {
        check.arg("--all");
    }
    let mut hook = wheel::command(&python);
    hook.arg(wheel::package_dir().join("tests/gpu_hook.py"));
    Ok(wheel::succeeds(&mut check)? & wheel::succeeds(&mut hook)? & passes::run(&python, &scripts)?)
}
