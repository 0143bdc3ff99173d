//! The program's streams, so that tests run it without a process.

use crate::Failure;
use std::io::{ErrorKind, Read, Write};

/// Where the program reads and writes.
pub struct Console<'a> {
    /// Read for the file `-`.
    pub stdin: &'a mut dyn Read,
    /// HLO and other results, only after all went well.
    pub stdout: &'a mut dyn Write,
    /// Everything else.
    pub stderr: &'a mut dyn Write,
    /// Whether stderr is a terminal that somebody watches.
    pub shows_progress: bool,
    /// Whether messages have colours.
    pub has_color: bool,
}

impl Console<'_> {
    /// Writes a message; that nobody reads it any more is no error.
    pub fn say(&mut self, text: &str) {
        let _ = self.stderr.write_all(text.as_bytes());
        let _ = self.stderr.flush();
    }

    /// Writes a result to stdout.
    ///
    /// # Errors
    /// Stdout cannot be written, except that a closed pipe means that the reader has seen enough.
    pub fn print(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self.stdout.write_all(bytes).and_then(|()| self.stdout.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            Err(error) => Err(Failure::File(format!("cannot write to stdout: {error}"))),
        }
    }
}
