//! `partition-check --beside`: the preset beside XLA's partitioner, on the programs of which XLA's result stands beside: collectives and
//! bytes as they are executed, predicted time of a step on one switch of H200, peak memory of one device.
//!
//! The preset must not send more bytes, nor need more than 1.05 times the memory, nor more collectives unless it is predicted to be faster.
//! XLA's bytes are those of the better of its two forms, after its all-reduces that are only sliced became reduce-scatters.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use hlo_analysis::Analyses;
use hlo_analysis::frequency::{Frequencies, FrequencyOptions};
use hlo_analysis::time::predict;
use hlo_analysis::traffic::Traffic;
use hlo_ir::Module;
use hlo_mesh::Machine;
use hlo_pass::fastest::SPARE_BYTES;

use super::{run_passes, run_tool};
use crate::workspace;

/// How many times XLA's peak memory may be needed.
const MOST_MEMORY: f64 = 1.05;

/// What the name of a global program ends with, and the names of what XLA's partitioner left of it.
const GLOBAL: &str = ".unopt.hlo";
const PER_DEVICE: [&str; 3] = [".hlo", ".spmd.hlo", ".spmd_gspmd.hlo"];

/// What is counted and predicted of a per-device program.
#[derive(Clone, Copy)]
struct Figures {
    n_collectives: f64,
    sent_bytes: f64,
    time_us: f64,
    peak_bytes: u64,
}

impl Figures {
    fn of(module: &Module, machine: &Machine) -> Result<Figures, String> {
        let frequencies = Frequencies::compute(module, FrequencyOptions::default());
        let traffic = Traffic::find(module, &frequencies);
        let time = predict(module, &frequencies, machine).map_err(|error| error.to_string())?;
        Ok(Figures {
            n_collectives: traffic.n_runs.values().sum::<f64>().max(0.0),
            sent_bytes: traffic.sent_bytes,
            time_us: time.critical_path_s * 1e6,
            peak_bytes: Analyses::default().memory(module).peak_bytes,
        })
    }

    /// What is worse than `xla`, in words; nothing if it is at least as good.
    fn worse_than(&self, xla: &Figures) -> Vec<&'static str> {
        let is_more_often = self.n_collectives > xla.n_collectives && self.time_us >= xla.time_us;
        let is_larger = self.peak_bytes as f64 > xla.peak_bytes as f64 * MOST_MEMORY + SPARE_BYTES as f64;
        let worse = [
            (is_more_often, "more collectives"),
            (self.sent_bytes > xla.sent_bytes + 0.5, "more bytes"),
            (self.time_us > xla.time_us * (1.0 + 1e-9), "slower"),
            (is_larger, "more memory"),
        ];
        worse.into_iter().filter(|(is_so, _)| *is_so).map(|(_, words)| words).collect()
    }
}

/// Runs the comparison: false if the preset does worse on a program, or fails. Without files, those of the samples.
pub(super) fn run_beside(files: &[PathBuf], preset: &str) -> Result<bool, String> {
    let machine = Machine::unnamed().map_err(|error| error.to_string())?;
    let folder = workspace::target_dir().join("partition-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let files = if files.is_empty() { samples()? } else { files.to_vec() };
    println!("{preset} / XLA's partitioner, 8 x h200, one switch");
    println!("{:<24} {:>11} {:>23} {:>15} {:>23}", "program", "collectives", "bytes", "time, us", "peak bytes");
    let mut n_worse = 0;
    for file in &files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().replace(GLOBAL, "");
        match beside(file, preset, &machine, &folder) {
            Ok((own, xla)) => {
                let worse = own.worse_than(&xla);
                n_worse += usize::from(!worse.is_empty());
                println!("{}  {}", row(&name, &own, &xla), worse.join(", "));
            }
            Err(reason) => {
                n_worse += 1;
                println!("{name}: {reason}");
            }
        }
    }
    println!("{} programs, on {n_worse} worse than XLA's partitioner", files.len());
    Ok(n_worse == 0 && !files.is_empty())
}

fn row(name: &str, own: &Figures, xla: &Figures) -> String {
    let pair = |own: f64, xla: f64, digits: usize| format!("{own:.digits$} / {xla:.digits$}");
    format!(
        "{name:<24} {:>11} {:>23} {:>15} {:>23}",
        pair(own.n_collectives, xla.n_collectives, 0),
        pair(own.sent_bytes, xla.sent_bytes, 0),
        pair(own.time_us, xla.time_us, 1),
        pair(own.peak_bytes as f64, xla.peak_bytes as f64, 0),
    )
}

/// The global programs among the samples whose cuts a partitioner chooses; a whole step in a manual region has its own.
fn samples() -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for folder in ["ir-samples/global", "ir-samples/programs"].map(|folder| workspace::root().join(folder)) {
        let entries = std::fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let is_chosen = |path: &Path| folder.ends_with("global") || path.to_string_lossy().contains("pjit");
        files.extend(paths.filter(|path| path.to_string_lossy().ends_with(GLOBAL) && is_chosen(path)));
    }
    files.sort();
    Ok(files)
}

/// What the preset makes of a global program, and what XLA made of it: of its forms the fewest bytes with their collectives and memory,
/// and the least time.
fn beside(file: &Path, preset: &str, machine: &Machine, folder: &Path) -> Result<(Figures, Figures), String> {
    let text = file.to_string_lossy();
    let stem = text.strip_suffix(GLOBAL).ok_or_else(|| format!("expected a file NAME{GLOBAL}"))?;
    let out = folder.join("beside.hlo");
    let args = ["--preset", preset, "-o"].map(OsString::from);
    let args = std::iter::once(file.as_os_str().to_owned()).chain(args).chain([out.as_os_str().to_owned()]);
    let (code, said) = run_tool(args);
    if code != 0 {
        return Err(said);
    }
    let own = Figures::of(&read(&out)?, machine)?;
    let mut forms = Vec::new();
    for path in PER_DEVICE.map(|end| PathBuf::from(format!("{stem}{end}"))) {
        if path.exists() {
            let mut module = read(&path)?;
            run_passes(&mut module, "all-reduce-to-reduce-scatter,dce")?;
            forms.push(Figures::of(&module, machine)?);
        }
    }
    let time_us = forms.iter().map(|form| form.time_us).fold(f64::INFINITY, f64::min);
    let fewest = forms.into_iter().min_by(|a, b| a.sent_bytes.total_cmp(&b.sent_bytes));
    let xla = fewest.ok_or("expected XLA's per-device program beside it, found none")?;
    Ok((own, Figures { time_us, ..xla }))
}

fn read(path: &Path) -> Result<Module, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let parsed = hlo_text::parse_module(&text).map_err(|errors| {
        let first = errors.first().map_or("expected a module", |error| error.message.as_str());
        format!("{}: {first}", path.display())
    })?;
    Ok(parsed.module)
}
