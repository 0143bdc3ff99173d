//! Files written whole or not at all.

use crate::Failure;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to `path`; see [`write_whole_with`].
///
/// # Errors
/// The file cannot be written; what was there is there still.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_whole_with(path, |sink| sink.write_all(bytes))
}

/// Writes what `fill` writes to `path`: into a temporary file beside it, which then takes its name. What is no regular
/// file (a pipe, `/dev/null`) is written to directly; a link keeps pointing where it points.
///
/// # Errors
/// The file cannot be written; what was there is there still.
pub fn write_whole_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let failure = |error: io::Error| Failure::File(format!("cannot write `{}`: {error}", path.display()));
    match fs::metadata(path) {
        Ok(found) if found.is_file() => {
            let target = fs::canonicalize(path).map_err(failure)?;
            replace(&target, fill, Some(found.permissions())).map_err(failure)
        }
        Ok(found) if found.is_dir() => Err(failure(io::Error::from(io::ErrorKind::IsADirectory))),
        Ok(_) => File::options().write(true).open(path).and_then(|file| filled(file, fill).map(drop)).map_err(failure),
        Err(_) => replace(path, fill, None).map_err(failure),
    }
}

fn filled(file: File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut buffered = BufWriter::with_capacity(1 << 18, file);
    fill(&mut buffered)?;
    buffered.into_inner().map_err(io::IntoInnerError::into_error)
}

fn replace(
    target: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    permissions: Option<fs::Permissions>,
) -> io::Result<()> {
    let (temporary, file) = create_beside(target)?;
    let written = filled(file, fill).and_then(|file| {
        permissions.map_or(Ok(()), |p| file.set_permissions(p))?;
        file.sync_data()?;
        fs::rename(&temporary, target)
    });
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
