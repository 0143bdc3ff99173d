//! Descriptions of machines, names of dims and pins in files: passes read none, so the text of a file takes the place of its name.

use crate::Failure;
use hlo_pass::pipeline::{OptionValue, PassCall};

/// The option of passes that takes names of dims.
const NAMES: &str = "names";

/// The option of passes that takes a file of strategies.
const FILE: &str = "file";
const PINS: &str = "pins";

/// Puts the text of each file that an option names in place of the name.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn read_into(call: &mut PassCall) -> Result<(), Failure> {
    call.options = read_all(&call.options)?;
    Ok(())
}

/// The options, with the text of each file that one names in place of the name.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn read_all(options: &[(String, OptionValue)]) -> Result<Vec<(String, OptionValue)>, Failure> {
    let mut options = options.to_vec();
    for (name, value) in &mut options {
        let OptionValue::Text(path) = value else { continue };
        if name == NAMES {
            *value = OptionValue::Text(names(path)?);
            continue;
        }
        if !is_file(path) {
            continue;
        }
        if name == FILE || name == PINS {
            *value = OptionValue::Text(read_text(path)?);
        }
    }
    Ok(options)
}

/// A machine's text: that of the file that it names, or as it stands.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn text_of(machine: &str) -> Result<String, Failure> {
    if is_file(machine) { read_text(machine) } else { Ok(machine.to_string()) }
}

/// Names of dims: as they stand, or a file's text.
///
/// # Errors
/// A file that cannot be read.
pub(crate) fn names(arg: &str) -> Result<String, Failure> {
    if arg.trim().is_empty() || arg.contains('=') {
        return Ok(arg.to_string());
    }
    std::fs::read_to_string(arg).map_err(|e| Failure::File(format!("cannot read names of dims from `{arg}`: {e}")))
}

/// Whether a description is a file's name.
pub(crate) fn is_file(arg: &str) -> bool {
    arg.ends_with(".toml") && !arg.contains('=')
}

fn read_text(path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::File(format!("cannot read `{path}`: {e}")))
}
