//! `cargo xtask partition-check`: random programs with random shardings or with manual regions, on 2 to 12 devices, through a pipeline that
//! partitions them. What it leaves must give what the global program gives in the evaluator, and with `--xla` in real XLA too ([`xla`]).
//! Programs that differ are kept. With `--layouts` dims are laid out at random instead ([`layouts`]), with `--strategies` random strategies are
//! applied or searched for, with `--search` parallel plans are drawn or searched for. With `--mutants` what the partitioner makes is changed, which must be seen ([`mutants`]); with `--beside`
//! a preset stands beside XLA's partitioner ([`beside`]); with `--table` ways to find strategies stand beside one another ([`table`]).

mod beside;
mod layouts;
mod mutants;
mod table;
mod xla;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use hlo_analysis::Analyses;
use hlo_ir::op::{Effects, Flow};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{Module, NumberClass};
use hlo_opt::console::Console;
use hlo_pass::runner::{RunOptions, bind_text, run_pipeline};
use hlo_tests::random_module::{Rng, Size, random_module};
use hlo_tests::random_region::random_region;
use hlo_tests::random_search::random_search;
use hlo_tests::random_sharding::annotate;
use hlo_tests::random_strategies::random_pass;
use hlo_tests::samples;
use hlo_tests::unequal_layouts::give_unequal_layouts;

use crate::arguments::{Arguments, Word, unknown};
use crate::workspace;
use layouts::{RandomLayout, random_layout};
pub(crate) use xla::XlaCases;

/// Most devices of a program.
const MOST_DEVICES: usize = 12;

/// Samples that are not tried: the evaluator does not run them, or they round sums to so few bits that the order of the terms shows.
const NOT_JUDGED: [&str; 7] =
    ["scaled-dot", "set-dimension-size", "dynamic-reshape", "get-dimension-size", "small-floats", "infeed", "outfeed"];

/// A program to be annotated, and how its inputs are drawn.
#[derive(Clone)]
pub(crate) struct Base {
    pub name: String,
    pub module: Module,
    pub draw: String,
    /// Of a program with a manual region, which has its annotations.
    n_devices: Option<usize>,
}

#[derive(Default)]
struct Counts {
    tried: usize,
    same: usize,
    /// Programs among these with NaN in more than 1 % of an output, in the same places before and after.
    undecided: usize,
    /// Strategies and plans that cut nothing.
    uncut: usize,
    refused: BTreeMap<String, usize>,
    wrong: Vec<String>,
    n_regions: usize,
}

/// Where files go, how programs are partitioned, and which of them XLA is to run.
struct Check {
    folder: PathBuf,
    pipeline: String,
    counts: Counts,
    xla: Option<XlaCases>,
    draw: Drawn,
}

/// A global program that is tried.
#[derive(Clone, Copy)]
pub(crate) struct Tried<'a> {
    pub name: &'a str,
    pub global: &'a Module,
    /// How its inputs are drawn.
    pub draw: &'a str,
    /// The same program with annotations, for XLA's partitioner.
    pub annotated: Option<&'a Module>,
}

/// The exit code of `compare` where results are the same, but NaN hides too much of one.
const UNDECIDED: u8 = hlo_opt::exit::UNKNOWN;

/// What is drawn beside the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drawn {
    Shardings,
    /// Strategies in the place of shardings.
    Strategies,
    /// Parallel plans in the place of shardings.
    Plans,
    /// Layouts of dims on meshes.
    Layouts,
    /// The pipeline lays the program out.
    Nothing,
}

impl Drawn {
    /// Whether a pass annotates the program.
    fn is_by_pass(self) -> bool {
        matches!(self, Drawn::Strategies | Drawn::Plans)
    }

    /// How programs are partitioned.
    fn default_pipeline(self) -> &'static str {
        match self {
            Drawn::Plans => "inline-calls,spmd-partition,simplify-tuples,cse,dce",
            Drawn::Shardings | Drawn::Strategies | Drawn::Layouts | Drawn::Nothing => {
                "inline-calls,spmd-partition,cse,dce"
            }
        }
    }
}

/// Runs the check: false if a program differs, or the pass panics.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let mut prints_table = false;
    let (mut n, mut seed, mut n_xla, mut n_mutants): (usize, usize, usize, usize) = (500, 0, 0, 0);
    let mut files: Vec<PathBuf> = Vec::new();
    let mut beside: Option<String> = None;
    let mut draw = Drawn::Shardings;
    let (mut pipeline, mut only): (Option<String>, String) = (None, String::new());
    let mut arguments = Arguments::new(words);
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--random" => n = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--seed" => seed = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--xla" => n_xla = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--mutants" => n_mutants = arguments.number(&flag)?,
            Word::Flag(flag) if flag == "--beside" => beside = Some(arguments.value(&flag)?),
            Word::Flag(flag) if flag == "--layouts" => draw = Drawn::Layouts,
            Word::Flag(flag) if flag == "--pass" => pipeline = Some(arguments.value(&flag)?),
            Word::Flag(flag) if flag == "--table" => prints_table = true,
            Word::Flag(flag) if flag == "--strategies" => draw = Drawn::Strategies,
            Word::Flag(flag) if flag == "--search" => draw = Drawn::Plans,
            Word::Flag(flag) if flag == "--only" => only = arguments.value(&flag)?,
            Word::Plain(file) => files.push(file.into()),
            Word::Flag(word) => return Err(unknown("partition-check", &word)),
        }
    }
    if prints_table {
        return table::run_table(&files);
    }
    if n_mutants > 0 {
        return mutants::run_mutants(&files, n_mutants, seed as u64);
    }
    if let Some(preset) = beside {
        return beside::run_beside(&files, &preset);
    }
    let folder = workspace::target_dir().join("partition-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let xla = (n_xla > 0).then(|| XlaCases::new(&folder, n_xla)).transpose()?;
    let draw = match (draw, &pipeline) {
        (Drawn::Layouts, Some(_)) => Drawn::Nothing,
        (draw, _) => draw,
    };
    let pipeline = pipeline.unwrap_or_else(|| draw.default_pipeline().to_string());
    let mut check = Check { folder, pipeline, counts: Counts::default(), xla, draw };
    let given = files.iter().map(|file| read_base(file)).collect::<Result<Vec<_>, _>>()?;
    let bases = if given.is_empty() { op_samples(&only) } else { given };
    let is_given = !files.is_empty();
    std::panic::set_hook(Box::new(|_| {}));
    if draw == Drawn::Strategies && is_given {
        check.try_searches(&files)?;
        n = 0;
    }
    for number in seed..seed + n {
        let mut rng = Rng::new(number as u64 ^ 0x5eed);
        let base = match is_given {
            true => bases.get(number % bases.len().max(1)).cloned(),
            false => random_program(number as u64, &bases, &only, &mut rng),
        };
        if let Some(mut base) = base {
            // Every second program has arrays whose layouts differ from one another.
            if number % 2 == 1 {
                give_unequal_layouts(&mut base.module, &mut Rng::new(number as u64 ^ 0x1a70));
            }
            check.try_one(number, base, &mut rng)?;
        }
    }
    let _ = std::panic::take_hook();
    let counts = &check.counts;
    println!(
        "{} programs, {} with manual regions: {} the same ({} of them with much NaN), {} not cut, {} refused, {} wrong",
        counts.tried,
        counts.n_regions,
        counts.same,
        counts.undecided,
        counts.uncut,
        counts.refused.values().sum::<usize>(),
        counts.wrong.len()
    );
    for (reason, n) in &counts.refused {
        println!("  refused {n}: {reason}");
    }
    counts.wrong.iter().for_each(|wrong| println!("  wrong: {wrong}"));
    let is_same = counts.wrong.is_empty() && counts.tried > 0;
    Ok(check.xla.as_ref().map_or(Ok(true), XlaCases::run)? && is_same)
}

/// A sample of an op, a random program, or one with a manual region.
fn random_program(number: u64, bases: &[Base], only: &str, rng: &mut Rng) -> Option<Base> {
    let has_all = only.is_empty();
    if (has_all && number % 5 == 4) || only == "region" {
        let region = random_region(number, MOST_DEVICES);
        let module = hlo_text::parse_module(&region.text).ok()?.module;
        let n_devices = Some(region.n_devices);
        return Some(Base { name: "region".into(), module, draw: String::new(), n_devices });
    }
    match rng.one_in(3) && has_all {
        true => random_base(number),
        false if bases.is_empty() => None,
        false => Some(rng.pick(bases).clone()),
    }
}

/// The samples of ops that run on one device.
fn op_samples(only: &str) -> Vec<Base> {
    let mut out = Vec::new();
    for sample in samples("ops") {
        let Ok(parsed) = hlo_text::parse_module(&sample.text) else { continue };
        let is_left_out = NOT_JUDGED.iter().any(|part| sample.name().contains(part));
        if sample.name().contains(only) && !is_left_out && is_base(&parsed.module) {
            let draw = sample.header("draw").unwrap_or("").to_string();
            out.push(Base { name: sample.name().to_string(), module: parsed.module, draw, n_devices: None });
        }
    }
    out
}

/// A global program of the user's.
pub(crate) fn read_base(file: &Path) -> Result<Base, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let name = file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let draw = text.lines().find_map(|line| line.strip_prefix("// draw: ")).unwrap_or("").to_string();
    match hlo_text::parse_module(&text) {
        Ok(parsed) => Ok(Base { name, module: parsed.module, draw, n_devices: None }),
        Err(diags) => Err(hlo_text::render(&diags, &name, &text, false)),
    }
}

/// Whether a module is a global program without collectives: one device, no exchange, no id of a device, nothing asynchronous; and no numbers from a hidden
/// state, which the evaluator does not draw.
fn is_base(module: &Module) -> bool {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let is_outside = |&inst: &hlo_ir::InstId| {
        let row = module.inst(inst).opcode.row();
        let tells_devices_apart = matches!(row.flow, Flow::PartitionId | Flow::ReplicaId);
        row.collective.is_some() || row.effects == Effects::Random || tells_devices_apart
    };
    module.n_devices() == 1 && !insts.any(is_outside)
}

fn random_base(seed: u64) -> Option<Base> {
    let size = Size { replica_count: 1, num_partitions: 1, n_steps: 6 };
    let random = random_module(seed, size);
    let module = hlo_text::parse_module(&random.text).ok()?.module;
    is_base(&module).then(|| Base { name: format!("random-{seed}"), module, draw: String::new(), n_devices: None })
}

impl Check {
    fn try_one(&mut self, number: usize, base: Base, rng: &mut Rng) -> Result<(), String> {
        match self.draw {
            Drawn::Shardings => {}
            Drawn::Strategies => return self.try_pass(number, &base, random_pass(&base.module, rng)),
            Drawn::Plans => return self.try_pass(number, &base, random_search(rng)),
            Drawn::Layouts => {
                let layout = random_layout(&base.module, rng);
                return layout.map_or(Ok(()), |layout| self.try_layout(number, &base, &layout));
            }
            Drawn::Nothing => {
                let pipeline = self.pipeline.clone();
                let layout = RandomLayout { pipeline, must_be_refused: false, n_devices: 0 };
                return self.try_layout(number, &base, &layout);
            }
        }
        let mut global = base.module;
        let n_devices = base.n_devices.unwrap_or_else(|| {
            let n_devices = 2 + rng.below(MOST_DEVICES - 1);
            let rarity = *rng.pick(&[1, 2, 4, 100]);
            annotate(&mut global, rng, n_devices, rarity);
            n_devices
        });
        if hlo_ir::devices::find_n_devices(&global) != n_devices {
            // Nothing is cut.
            return Ok(());
        }
        self.counts.n_regions += usize::from(base.n_devices.is_some());
        let name = format!("{number}-{}-{n_devices}", base.name);
        let tried = Tried { name: &name, global: &global, draw: &base.draw, annotated: None };
        self.run_and_judge(tried, &self.pipeline.clone())
    }

    /// A pass that annotates a program without annotations, for so many devices.
    fn try_pass(&mut self, number: usize, base: &Base, (pass, n_devices): (String, usize)) -> Result<(), String> {
        if base.n_devices.is_some() {
            // What a manual region says cannot be said otherwise.
            return Ok(());
        }
        let name = format!("{number}-{}-{n_devices}", base.name);
        let pipeline = format!("{pass},{}", self.pipeline);
        let n_wrong = self.counts.wrong.len();
        let mut annotated = (self.draw == Drawn::Plans && self.xla.is_some()).then(|| base.module.clone());
        if let Some(module) = &mut annotated
            && !matches!(catch_unwind(AssertUnwindSafe(|| run_passes(module, &pass))), Ok(Ok(())))
        {
            annotated = None;
        }
        let tried = Tried { name: &name, global: &base.module, draw: &base.draw, annotated: annotated.as_ref() };
        self.run_and_judge(tried, &pipeline)?;
        if let Some(wrong) = self.counts.wrong.get_mut(n_wrong) {
            wrong.push_str(&format!(" ({pipeline})"));
        }
        Ok(())
    }

    /// Each search on 8 devices for each program.
    fn try_searches(&mut self, files: &[PathBuf]) -> Result<(), String> {
        for file in files {
            let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
            let parsed = hlo_text::parse_module(&text).map_err(|_| format!("{}: expected a module", file.display()))?;
            let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            for search in ["order=topological", "order=weight", "algo=dp", "algo=dp,price=time"] {
                let name = format!("{stem}-{}", search.replace(['=', ','], "-"));
                let pipeline = format!("search-strategies{{devices=8,{search}}},{}", self.pipeline);
                let tried = Tried { name: &name, global: &parsed.module, draw: "", annotated: None };
                self.run_and_judge(tried, &pipeline)?;
            }
        }
        Ok(())
    }

    fn run_and_judge(&mut self, tried: Tried<'_>, pipeline: &str) -> Result<(), String> {
        self.counts.tried += 1;
        let Tried { name, global, .. } = tried;
        let mut local = global.clone();
        match catch_unwind(AssertUnwindSafe(|| run_passes(&mut local, pipeline))) {
            Err(_) => {
                keep(&self.folder, name, global, "global")?;
                self.counts.wrong.push(format!("{name}: the pass panics"));
            }
            Ok(Err(refused)) => *self.counts.refused.entry(refused).or_insert(0) += 1,
            Ok(Ok(())) if self.draw.is_by_pass() && local.n_devices() <= 1 => self.counts.uncut += 1,
            Ok(Ok(())) => self.judge(tried, &local)?,
        }
        Ok(())
    }

    /// Lays a program out.
    fn try_layout(&mut self, number: usize, base: &Base, layout: &RandomLayout) -> Result<(), String> {
        self.counts.tried += 1;
        let name = format!("{number}-{}-{}", base.name, layout.n_devices);
        let mut local = base.module.clone();
        let is_illegal = |refused: &str| refused.contains("expected at most one dim");
        match catch_unwind(AssertUnwindSafe(|| run_passes(&mut local, &layout.pipeline))) {
            Err(_) => {
                keep(&self.folder, &name, &base.module, "global")?;
                self.counts.wrong.push(format!("{name}: a pass panics: {}", layout.pipeline));
            }
            Ok(Err(refused)) if is_illegal(&refused) => {
                let what = if layout.must_be_refused { "illegal, by intent" } else { "illegal, by chance" };
                *self.counts.refused.entry(what.into()).or_insert(0) += 1;
            }
            Ok(_) if layout.must_be_refused => {
                keep(&self.folder, &name, &base.module, "global")?;
                self.counts.wrong.push(format!("{name}: expected an error, found none: {}", layout.pipeline));
            }
            Ok(Err(refused)) => *self.counts.refused.entry(refused).or_insert(0) += 1,
            Ok(Ok(())) => {
                let n_wrong = self.counts.wrong.len();
                let tried = Tried { name: &name, global: &base.module, draw: &base.draw, annotated: None };
                self.judge(tried, &local)?;
                if let Some(wrong) = self.counts.wrong.get_mut(n_wrong) {
                    wrong.push_str(&format!(" ({})", layout.pipeline));
                }
            }
        }
        Ok(())
    }

    /// Compares what the pipeline made with the global program.
    fn judge(&mut self, tried: Tried<'_>, local: &Module) -> Result<(), String> {
        let Tried { name, global, draw, .. } = tried;
        let has_short_floats = has_short_floats(global);
        let files = [keep(&self.folder, name, global, "global")?, keep(&self.folder, name, local, "local")?];
        let compared = catch_unwind(AssertUnwindSafe(|| compare(&files[0], &files[1], draw, has_short_floats)));
        match compared {
            Ok((code @ (0 | UNDECIDED), _)) => {
                self.counts.same += 1;
                self.counts.undecided += usize::from(code == UNDECIDED);
                files.iter().for_each(|file| drop(std::fs::remove_file(file)));
                if let Some(xla) = &mut self.xla {
                    xla.add(tried, local)?;
                }
            }
            Ok((_, said)) => {
                let first = said.lines().find(|line| !line.starts_with("note")).unwrap_or_default();
                self.counts.wrong.push(format!("{name}: {first}"));
            }
            Err(_) => self.counts.wrong.push(format!("{name}: the comparison panics")),
        }
        Ok(())
    }
}

pub(crate) fn keep(folder: &Path, name: &str, module: &Module, part: &str) -> Result<PathBuf, String> {
    let path = folder.join(format!("{name}.{part}.hlo"));
    let text = print_module(module, &PrintOptions::default());
    std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

/// Runs the pipeline; an error without the names of this program's instructions.
pub(crate) fn run_passes(module: &mut Module, pipeline: &str) -> Result<(), String> {
    let registry = hlo_opt::registry::passes();
    let (passes, target) = bind_text(pipeline, &registry, module.n_devices()).map_err(|e| e.to_string())?;
    let options = RunOptions { target: Some(&target), ..RunOptions::default() };
    match run_pipeline(module, &mut Analyses::default(), &passes, options) {
        Ok(_) => Ok(()),
        Err(error) => {
            let message = error.diagnostics.first().map(|d| d.message.clone()).unwrap_or_default();
            let text = message.split_once("`: ").map_or(message.clone(), |(_, rest)| rest.to_string());
            if error.pass.ends_with("-strategies") {
                // Sizes and cuts are the program's own.
                let text: String = message.chars().filter(|c| !c.is_ascii_digit()).collect();
                let text = text.split('`').step_by(2).collect::<Vec<_>>().join("…");
                return Err(format!("{}: {text}", error.pass));
            }
            Err(format!("{}: {text}", error.pass))
        }
    }
}

/// Whether some value has floats of at most 16 bits.
pub(crate) fn has_short_floats(module: &Module) -> bool {
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
pub(crate) fn compare(global: &Path, local: &Path, draw: &str, has_short_floats: bool) -> (u8, String) {
    let paths = [global.as_os_str().to_owned(), local.as_os_str().to_owned()];
    let mut words = ["--draw", draw, "--trials", "1"].map(OsString::from).to_vec();
    if has_short_floats {
        // Sums in another order differ in the last of few bits.
        words.extend(["--rtol", "0.02"].map(OsString::from));
    }
    run_tool([OsString::from("compare")].into_iter().chain(paths).chain(words))
}

/// The exit code of the command line with these words, and what it prints.
fn run_tool(words: impl IntoIterator<Item = OsString>) -> (u8, String) {
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
    let code = hlo_opt::run([OsString::from("hlo-opt")].into_iter().chain(words), &mut console);
    (code, String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr))
}
