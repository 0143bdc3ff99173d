//! Mutants of transformed modules: small changes that the prover must refuse, unless the evaluator says that they change nothing.

use std::collections::BTreeMap;

use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_opt::work::evaluator_work;
use hlo_prove::{Proof, Verdict};
use hlo_tests::certificate::check;
use hlo_tests::random_module::Rng;

use super::Program;
use super::certificates::{WORK, certificate};
use super::edit::{EDITS, Made, edited};
use super::global::GlobalPair;
use super::judge::{Judge, Judgement};
use super::pipelines::{open, pipelines};
use super::proof::{PANICKED, Proved, prove};
use super::random::keep;

/// A pair of which something is proved.
struct Pair {
    /// The file and the pipeline.
    name: String,
    before: Module,
    after: Module,
    draw: String,
    /// Whether the first is a global program.
    is_global: bool,
    judge: Option<Result<Judge, String>>,
    /// The judge of changed types, which f64 in the place of f32 would hide: it holds mutants against the second module, which
    /// rounds as they do.
    judge_of_types: Option<Result<Judge, String>>,
    /// The certificate of the pair and what it proves, if mutants are held against it instead of being proved.
    certificate: Option<(String, Proof)>,
}

impl Pair {
    /// Whether the evaluator runs its programs in time; says so if not.
    fn is_judged(&self) -> bool {
        let work = evaluator_work(&self.before).max(evaluator_work(&self.after));
        if work > MAX_WORK {
            println!(
                "{}: {work:.1e} operations and bytes in one run are more than the judge takes: left out",
                self.name
            );
        }
        work <= MAX_WORK
    }

    /// What is proved of a mutant, or what holds of it by the certificate of what it was made of.
    fn prove(&self, mutant: &Module, seed: u64) -> Result<Proved, String> {
        let Some((text, proof)) = &self.certificate else { return prove(&self.before, mutant) };
        let checked = check(vec![&self.before, mutant], text, seed, WORK)?;
        let mut proof = proof.clone();
        for output in &mut proof.outputs {
            if !checked.held.contains(&output.leaf) {
                output.verdict = Verdict::Unknown;
            }
        }
        Ok(Proved { proof, ms: 0.0 })
    }

    fn new(name: String, before: Module, after: Module, draw: String, is_global: bool) -> Pair {
        Pair { name, before, after, draw, is_global, judge: None, judge_of_types: None, certificate: None }
    }

    /// The judge of mutants, made when first asked for. `may_widen`: whether f64 may decide; else a mutant is held against what it was
    /// made of, beside which nothing rounds otherwise.
    fn judge(&mut self, may_widen: bool, seed: u64) -> Option<&Result<Judge, String>> {
        if !may_widen {
            if self.judge_of_types.is_none() {
                self.judge_of_types = Some(Judge::new(&self.after, &self.draw, seed, MAX_STEPS));
            }
            return self.judge_of_types.as_ref();
        }
        if self.judge.is_none() {
            self.judge = Some(self.new_judge(seed));
        }
        self.judge.as_ref()
    }

    fn new_judge(&self, seed: u64) -> Result<Judge, String> {
        let mut judge = match self.is_global {
            true => Judge::of_global(&self.before, self.after.n_devices(), &self.draw, seed, MAX_STEPS)?,
            false => Judge::new(&self.before, &self.draw, seed, MAX_STEPS)?,
        };
        let n_out = judge.leave_out_sensitive(&self.after, &prove(&self.before, &self.after)?.proof);
        if n_out > 0 {
            println!("{}: rounding alone shows on {n_out} inputs, which are left out", self.name);
        }
        Ok(judge)
    }
}

/// What came of the mutants of one kind.
#[derive(Clone, Copy, Default)]
struct Row {
    made: usize,
    refused: usize,
    agrees: usize,
    unjudged: usize,
    unsound: usize,
}

/// The most instructions that a run of a program may execute.
const MAX_STEPS: u64 = 20_000_000;
/// The most work, in operations and bytes, that the judge takes for one run of a program.
const MAX_WORK: f64 = 3.5e10;
/// How often a pair is tried for a kind that applies to few.
const ATTEMPTS: usize = 12;

/// Makes `n` mutants (fewer where few kinds apply) of what pipelines make of the programs; false if one is proved that does not agree.
pub(super) fn run(
    programs: &[Program],
    globals: Vec<GlobalPair>,
    n: usize,
    seed: u64,
    is_certified: bool,
) -> Result<bool, String> {
    let mut pairs = proved_pairs(programs)?;
    for GlobalPair { name, global, local } in globals {
        if prove(&global, &local).is_ok_and(|proved| proved.proof.is_proved()) {
            pairs.push(Pair::new(name, global, local, String::new(), true));
        }
    }
    pairs.retain(Pair::is_judged);
    if pairs.is_empty() {
        return Err("no pair is proved: there is nothing to change".into());
    }
    if is_certified {
        for pair in &mut pairs {
            let (proof, text) = certificate(&pair.before, &pair.after)?;
            pair.certificate = Some((text, proof));
        }
    }
    let n_programs = pairs.iter().map(|pair| pair.name.split(',').next().unwrap_or_default().to_string());
    let n_programs = n_programs.collect::<std::collections::BTreeSet<_>>().len();
    println!("{} pairs of {n_programs} programs are proved", pairs.len());
    let mut rng = Rng::new(seed);
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let mut n_made = 0;
    // Kinds that apply to few programs give fewer.
    for number in 0..2 * n {
        if n_made == n {
            break;
        }
        let kind = number % EDITS.len();
        let made = (0..ATTEMPTS).find_map(|_| {
            let pair = rng.below(pairs.len());
            edited(&pairs[pair].after, kind, &mut rng).map(|made| (pair, made))
        });
        let Some((pair, made)) = made else { continue };
        let row = rows.entry(made.kind).or_default();
        row.made += 1;
        n_made += 1;
        if let Some(text) = try_mutant(&mut pairs[pair], &made, seed, row) {
            let files = keep(&pairs[pair].before, &made.module, seed, number)?;
            println!("UNSOUND {}: {} at {}: {text}\n    {files}", pairs[pair].name, made.kind, made.place);
        }
        if n_made % 100 == 0 {
            eprintln!("[{n_made}/{n}] {} proved and not equal", rows.values().map(|row| row.unsound).sum::<usize>());
        }
    }
    Ok(show(&rows))
}

/// Proves a mutant and judges it where it is proved; a text if it is wrong.
fn try_mutant(pair: &mut Pair, made: &Made, seed: u64, row: &mut Row) -> Option<String> {
    let proved = match pair.prove(&made.module, seed) {
        Ok(proved) if proved.leaves().is_empty() => {
            row.refused += 1;
            return None;
        }
        Ok(proved) => proved,
        Err(reason) if reason.starts_with(PANICKED) => {
            row.unsound += 1;
            return Some(reason);
        }
        Err(_) => {
            row.refused += 1;
            return None;
        }
    };
    let is_whole = proved.proof.is_proved();
    let may_widen = made.kind != "through a narrower type";
    let judgement = match pair.judge(may_widen, seed)? {
        Ok(judge) => judge.judge(&made.module, &proved.proof, may_widen),
        Err(reason) => Judgement::Unjudged(reason.clone()),
    };
    match judgement {
        Judgement::Apart(text) => {
            row.unsound += 1;
            return Some(text);
        }
        // Some outputs are refused: those that are proved agree.
        _ if !is_whole => row.refused += 1,
        Judgement::Unjudged(reason) => {
            row.unjudged += 1;
            println!("not judged: {}: {} at {}: {reason}", pair.name, made.kind, made.place);
        }
        Judgement::Bits | Judgement::Rounding { .. } => {
            row.agrees += 1;
            println!("equal: {}: {} at {}", pair.name, made.kind, made.place);
        }
    }
    None
}

/// What pipelines make of the programs, as far as it is another module and proved.
fn proved_pairs(programs: &[Program]) -> Result<Vec<Pair>, String> {
    let mut pairs = Vec::new();
    for program in programs {
        let Some(before) = open(program)? else { continue };
        for pipeline in pipelines(before.module().n_devices()) {
            let after = pipeline.after(&before)?;
            let text = |module: &Module| print_module(module, &PrintOptions::default());
            if text(before.module()) == text(after.module()) {
                continue;
            }
            if prove(before.module(), after.module()).is_ok_and(|proved| proved.proof.is_proved()) {
                let name = format!("{}, {}", program.name(), pipeline.name);
                let (before, after) = (before.module().clone(), after.module().clone());
                pairs.push(Pair::new(name, before, after, program.draw.clone(), false));
            }
        }
    }
    Ok(pairs)
}

fn show(rows: &BTreeMap<&str, Row>) -> bool {
    println!("{:<38} {:>6} {:>8} {:>8} {:>11} {:>8}", "kind", "made", "refused", "agrees", "not judged", "unsound");
    let mut all = Row::default();
    for (kind, row) in rows {
        println!(
            "{kind:<38} {:>6} {:>8} {:>8} {:>11} {:>8}",
            row.made, row.refused, row.agrees, row.unjudged, row.unsound
        );
        all.made += row.made;
        all.refused += row.refused;
        all.agrees += row.agrees;
        all.unjudged += row.unjudged;
        all.unsound += row.unsound;
    }
    println!(
        "{} mutants of {} kinds: {} refused, {} proved and agreeing, {} proved and not judged, {} unsound",
        all.made,
        rows.len(),
        all.refused,
        all.agrees,
        all.unjudged,
        all.unsound
    );
    all.unsound == 0
}
