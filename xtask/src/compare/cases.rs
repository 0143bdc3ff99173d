//! The calls that are compared.

use std::path::{Path, PathBuf};

use crate::workspace;

/// Where `-o` writes, below a folder of the call's own.
pub(super) const OUTPUT: &str = "out";

/// One call of the tool.
pub(super) struct Case {
    /// File and arguments, for messages.
    pub label: String,
    /// Arguments after the tool's name.
    pub args: Vec<String>,
}

/// What every module is asked for.
const FORMS: &[&[&str]] = &[
    &[],
    &["--format", "short"],
    &["--preset", "data-parallel", "--check", "--report", "text", "--stats"],
    &["--preset", "data-parallel", "--report", "json", "-o", OUTPUT],
    &["--preset", "sharded-state", "-o", OUTPUT, "--report", "json"],
    &["--preset", "gpu"],
    &["--pass", "@machine=[(node,2),(gpu,4)];combine-collectives,decompose-collectives", "--report", "text"],
    &["--emit", "plan", "--preset", "gpu"],
    &["--emit", "plan-json"],
    &["--emit", "cuda", "--preset", "gpu"],
    &["--emit", "plan-svg", "--preset", "gpu"],
];

const ANALYSES: &[&[&str]] = &[
    &["analyze", "replication", "--format", "json"],
    &["analyze", "memory", "--format", "json"],
    &["analyze", "memory"],
    &["analyze", "frequency", "--format", "json"],
];

/// Calls without a module.
const BARE: &[&[&str]] = &[
    &["--help"],
    &["--list-passes"],
    &["--version"],
    &["completions", "bash"],
    &["plan", "placement", "--machine", "p2-a100", "--axes", "4,16", "--reduce", "0=1.0,0+1=0.25"],
    &["plan", "placement", "--machine", "h2", "--axes", "2,4", "--reduce", "0=1.0", "--format", "json"],
    &[
        "plan",
        "reduction",
        "--machine",
        "[(node,4),(gpu,16)]",
        "--axes",
        "4,2,8",
        "--reduce",
        "0,2",
        "--matrix",
        "[[1,4],[2,1],[2,4]]",
    ],
    &["run", "--backend", "gpu", "no-such-file.hlo"],
];

/// Every call: without a module, on every sample, and on every module of the corpora.
pub(super) fn all(corpora: &[PathBuf]) -> Result<Vec<Case>, String> {
    let mut cases: Vec<Case> = BARE.iter().map(|args| case(args, None, "")).collect();
    let mut folders = vec![workspace::root().join("ir-samples")];
    folders.extend(corpora.iter().cloned());
    for folder in folders {
        let mut files = Vec::new();
        find_modules(&folder, &mut files)?;
        files.sort();
        for file in files {
            let label = file.strip_prefix(&folder).unwrap_or(&file).display().to_string();
            cases.extend(of_file(&file, &label)?);
        }
    }
    Ok(cases)
}

fn of_file(file: &Path, label: &str) -> Result<Vec<Case>, String> {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let pipelines = text.lines().filter_map(|line| line.strip_prefix("// pass:")).map(str::trim);
    let mut cases: Vec<Case> = FORMS.iter().chain(ANALYSES).map(|args| case(args, Some(file), label)).collect();
    for pipeline in pipelines {
        cases.push(case(&["--pass", pipeline, "--check", "--report", "json"], Some(file), label));
        cases.push(case(&["--pass", pipeline, "--report", "text", "-o", OUTPUT], Some(file), label));
    }
    Ok(cases)
}

impl Case {
    /// The arguments without the file.
    pub(super) fn form(&self) -> &str {
        self.label.split_once("  ").map_or("", |(_, args)| args)
    }
}

fn case(args: &[&str], file: Option<&Path>, label: &str) -> Case {
    let mut own: Vec<String> = args.iter().map(|arg| arg.to_string()).collect();
    let label = format!("{label}  {}", own.join(" "));
    own.extend(file.map(|file| file.display().to_string()));
    Case { label, args: own }
}

fn find_modules(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("{}: {e}", folder.display()))?.path();
        if path.is_dir() {
            find_modules(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "hlo") {
            files.push(path);
        }
    }
    Ok(())
}
