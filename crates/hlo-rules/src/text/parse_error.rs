//! Where and why a text is no rule.

use std::fmt;

/// What does not fit in a text, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    /// Line, from one.
    pub line: usize,
    /// Column, from one.
    pub column: usize,
    /// What should stand there.
    pub expected: String,
    /// What stands there.
    pub found: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: expected {}, found {}", self.line, self.column, self.expected, self.found)
    }
}

impl std::error::Error for ParseError {}
