//! Files written whole or not at all.

use crate::Failure;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path`: into a temporary file beside it, which then takes its name. What is no regular file
/// (a pipe, `/dev/null`) is written to directly; a link keeps pointing where it points.
///
/// # Errors
/// The file cannot be written; what was there is there still.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let failure = |error: io::Error| Failure::File(format!("cannot write `{}`: {error}", path.display()));
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let target = fs::canonicalize(path).map_err(failure)?;
            replace(&target, bytes, Some(found.permissions())).map_err(failure)
        }
        Ok(found) if found.is_dir() => Err(failure(io::Error::from(io::ErrorKind::IsADirectory))),
        Ok(_) => File::options().write(true).open(path).and_then(|mut file| file.write_all(bytes)).map_err(failure),
        Err(_) => replace(path, bytes, None).map_err(failure),
    }
}

fn replace(target: &Path, bytes: &[u8], permissions: Option<fs::Permissions>) -> io::Result<()> {
    let (temporary, mut file) = create_beside(target)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| permissions.map_or(Ok(()), |p| file.set_permissions(p)))
        .and_then(|()| file.sync_data())
        .and_then(|()| fs::rename(&temporary, target));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

/// A new file in the folder of `target`, under a name that nobody has.
fn create_beside(target: &Path) -> io::Result<(PathBuf, File)> {
    let name = target.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut attempt = 0u32;
    loop {
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.{attempt}.tmp", std::process::id()));
        let path = target.with_file_name(hidden);
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}
