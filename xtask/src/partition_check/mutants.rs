//! `partition-check --mutants`: per-device programs that were partitioned, with one small change each. The evaluator must see that they
//! differ from the global program; those that it does not see must be equal: the prover says so, or they agree on further inputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hlo_eval::draw::{Draw, DrawOptions, Same};
use hlo_eval::global::{GlobalProgram, LeafTiles, TiledInterface};
use hlo_eval::{EvalOptions, Inputs, run};
use hlo_ir::literal::Scalar;
use hlo_ir::{DType, Literal, Module};
use hlo_opt::library::OpenModule;
use hlo_tests::random_module::Rng;

use super::run_passes;
use super::xla::{likeliest, moved};
use crate::prove_check::edit::{EDITS, edited};
use crate::prove_check::judge::{wide_array, wide_module};
use crate::prove_check::proof::{on_a_large_stack, prove};
use crate::workspace;
use crate::xla_check::manifest;

/// How the programs are partitioned.
const PIPELINES: [&str; 2] =
    ["inline-calls,spmd-partition,cse,dce", "inline-calls,propagate-shardings,spmd-partition,simplify-tuples,cse,dce"];

/// The least tolerance, as a share of an output's largest element, and how often the change that moved inputs make is allowed.
const FLOOR: f64 = 2e-5;
const MARGIN: f64 = 10.0;

/// Inputs on which what is not seen at once must agree: twice as the program's words say, then by other distributions.
const N_DRAWS: usize = 4;
/// Integers are drawn below this.
const MOST_ROWS: u64 = 1200;
/// How far apart results of f64 may be, as a share of an output's largest element.
const NEAR_F64: f64 = 1e-9;
/// A change that rounding alone shows.
const ROUNDS: &str = "through a narrower type";
/// Programs that take longer in the evaluator are left out.
const LONGEST: Duration = Duration::from_millis(700);
/// And those that execute more instructions, such as long loops.
const MAX_STEPS: u64 = 50_000;
/// How often programs are drawn for a kind that applies to few.
const ATTEMPTS: usize = 16;

/// A program that was partitioned, and what the global one gives.
struct Base {
    name: String,
    local: Module,
    trials: Vec<Trial>,
}

struct Trial {
    tiles: Inputs,
    outputs: Vec<Expected>,
}

/// One output on all devices.
struct Expected {
    way: LeafTiles,
    tiles: Vec<Arc<Literal>>,
    allowed: f64,
}

#[derive(Clone, Copy, Default)]
struct Row {
    made: usize,
    seen: usize,
    seen_later: usize,
    seen_in_f64: usize,
    proved: usize,
    agree: usize,
}

/// Makes `n` mutants of the files, or of the global programs of the samples; false if one is neither seen nor equal.
pub(super) fn run_mutants(files: &[PathBuf], n: usize, seed: u64) -> Result<bool, String> {
    let files = if files.is_empty() { samples()? } else { files.iter().map(|f| (f.clone(), String::new())).collect() };
    let mut bases = Vec::new();
    for (file, draw) in &files {
        for pipeline in PIPELINES {
            match prepared(file, draw, pipeline) {
                Ok(Some(base)) => bases.push(base),
                Ok(None) => println!("too long: {}", file.display()),
                Err(reason) => println!("left out: {}: {reason}", file.display()),
            }
        }
    }
    if bases.is_empty() {
        return Err("no program is partitioned: there is nothing to change".into());
    }
    println!("{} per-device programs of {} files", bases.len(), files.len());
    let (mut rng, mut rows, mut n_made): (_, BTreeMap<&str, Row>, usize) = (Rng::new(seed), BTreeMap::new(), 0);
    for number in 0..2 * n {
        if n_made == n {
            break;
        }
        let kind = number % EDITS.len();
        if EDITS[kind].0 == ROUNDS {
            continue;
        }
        let made = (0..ATTEMPTS).find_map(|_| {
            let base = rng.pick(&bases);
            edited(&base.local, kind, &mut rng).map(|made| (base, made))
        });
        let Some((base, made)) = made else { continue };
        n_made += 1;
        let row = rows.entry(made.kind).or_default();
        row.made += 1;
        let place = format!("{}: {} at {}", base.name, made.kind, made.place);
        judge(base, &made.module, row, &place);
        if n_made % 100 == 0 {
            eprintln!("[{n_made}/{n}]");
        }
    }
    Ok(show(&rows))
}

/// Counts how a mutant is found out.
fn judge(base: &Base, mutant: &Module, row: &mut Row, place: &str) {
    if base.differs(mutant, 0).is_some_and(|error| error > 0.0) {
        row.seen += 1;
        return;
    }
    let is_proved = on_a_large_stack(|| Ok(prove(&base.local, mutant).is_ok_and(|proved| proved.proof.is_proved())));
    if is_proved == Ok(true) {
        row.proved += 1;
        return;
    }
    if (1..base.trials.len()).any(|trial| base.differs(mutant, trial).is_some_and(|error| error > 0.0)) {
        row.seen_later += 1;
        return;
    }
    if base.differs_in_f64(mutant) {
        row.seen_in_f64 += 1;
        return;
    }
    row.agree += 1;
    let how = match base.is_equal_in_bits(mutant) {
        true => "equal bits on all inputs",
        false => "equal but for rounding on all inputs",
    };
    println!("not seen: {place}: {how}");
}

fn options() -> EvalOptions {
    EvalOptions { max_steps: MAX_STEPS, ..EvalOptions::default() }
}

/// The global programs of the samples, and how their inputs are drawn.
fn samples() -> Result<Vec<(PathBuf, String)>, String> {
    let mut out = Vec::new();
    for folder in ["ir-samples/global", "ir-samples/programs"] {
        let programs = manifest::read_folder(&workspace::root().join(folder), None)?;
        let globals = programs.into_iter().filter(|program| program.name().contains(".unopt"));
        out.extend(globals.map(|program| (program.file, program.draw)));
    }
    Ok(out)
}

/// A program that a pipeline partitioned, with inputs and what the global one gives; `None` if it takes too long.
fn prepared(file: &Path, draw: &str, pipeline: &str) -> Result<Option<Base>, String> {
    let (open, _) = OpenModule::read(file, &[]).map_err(|failure| format!("{failure:?}"))?;
    let global = open.module().clone();
    let mut local = global.clone();
    run_passes(&mut local, pipeline)?;
    let said = |e: hlo_eval::EvalError| e.to_string();
    let program = GlobalProgram::on(&global, local.n_devices()).map_err(said)?;
    let interface = TiledInterface::between(&program, &[&local]).map_err(said)?;
    let mut trials = Vec::new();
    for seed in 0..N_DRAWS as u64 {
        let leaves = hlo_eval::entry_leaves(&global);
        // Indices reach all rows, and some miss them.
        let of_leaf = |dtype: DType, float: Draw| if dtype.is_float() { float } else { Draw::Below(MOST_ROWS) };
        let draws = match seed {
            2 => leaves.iter().map(|leaf| of_leaf(leaf.shape.dtype, Draw::Normal(1.0))).collect(),
            3 => leaves.iter().map(|leaf| of_leaf(leaf.shape.dtype, Draw::Positive(0.7))).collect(),
            _ => Draw::parse_list(draw).map_err(said)?,
        };
        let drawn = DrawOptions { seed, draws, same: Same::None };
        let wholes = program.draw(&drawn).map_err(said)?;
        let tiles = interface.cut_inputs(&wholes).map_err(said)?;
        let start = Instant::now();
        let found = run(&local, &tiles, &options()).map_err(said)?;
        if start.elapsed() > LONGEST {
            return Ok(None);
        }
        let right = program.run(&wholes, &options()).map_err(said)?;
        let other = program.run(&moved(&wholes), &options()).map_err(said)?;
        let mut outputs = Vec::new();
        for (leaf, (whole, tile)) in right.of_devices().leaves.iter().zip(&found.leaves).enumerate() {
            let way = likeliest(interface.of_output(leaf), whole, tile).map_err(said)?.clone();
            let tiles = way.of_wholes(whole).map_err(said)?;
            let change = largest_error(&tiles, &way.of_wholes(&other.of_devices().leaves[leaf]).map_err(said)?);
            let largest = tiles.iter().map(|tile| magnitude(tile)).fold(0.0, f64::max);
            let allowed = (FLOOR * largest).max(MARGIN * change.min(0.01 * largest));
            outputs.push(Expected { way, tiles, allowed });
        }
        trials.push(Trial { tiles, outputs });
    }
    let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let base = Base { name, local, trials };
    let local = base.local.clone();
    match (0..N_DRAWS).find_map(|trial| base.differs(&local, trial)) {
        Some(error) => Err(format!("the program itself differs by {error:.1e}")),
        None => Ok(Some(base)),
    }
}

impl Base {
    /// By how much more than is allowed an output of a mutant differs on a trial's inputs; infinite where it does not run.
    fn differs(&self, mutant: &Module, trial: usize) -> Option<f64> {
        let Trial { tiles, outputs } = self.trials.get(trial)?;
        let Ok(found) = run(mutant, tiles, &options()) else { return Some(f64::INFINITY) };
        outputs.iter().zip(&found.leaves).find_map(|(expected, found)| {
            let Ok(found) = expected.way.without_padding(found) else { return Some(f64::INFINITY) };
            let error = largest_error(&expected.tiles, &found);
            (error > expected.allowed).then_some(error)
        })
    }

    /// Whether the mutant differs from the program itself where both compute in f64: then by more than rounding.
    fn differs_in_f64(&self, mutant: &Module) -> bool {
        let both = [&self.local, mutant].map(wide_module);
        let [Ok(own), Ok(mutant)] = both else { return false };
        self.trials.iter().any(|Trial { tiles, outputs }| {
            let wide = |row: &Vec<Arc<Literal>>| row.iter().map(|array| Arc::new(wide_array(array))).collect();
            let tiles = Inputs { leaves: tiles.leaves.iter().map(wide).collect() };
            let Ok(own) = run(&own, &tiles, &options()) else { return false };
            let Ok(found) = run(&mutant, &tiles, &options()) else { return true };
            outputs.iter().zip(own.leaves.iter().zip(&found.leaves)).any(|(expected, (own, found))| {
                let held = |row: &[Arc<Literal>]| expected.way.without_padding(row).unwrap_or_default();
                let (own, found) = (held(own), held(found));
                let largest = own.iter().map(|tile| magnitude(tile)).fold(0.0, f64::max);
                largest_error(&own, &found) > NEAR_F64 * largest
            })
        })
    }

    /// Whether the mutant gives what the program itself gives, bit for bit.
    fn is_equal_in_bits(&self, mutant: &Module) -> bool {
        self.trials.iter().all(|Trial { tiles, outputs }| {
            let both = [&self.local, mutant].map(|module| run(module, tiles, &options()));
            let [Ok(own), Ok(other)] = both else { return false };
            let rows = own.leaves.iter().zip(&other.leaves).zip(outputs);
            rows.into_iter().all(|((own, other), expected)| {
                let held = |row: &[Arc<Literal>]| expected.way.without_padding(row).ok();
                held(own) == held(other)
            })
        })
    }
}

/// The largest difference of elements; infinite where integers differ, or what is no finite number stands elsewhere.
fn largest_error(expected: &[Arc<Literal>], found: &[Arc<Literal>]) -> f64 {
    let apart = |a: f64, b: f64| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false if a.is_finite() && b.is_finite() => (a - b).abs(),
        false => f64::INFINITY,
    };
    let mut largest: f64 = 0.0;
    for (a, b) in expected.iter().zip(found) {
        for k in 0..a.n_elems() {
            largest = largest.max(match (a.get(k), b.get(k)) {
                (Some(Scalar::Float(a)), Some(Scalar::Float(b))) => apart(a, b),
                (Some(Scalar::Complex(a, c)), Some(Scalar::Complex(b, d))) => apart(a, b).max(apart(c, d)),
                (a, b) if a == b => 0.0,
                (_, _) => f64::INFINITY,
            });
        }
    }
    largest
}

fn magnitude(array: &Literal) -> f64 {
    let elems = (0..array.n_elems()).filter_map(|k| array.get(k));
    let sizes = elems.map(|scalar| match scalar {
        Scalar::Float(x) => x.abs(),
        Scalar::Complex(x, y) => x.abs().max(y.abs()),
        Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_) => 0.0,
    });
    sizes.filter(|x| x.is_finite()).fold(0.0, f64::max)
}

fn show(rows: &BTreeMap<&str, Row>) -> bool {
    println!(
        "{:<38} {:>6} {:>6} {:>11} {:>7} {:>8} {:>9}",
        "kind", "made", "seen", "seen later", "in f64", "proved", "agreeing"
    );
    let line = |kind: &str, row: &Row| {
        let Row { made, seen, seen_later, seen_in_f64, proved, agree } = row;
        println!("{kind:<38} {made:>6} {seen:>6} {seen_later:>11} {seen_in_f64:>7} {proved:>8} {agree:>9}");
    };
    let mut all = Row::default();
    for (kind, row) in rows {
        line(kind, row);
        all.made += row.made;
        all.seen += row.seen;
        all.seen_later += row.seen_later;
        all.seen_in_f64 += row.seen_in_f64;
        all.proved += row.proved;
        all.agree += row.agree;
    }
    line("all", &all);
    all.made > 0 && all.seen > 0
}
