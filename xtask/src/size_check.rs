//! `cargo xtask size-check`: how large the stripped program is that users install, against a limit.

use std::fs;

use crate::workspace;

/// What the program may have at most.
const MOST_BYTES: u64 = 15_000_000;

/// Builds the program if need be, and looks at it: false if it is too large.
pub(crate) fn run() -> Result<bool, String> {
    let tool = workspace::build_tool_as("release")?;
    let found = fs::metadata(&tool).map_err(|e| format!("{}: {e}", tool.display()))?.len();
    println!("{found} bytes of at most {MOST_BYTES}");
    Ok(found <= MOST_BYTES)
}
