//! Files written whole or not at all.

use crate::{Failure, exit};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The temporary files that are there now. Files are made, renamed and removed under this lock, so that a signal finds them all.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn temporary() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process groups that run for this process now; a signal ends them.
#[cfg(unix)]
static GROUPS: Mutex<Vec<rustix::process::Pid>> = Mutex::new(Vec::new());

/// The process groups that a signal is to end.
#[cfg(unix)]
pub(crate) fn groups() -> MutexGuard<'static, Vec<rustix::process::Pid>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on SIGINT, SIGTERM and SIGHUP remove the temporary files before they end the process as they do by default.
#[cfg(unix)]
pub fn remove_files_on_signals() {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    // Without handlers the default remains: the process ends, and files may be left.
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]) else { return };
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            // Held until the process is gone: nobody makes another file.
            let (files, groups) = (temporary(), groups());
            for group in groups.iter() {
                let _ = rustix::process::kill_process_group(*group, rustix::process::Signal::KILL);
            }
            files.iter().for_each(|file| drop(fs::remove_file(file)));
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    drop(std::thread::Builder::new().name("signals".into()).spawn(wait));
}

/// Elsewhere the default remains.
#[cfg(not(unix))]
pub fn remove_files_on_signals() {}

/// From now on a panic, which is a defect of the program, removes the temporary files and ends the process with [`exit::ERROR`]: whether the program
/// is built to unwind or not.
pub fn remove_files_on_panics() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        eprintln!(
            "error: a defect of hlo-opt stopped it, and what it was writing is as it was before. Please report it with this message, the command and the module"
        );
        // A panic under one of the locks leaves its files where they are.
        if let Ok(files) = TEMPORARY.try_lock() {
            files.iter().for_each(|file| drop(fs::remove_file(file)));
        }
        #[cfg(unix)]
        if let Ok(groups) = GROUPS.try_lock() {
            for group in groups.iter() {
                let _ = rustix::process::kill_process_group(*group, rustix::process::Signal::KILL);
            }
        }
        std::process::exit(exit::ERROR.into());
    }));
}

/// A file that goes when it is dropped, or when a signal ends the process.
pub(crate) struct Passing(PathBuf);

impl Passing {
    /// Takes a path where nothing is yet.
    pub(crate) fn new(path: PathBuf) -> Passing {
        temporary().push(path.clone());
        Passing(path)
    }
}

impl Drop for Passing {
    fn drop(&mut self) {
        let mut known = temporary();
        let _ = fs::remove_file(&self.0);
        known.retain(|file| *file != self.0);
    }
}

/// Whether two paths name one file that is there or may be written.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        std::fs::canonicalize(path).ok().or_else(|| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Some(std::fs::canonicalize(folder).ok()?.join(path.file_name()?))
        })
    };
    // What is no plain file, as /dev/null, takes all that is written.
    let is_plain = |path: &Path| std::fs::metadata(path).map_or(true, |found| found.is_file());
    is_plain(one) && place(one).is_some_and(|place_of_one| place(other) == Some(place_of_one))
}

/// Refuses to write what is no module in the place of a module that is read.
///
/// # Errors
/// The path is that of an input.
pub(crate) fn expect_no_input(flag: &str, path: Option<&PathBuf>, inputs: &[&Path]) -> Result<(), Failure> {
    match path.filter(|path| inputs.iter().any(|input| is_same_file(input, path))) {
        Some(path) => {
            let path = path.display();
            Err(Failure::Usage(format!("{flag}: expected another file than the input's, found `{path}` for both")))
        }
        None => Ok(()),
    }
}

/// Writes `bytes` to `path`; see [`write_whole_with`].
///
/// # Errors
/// The file cannot be written; what was there is there still.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    write_whole_with(path, |sink| sink.write_all(bytes))
}

/// Writes what `fill` writes to `path`: into a temporary file beside it, which then takes its name. What is no regular
/// file (a pipe, `/dev/null`) is written to directly; a link keeps pointing where it points.
///
/// # Errors
/// The file cannot be written; what was there is there still.
pub(crate) fn write_whole_with(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    Staged::write(path, fill)?.commit()
}

/// Whether a file could be written at `path`: asked before long work, not after it.
///
/// # Errors
/// Its folder is not there.
pub(crate) fn check_target(path: &Path) -> Result<(), Failure> {
    expect_name(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.map(fs::metadata) {
        Some(Err(error)) => Err(failure(path, &error)),
        Some(Ok(found)) if !found.is_dir() => Err(failure(path, &io::Error::from(io::ErrorKind::NotADirectory))),
        Some(Ok(_)) | None => Ok(()),
    }
}

/// Refuses `-`, which other tools take for the standard output: nobody wants a file of this name.
fn expect_name(path: &Path) -> Result<(), Failure> {
    match path == Path::new("-") {
        true => {
            Err(Failure::Usage("-o: expected the name of a file, found `-`: what goes to stdout needs no -o".into()))
        }
        false => Ok(()),
    }
}

/// A file that is written, but has its name only once it is committed: several files can so be written all or not at all.
#[derive(Debug)]
pub(crate) struct Staged {
    /// The temporary file and the one whose name it takes; `None` for what was written to directly.
    rename: Option<(PathBuf, PathBuf)>,
}

impl Staged {
    /// Writes what `fill` writes beside `path`. What is no regular file is written to directly.
    ///
    /// # Errors
    /// The file cannot be written; what was there is there still.
    pub(crate) fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<Staged, Failure> {
        expect_name(path)?;
        let failure = |error: io::Error| failure(path, &error);
        match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                let target = fs::canonicalize(path).map_err(failure)?;
                stage(&target, fill, Some(found.permissions())).map_err(failure)
            }
            Ok(found) if found.is_dir() => Err(failure(io::Error::from(io::ErrorKind::IsADirectory))),
            Ok(_) => {
                let file = File::options().write(true).open(path).map_err(failure)?;
                filled(file, fill).map_err(failure)?;
                Ok(Staged { rename: None })
            }
            Err(_) => stage(path, fill, None).map_err(failure),
        }
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The file cannot take its name; what was there is there still.
    pub(crate) fn commit(mut self) -> Result<(), Failure> {
        let Some((temporary, target)) = &self.rename else { return Ok(()) };
        let mut known = crate::output::temporary();
        fs::rename(temporary, target).map_err(|error| failure(target, &error))?;
        known.retain(|file| file != temporary);
        drop(known);
        self.rename = None;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some((temporary, _)) = &self.rename {
            let mut known = crate::output::temporary();
            let _ = fs::remove_file(temporary);
            known.retain(|file| file != temporary);
        }
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    Failure::File(format!("cannot write `{}`: {error}", path.display()))
}

fn filled(file: File, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<File> {
    let mut buffered = BufWriter::with_capacity(1 << 18, file);
    fill(&mut buffered)?;
    buffered.into_inner().map_err(io::IntoInnerError::into_error)
}

fn stage(
    target: &Path,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    permissions: Option<fs::Permissions>,
) -> io::Result<Staged> {
    let (temporary, file) = create_beside(target)?;
    let staged = Staged { rename: Some((temporary, target.to_owned())) };
    let file = filled(file, fill)?;
    permissions.map_or(Ok(()), |p| file.set_permissions(p))?;
    file.sync_data()?;
    Ok(staged)
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
        let mut known = temporary();
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => {
                known.push(path.clone());
                return Ok((path, file));
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Names the file in the process that panics.
    const FILE: &str = "HLO_OPT_TEST_FILE";

    /// Panics in a thread when half of the file is written.
    fn panic_with_a_file_half_written(path: PathBuf) {
        remove_files_on_panics();
        let write = move || write_whole_with(&path, |sink| sink.write_all(b"half").map(|()| panic!("planted")));
        drop(std::thread::spawn(write).join());
    }

    #[test]
    fn a_panic_leaves_no_file_and_an_error() {
        if let Some(file) = std::env::var_os(FILE) {
            return panic_with_a_file_half_written(file.into());
        }
        let folder = std::env::temp_dir().join(format!("hlo-opt-panic-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("out.hlo");
        fs::write(&file, "before").expect("a file");
        let output = Command::new(std::env::current_exe().expect("this test's program"))
            .args(["--exact", "output::tests::a_panic_leaves_no_file_and_an_error", "--nocapture"])
            .env(FILE, &file)
            .output()
            .expect("a run");
        let left: Vec<_> =
            fs::read_dir(&folder).expect("the folder").map(|entry| entry.expect("a file").path()).collect();
        assert_eq!((left, fs::read_to_string(&file).expect("the file")), (vec![file.clone()], "before".to_owned()));
        fs::remove_dir_all(&folder).expect("removed");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(exit::ERROR.into()), "{stderr}");
        assert!(stderr.contains("planted") && stderr.contains("Please report it"), "{stderr}");
    }
}
