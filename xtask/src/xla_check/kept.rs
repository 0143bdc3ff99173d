//! Results of earlier runs: a file of one JSON object a line, appended to as cases end, so that a run can be stopped anywhere.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::xla_check::table::CaseResult;

/// The file and what it holds.
pub(super) struct Kept {
    file: File,
    path: PathBuf,
    by_key: BTreeMap<String, Value>,
}

impl Kept {
    /// Opens the file, or starts an empty one. A line that is cut off (the run was stopped in it) is as if not there.
    pub(super) fn open(path: &Path, is_fresh: bool) -> Result<Self, String> {
        let fails = |e: std::io::Error| format!("{}: {e}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(fails)?;
        }
        let text = match is_fresh {
            true => String::new(),
            false => fs::read_to_string(path).unwrap_or_default(),
        };
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let keyed = lines.filter_map(|value| Some((value.get("key")?.as_str()?.to_string(), value)));
        let by_key: BTreeMap<String, Value> = keyed.collect();
        let mut file = OpenOptions::new().create(true).append(true).open(path).map_err(fails)?;
        if is_fresh {
            file.set_len(0).map_err(fails)?;
        } else if !text.is_empty() && !text.ends_with('\n') {
            writeln!(file).map_err(fails)?;
        }
        Ok(Self { file, path: path.into(), by_key })
    }

    /// The results under a key.
    pub(super) fn get(&self, module: &str, key: &str) -> Option<Vec<CaseResult>> {
        let results = self.by_key.get(key)?.get("results")?.as_array()?;
        results.iter().map(|value| CaseResult::from_json(module, value)).collect()
    }

    /// Keeps results under a key.
    pub(super) fn add(
        &mut self,
        module: &str,
        combination: &str,
        key: &str,
        results: &[CaseResult],
    ) -> Result<(), String> {
        let results: Vec<Value> = results.iter().map(CaseResult::as_json).collect();
        let line = json!({"module": module, "combination": combination, "key": key, "results": results});
        writeln!(self.file, "{line}").map_err(|e| format!("{}: {e}", self.path.display()))?;
        self.by_key.insert(key.into(), line);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xla_check::table::Status;

    #[test]
    fn results_outlive_a_run_and_a_torn_line_does_not() {
        let path = std::env::temp_dir().join(format!("xtask-kept-{}.jsonl", std::process::id()));
        let mut kept = Kept::open(&path, true).expect("an empty file");
        let line = serde_json::json!({"case": "pass.xla", "status": "skipped", "reason": "why", "seconds": 0.5});
        let skipped = CaseResult::from_json("m.hlo", &line).expect("a case line");
        kept.add("m.hlo", "a/b", "k1", &[skipped]).expect("written");
        let torn = fs::read_to_string(&path).expect("the file") + "{\"key\":\"k2\",\"resu";
        fs::write(&path, torn).expect("written");
        let mut kept = Kept::open(&path, false).expect("the same file");
        let results = kept.get("m.hlo", "k1").expect("kept");
        assert!(results[0].status == Status::Skipped && results[0].reason == "why");
        assert!(kept.get("m.hlo", "k2").is_none());
        kept.add("m.hlo", "a/c", "k3", &results).expect("written");
        assert!(Kept::open(&path, false).expect("the same file").get("m.hlo", "k3").is_some());
        assert!(Kept::open(&path, true).expect("an empty file").get("m.hlo", "k1").is_none());
        fs::remove_file(&path).expect("removed");
    }
}
