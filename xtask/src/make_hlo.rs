//! `cargo xtask make-hlo`: a training step of a wanted size, lowered with JAX (`jax/make_hlo.py`).

use std::process::Command;

use crate::{python, workspace};

/// Runs the script with these words; false where it refuses them.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let python = python::interpreter()?;
    let script = workspace::root().join("xtask/jax/make_hlo.py");
    let status = Command::new(&python).arg("-B").arg(script).args(words).status();
    Ok(status.map_err(|e| format!("{}: {e}", python.display()))?.success())
}
