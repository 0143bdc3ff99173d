//! What the tool emits for a combination, as a digest: the same text judged by the same evaluator needs no second judgement.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::workspace;
use crate::xla_check::content_hash::ContentHash;
use crate::xla_check::worker::{Job, Session};

/// The crates whose code computes the evaluator's results, and what in them does not: it edits, prints or judges modules.
const EVALUATOR: [&str; 3] = ["hlo-eval", "hlo-ir", "hlo-text"];
const NO_PART_OF_IT: [&str; 5] = ["cost.rs", "edit.rs", "factors", "print", "verify"];

/// A digest of the texts of the first run and of the second; None where the tool does not come to an end.
pub fn digest(session: &Session<'_>, job: &Job) -> Result<Option<String>, String> {
    let work = &job.work;
    std::fs::create_dir_all(work).map_err(|e| format!("{}: {e}", work.display()))?;
    let mut config = job.config.clone();
    config["digest_only"] = json!(true);
    config["skip"] = json!([]);
    let file = work.join("digest.json");
    std::fs::write(&file, config.to_string()).map_err(|e| format!("{}: {e}", file.display()))?;
    let output = Command::new(&session.python)
        .arg("-B")
        .arg(crate::python::oracle_dir().join(job.script))
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("{}: {e}", session.python.display()))?;
    let told = String::from_utf8_lossy(&output.stdout);
    let values = told.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(values.filter_map(|v| Some(v.get("emitted")?.as_str()?.to_string())).next())
}

/// A digest of the evaluator's sources.
pub fn evaluator_digits() -> Result<String, String> {
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
