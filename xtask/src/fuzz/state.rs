//! What earlier calls reached, in `state.json` of the target's folder.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What a target has done so far.
#[derive(Default)]
pub(super) struct State {
    /// Where it is written.
    pub file: PathBuf,
    /// Of the program: edges of another one cannot be compared.
    pub program: u64,
    /// CPU seconds in all.
    pub cpu_s: f64,
    /// CPU seconds when the last new edge was met.
    pub edge_cpu_s: f64,
    /// Edges that the corpus reaches.
    pub edges: u64,
    /// Cases that were run.
    pub runs: u64,
}

impl State {
    /// What is known of the target of `folder`, with the program that was built now.
    pub(super) fn read(folder: &Path, program: &Path) -> Result<State, String> {
        let file = folder.join("state.json");
        let bytes = fs::read(program).map_err(|e| format!("{}: {e}", program.display()))?;
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        let program = hasher.finish();
        let Ok(text) = fs::read_to_string(&file) else { return Ok(State { file, program, ..State::default() }) };
        let known: Value = serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        let number = |key: &str| known[key].as_f64().ok_or_else(|| format!("{}: expected {key}", file.display()));
        let count = |key: &str| known[key].as_u64().ok_or_else(|| format!("{}: expected {key}", file.display()));
        let cpu_s = number("cpu_s")?;
        let mut state = State {
            program,
            cpu_s,
            edge_cpu_s: number("edge_cpu_s")?,
            edges: count("edges")?,
            runs: count("runs")?,
            file: file.clone(),
        };
        if count("program")? != program {
            (state.edges, state.edge_cpu_s) = (0, cpu_s);
        }
        Ok(state)
    }

    /// Writes it down, whole or not at all.
    pub(super) fn write(&self) -> Result<(), String> {
        let State { file, program, cpu_s, edge_cpu_s, edges, runs } = self;
        let known =
            json!({ "program": program, "cpu_s": cpu_s, "edge_cpu_s": edge_cpu_s, "edges": edges, "runs": runs });
        let part = file.with_extension("part");
        let fail = |e: std::io::Error| format!("{}: {e}", part.display());
        fs::write(&part, format!("{known:#}\n")).map_err(fail)?;
        fs::rename(&part, file).map_err(fail)
    }
}
