//! Descriptions of clusters in files: passes read none, so the text of a file takes the place of its name.

use crate::Failure;
use hlo_cluster::Cluster;
use hlo_pass::pipeline::{OptionValue, PassCall};

/// Options of passes that take a cluster.
const CLUSTER: &str = "cluster";

/// Puts the text of each file that an option names in place of the name.
///
/// # Errors
/// A file that cannot be read, or a wrong description in it.
pub(crate) fn read_into(call: &mut PassCall) -> Result<(), Failure> {
    for (name, value) in &mut call.options {
        if name == CLUSTER
            && let OptionValue::Text(path) = value
            && is_file(path)
        {
            *value = OptionValue::Text(read(path)?.1);
        }
    }
    Ok(())
}

/// Whether a description is a file's name, and not a hierarchy or a shipped name.
pub(crate) fn is_file(arg: &str) -> bool {
    arg.ends_with(".toml") && !arg.contains('=')
}

/// The cluster that a file describes, and the file's text.
///
/// # Errors
/// A file that cannot be read, or a wrong description.
pub(crate) fn read(path: &str) -> Result<(Cluster, String), Failure> {
    let text = std::fs::read_to_string(path).map_err(|e| Failure::File(format!("cannot read `{path}`: {e}")))?;
    let cluster = Cluster::from_toml(&text).map_err(|e| Failure::File(format!("`{path}`: {e}")))?;
    Ok((cluster, text))
}
