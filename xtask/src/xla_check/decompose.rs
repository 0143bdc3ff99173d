//! `xla-check --decompose`: collectives decomposed over the levels of clusters, on every module of eight devices.
//!
//! Each cluster is tried on the module as it is, and after weight-update sharding, whose reduce-scatters and all-gathers then go
//! level by level too. A module's process (`oracle/decompose_case.py`) runs the untouched module once. A module's results are
//! kept under a digest of what they rest on: the module, the judge, the evaluator, and the texts that the tool emits.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::{Map, Value, json};

use super::content_hash::ContentHash;
use super::evaluator_sources;
use super::kept::Kept;
use super::manifest::Program;
use super::table::CaseResult;
use super::worker::{Job, Session};
use crate::{python, workspace};

/// Eight devices; links are far slower outside than inside, so that nearly every collective is decomposed.
const CLUSTERS: [(&str, &str); 3] = [
    ("2x4", "[(node,2,1),(gpu,4,100)]"),
    ("4x2", "[(node,4,1),(gpu,2,100)]"),
    ("2x2x2", "[(rack,2,1),(node,2,10),(gpu,2,100)]"),
];
const N_DEVICES: u64 = 8;

/// Runs before the sharding, so that gradients are single arrays, summed once, and outside of loops.
const DECOMPOSE: &str = "decompose-collectives{algo=ring,min-gain=0}";

const SHARDED: &str = "fold-all-reduce-of-all-reduce,reassociate-all-reduce,split-tuple-all-reduce,sink-all-reduce,\
                       shard-weight-update{min-bytes=0,profit=always},";

/// Keeps the modules that real XLA can run on the devices of the clusters.
pub(super) fn select(programs: &mut Vec<Program>) -> Result<(), String> {
    let mut texts = Vec::with_capacity(programs.len());
    for program in programs.iter() {
        let text = std::fs::read_to_string(&program.file).map_err(|e| format!("{}: {e}", program.file.display()))?;
        texts.push(n_devices(&text));
    }
    let mut n_devices = texts.into_iter();
    programs.retain(|program| n_devices.next() == Some(N_DEVICES) && program.runnable);
    Ok(())
}

/// Replicas times partitions, as the module's first line says.
fn n_devices(text: &str) -> u64 {
    let header = text.lines().find(|line| line.starts_with("HloModule")).unwrap_or_default();
    let count = |key: &str| -> u64 {
        let digits = header.split(key).nth(1).map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        digits.flatten().and_then(|digits| digits.parse().ok()).unwrap_or(1)
    };
    count("replica_count=") * count("num_partitions=")
}

/// Whether a case is of one of the clusters.
pub(super) fn is_case(case: &str) -> bool {
    CLUSTERS.iter().any(|(name, _)| case.split('.').next() == Some(name))
}

/// Results of earlier runs, and what all of them rest on.
pub(super) struct Memory {
    kept: Mutex<Kept>,
    /// The judge's and the evaluator's sources.
    judge: ContentHash,
}

impl Memory {
    /// Reads the results of earlier runs over this corpus.
    pub(super) fn open(session: &Session<'_>) -> Result<Memory, String> {
        let kept = Kept::open(&folder(&session.options.corpus).join("results.jsonl"), session.options.is_fresh)?;
        let mut judge = ContentHash::new().add(evaluator_sources::digits()?.as_bytes());
        for name in ["check_case.py", "compare.py", "decompose_case.py", "hlo_oracle.py", "hlo_text.py", "mutants.py"] {
            judge = judge.add_file(&python::oracle_dir().join(name))?;
        }
        judge = judge.add_file(&python::oracle_dir().join("requirements.txt"))?;
        Ok(Memory { kept: Mutex::new(kept), judge })
    }

    /// The results of all cases of a module, run or kept.
    pub(super) fn check(&self, session: &Session<'_>, program: &Program) -> Result<Vec<CaseResult>, String> {
        let job = job(session, program);
        let module = job.module.clone();
        let lock = || self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let key = self.key(session, program, &job)?;
        if let Some(results) = key.as_ref().and_then(|key| lock().get(&module, key)) {
            return Ok(results);
        }
        let (results, is_whole) = session.check(&job);
        if let Some(key) = key.filter(|_| is_whole) {
            lock().add(&module, "decompose", &key, &results)?;
        }
        Ok(results)
    }

    /// None where the tool does not come to an end with some pipeline: that has to be judged anew.
    fn key(&self, session: &Session<'_>, program: &Program, job: &Job) -> Result<Option<String>, String> {
        let mut hash = self.judge.clone().add_file(&program.file)?.add(program.draw.as_bytes());
        let mut like = Vec::new();
        if let Some(sibling) = &program.like {
            hash = hash.add_file(sibling)?;
            like.extend(["--replicated-params".to_string(), format!("like:{}", sibling.display())]);
        }
        std::fs::create_dir_all(&job.work).map_err(|e| format!("{}: {e}", job.work.display()))?;
        let pipelines = job.config["pipelines"].as_object().into_iter().flatten();
        for (name, pipeline) in pipelines {
            hash = hash.add(name.as_bytes());
            let mut file: PathBuf = program.file.clone();
            for round in ["once", "twice"] {
                let out = job.work.join(format!("{name}.{round}.hlo"));
                let arguments = ["--pass", pipeline.as_str().unwrap_or_default()];
                if !emit(&session.tool, arguments.into_iter().chain(like.iter().map(String::as_str)), &file, &out)? {
                    return Ok(None);
                }
                hash = hash.add_file(&out)?;
                file = out;
            }
        }
        Ok(Some(hash.digits()))
    }
}

/// Runs the tool; false where it fails.
fn emit<'a>(tool: &Path, arguments: impl Iterator<Item = &'a str>, file: &Path, out: &Path) -> Result<bool, String> {
    let mut command = Command::new(tool);
    command.args(arguments).arg(file).arg("-o").arg(out).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.stderr(Stdio::null()).status().map_err(|e| format!("{}: {e}", tool.display()))?;
    Ok(status.success())
}

/// Where results and files of a corpus lie.
fn folder(corpus: &Path) -> PathBuf {
    workspace::target_dir().join("xla-check").join(corpus.file_name().unwrap_or_default()).join("decompose")
}

/// The job that checks all clusters on one module.
fn job(session: &Session<'_>, program: &Program) -> Job {
    let work = folder(program.file.parent().unwrap_or(Path::new(""))).join(program.name());
    let wanted = |name: &str| session.options.combination.as_ref().is_none_or(|part| name.contains(part.as_str()));
    let mut pipelines = Map::new();
    for (name, cluster) in CLUSTERS {
        for (name, before) in [(name.to_string(), ""), (format!("{name}.sharded"), SHARDED)] {
            if wanted(&name) {
                pipelines.insert(name, Value::String(format!("@machine={cluster};{before}{DECOMPOSE}")));
            }
        }
    }
    let mut config = session.config(program, &work);
    config["pipelines"] = Value::Object(pipelines);
    config["stages"] = json!(["pass"]);
    Job { module: program.name(), script: "decompose_case.py", config, work }
}

#[cfg(test)]
mod tests {
    use super::n_devices;

    #[test]
    fn devices_are_replicas_times_partitions() {
        assert_eq!(n_devices("// x\nHloModule m, is_scheduled=true, replica_count=4, num_partitions=2\n"), 8);
        assert_eq!(n_devices("HloModule m, num_partitions=16, x={1}\n"), 16);
        assert_eq!(n_devices("HloModule m\n"), 1);
    }
}
