//! The evaluator's code as a digest: results that it has judged are kept as long as this stays the same.

use std::path::{Path, PathBuf};

use super::content_hash::ContentHash;
use crate::workspace;

/// The crates whose code computes the evaluator's results, and what in them does not: it edits, prints or judges modules.
const EVALUATOR: [&str; 3] = ["hlo-eval", "hlo-ir", "hlo-text"];
const NO_PART_OF_IT: [&str; 5] = ["cost.rs", "edit.rs", "factors", "print", "verify"];

/// A digest of the evaluator's sources.
pub(super) fn digits() -> Result<String, String> {
    let mut files = Vec::new();
    for name in EVALUATOR {
        list(&workspace::root().join("crates").join(name).join("src"), &mut files)?;
    }
    files.sort();
    let hash = files.iter().try_fold(ContentHash::new(), |hash, file| hash.add_file(file))?;
    Ok(hash.digits())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let fails = |e: std::io::Error| format!("{}: {e}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(fails)? {
        let path = entry.map_err(fails)?.path();
        if path.file_name().is_some_and(|name| NO_PART_OF_IT.iter().any(|part| name == *part)) {
            continue;
        }
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
