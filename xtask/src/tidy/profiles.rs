//! Profiles unwind: the Python package and the PJRT plugin make errors of panics, so that the process that loads them lives on.

use super::Finding;
use super::source::Tree;

/// Findings about profiles that abort.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let mut findings = Vec::new();
    for file in manifests {
        for (number, _) in file.text.lines().enumerate().filter(|(_, line)| aborts(line)) {
            let message = "expected a profile that unwinds, found `panic = \"abort\"`";
            findings.push(Finding::new("profile-unwinds", file.at(number + 1), message));
        }
    }
    findings
}

fn aborts(line: &str) -> bool {
    let words: String = line.chars().filter(|c| !c.is_whitespace()).collect();
    words.starts_with("panic=\"abort\"") || words.starts_with("panic='abort'")
}

#[cfg(test)]
mod tests {
    use super::aborts;

    #[test]
    fn the_setting_is_found_and_others_are_not() {
        assert!(aborts("panic = \"abort\" # smaller"));
        assert!(aborts("  panic='abort'"));
        assert!(!aborts("panic = \"unwind\""));
        assert!(!aborts("# panic = \"abort\" is not for us"));
    }
}
