//! `cargo xtask partition-check`: random programs with random shardings, on 2 to 12 devices, through a pipeline that partitions them.
//! What it leaves must give what the global program gives in the evaluator. Programs that differ are kept.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use hlo_analysis::Analyses;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{Module, NumberClass};
use hlo_opt::console::Console;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::random_module::{Rng, Size, random_module};
use hlo_tests::random_sharding::annotate;
use hlo_tests::samples;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;

/// Most devices of a program.
const MOST_DEVICES: usize = 12;

/// Samples that are not tried: the evaluator does not run them, or they round sums to so few bits that the order of the terms shows.
const NOT_JUDGED: [&str; 7] =
    ["scaled-dot", "set-dimension-size", "dynamic-reshape", "get-dimension-size", "small-floats", "infeed", "outfeed"];

/// A program to be annotated, and how its inputs are drawn.
struct Base {
    name: String,
    module: Module,
    draw: String,
}

#[derive(Default)]
struct Counts {
    tried: usize,
    same: usize,
    refused: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

/// Runs the check: false if a program differs, or the pass panics.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let (mut n, mut seed, mut pipeline, mut only) =
        (500usize, 0usize, "inline-calls,spmd-partition,cse,dce".to_string(), String::new());
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--random" => n = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--seed" => seed = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--pass" => pipeline = arguments.value(&flag)?,
            Word::Flag(flag) if flag == "--only" => only = arguments.value(&flag)?,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("partition-check", &word)),
        }
    }
    let folder = workspace::target_dir().join("partition-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let bases = op_samples(&only);
    let mut counts = Counts::default();
    std::panic::set_hook(Box::new(|_| {}));
    for number in seed..seed + n {
        let mut rng = Rng::new(number as u64 ^ 0x5eed);
        let base = match rng.one_in(3) && only.is_empty() {
            true => random_base(number as u64),
            false if bases.is_empty() => None,
            false => {
                let base = rng.pick(&bases);
                Some(Base { name: base.name.clone(), module: base.module.clone(), draw: base.draw.clone() })
            }
        };
        if let Some(base) = base {
            try_one(number, base, &mut rng, &pipeline, &folder, &mut counts)?;
        }
    }
    let _ = std::panic::take_hook();
    println!(
        "{} programs: {} the same, {} refused, {} wrong",
        counts.tried,
        counts.same,
        counts.refused.values().sum::<usize>(),
        counts.wrong.len()
    );
    for (reason, n) in &counts.refused {
        println!("  refused {n}: {reason}");
    }
    counts.wrong.iter().for_each(|wrong| println!("  wrong: {wrong}"));
    Ok(counts.wrong.is_empty() && counts.tried > 0)
}

/// The samples of ops that run on one device.
fn op_samples(only: &str) -> Vec<Base> {
    let mut out = Vec::new();
    for sample in samples("ops") {
        let Ok(parsed) = hlo_text::parse_module(&sample.text) else { continue };
        let is_left_out = NOT_JUDGED.iter().any(|part| sample.name().contains(part));
        if sample.name().contains(only) && !is_left_out && is_base(&parsed.module) {
            let draw = sample.header("draw").unwrap_or("").to_string();
            out.push(Base { name: sample.name().to_string(), module: parsed.module, draw });
        }
    }
    out
}

/// Whether a module is a global program without collectives: one device, no exchange, nothing asynchronous.
fn is_base(module: &Module) -> bool {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let is_outside = |&inst: &hlo_ir::InstId| module.inst(inst).opcode.row().collective.is_some();
    module.n_devices() == 1 && !insts.any(is_outside)
}

fn random_base(seed: u64) -> Option<Base> {
    let size = Size { replica_count: 1, num_partitions: 1, n_steps: 6 };
    let random = random_module(seed, size);
    let module = hlo_text::parse_module(&random.text).ok()?.module;
    is_base(&module).then(|| Base { name: format!("random-{seed}"), module, draw: String::new() })
}

fn try_one(
    number: usize,
    base: Base,
    rng: &mut Rng,
    pipeline: &str,
    folder: &Path,
    counts: &mut Counts,
) -> Result<(), String> {
    let mut global = base.module;
    let n_devices = 2 + rng.below(MOST_DEVICES - 1);
    let rarity = *rng.pick(&[1, 2, 4, 100]);
    annotate(&mut global, rng, n_devices, rarity);
    if hlo_ir::devices::find_n_devices(&global) != n_devices {
        // Nothing is cut.
        return Ok(());
    }
    counts.tried += 1;
    let name = format!("{number}-{}-{n_devices}", base.name);
    let mut local = global.clone();
    let found = catch_unwind(AssertUnwindSafe(|| run_passes(&mut local, pipeline)));
    let keep = |module: &Module, part: &str| -> Result<PathBuf, String> {
        let path = folder.join(format!("{name}.{part}.hlo"));
        let text = print_module(module, &PrintOptions::default());
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    };
    match found {
        Err(_) => {
            keep(&global, "global")?;
            counts.wrong.push(format!("{name}: the pass panics"));
        }
        Ok(Err(refused)) => {
            *counts.refused.entry(refused).or_insert(0) += 1;
        }
        Ok(Ok(())) => {
            let has_short_floats = has_short_floats(&global);
            let (global, local) = (keep(&global, "global")?, keep(&local, "local")?);
            let compared = catch_unwind(AssertUnwindSafe(|| compare(&global, &local, &base.draw, has_short_floats)));
            match compared {
                Ok((0, _)) => {
                    counts.same += 1;
                    let _ = (std::fs::remove_file(global), std::fs::remove_file(local));
                }
                Ok((_, said)) => {
                    let first = said.lines().find(|line| !line.starts_with("note")).unwrap_or_default();
                    counts.wrong.push(format!("{name}: {first}"));
                }
                Err(_) => counts.wrong.push(format!("{name}: the comparison panics")),
            }
        }
    }
    Ok(())
}

/// Runs the pipeline; an error without the names of this program's instructions.
fn run_passes(module: &mut Module, pipeline: &str) -> Result<(), String> {
    let registry = hlo_opt::registry::passes();
    let calls = parse_pipeline(pipeline).map_err(|e| e.to_string())?;
    let passes = bind(&calls, &registry).map_err(|e| e.to_string())?;
    match run_pipeline(module, &mut Analyses::default(), &passes, RunOptions::default()) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = error.diagnostics.first().map(|d| d.message.clone()).unwrap_or_default();
            let text = message.split_once("`: ").map_or(message.clone(), |(_, rest)| rest.to_string());
            Err(format!("{}: {text}", error.pass))
        }
    }
}

/// Whether some value has floats of at most 16 bits.
fn has_short_floats(module: &Module) -> bool {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    insts.any(|&inst| {
        let mut is_short = false;
        module.shape(inst).for_each_leaf(&mut |_, shape| {
            is_short |= shape.as_array().is_some_and(|a| a.dtype.class() == NumberClass::Float && a.dtype.bits() <= 16);
        });
        is_short
    })
}

/// The exit code of `hlo-opt compare`, and what it prints.
fn compare(global: &Path, local: &Path, draw: &str, has_short_floats: bool) -> (u8, String) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut console = Console {
        stdin: &mut std::io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        shows_progress: false,
        has_color: false,
        stdin_is_terminal: true,
        stdout_is_terminal: false,
    };
    let paths = [global.as_os_str().to_owned(), local.as_os_str().to_owned()];
    let mut words = ["--draw", draw, "--trials", "1"].map(OsString::from).to_vec();
    if has_short_floats {
        // Sums in another order differ in the last of few bits.
        words.extend(["--rtol", "0.02"].map(OsString::from));
    }
    let args = ["hlo-opt", "compare"].map(OsString::from).into_iter().chain(paths).chain(words);
    let code = hlo_opt::run(args, &mut console);
    (code, String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}
