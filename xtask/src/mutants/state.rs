//! What became of each mutant, kept between calls: a line for each, in the order in which they ended.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// How a mutant ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Ending {
    /// A test failed.
    Caught,
    /// A test ran many times as long as without it.
    TimedOut,
    /// Every test that meets it passes.
    Survived,
    /// No test meets it.
    NotMet,
    /// It does not compile.
    NoBuild,
    /// It is in code that cannot ask a switch.
    NoSwitch,
}

const WORDS: [(Ending, &str); 6] = [
    (Ending::Caught, "caught"),
    (Ending::TimedOut, "timed-out"),
    (Ending::Survived, "survived"),
    (Ending::NotMet, "not-met"),
    (Ending::NoBuild, "no-build"),
    (Ending::NoSwitch, "no-switch"),
];

impl Ending {
    /// Whether such a mutant counts.
    pub(super) fn is_run(self) -> bool {
        !matches!(self, Ending::NoBuild | Ending::NoSwitch)
    }

    /// Whether the tests tell the mutant from the program.
    pub(super) fn is_caught(self) -> bool {
        matches!(self, Ending::Caught | Ending::TimedOut)
    }
}

/// The endings by key, and the file that they are kept in.
pub(super) struct State {
    pub(super) endings: BTreeMap<String, (Ending, String)>,
    file: File,
}

impl State {
    /// Reads what earlier calls found, without the mutants that `is_open` says no test has caught yet.
    pub(super) fn open(path: &Path, is_open: impl Fn(&str) -> bool) -> Result<State, String> {
        let mut endings = BTreeMap::new();
        for line in fs::read_to_string(path).unwrap_or_default().lines() {
            let [key, word, note] = line.split('\t').collect::<Vec<_>>()[..] else { continue };
            if let Some((ending, _)) = WORDS.iter().find(|(_, name)| *name == word) {
                endings.insert(key.to_string(), (*ending, note.to_string()));
            }
        }
        endings.retain(|key, (ending, _)| !ending.is_run() || ending.is_caught() || !is_open(key));
        let file =
            File::options().append(true).create(true).open(path).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(State { endings, file })
    }

    /// Keeps an ending; `note` is the test that caught it, or how many met it.
    pub(super) fn note(&mut self, key: &str, ending: Ending, note: &str) -> Result<(), String> {
        let word = WORDS.iter().find(|(other, _)| *other == ending).map_or("", |(_, word)| word);
        writeln!(self.file, "{key}\t{word}\t{note}").map_err(|e| e.to_string())?;
        self.endings.insert(key.to_string(), (ending, note.to_string()));
        Ok(())
    }
}
