//! One module's measurements.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::verify::verify;
use rustix::time::{ClockId, clock_gettime};

/// A module and the CPU seconds of every repetition.
pub(crate) struct Sample {
    /// Where it lies.
    pub file: PathBuf,
    /// Its text.
    pub text: String,
    /// Instructions of all computations; known after the first repetition.
    pub n_instructions: usize,
    /// Our parser, which resolves names as it meets them.
    pub parse_s: Vec<f64>,
    /// Our verifier.
    pub verify_s: Vec<f64>,
    /// Our printer.
    pub print_s: Vec<f64>,
    /// XLA's `hlo_module_from_text`.
    pub xla_parse_s: Vec<f64>,
    /// XLA's `to_string`.
    pub xla_print_s: Vec<f64>,
}

impl Sample {
    /// Reads the module's text.
    pub(crate) fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(Self {
            file: file.to_path_buf(),
            text,
            n_instructions: 0,
            parse_s: Vec::new(),
            verify_s: Vec::new(),
            print_s: Vec::new(),
            xla_parse_s: Vec::new(),
            xla_print_s: Vec::new(),
        })
    }

    /// One repetition of ours. The module is freed outside of the measured time, as XLA's is.
    pub(crate) fn measure_ours(&mut self) -> Result<(), String> {
        let start = cpu_seconds();
        let parsed = black_box(hlo_text::parse_module(black_box(&self.text)));
        self.parse_s.push(cpu_seconds() - start);
        let module = match parsed {
            Ok(parsed) => parsed.module,
            Err(errors) => {
                let first = errors.first().map(|e| e.message.clone()).unwrap_or_default();
                return Err(format!("{}: {} errors, the first: {first}", self.file.display(), errors.len()));
            }
        };
        self.n_instructions = module.n_instructions();
        let start = cpu_seconds();
        let verified = black_box(verify(black_box(&module)));
        self.verify_s.push(cpu_seconds() - start);
        if let Err(errors) = verified {
            let first = errors.first().map(|e| e.message.clone()).unwrap_or_default();
            return Err(format!("{}: breaks {} rules, the first: {first}", self.file.display(), errors.len()));
        }
        let start = cpu_seconds();
        let printed = black_box(print_module(black_box(&module), &PrintOptions::default()));
        self.print_s.push(cpu_seconds() - start);
        match printed == self.text {
            true => Ok(()),
            false => {
                Err(format!("{}: the print differs from the text: its time would mean nothing", self.file.display()))
            }
        }
    }
}

/// CPU time of this process, all threads.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The peak resident memory of `hlo-opt --verify-only FILE`: the largest of some runs, because the last look at a run
/// may come before its peak.
pub(crate) fn peak_bytes(tool: &Path, file: &Path) -> Option<u64> {
    const RUNS: usize = 5;
    let run = |_| watch_memory(Command::new(tool).arg("--verify-only").arg(file));
    (0..RUNS).map(run).collect::<Option<Vec<u64>>>()?.into_iter().max()
}

/// One run's peak as `/proc` tells it, where there is one; none if the run fails.
pub(crate) fn watch_memory(command: &mut Command) -> Option<u64> {
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
    let status = format!("/proc/{}/status", child.id());
    let mut peak_bytes = None;
    loop {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        if let Some(kib) = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()) {
            peak_bytes = peak_bytes.max(Some(kib * 1024));
        }
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_micros(300)),
            Ok(Some(status)) => return peak_bytes.filter(|_| status.success()),
            Err(_) => return None,
        }
    }
}
