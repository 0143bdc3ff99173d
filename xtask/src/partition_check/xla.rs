//! Random programs that are partitioned, run in real XLA: the per-device program there, the global program in the evaluator
//! (`oracle/partition_case.py`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hlo_eval::draw::{Draw, DrawOptions, Same};
use hlo_eval::global::{GlobalProgram, LeafTiles, TiledInterface, find_manual_region};
use hlo_eval::npz::NpzWriter;
use hlo_eval::{EvalError, EvalOptions, Inputs, Outputs, run};
use hlo_ir::literal::Scalar;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{Literal, Module};
use serde_json::{Value, json};

use super::{Tried, has_short_floats};
use crate::python;
use crate::xla_check::options::Options;
use crate::xla_check::table::{CaseResult, Status};
use crate::xla_check::worker::{Job, Session};

/// Devices that XLA is given.
const MOST_DEVICES: usize = 12;

/// By how much inputs are moved: half an ulp of f32.
const PERTURB: f64 = 6e-8;

/// The tolerance of programs with floats of at most 16 bits, as a share of an output's largest element.
const SHORT_FLOATS: f64 = 0.02;

/// The file of the memory that XLA takes: the case's name, a tab, bytes.
const MEMORY_FILE: &str = "memory.tsv";

/// How the names of cases end in which XLA partitions.
const BY_XLA: &str = "-by-xla";

/// Programs that are to run in XLA.
pub(crate) struct XlaCases {
    folder: PathBuf,
    most: usize,
    cases: Vec<Value>,
    /// Bytes that a plan takes on a device, as it says, by the name of the case.
    planned: BTreeMap<String, u64>,
    /// Programs that could not be prepared, by reason.
    left_out: BTreeMap<String, Vec<String>>,
}

impl XlaCases {
    /// At most so many; their files lie in `folder`.
    pub(crate) fn new(folder: &Path, most: usize) -> Result<XlaCases, String> {
        let folder = folder.join("xla");
        if folder.exists() {
            std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        Ok(XlaCases { folder, most, cases: Vec::new(), planned: BTreeMap::new(), left_out: BTreeMap::new() })
    }

    /// Adds a program that the evaluator finds well partitioned, if there is room; where it can be annotated, XLA's partitioner gets it too.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(crate) fn add(&mut self, tried: Tried<'_>, local: &Module) -> Result<(), String> {
        if self.cases.len() >= self.most || local.n_devices() > MOST_DEVICES {
            return Ok(());
        }
        let name = tried.name;
        let folder = self.folder.join(name);
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        match prepared(&folder, tried, local) {
            Ok(mut case) => {
                case["name"] = json!(name);
                case["floor"] = json!(if has_short_floats(tried.global) { SHORT_FLOATS } else { 0.0 });
                self.cases.push(case.clone());
                if !case["annotated"].is_null() {
                    case["name"] = json!(format!("{name}{BY_XLA}"));
                    case["file"] = case["annotated"].clone();
                    self.cases.push(case);
                }
            }
            Err(reason) => self.left_out.entry(reason).or_default().push(name.to_string()),
        }
        Ok(())
    }

    /// Runs them; false if one gives something else.
    ///
    /// # Errors
    /// XLA's environment cannot be made.
    pub(crate) fn run(&self) -> Result<bool, String> {
        let options = Options::parse(std::iter::empty())?;
        let session = Session { options: &options, tool: PathBuf::new(), python: python::interpreter()? };
        let mut results = self.run_cases(&session, &self.cases);
        let (mut n_same, mut n_wrong) = (0, 0);
        let (mut passed, mut failed) = (BTreeSet::new(), BTreeSet::new());
        let mut others = self.left_out.clone();
        self.find_deaths_of_globals(&session, &mut results);
        results.iter_mut().for_each(excuse_partitioner);
        for result in &results {
            let case = result.case.clone();
            match (result.status, result.reason.as_str()) {
                (Status::Passed, "") => n_same += 1,
                (Status::Passed | Status::Skipped, reason) => others.entry(reason.to_string()).or_default().push(case),
                (Status::Failed, reason) => {
                    n_wrong += 1;
                    println!("  wrong in XLA: {case}: {reason}");
                }
            }
            if result.status != Status::Failed {
                passed.insert(result.case.trim_end_matches(BY_XLA));
            } else {
                failed.insert(result.case.trim_end_matches(BY_XLA));
            }
        }
        for name in passed.difference(&failed) {
            let _ = std::fs::remove_dir_all(self.folder.join(name));
        }
        println!("{} programs in XLA: {n_same} as the evaluator's global program, {n_wrong} wrong", self.cases.len());
        for (reason, names) in &others {
            println!("  {}: {reason} ({})", names.len(), names[0]);
        }
        if results.len() < self.cases.len() {
            println!("  {} did not run", self.cases.len() - results.len());
        }
        Ok(n_wrong == 0 && results.len() >= self.cases.len() && n_same > 0)
    }
}

impl XlaCases {
    /// What XLA takes of a device's memory for this case is wanted, beside what its plan takes.
    pub(crate) fn claim(&mut self, name: &str, planned_bytes: u64) {
        self.planned.insert(name.to_string(), planned_bytes);
        let is_one = |case: &&mut Value| case["name"].as_str().is_some_and(|one| one.trim_end_matches(BY_XLA) == name);
        let file = self.folder.join(MEMORY_FILE);
        self.cases.iter_mut().filter(is_one).for_each(|case| case["memory"] = json!(file));
    }

    /// Prints the memory that XLA took beside what plans take.
    pub(crate) fn print_memory(&self) {
        let text = std::fs::read_to_string(self.folder.join(MEMORY_FILE)).unwrap_or_default();
        let taken: BTreeMap<&str, u64> = text
            .lines()
            .filter_map(|line| line.split_once('\t'))
            .filter_map(|(k, v)| Some((k, v.parse().ok()?)))
            .collect();
        println!("case\tas planned\tpartitioned by spmd-partition, in XLA\tpartitioned by XLA");
        for (name, planned) in &self.planned {
            let told = |name: &str| taken.get(name).map_or("-".to_string(), u64::to_string);
            println!("{name}\t{planned}\t{}\t{}", told(name), told(&format!("{name}{BY_XLA}")));
        }
    }

    fn run_cases(&self, session: &Session<'_>, cases: &[Value]) -> Vec<CaseResult> {
        let (config, work) = (json!({ "cases": cases }), self.folder.clone());
        session.check(&Job { module: "random".into(), script: "partition_case.py", config, work }).0
    }

    /// Where XLA's process ended at a per-device program, whether it does so at the global program too: then nothing is shown.
    fn find_deaths_of_globals(&self, session: &Session<'_>, results: &mut [CaseResult]) {
        let has_died = |result: &CaseResult| result.status == Status::Failed && result.reason.starts_with(DEATH);
        let died: Vec<&str> = results.iter().filter(|result| has_died(result)).map(|r| r.case.as_str()).collect();
        let is_again = |case: &&Value| !case["whole"].is_null() && died.iter().any(|name| case["name"] == **name);
        let mut again: Vec<Value> = self.cases.iter().filter(is_again).cloned().collect();
        again.iter_mut().for_each(|case| case["is_global_alone"] = json!(true));
        if again.is_empty() {
            return;
        }
        let globals = self.run_cases(session, &again);
        for result in results.iter_mut().filter(|result| has_died(result)) {
            if globals.iter().any(|global| global.case == result.case && has_died(global)) {
                result.status = Status::Skipped;
                result.reason = "XLA's process ends at the global program too".into();
            }
        }
    }
}

/// How the reason of a failure begins where XLA's process ended.
const DEATH: &str = "the process died";
/// Likewise, where it does not end.
const NO_END: &str = "no end within";

/// Where XLA's own partitioner dies of an annotated program, or does not end, nothing is shown: of shardings it has to take any.
fn excuse_partitioner(result: &mut CaseResult) {
    let reason = match result.reason.as_str() {
        reason if reason.starts_with(DEATH) => "XLA's process ends at the annotated program",
        reason if reason.starts_with(NO_END) => "XLA does not end at the annotated program in time",
        _ => return,
    };
    if result.status == Status::Failed && result.case.ends_with(BY_XLA) {
        (result.status, result.reason) = (Status::Skipped, reason.into());
    }
}

/// Writes the files of one case.
fn prepared(folder: &Path, tried: Tried<'_>, local: &Module) -> Result<Value, String> {
    let said = |e: EvalError| e.to_string();
    let Tried { global, draw, annotated, .. } = tried;
    let program = GlobalProgram::on(global, local.n_devices()).map_err(said)?;
    let interface = TiledInterface::between(&program, &[local]).map_err(said)?;
    let options = DrawOptions { seed: 0, draws: Draw::parse_list(draw).map_err(said)?, same: Same::None };
    let wholes = program.draw(&options).map_err(said)?;
    let tiles = interface.cut_inputs(&wholes).map_err(said)?;
    let found = run(local, &tiles, &EvalOptions::default()).map_err(said)?;
    let ran = program.run(&wholes, &EvalOptions::default()).map_err(said)?;
    let moved = program.run(&moved(&wholes), &EvalOptions::default()).map_err(said)?;
    let (mut expected, mut moved_tiles, mut cuts) = (Vec::new(), Vec::new(), Vec::new());
    for (leaf, (whole, tile)) in ran.of_devices().leaves.iter().zip(&found.leaves).enumerate() {
        let tiles = likeliest(interface.of_output(leaf), whole, tile).map_err(said)?;
        expected.push(tiles.of_wholes(whole).map_err(said)?);
        moved_tiles.push(tiles.of_wholes(&moved.of_devices().leaves[leaf]).map_err(said)?);
        let dims = whole[0].dims();
        let grid = tiles.sharding.tile_grid(dims.len(), local.n_devices()).ok_or("a result is cut in no known way")?;
        cuts.push((0..local.n_devices()).map(|d| grid.tile_of(dims, d).0.to_vec()).collect::<Vec<_>>());
    }
    let npz = |name: &str| folder.join(name);
    write(&npz("inputs.npz"), |npz| npz.write_inputs(&tiles))?;
    write(&npz("wholes.npz"), |npz| npz.write_inputs(&wholes))?;
    write(&npz("expected.npz"), |npz| npz.write_outputs(&Outputs { leaves: expected.clone() }))?;
    write(&npz("moved.npz"), |npz| npz.write_outputs(&Outputs { leaves: moved_tiles.clone() }))?;
    let text = |module: &Module, file: &Path| {
        let text = print_module(module, &PrintOptions::default());
        std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
    };
    text(local, &npz("local.hlo"))?;
    text(global, &npz("global.hlo"))?;
    let has_whole = find_manual_region(global).is_none();
    if has_whole {
        text(&on_one_device(global), &npz("whole.hlo"))?;
    }
    if let Some(annotated) = annotated {
        text(annotated, &npz("annotated.hlo"))?;
        text(&on_one_device(annotated), &npz("unsharded.hlo"))?;
    }
    Ok(json!({
        "annotated": annotated.map(|_| npz("annotated.hlo")), "unsharded": annotated.map(|_| npz("unsharded.hlo")),
        "n_devices": local.n_devices(), "file": npz("local.hlo"), "local": npz("local.hlo"), "inputs": npz("inputs.npz"), "expected": npz("expected.npz"),
        "moved": npz("moved.npz"), "whole": has_whole.then(|| npz("whole.hlo")), "wholes": npz("wholes.npz"), "cuts": cuts,
    }))
}

/// The global program without a word on devices.
fn on_one_device(global: &Module) -> Module {
    let mut whole = global.clone();
    whole.header.num_partitions = 1;
    for comp in whole.computations().to_vec() {
        for inst in whole.comp(comp).insts.clone() {
            if whole.inst(inst).marks.is_some() {
                whole.marks_mut(inst).sharding = None;
            }
        }
    }
    whole
}

/// Of the ways in which an output may be cut the one in which the fewest elements of the evaluator's tiles are off.
pub(super) fn likeliest<'t>(
    ways: &'t [LeafTiles],
    wholes: &[Arc<Literal>],
    tiles: &[Arc<Literal>],
) -> Result<&'t LeafTiles, EvalError> {
    let mut best: Option<(usize, &LeafTiles)> = None;
    for way in ways {
        let (expected, found) = (way.of_wholes(wholes)?, way.without_padding(tiles)?);
        let n_off = expected.iter().zip(&found).map(|(a, b)| n_apart(a, b)).sum();
        if best.is_none_or(|(least, _)| n_off < least) {
            best = Some((n_off, way));
        }
    }
    best.map(|(_, way)| way).ok_or_else(|| EvalError::invalid("an output is cut in no way that fits"))
}

/// How many elements are further apart than another order of terms explains.
fn n_apart(a: &Literal, b: &Literal) -> usize {
    let is_near = |x: f64, y: f64| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= 1e-3 * (x.abs() + 1.0);
    let is_apart = |k: &usize| match (a.get(*k), b.get(*k)) {
        (Some(Scalar::Float(x)), Some(Scalar::Float(y))) => !is_near(x, y),
        (Some(Scalar::Complex(x, z)), Some(Scalar::Complex(y, w))) => !is_near(x, y) || !is_near(z, w),
        (x, y) => x != y,
    };
    (0..a.n_elems()).filter(is_apart).count()
}

/// The inputs, each float moved up or down by half an ulp of f32.
pub(super) fn moved(inputs: &Inputs) -> Inputs {
    let moved = |array: &Arc<Literal>| {
        let mut out = (**array).clone();
        for k in 0..out.n_elems() {
            let is_up = (k as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 63 == 1;
            let factor = if is_up { 1.0 + PERTURB } else { 1.0 - PERTURB };
            match out.get(k) {
                Some(Scalar::Float(x)) => out.set(k, Scalar::Float(x * factor)),
                Some(Scalar::Complex(x, y)) => out.set(k, Scalar::Complex(x * factor, y * factor)),
                Some(Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_)) | None => false,
            };
        }
        Arc::new(out)
    };
    Inputs { leaves: inputs.leaves.iter().map(|row| row.iter().map(moved).collect()).collect() }
}

fn write(
    file: &Path,
    add: impl FnOnce(&mut NpzWriter<BufWriter<File>>) -> Result<(), EvalError>,
) -> Result<(), String> {
    let said = |e: &dyn std::fmt::Display| format!("{}: {e}", file.display());
    let mut npz = NpzWriter::new(BufWriter::new(File::create(file).map_err(|e| said(&e))?));
    add(&mut npz).map_err(|e| said(&e))?;
    npz.finish().map_err(|e| said(&e))?.into_inner().map_err(|e| said(&e)).map(drop)
}
