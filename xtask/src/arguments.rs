//! Command-line words of a command: flags, options with a value, and files.

/// A walk over the words after the command.
pub(crate) struct Arguments<I: Iterator<Item = String>> {
    words: I,
}

/// One word: a flag with its name, or anything else.
pub(crate) enum Word {
    /// `--name`; its value, if it takes one, is asked for with [`Arguments::value`].
    Flag(String),
    /// A positional word.
    Plain(String),
}

impl<I: Iterator<Item = String>> Arguments<I> {
    /// Starts at the first word after the command.
    pub(crate) fn new(words: I) -> Self {
        Self { words }
    }

    /// The next word, or none at the end.
    pub(crate) fn next_word(&mut self) -> Option<Word> {
        let word = self.words.next()?;
        Some(if word.starts_with("--") { Word::Flag(word) } else { Word::Plain(word) })
    }

    /// The value of the option just met.
    pub(crate) fn value(&mut self, flag: &str) -> Result<String, String> {
        self.words.next().ok_or_else(|| format!("{flag}: expected a value, found the end of the command"))
    }

    /// The value of the option just met, as a positive number.
    pub(crate) fn number(&mut self, flag: &str) -> Result<usize, String> {
        let value = self.value(flag)?;
        match value.parse() {
            Ok(n) if n > 0 => Ok(n),
            _ => Err(format!("{flag}: expected a positive number, found '{value}'")),
        }
    }
}

/// The message for a flag that a command does not know.
pub(crate) fn unknown(command: &str, word: &str) -> String {
    format!("{command}: unknown word '{word}' (see cargo xtask --help)")
}
