//! The Python environment of the oracle: made once under the build folder, and again when its requirements change.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::workspace;

/// The folder of the oracle's Python files.
pub fn oracle_dir() -> PathBuf {
    workspace::root().join("xtask/oracle")
}

/// The Python of an environment that has the requirements, which is made if need be.
pub fn interpreter() -> Result<PathBuf, String> {
    let venv = workspace::target_dir().join("xla-venv");
    let python = venv.join("bin/python");
    let requirements = oracle_dir().join("requirements.txt");
    let wanted = fs::read_to_string(&requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let stamp = venv.join("requirements.installed");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) && python.exists() {
        return Ok(python);
    }
    eprintln!("making the oracle's Python environment in {}", venv.display());
    let make = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).stdout(Stdio::null()).status();
    if !make.map_err(|e| format!("python3: {e}"))?.success() {
        return Err("python3 -m venv failed (on Debian and Ubuntu: apt-get install python3-venv)".into());
    }
    let install = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(&requirements)
        .status();
    if !install.map_err(|e| format!("pip: {e}"))?.success() {
        return Err(format!("pip could not install {}", requirements.display()));
    }
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}
