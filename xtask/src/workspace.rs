//! Where the workspace and its build output lie, and how its tool is built.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace's root folder.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// The folder that cargo builds into.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// `cargo metadata` of the workspace members, as JSON.
pub(crate) fn metadata() -> Result<serde_json::Value, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

/// Builds the command-line tool with the profile of this program, and gives its path.
pub(crate) fn build_tool() -> Result<PathBuf, String> {
    build_tool_as(if cfg!(debug_assertions) { "dev" } else { "unwinding" })
}

/// Builds the command-line tool with a profile, and gives its path. All members are named, so that what was built for this program is taken
/// where the profile is its own.
pub(crate) fn build_tool_as(profile: &str) -> Result<PathBuf, String> {
    if !root().join("crates/hlo-opt/Cargo.toml").exists() {
        return Err("crates/hlo-opt does not exist: there is no tool to check".into());
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--profile", profile, "--quiet", "--workspace", "--bin", "hlo-opt"])
        .current_dir(root())
        .status()
        .map_err(|e| format!("cargo build: {e}"))?;
    if !status.success() {
        return Err("hlo-opt does not build".into());
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    Ok(target_dir().join(folder).join(format!("hlo-opt{}", std::env::consts::EXE_SUFFIX)))
}
