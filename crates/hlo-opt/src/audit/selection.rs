//! Which checks a list on the command line names: by their names, by their level, or all.

use crate::Failure;
use hlo_audit::{CHECKS, CheckInfo, Level};
use hlo_pass::pipeline::nearest;
use std::fmt::Write;

/// The names of a list.
pub(super) struct Selection(Vec<String>);

const ALL: &str = "all";

impl Selection {
    /// The names that `option` gives.
    ///
    /// # Errors
    /// A name that no check and no level has.
    pub(super) fn parse(option: &str, names: &[String]) -> Result<Selection, Failure> {
        let levels = [Level::Fault, Level::Advice].map(Level::name);
        let known: Vec<&str> = CHECKS.iter().map(|check| check.id).chain(levels).chain([ALL]).collect();
        let names: Vec<String> =
            names.iter().map(|name| name.trim().to_string()).filter(|name| !name.is_empty()).collect();
        for name in &names {
            if !known.contains(&name.as_str()) {
                let hint = nearest(name, known.iter().copied()).map(|known| format!(" (did you mean `{known}`?)"));
                return Err(Failure::Usage(format!(
                    "{option}: expected a check of --list-checks, fault, advice or all, found `{name}`{}",
                    hint.unwrap_or_default()
                )));
            }
        }
        Ok(Selection(names))
    }

    /// Whether a check is among them.
    pub(super) fn has(&self, check: &CheckInfo) -> bool {
        let is_it = |name: &String| name == check.id || name == check.level.name() || name == ALL;
        self.0.iter().any(is_it)
    }
}

/// A line for each check.
pub(super) fn list() -> String {
    let width = CHECKS.iter().map(|check| check.id.len()).max().unwrap_or(0);
    let mut out = String::new();
    for check in CHECKS {
        let _ = writeln!(out, "{:width$}  {:6}  {}", check.id, check.level.name(), check.help);
    }
    out
}
