//! Python environments (the oracle's, NVRTC's): made once under the build folder, and again when their requirements change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace;

/// The folder of the oracle's Python files.
pub(crate) fn oracle_dir() -> PathBuf {
    workspace::root().join("xtask/oracle")
}

/// The Python of the oracle's environment, which is made if need be.
pub(crate) fn interpreter() -> Result<PathBuf, String> {
    environment("xla-venv", &oracle_dir().join("requirements.txt"))
}

/// The Python of an environment that has the requirements, which is made if need be.
pub(crate) fn environment(name: &str, requirements: &Path) -> Result<PathBuf, String> {
    let venv = workspace::target_dir().join(name);
    let python = venv.join("bin/python");
    let wanted = fs::read_to_string(requirements).map_err(|e| format!("{}: {e}", requirements.display()))?;
    let stamp = venv.join("requirements.installed");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == wanted) && python.exists() {
        return Ok(python);
    }
    eprintln!("making a Python environment in {}", venv.display());
    let make = Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).stdout(Stdio::null()).status();
    if !make.map_err(|e| format!("python3: {e}"))?.success() {
        return Err("python3 -m venv failed (on Debian and Ubuntu: apt-get install python3-venv)".into());
    }
    let install = Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(requirements)
        .status();
    if !install.map_err(|e| format!("pip: {e}"))?.success() {
        return Err(format!("pip could not install {}", requirements.display()));
    }
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}
