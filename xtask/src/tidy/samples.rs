//! Every opcode and every pass has its samples.

use std::collections::BTreeMap;

use super::Finding;
use super::source::Tree;

/// Findings about `ir-samples/ops` and `ir-samples/passes`.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = check_opcodes(tree);
    findings.extend(check_polarities(tree));
    findings
}

/// One file for each opcode. Silent only while there is no folder of op samples at all.
fn check_opcodes(tree: &Tree) -> Vec<Finding> {
    const FOLDER: &str = "ir-samples/ops";
    if !tree.exists(FOLDER) {
        return Vec::new();
    }
    let names = hlo_ir::op::Opcode::ALL.iter().map(|op| op.name());
    let absent = names.map(|name| format!("{FOLDER}/{name}.hlo")).filter(|path| !tree.exists(path));
    absent.map(|path| Finding::new("opcode-sample", path, "expected a sample of this opcode, found no file")).collect()
}

/// In the samples of each pass, one where it fires and one where it must not.
fn check_polarities(tree: &Tree) -> Vec<Finding> {
    const FOLDER: &str = "ir-samples/passes";
    let mut seen: BTreeMap<&str, (bool, bool)> = BTreeMap::new();
    for file in tree.below(FOLDER).filter(|f| f.path.ends_with(".hlo")) {
        let Some(pass) = file.path.split('/').nth(2) else { continue };
        let unchanged = file.text.lines().any(|line| line.trim() == "// expect: unchanged");
        let entry = seen.entry(pass).or_default();
        if unchanged {
            entry.1 = true;
        } else {
            entry.0 = true;
        }
    }
    let mut findings = Vec::new();
    for (pass, (fires, must_not)) in seen {
        let place = format!("{FOLDER}/{pass}");
        if !fires {
            findings.push(Finding::new(
                "pass-sample",
                place.clone(),
                "expected a sample where the pass fires, found none",
            ));
        }
        if !must_not {
            let message = "expected a sample with `// expect: unchanged`, found none";
            findings.push(Finding::new("pass-sample", place, message));
        }
    }
    findings
}
