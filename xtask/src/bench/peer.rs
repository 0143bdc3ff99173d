//! The Python process that times XLA's parser and printer.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::python;

/// A running process that answers one question at a time.
pub(super) struct Peer {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts it; XLA is loaded by the time it answers first.
    pub(super) fn start(python: &Path) -> Result<Self, String> {
        let mut child = Command::new(python)
            .arg("-B")
            .arg(python::oracle_dir().join("bench_peer.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", python.display()))?;
        let (Some(questions), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("XLA's process has no pipes".into());
        };
        Ok(Self { child, questions, answers: BufReader::new(answers) })
    }

    /// CPU seconds of `parse` or `print` of a file.
    pub(super) fn ask(&mut self, what: &str, file: &Path) -> Result<f64, String> {
        writeln!(self.questions, "{what} {}", file.display()).map_err(|e| format!("XLA's process: {e}"))?;
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|e| format!("XLA's process: {e}"))?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| "XLA's process died".to_string())?;
        answer.get("seconds").and_then(Value::as_f64).ok_or_else(|| {
            let error = answer.get("error").and_then(Value::as_str).unwrap_or("no answer");
            format!("{}: XLA cannot {what} it: {error}", file.display())
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
