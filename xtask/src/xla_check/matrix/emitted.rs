//! What the tool emits for a combination, as a digest: the same text judged by the same evaluator needs no second judgement.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::xla_check::worker::{Job, Session};

/// A digest of the texts of the first run and of the second; None where the tool does not come to an end.
pub(super) fn digest(session: &Session<'_>, job: &Job) -> Result<Option<String>, String> {
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
