//! Errors of the TOML reader, with place, expected and found.

use crate::error::ClusterError;

/// A TOML error with its line and column.
pub(crate) fn toml_error(what: &str, text: &str, error: &toml::de::Error) -> ClusterError {
    let at = error.span().map_or(0, |span| span.start.min(text.len()));
    let before = text.get(..at).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    let found = text.get(at..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    let found = if found.is_empty() { "the end of a line".to_string() } else { format!("`{found}`") };
    let (expected, found) = said_by_parser(error.message().trim(), found);
    ClusterError::new(format!("{what}, line {line}, column {column}"), expected, found)
}

/// Splits the parser's one sentence into the expected and the found.
fn said_by_parser(message: &str, at: String) -> (String, String) {
    if let Some(field) = message.strip_prefix("missing field ") {
        return (format!("a field {field}"), "none".into());
    }
    if message == "duplicate key" {
        return ("every key once".into(), format!("a second time {at}"));
    }
    let wrong = ["unknown field ", "unknown variant ", "invalid type: ", "invalid value: "];
    let sentence =
        wrong.iter().find_map(|prefix| message.strip_prefix(prefix)).and_then(|rest| rest.split_once(", expected "));
    match sentence {
        Some((found, expected)) => (expected.to_string(), found.to_string()),
        None => (message.replace('\n', ", "), at),
    }
}
