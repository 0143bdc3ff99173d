//! One module's measurements.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A module and the CPU seconds of every repetition.
pub struct Sample {
    /// Where it lies.
    pub file: PathBuf,
    /// Its text.
    pub text: String,
    /// Lines that define an instruction.
    pub n_instructions: usize,
    /// Our parser, resolver and verifier.
    pub parse_s: Vec<f64>,
    /// Our printer.
    pub print_s: Vec<f64>,
    /// XLA's `hlo_module_from_text`.
    pub xla_parse_s: Vec<f64>,
    /// XLA's `to_string`.
    pub xla_print_s: Vec<f64>,
}

impl Sample {
    /// Reads the module's text.
    pub fn read(file: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let n_instructions = text.lines().filter(|line| line.starts_with(' ') && line.contains(" = ")).count();
        Ok(Self {
            file: file.to_path_buf(),
            text,
            n_instructions,
            parse_s: Vec::new(),
            print_s: Vec::new(),
            xla_parse_s: Vec::new(),
            xla_print_s: Vec::new(),
        })
    }
}

/// The peak resident memory of `hlo-opt --verify-only FILE`, from `/proc`, where there is one.
pub fn peak_bytes(tool: &Path, file: &Path) -> Option<u64> {
    let mut child =
        Command::new(tool).arg("--verify-only").arg(file).stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
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
