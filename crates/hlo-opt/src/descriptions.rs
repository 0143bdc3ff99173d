//! Descriptions of clusters and devices, and names of dims, in files: passes read none, so the text of a file takes the place of its name.

use crate::Failure;
use hlo_cluster::{Cluster, ClusterError, DeviceProfile};
use hlo_pass::pipeline::{OptionValue, PassCall};

/// Options of passes that take a cluster, a device, and names of dims.
const CLUSTER: &str = "cluster";
const NAMES: &str = "names";
const DEVICE: &str = "device";

/// The option of passes that takes a file of strategies.
const FILE: &str = "file";
const PINS: &str = "pins";

/// Puts the text of each file that an option names in place of the name.
///
/// # Errors
/// A file that cannot be read, or a wrong description in it.
pub(crate) fn read_into(call: &mut PassCall) -> Result<(), Failure> {
    call.options = read_all(&call.options)?;
    Ok(())
}

/// The options, with the text of each file that one names in place of the name.
///
/// # Errors
/// A file that cannot be read, or a wrong description in it.
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
        if name == CLUSTER {
            *value = OptionValue::Text(read(path, Cluster::from_toml)?.1);
        } else if name == DEVICE {
            *value = OptionValue::Text(read(path, DeviceProfile::from_toml)?.1);
        } else if name == FILE || name == PINS {
            *value = OptionValue::Text(read_text(path)?);
        }
    }
    Ok(options)
}

/// The cluster of the option `--cluster`: a file, a hierarchy or a shipped name.
///
/// # Errors
/// A file that cannot be read, or a wrong description.
pub(crate) fn cluster(arg: &str) -> Result<Cluster, Failure> {
    match is_file(arg) {
        true => read(arg, Cluster::from_toml).map(|(cluster, _)| cluster),
        false => Cluster::from_arg(arg).map_err(|e| Failure::Usage(format!("--cluster: {e}"))),
    }
}

/// The profile of the option `--device`: a file or a shipped name.
///
/// # Errors
/// A file that cannot be read, or a wrong description.
pub(crate) fn device(arg: &str) -> Result<DeviceProfile, Failure> {
    match is_file(arg) {
        true => read(arg, DeviceProfile::from_toml).map(|(device, _)| device),
        false => DeviceProfile::from_arg(arg).map_err(|e| Failure::Usage(format!("--device: {e}"))),
    }
}

/// The device of the option `--device` as an option of a pass takes it: a name, or a file's text.
///
/// # Errors
/// As [`device`].
pub(crate) fn device_text(arg: &str) -> Result<String, Failure> {
    match is_file(arg) {
        true => read(arg, DeviceProfile::from_toml).map(|(_, text)| text),
        false => device(arg).map(|_| arg.to_string()),
    }
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

/// Whether a description is a file's name, and not a hierarchy or a shipped name.
fn is_file(arg: &str) -> bool {
    arg.ends_with(".toml") && !arg.contains('=')
}

/// What a file describes, and the file's text.
fn read<T>(path: &str, parse: impl Fn(&str) -> Result<T, ClusterError>) -> Result<(T, String), Failure> {
    let text = read_text(path)?;
    let described = parse(&text).map_err(|e| Failure::File(format!("`{path}`: {e}")))?;
    Ok((described, text))
}

fn read_text(path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|e| Failure::File(format!("cannot read `{path}`: {e}")))
}
