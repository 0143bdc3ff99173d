//! One run of a target's program, watched: its CPU time, the edges it reports, how it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::STACK_BYTES;
use super::state::State;
use crate::workspace;

/// A built target.
pub(super) struct Program {
    /// Of the target.
    pub name: &'static str,
    /// The file to run.
    pub program: PathBuf,
    /// Where its corpus, its findings and its state are.
    pub folder: PathBuf,
    /// Of the longest case.
    pub max_bytes: usize,
}

/// How a round ended.
pub(super) enum Ending {
    /// Its time is over.
    Time,
    /// A case broke something.
    Finding,
}

/// CPU-seconds that a case may take.
const CASE_CPU_S: f64 = 20.0;
/// Seconds by the clock after which libFuzzer ends a case: on a busy machine a case waits for the processor.
const CASE_CLOCK_S: u64 = 60;
/// Ticks of a second in `/proc/PID/stat`.
const TICKS: f64 = 100.0;

impl Program {
    fn command(&self) -> Result<Command, String> {
        let limit = Rlimit { current: Some(STACK_BYTES), maximum: getrlimit(Resource::Stack).maximum };
        setrlimit(Resource::Stack, limit).map_err(|e| format!("a stack of {STACK_BYTES} bytes: {e}"))?;
        let mut command = Command::new(&self.program);
        command.env("ASAN_OPTIONS", "detect_odr_violation=0").env("RUST_BACKTRACE", "0").args([
            "-rss_limit_mb=2048",
            "-detect_leaks=0",
            &format!("-timeout={CASE_CLOCK_S}"),
            &format!("-max_len={}", self.max_bytes),
        ]);
        Ok(command)
    }
}

/// Runs the target for some seconds, and notes what it reaches.
pub(super) fn run(program: &Program, state: &mut State, seconds: f64) -> Result<Ending, String> {
    let [corpus, findings] = ["corpus", "findings"].map(|name| program.folder.join(name));
    for folder in [&corpus, &findings] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let mut command = program.command()?;
    command
        .args(["-print_final_stats=1", &format!("-max_total_time={}", seconds.ceil())])
        .arg(format!("-artifact_prefix={}/", findings.display()))
        .arg(&corpus)
        .arg(program.folder.join("seeds"));
    let kept = workspace::root().join("fuzz/corpus-min").join(program.name);
    if kept.is_dir() {
        command.arg(kept);
    }
    let words = program.folder.join("seeds.dict");
    if words.is_file() {
        command.arg(format!("-dict={}", words.display()));
    }
    let fail = |e: std::io::Error| format!("{}: {e}", program.program.display());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(fail)?;
    let Some(said) = child.stderr.take() else { return Err("expected the output of a target, found none".into()) };
    let (sender, lines) = mpsc::channel();
    let reader = thread::spawn(move || {
        let mut said = BufReader::new(said);
        let mut line = Vec::new();
        while said.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    let before_s = state.cpu_s;
    let mut last = Vec::new();
    loop {
        let line = lines.recv_timeout(Duration::from_secs(1));
        if let Some(cpu_s) = cpu_seconds(child.id()) {
            state.cpu_s = state.cpu_s.max(before_s + cpu_s);
        }
        match line {
            Ok(line) => {
                note(&line, state);
                last.push(line);
                let surplus = last.len().saturating_sub(200);
                last.drain(..surplus);
            }
            Err(mpsc::RecvTimeoutError::Timeout) => state.write()?,
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    let _ = reader.join();
    let status = child.wait().map_err(fail)?;
    state.write()?;
    if status.success() {
        return Ok(Ending::Time);
    }
    let log = program.folder.join("finding.log");
    fs::write(&log, last.concat()).map_err(|e| format!("{}: {e}", log.display()))?;
    match super::findings(&program.folder)?.is_empty() {
        false => Ok(Ending::Finding),
        true => Err(format!("{} ended with {status}: see {}", program.name, log.display())),
    }
}

/// Whether a case that libFuzzer's clock ended stays within the CPU time of a case when it is run again, alone.
pub(super) fn is_within_cpu_time(program: &Program, case: &Path) -> Result<bool, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", program.program.display());
    let mut command = program.command()?;
    command.arg("-timeout=0").arg(case).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(fail)?;
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            return Ok(status.success());
        }
        // A case that waits for something takes no CPU time, and is a finding too.
        let is_over = begin.elapsed().as_secs_f64() > 10.0 * CASE_CPU_S;
        if is_over || cpu_seconds(child.id()).is_some_and(|cpu_s| cpu_s > CASE_CPU_S) {
            child.kill().and_then(|()| child.wait()).map_err(fail)?;
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Copies to `folder`, whose cases are known, those of the corpus that reach more.
pub(super) fn merge(program: &Program, folder: &Path) -> Result<(), String> {
    let corpus = program.folder.join("corpus");
    let mut command = program.command()?;
    let output = command.arg("-merge=1").arg(folder).arg(corpus).output();
    let output = output.map_err(|e| format!("{}: {e}", program.program.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", program.name, String::from_utf8_lossy(&output.stderr))),
    }
}

/// Takes edges and runs out of a line of libFuzzer: `#17 NEW cov: 88 ft: 90 …`.
fn note(line: &str, state: &mut State) {
    if let Some(runs) = line.strip_prefix("stat::number_of_executed_units:").and_then(|n| n.trim().parse::<u64>().ok())
    {
        state.runs += runs;
    }
    let Some((event, rest)) = line.split_once(" cov: ") else { return };
    let edges = rest.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
    let Some(edges) = edges.filter(|_| line.starts_with('#')) else { return };
    if edges > state.edges {
        state.edges = edges;
        // What the cases of earlier rounds reach is not new.
        if !event.contains("INITED") {
            state.edge_cpu_s = state.cpu_s;
        }
    }
}

/// The CPU time of a process and its threads, in seconds.
fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may hold blanks.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_edges_are_noted_and_known_ones_are_not() {
        let mut state = State { cpu_s: 7.0, ..State::default() };
        note("#1200\tINITED cov: 88 ft: 90 corp: 12/3Kb exec/s: 0 rss: 40Mb", &mut state);
        assert_eq!((state.edges, state.edge_cpu_s), (88, 0.0));
        note("#1300\tNEW    cov: 88 ft: 91 corp: 13/3Kb lim: 44 exec/s: 0 rss: 40Mb", &mut state);
        assert_eq!((state.edges, state.edge_cpu_s), (88, 0.0));
        note("#1400\tNEW    cov: 90 ft: 93 corp: 14/3Kb lim: 44 exec/s: 0 rss: 40Mb", &mut state);
        note("a message that says cov: 900 of something", &mut state);
        note("stat::number_of_executed_units: 1500", &mut state);
        assert_eq!((state.edges, state.edge_cpu_s, state.runs), (90, 7.0, 1500));
    }

    #[test]
    fn this_process_has_cpu_time() {
        assert!(!cfg!(target_os = "linux") || cpu_seconds(std::process::id()).is_some_and(|s| s >= 0.0));
    }
}
