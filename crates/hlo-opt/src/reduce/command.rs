//! The command that says whether a module is still of interest.

use crate::Failure;
use crate::output::Passing;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What a call of the command came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// It succeeded.
    Yes,
    /// It failed with this code, or by a signal.
    No(Option<i32>),
    /// It took too long.
    TimedOut,
}

/// A shell command over one file.
pub(super) struct Question {
    command: String,
    timeout: Duration,
    file: PathBuf,
    _passing: Passing,
}

impl Question {
    /// Makes the file, which nobody else can read.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(condition: &str, timeout: Duration) -> Result<Question, Failure> {
        let failed =
            |error| Failure::File(format!("cannot make a file in `{}`: {error}", std::env::temp_dir().display()));
        let (file, passing) = private_file().map_err(failed)?;
        let shown = quoted(&file);
        let command = match condition.contains("{}") {
            true => condition.replace("{}", &shown),
            false => format!("{condition} {shown}"),
        };
        Ok(Question { command, timeout, file, _passing: passing })
    }

    /// Asks about a module.
    ///
    /// # Errors
    /// The file cannot be written, or there is no shell.
    pub(super) fn ask(&self, text: &str) -> Result<Answer, Failure> {
        let failed = |what: &str, error: io::Error| Failure::File(format!("cannot {what}: {error}"));
        fs::write(&self.file, text).map_err(|error| failed(&format!("write `{}`", self.file.display()), error))?;
        let mut child = Running::start(&self.command).map_err(|error| failed("run sh", error))?;
        let deadline = Instant::now() + self.timeout;
        let mut pause = Duration::from_micros(500);
        loop {
            match child.child.try_wait().map_err(|error| failed("wait for sh", error))? {
                Some(status) if status.success() => return Ok(Answer::Yes),
                Some(status) => return Ok(Answer::No(ExitStatus::code(&status))),
                None if Instant::now() >= deadline => return Ok(Answer::TimedOut),
                None => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

/// A new file in the place for temporary files.
fn private_file() -> io::Result<(PathBuf, Passing)> {
    static N_MADE: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = N_MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("hlo-opt-reduce-{}-{number}.hlo", std::process::id()));
        let mut options = fs::File::options();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&path) {
            Ok(_) => return Ok((path.clone(), Passing::new(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1000 => {}
            Err(error) => return Err(error),
        }
    }
}

/// A path as one word of the shell; without quotes where it needs none, so that `"{}"` is that word too.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    match text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A running shell and what it started; all are ended when it is dropped.
struct Running {
    child: Child,
    #[cfg(unix)]
    group: Option<rustix::process::Pid>,
}

impl Running {
    fn start(command: &str) -> io::Result<Running> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(OsString::from(command));
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        #[cfg(unix)]
        {
            std::os::unix::process::CommandExt::process_group(&mut shell, 0);
            // Held while the shell starts: a signal ends it, or comes before it is there.
            let mut groups = crate::output::groups();
            let child = shell.spawn()?;
            let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
            groups.extend(group);
            Ok(Running { child, group })
        }
        #[cfg(not(unix))]
        Ok(Running { child: shell.spawn()? })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = self.group {
            let mut groups = crate::output::groups();
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            groups.retain(|other| *other != group);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_takes_a_path_as_one_word() {
        assert_eq!(quoted(Path::new("/a b/it's.hlo")), "'/a b/it'\\''s.hlo'");
        assert_eq!(quoted(Path::new("/tmp/hlo-opt-reduce-1-0.hlo")), "/tmp/hlo-opt-reduce-1-0.hlo");
        let question = Question::new("grep -q yes", Duration::from_secs(20)).unwrap();
        assert_eq!(question.ask("yes"), Ok(Answer::Yes));
        assert_eq!(question.ask("no"), Ok(Answer::No(Some(1))));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_all_that_it_started() {
        let question = Question::new("sleep 1000 & cat {} > /dev/null; wait", Duration::from_millis(200)).unwrap();
        let started = Instant::now();
        assert_eq!(question.ask("x"), Ok(Answer::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(20));
        let file = question.file.clone();
        drop(question);
        assert!(!file.exists());
    }
}
