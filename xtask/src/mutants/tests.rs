//! The project's tests, one at a time: which mutants each meets, and which it catches.

use super::tree::Binary;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Kilobytes of address space that a test may take: a mutant may ask for memory without end.
const MAX_KILOBYTES: u64 = 8 << 20;
/// A test with a mutant has so long at least, and ten times as long as without it.
const LEAST_LIMIT: Duration = Duration::from_secs(60);
/// A test that takes less is a quick one.
const QUICK: Duration = Duration::from_secs(2);
/// What a test without a mutant may take.
const TRACE_LIMIT: Duration = Duration::from_secs(1200);

/// A test, and what a run without a mutant showed.
pub(super) struct Test {
    pub(super) binary: Binary,
    pub(super) name: String,
    time: Duration,
    /// Numbers of the mutants that it meets.
    met: Vec<u32>,
}

impl Test {
    /// Whether it takes less than two seconds.
    pub(super) fn is_quick(&self) -> bool {
        self.time < QUICK
    }

    /// As the report names it.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.binary.package, self.name)
    }
}

/// How a run of a test ended.
enum Run {
    Passed,
    Failed,
    TimedOut,
}

/// What the tests say of a mutant.
pub(super) enum Verdict {
    Caught(String),
    TimedOut(String),
    /// Passed by so many tests, none of which sees it.
    Survived(usize),
}

/// Runs every test of the binaries without a mutant. Those that fail are left out, with a line that says so.
pub(super) fn trace(binaries: &[Binary], folder: &Path, jobs: usize) -> Result<Vec<Test>, String> {
    let mut named = Vec::new();
    for binary in binaries {
        let output = Command::new(&binary.path)
            .args(["--list", "--format", "terse"])
            .current_dir(&binary.folder)
            .output()
            .map_err(|e| format!("{}: {e}", binary.path.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        named.extend(text.lines().filter_map(|line| Some((binary, line.strip_suffix(": test")?.to_string()))));
    }
    let tests = Mutex::new(Vec::new());
    in_parallel(jobs, named.len(), |index| {
        let (binary, name) = &named[index];
        let met_file = folder.join(format!("met-{index}"));
        let _ = fs::remove_file(&met_file);
        let begin = Instant::now();
        let run = run(binary, name, ("HLO_MUTANTS_MET", &met_file.to_string_lossy()), TRACE_LIMIT);
        let time = begin.elapsed();
        let lines = fs::read_to_string(&met_file).unwrap_or_default();
        let _ = fs::remove_file(&met_file);
        let met = lines.lines().filter_map(|line| line.parse().ok()).collect();
        match run {
            Ok(Run::Passed) => {
                lock(&tests).push(Test { binary: (*binary).clone(), name: name.clone(), time, met });
            }
            Ok(Run::Failed | Run::TimedOut) => {
                println!("left out, for it fails without a mutant: {} {name}", binary.package)
            }
            Err(message) => println!("left out: {message}"),
        }
    });
    let mut tests = tests.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    tests.sort_by_key(|test| (test.time, test.title()));
    Ok(tests)
}

/// Runs the tests that meet a mutant until one fails: first those that have caught one of the same file, then short ones.
pub(super) fn judge(id: u32, tests: &[Test], catchers: &HashMap<String, usize>) -> Result<Verdict, String> {
    let mut meeting: Vec<&Test> = tests.iter().filter(|test| test.met.contains(&id)).collect();
    let n_caught = |test: &Test| if test.is_quick() { catchers.get(&test.title()).copied().unwrap_or(0) } else { 0 };
    meeting.sort_by_key(|test| std::cmp::Reverse(n_caught(test)));
    let id = id.to_string();
    for test in &meeting {
        let limit = LEAST_LIMIT.max(10 * test.time);
        let again = || run(&test.binary, &test.name, ("HLO_MUTANT", &id), limit);
        match again()? {
            Run::Passed => {}
            // A test that fails now and then, on a busy machine, has not seen the mutant.
            Run::Failed if matches!(again()?, Run::Passed) => println!("failed once: {} on {id}", test.title()),
            Run::Failed => return Ok(Verdict::Caught(test.title())),
            Run::TimedOut => match run(&test.binary, &test.name, ("HLO_MUTANT", "none"), limit)? {
                Run::Passed => return Ok(Verdict::TimedOut(test.title())),
                Run::Failed | Run::TimedOut => println!("too slow now without {id}, too: {}", test.title()),
            },
        }
    }
    Ok(Verdict::Survived(meeting.len()))
}

fn run(binary: &Binary, name: &str, variable: (&str, &str), limit: Duration) -> Result<Run, String> {
    let begin = Instant::now();
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -v {MAX_KILOBYTES}; ulimit -c 0; exec \"$0\" \"$@\"")])
        .arg(&binary.path)
        .args(["--exact", name, "--test-threads=1"])
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .env(variable.0, variable.1)
        .env("INSTA_UPDATE", "no")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("{}: {e}", binary.path.display()))?;
    loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            return Ok(if status.success() { Run::Passed } else { Run::Failed });
        }
        if begin.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Run::TimedOut);
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Calls `work` with each index below `count`, in `jobs` threads.
pub(super) fn in_parallel(jobs: usize, count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    work(index);
                }
            });
        }
    });
}

/// A lock whose holder panicked is still good: entries are complete.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
