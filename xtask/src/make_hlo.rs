//! `cargo xtask make-hlo`, `cargo xtask make-models`: training steps lowered with JAX (`jax/make_hlo.py`, `jax/make_models.py`).

use std::process::Command;

use crate::{python, workspace};

/// Runs the script of this name with these words; false where it refuses them.
pub(crate) fn run(script: &str, words: impl Iterator<Item = String>) -> Result<bool, String> {
    let python = python::interpreter()?;
    let script = workspace::root().join("xtask/jax").join(script);
    let status = Command::new(&python).arg("-B").arg(script).args(words).status();
    Ok(status.map_err(|e| format!("{}: {e}", python.display()))?.success())
}
