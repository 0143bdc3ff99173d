//! What is wrong with a description of a cluster or of a device: the place, what was expected, what was found.

use std::fmt;

/// A description that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterError {
    /// Where: a line and column, or a level and its field.
    pub place: String,
    /// What would have been right.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl ClusterError {
    /// An error at a place.
    pub fn new(place: impl Into<String>, expected: impl Into<String>, found: impl Into<String>) -> ClusterError {
        ClusterError { place: place.into(), expected: expected.into(), found: found.into() }
    }

    /// `name` is none of `known`.
    pub(crate) fn unknown<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> ClusterError {
        let near = known
            .clone()
            // A part of a name, such as `h100` of `dgx-h100`, is nearer than a name of as many other letters.
            .map(|k| (if k.split('-').any(|part| part == name) { 1.0 } else { strsim::jaro_winkler(name, k) }, k))
            .filter(|(score, _)| *score > 0.75)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(String::new(), |(_, k)| format!(" (did you mean `{k}`?)"));
        ClusterError::new(what, known.collect::<Vec<_>>().join(", "), format!("`{name}`{near}"))
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, found {}", self.place, self.expected, self.found)
    }
}

impl std::error::Error for ClusterError {}
