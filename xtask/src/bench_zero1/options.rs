//! The options of `bench-zero1`.

use std::path::PathBuf;

use crate::arguments::{self, Arguments, Word};

/// What to compare.
pub(super) struct Options {
    /// Width of the model.
    pub width: usize,
    /// Its layers.
    pub layers: usize,
    /// Steps of a loop.
    pub steps: usize,
    /// Timed pairs.
    pub reps: usize,
    /// Only variants whose name contains this.
    pub only: Option<String>,
    /// A built tool.
    pub tool: Option<PathBuf>,
}

impl Options {
    /// Reads the words after `bench-zero1`.
    pub(super) fn parse(words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { width: 1024, layers: 4, steps: 10, reps: 15, only: None, tool: None };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            let flag = match word {
                Word::Flag(flag) => flag,
                Word::Plain(word) => return Err(arguments::unknown("bench-zero1", &word)),
            };
            match flag.as_str() {
                "--width" => options.width = arguments.number(&flag)?,
                "--layers" => options.layers = arguments.number(&flag)?,
                "--steps" => options.steps = arguments.number(&flag)?,
                "--reps" => options.reps = arguments.number(&flag)?,
                "--only" => options.only = Some(arguments.value(&flag)?),
                "--hlo-opt" => options.tool = Some(arguments.value(&flag)?.into()),
                _ => return Err(arguments::unknown("bench-zero1", &flag)),
            }
        }
        Ok(options)
    }
}
