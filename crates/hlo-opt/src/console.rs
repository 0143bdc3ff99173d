//! The program's streams, so that tests run it without a process.

use crate::Failure;
use serde::Serialize;
use std::io::{BufWriter, ErrorKind, Read, Write};

/// Where the program reads and writes.
pub struct Console<'a> {
    /// Read for the file `-`.
    pub stdin: &'a mut dyn Read,
    /// Whether stdin is a terminal, from which no module comes unless it is asked for.
    pub stdin_is_terminal: bool,
    /// HLO and other results, only after all went well.
    pub stdout: &'a mut dyn Write,
    /// Everything else.
    pub stderr: &'a mut dyn Write,
    /// Whether stderr is a terminal that somebody watches.
    pub shows_progress: bool,
    /// Whether messages have colours.
    pub has_color: bool,
    /// Whether stdout is a terminal, which shows text only.
    pub stdout_is_terminal: bool,
}

impl Console<'_> {
    /// Writes a message; that nobody reads it any more is no error.
    pub fn say(&mut self, text: &str) {
        let _ = self.stderr.write_all(text.as_bytes());
        let _ = self.stderr.flush();
    }

    /// Writes what was asked for to stderr.
    ///
    /// # Errors
    /// Stderr cannot be written, except that a closed pipe means that the reader has seen enough.
    pub fn tell(&mut self, text: &str) -> Result<(), Failure> {
        printed("stderr", self.stderr.write_all(text.as_bytes()).and_then(|()| self.stderr.flush()))
    }

    /// Writes a result to stdout.
    ///
    /// # Errors
    /// Stdout cannot be written, except that a closed pipe means that the reader has seen enough.
    pub fn print(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        printed("stdout", self.stdout.write_all(bytes).and_then(|()| self.stdout.flush()))
    }

    /// Writes one JSON document and a line end to stdout, piece by piece: plans of large machines have hundreds of megabytes.
    ///
    /// # Errors
    /// As [`Console::print`].
    pub(crate) fn print_json(&mut self, document: &impl Serialize) -> Result<(), Failure> {
        let mut out = BufWriter::with_capacity(1 << 18, &mut *self.stdout);
        let written = serde_json::to_writer(&mut out, document).map_err(std::io::Error::from);
        printed("stdout", written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()))
    }
}

/// A closed pipe means that the reader has seen enough.
fn printed(stream: &str, outcome: std::io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::File(format!("cannot write to {stream}: {error}"))),
    }
}
