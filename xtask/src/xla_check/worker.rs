//! The processes that check modules: one each, started again after a crash with the cases that are left.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::manifest::Program;
use super::options::Options;
use super::table::CaseResult;
use crate::{python, workspace};

/// What all workers share.
pub(crate) struct Session<'o> {
    /// The command's options.
    pub options: &'o Options,
    /// The built `hlo-opt`.
    pub tool: PathBuf,
    /// The oracle's Python.
    pub python: PathBuf,
}

/// What one process is to check.
pub(crate) struct Job {
    /// How results speak of the module.
    pub module: String,
    /// The file in the oracle's folder.
    pub script: &'static str,
    /// What the script reads.
    pub config: Value,
    /// A folder for its files, which later jobs may use again.
    pub work: PathBuf,
}

/// What one process told before it ended.
struct Told {
    results: Vec<CaseResult>,
    /// Cases that it meant to run.
    plan: Option<usize>,
    /// The case that it was in, and since when.
    open: Option<(String, Instant)>,
    status: Option<ExitStatus>,
    timed_out: bool,
    stderr: String,
}

impl Session<'_> {
    /// The job that checks the untouched module and, with `--pass`, one pipeline.
    pub(super) fn job(&self, program: &Program) -> Job {
        let corpus = program.file.parent().and_then(|d| d.file_name()).unwrap_or_default();
        let work = workspace::target_dir().join("xla-check").join(corpus).join(program.name());
        let mut config = self.config(program, &work);
        config["stages"] = json!(self.options.stages);
        config["pipeline"] = json!(self.options.pipeline);
        config["mutants"] = json!(self.options.mutants);
        Job { module: program.name(), script: "check_case.py", config, work }
    }

    /// What every script reads.
    pub(super) fn config(&self, program: &Program, work: &Path) -> Value {
        json!({
            "file": program.file, "like": program.like, "draw": program.draw, "seeds": [1, 2, 3],
            "nan_belongs": program.nan_belongs, "runnable": program.runnable, "hlo_opt": self.tool,
            "work": work, "timeout_s": self.options.timeout_s,
        })
    }

    /// The results of all cases of a job, and whether each of them came to an end by itself.
    pub(crate) fn check(&self, job: &Job) -> (Vec<CaseResult>, bool) {
        let mut results: Vec<CaseResult> = Vec::new();
        let mut is_whole = true;
        loop {
            let done: Vec<String> = results.iter().map(|r| r.case.clone()).collect();
            let told = match self.run_process(job, &done) {
                Ok(told) => told,
                Err(message) => {
                    results.push(CaseResult::failed(&job.module, "worker", message, 0.0));
                    return (results, false);
                }
            };
            let complete = told.plan == Some(told.results.len());
            let death = (!complete).then(|| told.describe_death());
            results.extend(told.results);
            let Some(death) = death else { return (results, is_whole) };
            is_whole = false;
            match told.open {
                Some((case, since)) => {
                    results.push(CaseResult::failed(&job.module, &case, death, since.elapsed().as_secs_f64()));
                }
                None => {
                    results.push(CaseResult::failed(&job.module, "worker", death, 0.0));
                    return (results, false);
                }
            }
        }
    }

    fn run_process(&self, job: &Job, done: &[String]) -> Result<Told, String> {
        let work = &job.work;
        std::fs::create_dir_all(work).map_err(|e| format!("{}: {e}", work.display()))?;
        let mut config = job.config.clone();
        config["skip"] = json!(done);
        let config_file = work.join("config.json");
        std::fs::write(&config_file, config.to_string()).map_err(|e| format!("{}: {e}", config_file.display()))?;
        let child = Command::new(&self.python)
            .arg("-B")
            .arg(python::oracle_dir().join(job.script))
            .arg(&config_file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{}: {e}", self.python.display()))?;
        let told = listen(child, &job.module, Duration::from_secs(self.options.timeout_s));
        remove_arrays(work);
        Ok(told)
    }
}

/// Runs the oracle's own tests, without which no result means anything.
pub(super) fn check_the_judge(python: &Path) -> Result<(), String> {
    let script = python::oracle_dir().join("self_check.py");
    let output =
        Command::new(python).arg("-B").arg(&script).output().map_err(|e| format!("{}: {e}", script.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", script.display(), String::from_utf8_lossy(&output.stderr))),
    }
}

/// The arrays of a module take up to gigabytes; its texts are kept for a look at a failure.
fn remove_arrays(work: &Path) {
    let Ok(entries) = std::fs::read_dir(work) else { return };
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.extension().is_some_and(|e| e == "npz") {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Reads what the process tells until it ends, or ends it where it has told nothing for the timeout: a process does many cases.
fn listen(mut child: Child, module: &str, timeout: Duration) -> Told {
    let mut told =
        Told { results: Vec::new(), plan: None, open: None, status: None, timed_out: false, stderr: String::new() };
    let stdout = child.stdout.take();
    let stderr = child.stderr.take();
    let ended = Arc::new(AtomicBool::new(false));
    let heard = Arc::new(Mutex::new(Instant::now()));
    std::thread::scope(|scope| {
        let errors = scope.spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = stderr {
                let _ = pipe.read_to_end(&mut bytes);
            }
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let (watch, last) = (Arc::clone(&ended), Arc::clone(&heard));
        let watcher = scope.spawn(move || watch_child(child, &watch, &last, timeout));
        if let Some(pipe) = stdout {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                hear(&mut told, module, &line);
                *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
            }
        }
        ended.store(true, Ordering::Relaxed);
        (told.status, told.timed_out) = watcher.join().unwrap_or((None, false));
        told.stderr = errors.join().unwrap_or_default();
    });
    told
}

/// Waits for the end of the process; ends it when nothing was heard for the timeout.
fn watch_child(
    mut child: Child,
    output_ended: &AtomicBool,
    heard: &Mutex<Instant>,
    timeout: Duration,
) -> (Option<ExitStatus>, bool) {
    let mut timed_out = false;
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return (Some(status), timed_out);
        }
        let last = *heard.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() > timeout && !timed_out {
            timed_out = true;
            let _ = child.kill();
        }
        let pause = if output_ended.load(Ordering::Relaxed) { 5 } else { 50 };
        std::thread::sleep(Duration::from_millis(pause));
    }
}

fn hear(told: &mut Told, module: &str, line: &str) {
    let Ok(value) = serde_json::from_str::<Value>(line) else { return };
    if let Some(plan) = value.get("plan").and_then(Value::as_array) {
        told.plan = Some(plan.len());
    } else if let Some(case) = value.get("start").and_then(Value::as_str) {
        told.open = Some((case.into(), Instant::now()));
    } else if let Some(result) = CaseResult::from_json(module, &value) {
        told.open = None;
        told.results.push(result);
    }
}

impl Told {
    fn describe_death(&self) -> String {
        if self.timed_out {
            return "no end within the timeout".into();
        }
        let how = self.status.map_or("an unknown end".into(), |s| s.to_string());
        let telling = |l: &&str| l.contains("Check failed") || l.contains("Error") || l.starts_with('F');
        let last = self.stderr.lines().rev().find(telling).or(self.stderr.lines().last()).unwrap_or("no message");
        format!("the process died ({how}): {}", last.chars().take(300).collect::<String>())
    }
}
