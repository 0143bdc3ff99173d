//! A folder in the place of a file: the module of the training step among what XLA dumped there.

use crate::Failure;
use crate::console::Console;
use crate::dump::module_of;
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// What dumps of one device's program are named, right behind XLA's partitioner.
const PARTITIONED: &str = ".after_spmd-partitioning.";

/// The opcodes that are counted as collectives, as they stand in text.
const COLLECTIVES: [&str; 5] =
    [" all-reduce(", " all-gather(", " reduce-scatter(", " all-to-all(", " collective-permute("];

/// The largest part of a file that is read to see what it is.
const MAX_BYTES: u64 = 1 << 28;

/// A module of one device's program.
struct Candidate {
    name: String,
    n_devices: u64,
    /// There are replicas, and no partitions.
    is_of_replicas: bool,
    n_instructions: usize,
    n_collectives: usize,
}

/// The file of a folder that holds the step: of the programs of one device the largest one with collectives, and of several of
/// one name the last. All are listed on stderr.
///
/// # Errors
/// There is none, or another step has half as many instructions or more.
pub(crate) fn choose(folder: &Path, console: &mut Console<'_>) -> Result<PathBuf, Failure> {
    let shown = folder.display();
    let entries = std::fs::read_dir(folder).map_err(|e| Failure::File(format!("cannot read `{shown}`: {e}")))?;
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let mut n_modules = 0;
    let mut found: Vec<Candidate> = Vec::new();
    for name in names.iter().filter(|name| name.ends_with(".txt") || name.ends_with(".hlo")) {
        if !begins_as_module(&folder.join(name)) {
            continue;
        }
        n_modules += 1;
        // Before XLA's passes a module is one device's program only if it has replicas.
        let is_replicas = name.ends_with(".before_optimizations.txt");
        if name.contains(PARTITIONED) || is_replicas {
            let candidate = look(folder, name);
            found.extend(
                candidate.filter(|c| c.n_devices > 1 && (!is_replicas || c.is_of_replicas && c.n_collectives > 0)),
            );
        }
    }
    let Some(step) = largest(&found) else {
        let what = "no program of one device: dump with --xla_dump_hlo_pass_re=spmd.*, or name a file";
        return Err(Failure::Usage(format!("`{shown}` has {n_modules} modules and {what}")));
    };
    let list = listed(&found, step);
    let rival = found.iter().find(|other| {
        other.n_collectives > 0
            && stem(&other.name) != stem(&step.name)
            && other.n_instructions * 2 >= step.n_instructions
    });
    if rival.is_some() {
        return Err(Failure::Usage(format!("`{shown}` has several steps: name the file of one\n{list}")));
    }
    console.say(&format!("note: of the {n_modules} modules in `{shown}` the step (*) is taken\n{list}"));
    Ok(folder.join(&step.name))
}

/// The largest with collectives, or else the largest; of one name the last.
fn largest(found: &[Candidate]) -> Option<&Candidate> {
    let largest = found.iter().max_by_key(|c| (c.n_collectives > 0, c.n_instructions))?;
    found.iter().rev().find(|c| stem(&c.name) == stem(&largest.name) && c.n_collectives > 0).or(Some(largest))
}

fn listed(found: &[Candidate], step: &Candidate) -> String {
    let mut out = format!("  {:>9} {:>13} {:>12}  file\n", "devices", "instructions", "collectives");
    for Candidate { name, n_devices, n_instructions, n_collectives, .. } in found {
        let mark = if *name == step.name { '*' } else { ' ' };
        let _ = writeln!(out, "{mark} {n_devices:>9} {n_instructions:>13} {n_collectives:>12}  {name}");
    }
    out
}

/// The name of the module without its number: `jit_step.` of `module_0022.jit_step.0001.…`.
fn stem(name: &str) -> &str {
    let module = module_of(name).unwrap_or(name);
    module.split_once('.').map_or(module, |(_, rest)| rest)
}

fn begins_as_module(file: &Path) -> bool {
    let mut head = [0u8; 9];
    File::open(file).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *b"HloModule"
}

fn look(folder: &Path, name: &str) -> Option<Candidate> {
    let mut text = String::new();
    File::open(folder.join(name)).ok()?.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let header = text.lines().next()?;
    let count = |key: &str| -> u64 {
        let digits = header.split_once(key).map_or("", |(_, rest)| rest);
        digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok()).unwrap_or(1)
    };
    let (replicas, partitions) = (count(", replica_count="), count(", num_partitions="));
    Some(Candidate {
        name: name.to_string(),
        n_devices: replicas.saturating_mul(partitions),
        is_of_replicas: replicas > 1 && partitions == 1,
        n_instructions: text.lines().filter(|line| line.contains(" = ")).count(),
        n_collectives: text.lines().filter(|line| COLLECTIVES.iter().any(|opcode| line.contains(opcode))).count(),
    })
}
