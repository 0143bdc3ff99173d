//! `cargo xtask gpu-peer`: launches and memory of our launch plans beside XLA's own programs for H100s that are only described.
//!
//! XLA compiles each step (`jax/gpu_peer.py`) with and without Triton's products; we read what it partitioned, and lower that. Of XLA's
//! two programs the one with fewer launches is the peer. No GPU is needed, and none runs anything. Where XLA's compiler for GPUs cannot
//! be had, the figures of an earlier run are shown.

mod moved;
mod ours;
mod thunks;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hlo_analysis::memory::memory_sizes;
use hlo_ir::Module;
use serde_json::Value;

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, wheel, workspace};

/// The version of JAX whose compiler is asked, and the least minor version of Python 3 that it runs on.
const VERSION: &str = "0.12.0.1";
const MINOR: u32 = 12;

/// The steps: a name, and the words of `make-hlo` for it.
const STEPS: [(&str, &str); 11] = [
    ("mlp", "--model mlp --layers 4 --width 512 --batch 64"),
    ("ncf", "--model ncf --layers 3 --width 64 --batch 1024"),
    ("cnn, LARS", "--model cnn --layers 6 --width 256 --batch 64 --optimizer lars"),
    ("gpt, 2 layers", "--model gpt --layers 2"),
    ("gpt, 24 layers", "--model gpt --layers 24"),
    ("llama, 2 layers", "--model llama --layers 2 --dtype bf16"),
    ("llama, 16 layers", "--model llama --layers 16 --dtype bf16"),
    ("llama, 2 layers scanned", "--model llama --layers 2 --dtype bf16 --scan"),
    ("llama, 16 layers scanned", "--model llama --layers 16 --dtype bf16 --scan"),
    ("mixture of experts", "--model llama --layers 2 --dtype bf16 --experts 4"),
    ("decode, caches of 2048", "--model llama --layers 2 --dtype bf16 --decode 2048"),
];

/// Steps whose plans may take as many launches as XLA's on eight devices too: they have few large gradients, or none.
const WITHOUT_GAIN: [&str; 4] = ["mlp", "ncf", "mixture", "decode"];

/// Launches and bytes of a program on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Program {
    n_launches: u64,
    /// Operands read and results written, of parts only what is touched ([`moved`]).
    moved: u64,
    argument: u64,
    output: u64,
    alias: u64,
    temp: u64,
}

impl Program {
    /// Arguments, outputs and temporaries, what is two of them once.
    fn memory(&self) -> u64 {
        (self.argument + self.output + self.temp).saturating_sub(self.alias)
    }
}

/// A step on so many devices: our plan, and XLA's two programs.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Row {
    step: String,
    n_devices: u32,
    ours: Result<Program, String>,
    triton: Program,
    cublas: Program,
    /// Bytes at the peak, as they are predicted of the module that XLA partitioned.
    predicted: u64,
}

impl Row {
    /// XLA's program of fewer launches.
    fn peer(&self) -> &Program {
        if self.triton.n_launches <= self.cublas.n_launches { &self.triton } else { &self.cublas }
    }

    /// What our plan takes too much of; none if it is as good as it has to be.
    fn excess(&self) -> Vec<&'static str> {
        let Ok(ours) = &self.ours else { return vec!["refused"] };
        let has_gain = self.n_devices > 1 && !WITHOUT_GAIN.iter().any(|name| self.step.starts_with(name));
        let launches = if has_gain { 0.9 } else { 1.0 };
        let moved = if self.n_devices == 1 { 1.0 } else { 0.7 };
        let more = [
            ("launches", ours.n_launches as f64 > launches * self.peer().n_launches as f64),
            ("moved", ours.moved as f64 > moved * self.triton.moved as f64),
            ("memory", ours.memory() > self.least_memory()),
        ];
        more.into_iter().filter(|(_, is_more)| *is_more).map(|(name, _)| name).collect()
    }

    /// Memory of XLA's smaller program.
    fn least_memory(&self) -> u64 {
        self.triton.memory().min(self.cublas.memory())
    }
}

/// Runs the comparison: false if a step takes more launches or memory, or moves more bytes, than it may.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut only, mut devices, mut is_stored) = (Vec::new(), vec![1, 8], false);
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--only" => only.push(arguments.value(&flag)?),
            Word::Flag(flag) if flag == "--devices" => {
                devices = vec![u32::try_from(arguments.number(&flag)?).map_err(|e| format!("{flag}: {e}"))?];
            }
            Word::Flag(flag) if flag == "--store" => is_stored = true,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("gpu-peer", &word)),
        }
    }
    let is_wanted = |name: &str| only.is_empty() || only.iter().any(|part| name.contains(part.as_str()));
    let Some(python) = python::with_gpu_compiler(VERSION, MINOR)? else {
        println!("jax {VERSION} needs Python 3.{MINOR} or newer and none was found: figures of an earlier run");
        println!("{}", fs::read_to_string(stored()).map_err(|e| format!("{}: {e}", stored().display()))?);
        return Ok(true);
    };
    let tool = workspace::build_tool()?;
    let mut rows = Vec::new();
    for n_devices in devices {
        for (step, words) in STEPS.iter().filter(|(step, _)| is_wanted(step)) {
            eprintln!("{step} on {n_devices}");
            rows.push(measure(&python, &tool, (step, words), n_devices)?);
        }
    }
    if rows.is_empty() {
        return Err("no step is selected: nothing would be compared".into());
    }
    let table = table(&rows);
    println!("{table}");
    if is_stored {
        fs::write(stored(), &table).map_err(|e| format!("{}: {e}", stored().display()))?;
    }
    Ok(rows.iter().all(|row| row.excess().is_empty()))
}

/// Where the figures of a run are kept.
fn stored() -> PathBuf {
    workspace::root().join("xtask/jax/gpu_peer.md")
}

fn measure(python: &Path, tool: &Path, (step, words): (&str, &str), n_devices: u32) -> Result<Row, String> {
    let folder = workspace::target_dir().join("gpu-peer");
    let dumps = |variant: &str| folder.join(format!("{}-{n_devices}-{variant}", step.replace([' ', ','], "")));
    let (with, without) = (dumps("triton"), dumps("cublas"));
    let triton = compiled(python, words, n_devices, &with, false)?;
    let cublas = compiled(python, words, n_devices, &without, true)?;
    let partitioned = of_name(&with, "after_spmd_partitioner.txt")?;
    let ours = ours::plan(tool, &partitioned);
    let text = fs::read_to_string(&partitioned).map_err(|e| format!("{}: {e}", partitioned.display()))?;
    let predicted = memory_sizes(&module_of(&text)?).peak_bytes;
    Ok(Row { step: step.to_string(), n_devices, ours, triton, cublas, predicted })
}

/// What XLA makes of a step; its dumps are left in the folder.
fn compiled(python: &Path, words: &str, n_devices: u32, dumps: &Path, has_no_triton: bool) -> Result<Program, String> {
    let _ = fs::remove_dir_all(dumps);
    let mut command = Command::new(python);
    command.arg("-B").arg(workspace::root().join("xtask/jax/gpu_peer.py")).arg("--dumps").arg(dumps);
    command.arg("--target").arg(wheel::package_dir().join("tests/h100.txtpb"));
    command.args(words.split(' ')).args(["--devices", &n_devices.to_string()]).stdin(Stdio::null());
    if has_no_triton {
        command.arg("--no-triton");
    }
    let output = command.output().map_err(|e| format!("{}: {e}", python.display()))?;
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let said = text.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
    let Some(memory) = said.filter(|_| output.status.success()) else {
        return Err(format!("XLA: {}: {}", output.status, errors.lines().last().unwrap_or("no message")));
    };
    let bytes = |name: &str| memory[name].as_u64().ok_or_else(|| format!("XLA: expected bytes of {name}s, found none"));
    let read = |end: &str| {
        let file = of_name(dumps, end)?;
        fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))
    };
    let module = module_of(&read("after_optimizations.txt")?)?;
    Ok(Program {
        n_launches: thunks::n_launches(&read("thunk_sequence_after_thunk_passes.txt")?, &module)?,
        moved: moved::moved(&module)?,
        argument: bytes("argument")?,
        output: bytes("output")?,
        alias: bytes("alias")?,
        temp: bytes("temp")?,
    })
}

fn module_of(text: &str) -> Result<Module, String> {
    Ok(hlo_text::parse_module(text).map_err(|e| format!("a module: {:?}", e.first()))?.module)
}

/// The largest file of a folder whose name ends so.
fn of_name(folder: &Path, end: &str) -> Result<PathBuf, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let ours = files.filter(|file| file.file_name().is_some_and(|name| name.to_string_lossy().ends_with(end)));
    ours.max_by_key(|file| fs::metadata(file).map_or(0, |m| m.len()))
        .ok_or_else(|| format!("{}: XLA dumped no file *{end}", folder.display()))
}

fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "Ours / XLA's with Triton, with cuBLAS; MB are 10^6 bytes of a device; jax {VERSION}, H100s that are described, no autotuning.\n\n\
         *Predicted* is what `analyze memory` says of the module that XLA partitioned, as a multiple of XLA's memory.\n\n\
         | step | devices | launches | ratio | MB moved | ratio | MB of memory | ratio | predicted | more than it may |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|---|\n"
    );
    for row in rows {
        let cells = [
            row.cells(|p| p.n_launches, |n| n.to_string(), row.peer().n_launches),
            row.cells(|p| p.moved, in_mb, row.triton.moved),
            row.cells(Program::memory, in_mb, row.least_memory()),
        ];
        let why = row.ours.as_ref().err().map_or_else(|| row.excess().join(", "), String::clone);
        let predicted = row.predicted as f64 / row.least_memory().max(1) as f64;
        let _ = writeln!(out, "| {} | {} | {} | {predicted:.2} | {why} |", row.step, row.n_devices, cells.join(" | "));
    }
    out
}

impl Row {
    /// A figure of all three programs, and ours as a multiple of the one that it is held against.
    fn cells(&self, figure: impl Fn(&Program) -> u64, text: impl Fn(u64) -> String, peer: u64) -> String {
        let ours = self.ours.as_ref().ok().map(&figure);
        let [triton, cublas] = [&self.triton, &self.cublas].map(|p| text(figure(p)));
        let own = ours.map_or_else(|| "–".to_string(), &text);
        let ratio = ours.map_or_else(|| "–".to_string(), |n| format!("{:.2}", n as f64 / peer.max(1) as f64));
        format!("{own} / {triton}, {cublas} | {ratio}")
    }
}

fn in_mb(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}
