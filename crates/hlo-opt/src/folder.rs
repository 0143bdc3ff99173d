//! A folder or several files in the place of one: the module of the training step among what XLA dumped there.

use crate::Failure;
use crate::console::Console;
use crate::dump::module_of;
use hlo_analysis::program_kind::DumpStage;
use hlo_ir::op::Effects;
use hlo_ir::{InstId, Module};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What dumps of one device's program are named, right behind XLA's partitioner.
const PARTITIONED: &str = ".after_spmd-partitioning.";

/// How dumps from before XLA's passes end, as text and as a proto.
const UNOPTIMIZED: [&str; 2] = [".before_optimizations.txt", ".before_optimizations.hlo.pb"];

/// How files end that may be modules.
const ENDINGS: [&str; 5] = [".txt", ".hlo", ".pb", ".hlo.gz", ".pb.gz"];

/// The opcodes that are counted as collectives, as they stand in text.
const COLLECTIVES: [&str; 5] =
    [" all-reduce(", " all-gather(", " reduce-scatter(", " all-to-all(", " collective-permute("];

/// The largest part of a file that is read to see what it is.
const MAX_BYTES: u64 = 1 << 28;

/// Files of a list that are shown.
const MAX_LISTED: usize = 30;

/// A module, by what a look at its file says.
struct Candidate {
    file: PathBuf,
    /// The module's name.
    step: String,
    stage: Stage,
    n_devices: u64,
    /// There are replicas, and no partitions.
    is_of_replicas: bool,
    n_instructions: usize,
    n_collectives: usize,
    /// Parameters of the entry.
    n_params: usize,
}

/// When XLA dumped a module, by the file's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Unoptimized,
    Partitioned,
    Other,
    /// No name of a dump.
    Unnamed,
}

impl Stage {
    fn of(name: &str) -> Stage {
        match name {
            _ if name.contains(PARTITIONED) => Stage::Partitioned,
            _ if UNOPTIMIZED.iter().any(|end| name.ends_with(end)) => Stage::Unoptimized,
            _ if module_of(name).is_some() || name.contains("_optimizations.") => Stage::Other,
            _ => Stage::Unnamed,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Stage::Unoptimized => "before XLA's passes",
            Stage::Partitioned => "partitioned",
            Stage::Other => "another stage",
            Stage::Unnamed => "not a dump's name",
        }
    }
}

impl Candidate {
    /// Whether it can be the step on this side of XLA's partitioner. A program of each device stands right behind the partitioner, or has
    /// replicas and stands before all passes. Without replicas a program before all passes is of all devices.
    fn is_step(&self, side: DumpStage) -> bool {
        match (side, self.stage) {
            (DumpStage::BeforePartitioner, Stage::Unoptimized) => !self.is_of_replicas,
            (DumpStage::BeforePartitioner, Stage::Unnamed) => self.n_collectives == 0,
            (DumpStage::BeforePartitioner, Stage::Partitioned | Stage::Other) => false,
            (DumpStage::AfterPartitioner, _) if self.n_devices <= 1 => false,
            (DumpStage::AfterPartitioner, Stage::Partitioned) => true,
            (DumpStage::AfterPartitioner, Stage::Unoptimized) => self.is_of_replicas && self.n_collectives > 0,
            (DumpStage::AfterPartitioner, Stage::Unnamed) => self.n_collectives > 0,
            (DumpStage::AfterPartitioner, Stage::Other) => false,
        }
    }

    /// Whether another step that is as large leaves open which is meant.
    fn is_rival(&self, step: &Candidate, side: DumpStage) -> bool {
        let is_alike = match side {
            DumpStage::AfterPartitioner => self.n_collectives > 0,
            DumpStage::BeforePartitioner => self.n_devices == step.n_devices,
        };
        is_alike && key(self) != key(step) && self.n_instructions * 2 >= step.n_instructions
    }
}

/// Returns the file of folders and files that holds the step on one side of XLA's partitioner, and lists the candidates on stderr. Of
/// programs of each device it takes the largest with collectives, of global programs the largest of several devices, and of several
/// of one name the last.
///
/// # Errors
/// There is none, or another step has half as many instructions or more.
pub(crate) fn choose(paths: &[PathBuf], side: DumpStage, console: &mut Console<'_>) -> Result<PathBuf, Failure> {
    let shown = match paths {
        [only] => format!("`{}`", only.display()),
        several => format!("these {} paths", several.len()),
    };
    let mut found: Vec<Candidate> = Vec::new();
    let mut left_out: Vec<String> = Vec::new();
    let mut n_modules = 0;
    for path in paths {
        let is_named = !path.is_dir();
        for file in if is_named { vec![path.clone()] } else { files_of(path)? } {
            if !begins_as_module(&file) {
                left_out.extend(is_named.then(|| format!("`{}`", file.display())));
                continue;
            }
            n_modules += 1;
            // Of a folder with a thousand dumps only those are read that can be a step.
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let stage = Stage::of(&name);
            if is_named || matches!(stage, Stage::Partitioned | Stage::Unoptimized) {
                found.extend(look(&file, stage));
            }
        }
    }
    if !left_out.is_empty() {
        console.say(&format!("note: not a module, left out: {}\n", left_out.join(", ")));
    }
    let (steps, others): (Vec<&Candidate>, Vec<&Candidate>) = found.iter().partition(|c| c.is_step(side));
    let Some(step) = largest(&steps, side) else {
        let what = match side {
            DumpStage::AfterPartitioner => {
                "no program of each of several devices: dump with --xla_dump_hlo_pass_re=spmd.*, or name one file"
            }
            DumpStage::BeforePartitioner => {
                "no program from before XLA's passes: dump with --xla_dump_to, or name one file"
            }
        };
        let list = if others.is_empty() { String::new() } else { format!("\n{}", listed(&others, None)) };
        return Err(Failure::Usage(format!("{shown}: {n_modules} modules and {what}{list}")));
    };
    let list = listed(&steps, Some(step));
    let rivals: Vec<&Candidate> = steps.iter().filter(|other| other.is_rival(step, side)).copied().collect();
    if let Some(steady) = steady_step(step, &rivals) {
        let list = listed(&steps, Some(steady));
        console.say(&format!(
            "note: of the {n_modules} modules in {shown} the steady step (*) is taken: the one before it has fewer parameters, since it creates \
             optimizer state\n{list}"
        ));
        return Ok(steady.file.clone());
    }
    if !rivals.is_empty() {
        return Err(Failure::Usage(format!("{shown}: several steps: name the file of one\n{list}")));
    }
    console.say(&format!("note: of the {n_modules} modules in {shown} the step (*) is taken\n{list}"));
    Ok(step.file.clone())
}

/// The step that goes on, where a framework compiles a first one that creates optimizer state: of steps of one name,
/// but for the number behind it, the one that takes more parameters than all others. `None` where steps have other
/// names, or none takes more.
fn steady_step<'c>(step: &'c Candidate, rivals: &[&'c Candidate]) -> Option<&'c Candidate> {
    let has_name_of_step = |other: &&Candidate| unnumbered(&other.step) == unnumbered(&step.step);
    if rivals.is_empty() || !rivals.iter().all(has_name_of_step) {
        return None;
    }
    let all = || rivals.iter().copied().chain([step]);
    let steady = all().max_by_key(|candidate| candidate.n_params)?;
    (all().filter(|candidate| candidate.n_params == steady.n_params).count() == 1).then_some(steady)
}

/// A module's name without the number that PyTorch/XLA gives each graph: `SyncTensorsGraph` of `SyncTensorsGraph.402`.
fn unnumbered(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.rsplit_once('.').filter(|(_, number)| is_number(number)).map_or(name, |(bare, _)| bare)
}

/// The files of a folder that are named as modules are, in order. A proto is left where its text is there as well.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let failed = |e| Failure::File(format!("cannot read `{}`: {e}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let has_text = |name: &String| {
        let bare = name.strip_suffix(".hlo.pb");
        bare.is_some_and(|bare| names.binary_search(&format!("{bare}.txt")).is_ok())
    };
    let is_module = |name: &&String| ENDINGS.iter().any(|end| name.ends_with(end)) && !has_text(name);
    Ok(names.iter().filter(is_module).map(|name| folder.join(name)).collect())
}

/// The largest with collectives, or else the largest; of global programs the largest of several devices, or else the largest. Of one
/// step the last.
fn largest<'c>(steps: &[&'c Candidate], side: DumpStage) -> Option<&'c Candidate> {
    let is_better = |c: &Candidate| match side {
        DumpStage::AfterPartitioner => c.n_collectives > 0,
        DumpStage::BeforePartitioner => c.n_devices > 1,
    };
    let largest = steps.iter().max_by_key(|c| (is_better(c), c.n_instructions))?;
    steps.iter().rev().find(|c| key(c) == key(largest) && is_better(c)).or(Some(largest)).copied()
}

fn listed(candidates: &[&Candidate], step: Option<&Candidate>) -> String {
    let width = candidates.iter().map(|c| c.step.chars().count()).max().unwrap_or(0).clamp(4, 40);
    let mut out = format!(
        "  {:width$}  {:19} {:>8} {:>13} {:>12}  file\n",
        "step", "stage", "devices", "instructions", "collectives"
    );
    for candidate in candidates.iter().take(MAX_LISTED) {
        let Candidate { file, step: name, stage, n_devices, n_instructions, n_collectives, .. } = candidate;
        let mark = if step.is_some_and(|step| step.file == *file) { '*' } else { ' ' };
        let (stage, file) = (stage.word(), file.file_name().unwrap_or_default().to_string_lossy());
        let _ = writeln!(
            out,
            "{mark} {name:width$}  {stage:19} {n_devices:>8} {n_instructions:>13} {n_collectives:>12}  {file}"
        );
    }
    if let Some(n_more) = candidates.len().checked_sub(MAX_LISTED).filter(|n| *n > 0) {
        let _ = writeln!(out, "  and {n_more} more");
    }
    out
}

/// What tells steps apart: the module's name as dumps are named, or as the module says.
fn key(candidate: &Candidate) -> String {
    let name = candidate.file.file_name().unwrap_or_default().to_string_lossy();
    match module_of(&name) {
        Some(_) => stem(&name).to_string(),
        None => candidate.step.clone(),
    }
}

/// The name of the module without its number: `jit_step.` of `module_0022.jit_step.0001.…`.
fn stem(name: &str) -> &str {
    let module = module_of(name).unwrap_or(name);
    module.split_once('.').map_or(module, |(_, rest)| rest)
}

fn begins_as_module(file: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MAX_COMMENT_BYTES).read_to_end(&mut head));
    let is_there = read.is_ok() && !head.is_empty();
    is_there && (module_text(&head).is_some() || hlo_proto::is_binary(&head) || head.starts_with(GZIP))
}

/// Comments before a module that are looked through for it, where a list of files is made.
const MAX_COMMENT_BYTES: u64 = 1 << 12;

/// The text from the module's first word on, where nothing but comments and blank lines stands before it.
fn module_text(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    loop {
        rest = rest.trim_ascii_start();
        if rest.starts_with(b"HloModule") {
            return Some(rest);
        }
        let line = rest.starts_with(b"//").then(|| rest.iter().position(|&byte| byte == b'\n'))??;
        rest = &rest[line..];
    }
}

/// How a file that is packed with gzip begins (RFC 1952, section 2.3.1).
const GZIP: &[u8] = &[0x1f, 0x8b];

/// What there is to know of a file for a list; nothing of one that is no module.
fn look(file: &Path, stage: Stage) -> Option<Candidate> {
    let mut bytes = Vec::new();
    File::open(file).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let bytes = hlo_proto::unzip(bytes, MAX_BYTES).ok()?;
    if let Some(text) = module_text(&bytes) {
        return look_at_text(file, stage, &String::from_utf8_lossy(text));
    }
    let module = hlo_proto::read(&bytes).ok()?.module;
    let insts: Vec<InstId> = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.clone()).collect();
    let communicates = |inst: &&InstId| module.inst(**inst).opcode.row().effects == Effects::Communicates;
    let Module { header, .. } = &module;
    Some(Candidate {
        file: file.to_path_buf(),
        step: module.name.clone(),
        stage,
        n_devices: module.n_devices() as u64,
        is_of_replicas: header.replica_count > 1 && header.num_partitions <= 1,
        n_instructions: insts.len(),
        n_collectives: insts.iter().filter(communicates).count(),
        n_params: module.entry().map_or(0, |entry| module.comp(entry).params.len()),
    })
}

fn look_at_text(file: &Path, stage: Stage, text: &str) -> Option<Candidate> {
    let header = text.lines().next()?;
    let count = |key: &str| -> u64 {
        let digits = header.split_once(key).map_or("", |(_, rest)| rest);
        digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(1)
    };
    let (replicas, partitions) = (count(", replica_count="), count(", num_partitions="));
    let name = header.trim_start_matches("HloModule").trim_start();
    let entry = text.lines().skip_while(|line| !line.starts_with("ENTRY"));
    Some(Candidate {
        file: file.to_path_buf(),
        step: name.split([',', ' ']).next().unwrap_or_default().to_string(),
        stage,
        n_devices: replicas.saturating_mul(partitions),
        is_of_replicas: replicas > 1 && partitions == 1,
        n_instructions: text.lines().filter(|line| line.contains(" = ")).count(),
        n_collectives: text.lines().filter(|line| COLLECTIVES.iter().any(|opcode| line.contains(opcode))).count(),
        n_params: entry.filter(|line| line.contains(" parameter(")).count(),
    })
}
