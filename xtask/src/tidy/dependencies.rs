//! Each dependency has its reason beside it in the root manifest and its row in the table of `crates/README.md`.

use super::Finding;
use super::source::Tree;

/// The crates that the table speaks of in any case: used, or why not.
const NAMED: [&str; 8] = ["cranelift-entity", "id-arena", "smallvec", "indexmap", "pest", "cudarc", "nccl-rs", "insta"];

/// Findings about `[workspace.dependencies]`, the members' manifests and the README.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    const MANIFEST: &str = "Cargo.toml";
    let mut findings = Vec::new();
    let mut external = Vec::new();
    for (number, name, rest) in entries(tree.text(MANIFEST).unwrap_or_default(), "[workspace.dependencies]") {
        if rest.contains("path =") {
            continue;
        }
        external.push(name);
        if rest.split_once(" # ").is_none_or(|(_, reason)| reason.trim().len() < 10) {
            let message = format!("expected a reason in a comment beside `{name}`");
            findings.push(Finding::new("dependency-reason", format!("{MANIFEST}:{number}"), message));
        }
    }
    findings.extend(check_members(tree));
    findings.extend(check_readme(tree, &external));
    findings
}

/// Members take their versions from the workspace; a package that is a workspace of its own says its reasons itself.
fn check_members(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|f| f.path.ends_with("/Cargo.toml")) {
        if file.text.lines().any(|line| line.trim() == "[workspace]") {
            for (number, name, rest) in entries(&file.text, "[dependencies]") {
                if rest.split_once(" # ").is_none_or(|(_, reason)| reason.trim().len() < 10) {
                    let message = format!("expected a reason in a comment beside `{name}`");
                    findings.push(Finding::new("dependency-reason", file.at(number), message));
                }
            }
            continue;
        }
        for section in ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"] {
            for (number, name, rest) in entries(&file.text, section) {
                if !rest.contains("workspace = true") {
                    let message = format!("expected `{name}` to come from the workspace's dependencies");
                    findings.push(Finding::new("dependency-reason", file.at(number), message));
                }
            }
        }
    }
    findings
}

/// A row `| name | …` for each name. Silent only while there is neither a README nor a tool.
fn check_readme(tree: &Tree, external: &[&str]) -> Vec<Finding> {
    const README: &str = "crates/README.md";
    let Some(text) = tree.text(README) else {
        let missing = tree
            .exists("crates/hlo-opt")
            .then(|| Finding::new("dependency-table", README, "expected a README, found none"));
        return missing.into_iter().collect();
    };
    let rows: Vec<&str> = text.lines().filter(|l| l.starts_with('|')).filter_map(|l| l.split('|').nth(1)).collect();
    let has_row = |name: &str| rows.iter().any(|cell| cell.split([',', ' ']).any(|w| w.trim_matches('`') == name));
    let absent = NAMED.iter().chain(external).filter(|name| !has_row(name));
    absent
        .map(|name| {
            Finding::new("dependency-table", README, format!("expected a row for `{name}` in the dependency table"))
        })
        .collect()
}

/// (line, name, rest of the line) of the entries of a section.
fn entries<'t>(manifest: &'t str, section: &str) -> Vec<(usize, &'t str, &'t str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim() == section;
        } else if inside && let Some((key, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) {
            let name = key.trim().trim_end_matches(".workspace");
            let rest = if key.contains(".workspace") { "workspace = true" } else { line };
            found.push((index + 1, name, rest));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_know_their_section() {
        let text = "[a]\nx = 1\n[dependencies]\ny.workspace = true\nz = { version = \"1\" } # why\n";
        assert_eq!(
            entries(text, "[dependencies]"),
            [(4, "y", "workspace = true"), (5, "z", "z = { version = \"1\" } # why")]
        );
    }
}
