//! What other programs load is built by a profile that unwinds: the Python package and the PJRT plugin make errors of panics, so that the process
//! that loads them lives on. The program itself may abort.

use super::Finding;
use super::source::Tree;

/// The profile that aborts: that of `cargo install`.
const PROGRAM: &str = "[profile.release]";
/// The profile of what others load, and where the Python package says that it is built by it.
const LIBRARIES: &str = "[profile.unwinding]";
const PACKAGE: (&str, &str) = ("crates/hlo-jax/pyproject.toml", "profile=\"unwinding\"");

/// Findings about profiles that abort.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let (mut findings, mut has_abort, mut has_unwind) = (Vec::new(), false, false);
    for file in manifests {
        for (number, section, line) in settings(&file.text) {
            has_unwind |= section == LIBRARIES && line.starts_with("panic=\"unwind\"");
            if aborts(&line) && section == PROGRAM {
                has_abort = true;
            } else if aborts(&line) {
                let message = "expected a profile that unwinds, found `panic = \"abort\"`";
                findings.push(Finding::new("profile-unwinds", file.at(number + 1), message));
            }
        }
    }
    let package = std::fs::read_to_string(crate::workspace::root().join(PACKAGE.0)).unwrap_or_default();
    let is_said =
        settings(&package).any(|(_, section, line)| section == "[tool.maturin]" && line.starts_with(PACKAGE.1));
    if has_abort && !(has_unwind && is_said) {
        let message = format!(
            "expected {LIBRARIES} with `panic = \"unwind\"` in Cargo.toml, and its name here, since {PROGRAM} aborts"
        );
        findings.push(Finding::new("profile-unwinds", PACKAGE.0, message));
    }
    findings
}

/// The settings of a file: line, section, and text without blanks.
fn settings(text: &str) -> impl Iterator<Item = (usize, String, String)> {
    let mut section = String::new();
    let lines = text
        .lines()
        .enumerate()
        .map(|(number, line)| (number, line.chars().filter(|c| !c.is_whitespace()).collect::<String>()));
    lines.map(move |(number, line)| {
        if line.starts_with('[') {
            section.clone_from(&line);
        }
        (number, section.clone(), line)
    })
}

fn aborts(line: &str) -> bool {
    line.starts_with("panic=\"abort\"") || line.starts_with("panic='abort'")
}

#[cfg(test)]
mod tests {
    use super::{aborts, settings};

    #[test]
    fn the_setting_is_found_with_its_section_and_others_are_not() {
        let text = "[profile.release]\npanic = \"abort\" # smaller\n[profile.dev]\n  panic='abort'\npanic = \"unwind\"\n# panic = \"abort\" is not for us";
        let found: Vec<(usize, String)> =
            settings(text).filter(|(_, _, line)| aborts(line)).map(|(number, section, _)| (number, section)).collect();
        assert_eq!(found, [(1, "[profile.release]".to_string()), (3, "[profile.dev]".to_string())]);
    }
}
