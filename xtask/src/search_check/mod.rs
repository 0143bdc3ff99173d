//! `cargo xtask search-check`: parallel plans of the training steps of `ir-samples/search`, the best one on slow devices and some by chance,
//! each partitioned. What a plan leaves must give what the global program gives in the evaluator, and with `--xla` in real XLA, where
//! XLA's own partitioner gets the annotated program too. Memory and collectives stand beside those that the plan claims ([`figures`]); a
//! row of the table for each program and number of devices. With `--full DIR`, full-size steps instead, which nothing runs ([`full`]),
//! and with `--unity POPS` too, those of Unity's models beside Unity's own search ([`unity`]).

mod figures;
mod full;
mod table;
mod unity;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use hlo_analysis::frequency::FrequencyOptions;
use hlo_ir::Module;
use hlo_mesh::Machine;
use hlo_search::{Algebra, Asked, ParallelPlan, Regions, SearchOptions, Searched, plan_parallel};
use hlo_tests::random_search::SLOW_MACHINE;
use hlo_tests::unity_ref::Budget;

use crate::arguments::{Arguments, Word, unknown};
use crate::partition_check::{Base, Tried, XlaCases, compare, has_short_floats, keep, read_base, run_passes};
use crate::workspace;
use figures::Figures;
use table::Row;

/// What follows a plan, if nothing else is asked for: ops are cut as the plan cuts them. With `compute=cheapest`, the partitioner's default,
/// it gathers operands where this moves fewer bytes than the reductions that the plan claims.
const PARTITION: &str = "spmd-partition{compute=as-cut},simplify-tuples,cse,dce";

/// Numbers of devices.
const N_DEVICES: [usize; 6] = [2, 3, 4, 6, 8, 12];

/// Of `--quick`: the programs whose files are small, on these devices, with so many plans by chance.
const QUICK_DEVICES: [usize; 2] = [3, 8];
const QUICK_PLANS: usize = 3;
const QUICK_BYTES: u64 = 35_000;

/// Table entries that a search may read.
const EFFORT: u64 = 200_000_000;

/// What the command line asks for.
struct Options {
    files: Vec<PathBuf>,
    devices: Vec<usize>,
    n_drawn: usize,
    is_quick: bool,
    has_xla: bool,
    /// The programs with branches made one, and no others.
    is_rewritten: bool,
    /// The programs with regions of products in other ways, by chance where plans are.
    has_regions: bool,
    only: Vec<String>,
    seed: u64,
    /// What follows a plan.
    pipeline: String,
    /// A folder of full-size steps `NAME.DEVICES.hlo`.
    full: Option<PathBuf>,
    /// These beside Unity's own search, which takes so many graphs from its queue.
    unity_pops: Option<u64>,
}

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            files: Vec::new(),
            devices: Vec::new(),
            n_drawn: 40,
            is_quick: false,
            has_xla: false,
            is_rewritten: false,
            has_regions: false,
            only: Vec::new(),
            seed: 1,
            pipeline: PARTITION.to_string(),
            full: None,
            unity_pops: None,
        };
        let mut arguments = Arguments::new(words);
        while let Some(word) = arguments.next_word() {
            match word {
                Word::Flag(flag) if flag == "--quick" => options.is_quick = true,
                Word::Flag(flag) if flag == "--xla" => options.has_xla = true,
                Word::Flag(flag) if flag == "--rewritten" => options.is_rewritten = true,
                Word::Flag(flag) if flag == "--regions" => options.has_regions = true,
                Word::Flag(flag) if flag == "--random" => options.n_drawn = arguments.number(&flag)?,
                Word::Flag(flag) if flag == "--devices" => options.devices.push(arguments.number(&flag)?),
                Word::Flag(flag) if flag == "--seed" => options.seed = arguments.number(&flag)? as u64,
                Word::Flag(flag) if flag == "--pass" => options.pipeline = arguments.value(&flag)?,
                Word::Flag(flag) if flag == "--full" => options.full = Some(arguments.value(&flag)?.into()),
                Word::Flag(flag) if flag == "--unity" => options.unity_pops = Some(arguments.number(&flag)? as u64),
                Word::Flag(flag) if flag == "--only" => options.only.push(arguments.value(&flag)?),
                Word::Plain(file) => options.files.push(file.into()),
                Word::Flag(word) => return Err(unknown("search-check", &word)),
            }
        }
        if options.devices.is_empty() {
            options.devices = if options.is_quick { QUICK_DEVICES.to_vec() } else { N_DEVICES.to_vec() };
        }
        if options.is_quick {
            options.n_drawn = QUICK_PLANS;
        }
        if options.files.is_empty() {
            options.files = match &options.full {
                Some(folder) => programs(folder)?,
                None => samples(options.is_quick)?,
            };
        }
        let is_asked = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            options.only.is_empty() || options.only.iter().any(|part| name.contains(part))
        };
        options.files.retain(is_asked);
        Ok(options)
    }
}

/// The programs of a folder.
fn programs(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "hlo"));
    files.sort();
    Ok(files)
}

/// The training steps of the samples.
fn samples(is_quick: bool) -> Result<Vec<PathBuf>, String> {
    let mut files = programs(&workspace::root().join("ir-samples/search"))?;
    let is_small = |file: &PathBuf| std::fs::metadata(file).is_ok_and(|facts| facts.len() <= QUICK_BYTES);
    files.retain(|file| !is_quick || is_small(file));
    Ok(files)
}

/// Runs the check: false if a plan gives something else, or there is none.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = Options::parse(words)?;
    if let Some(n_pops) = options.unity_pops {
        return unity::run(&options.files, Budget { n_pops, ..Budget::default() });
    }
    if options.full.is_some() {
        return full::run(&options.files);
    }
    let folder = workspace::target_dir().join("search-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let xla = options.has_xla.then(|| XlaCases::new(&folder, usize::MAX)).transpose()?;
    let algebra = if options.is_rewritten { Algebra::Rewritten } else { Algebra::SameState };
    let mut check = Check {
        folder,
        pipeline: options.pipeline.clone(),
        algebra,
        has_regions: options.has_regions,
        rows: Vec::new(),
        wrong: Vec::new(),
        xla,
    };
    println!("{}", table::head());
    for file in &options.files {
        let base = read_base(file)?;
        for &n_devices in &options.devices {
            let searched = check.try_plans(&base, n_devices, "searched", &[None])?;
            let seeds: Vec<Option<u64>> = (0..options.n_drawn as u64).map(|k| Some(options.seed + k)).collect();
            let drawn = check.try_plans(&base, n_devices, "by chance", &seeds)?;
            for row in [searched, drawn] {
                println!("{row}");
                check.rows.push(row);
            }
        }
    }
    let (n_same, n_tried) =
        check.rows.iter().fold((0, 0), |(same, tried), row| (same + row.n_same, tried + row.n_tried));
    println!("{n_tried} plans: {n_same} the same in the evaluator, {} wrong", check.wrong.len());
    check.wrong.iter().for_each(|wrong| println!("  wrong: {wrong}"));
    let is_same_in_xla = match &check.xla {
        Some(xla) => {
            let is_same = xla.run()?;
            xla.print_memory();
            is_same
        }
        None => true,
    };
    Ok(is_same_in_xla && check.wrong.is_empty() && n_same > 0)
}

struct Check {
    folder: PathBuf,
    pipeline: String,
    algebra: Algebra,
    has_regions: bool,
    rows: Vec<Row>,
    wrong: Vec<String>,
    xla: Option<XlaCases>,
}

impl Check {
    /// The best plan (no seed), or plans by chance of these seeds.
    fn try_plans(&mut self, base: &Base, n_devices: usize, what: &str, seeds: &[Option<u64>]) -> Result<Row, String> {
        let mut row = Row::new(&base.name, n_devices, what);
        for &seed in seeds {
            row.n_tried += 1;
            let said = seed.map_or("searched".to_string(), |seed| format!("draw={seed}"));
            let name = format!("{}-{n_devices}-{}", base.name, said.replace('=', "-"));
            let tried = catch_unwind(AssertUnwindSafe(|| self.try_plan(base, n_devices, seed, &name)));
            match tried {
                Ok(Ok(figures)) => {
                    row.n_same += 1;
                    row.add(&figures);
                }
                Ok(Err(wrong)) => self.wrong.push(format!("{name}: {wrong}")),
                Err(_) => self.wrong.push(format!("{name}: a pass panics")),
            }
        }
        Ok(row)
    }

    /// One plan; what is wrong with it.
    fn try_plan(&mut self, base: &Base, n_devices: usize, seed: Option<u64>, name: &str) -> Result<Figures, String> {
        let mut global = base.module.clone();
        run_passes(&mut global, "inline-calls")?;
        let algebra = self.algebra;
        let regions = if self.has_regions { Regions::ByAllRules } else { Regions::AsTheyAre };
        let plan = find_plan(&global, &SearchOptions { algebra, regions, ..slow_options(n_devices, seed)? })?;
        let mut local = plan.module.clone();
        run_passes(&mut local, &self.pipeline)?;
        let short = has_short_floats(&global);
        let files = [("global", &global), ("annotated", &plan.module), ("local", &local)];
        let mut paths: Vec<PathBuf> = Vec::new();
        for (part, module) in files {
            paths.push(keep(&self.folder, name, module, part)?);
        }
        let (code, said) = compare(&paths[0], &paths[2], &base.draw, short);
        if code != 0 {
            let first = said.lines().find(|line| !line.starts_with("note")).unwrap_or_default();
            return Err(first.to_string());
        }
        paths.iter().for_each(|path: &PathBuf| drop(std::fs::remove_file(path as &Path)));
        if let Some(xla) = &mut self.xla {
            let tried = Tried { name, global: &global, draw: &base.draw, annotated: Some(&plan.module) };
            xla.add(tried, &local)?;
            xla.claim(name, plan.report.peak_bytes);
        }
        Ok(Figures::of(&plan.report, &local))
    }
}

/// Small programs on devices so slow that cutting them pays.
fn slow_options(n_devices: usize, seed: Option<u64>) -> Result<SearchOptions, String> {
    Ok(SearchOptions { draw: seed, effort: EFFORT, ..default_options(SLOW_MACHINE, n_devices)? })
}

/// What `hlo-opt plan parallel` takes if nothing else is said.
fn default_options(machine: &str, n_devices: usize) -> Result<SearchOptions, String> {
    Ok(SearchOptions {
        machine: Machine::parse(machine, n_devices).map_err(|error| error.to_string())?,
        n_devices: n_devices as i64,
        effort: 1_000_000_000,
        gap: 0.0,
        most_axes: 3,
        meshes: Vec::new(),
        memory_limit: None,
        even: hlo_search::Evenness::None,
        plan: "best".into(),
        pins: String::new(),
        draw: None,
        why: Vec::new(),
        dumps_problem: false,
        algebra: Algebra::SameState,
        regions: Regions::AsTheyAre,
        without: Vec::new(),
    })
}

fn find_plan(global: &Module, options: &SearchOptions) -> Result<ParallelPlan, String> {
    let asked = Asked { options, given: None, is_over: &|| false, progress: &|_| {} };
    match plan_parallel(global, &asked, FrequencyOptions::default()).map_err(|error| error.to_string())? {
        Searched::Plan(plan) => Ok(*plan),
        Searched::Nothing(why) => Err(format!("expected a plan, found none: {why}")),
    }
}
