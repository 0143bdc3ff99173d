//! `--secret-file`: the secret that the ranks of a run know.

use crate::Failure;
use crate::console::Console;
use hlo_run::Secret;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Reads the secret; says so if others of the machine can read it too.
///
/// # Errors
/// The file cannot be read, or is too short or too long for a secret.
pub(crate) fn read(path: &Path, console: &mut Console<'_>) -> Result<Secret, Failure> {
    let name = path.display().to_string();
    let unreadable = |error: std::io::Error| Failure::File(format!("cannot read `{name}`: {error}"));
    let file = File::open(path).map_err(unreadable)?;
    if is_readable_by_others(&file) {
        console.say(&format!("warning: `{name}` can be read by others on this machine: chmod 600 keeps it secret\n"));
    }
    // Room for the white space around it.
    let (mut bytes, most) = (Vec::new(), 2 * Secret::MAX_BYTES as u64);
    file.take(most).read_to_end(&mut bytes).map_err(unreadable)?;
    Secret::new(&bytes, &format!("`{name}`")).map_err(|error| Failure::File(error.to_string()))
}

#[cfg(unix)]
fn is_readable_by_others(file: &File) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o044 != 0)
}

/// Elsewhere permissions are not looked at.
#[cfg(not(unix))]
fn is_readable_by_others(_: &File) -> bool {
    false
}
