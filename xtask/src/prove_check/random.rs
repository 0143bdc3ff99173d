//! Random modules beside what random passes, rewrites and edits make of them, and pairs of [families](super::family). Whatever is
//! proved must be so in the evaluator.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::runner::{RunOptions, bind_text, run_pipeline};
use hlo_prove::Proof;
use hlo_tests::equal_rewrites::rewrite;
use hlo_tests::random_module::{Rng, Size, random_module};
use hlo_tests::training_step::training_step;

use super::edit::{EDITS, edited};
use super::family;
use super::judge::{Judge, Judgement};
use super::proof::{PANICKED, is_exact, prove};
use crate::workspace;

/// How many modules are made of one.
const PER_MODULE: usize = 8;

/// What is done to a module before it is edited.
const PASSES: [&str; 16] = [
    "shard-weight-update{min-bytes=0,profit=always},dce",
    "shard-weight-update{min-bytes=0,profit=always},dce,combine-collectives{mode=variadic}",
    "combine-collectives{mode=packed}",
    "@machine=[(node,2,1),(gpu,HALF,100)];decompose-collectives{algo=ring,min-gain=0}",
    "inline-calls,simplify-tuples",
    "hoist-invariants,hoist-conversions",
    "split-tuple-all-reduce{ops=all}",
    "sink-all-reduce",
    "reassociate-all-reduce",
    "fold-all-reduce-of-all-reduce",
    "flatten-update",
    "all-reduce-to-reduce-scatter",
    "simplify-algebra",
    "cse,dce",
    "distribute-matrix-updates{profit=always}",
    "combine-collectives{mode=variadic,threshold-bytes=64}",
];

/// A module, made of another.
struct Variant {
    module: Module,
    /// What was done.
    what: String,
    /// The family, or the kind of the edit, if there was one.
    kind: Option<&'static str>,
    /// The module before an edit of a type, which f64 in the place of shorter floats hides.
    before_types: Option<Module>,
}

/// The edit that changes types.
const OF_TYPES: &str = "through a narrower type";

#[derive(Default)]
struct Counts {
    pairs: usize,
    unlike: usize,
    whole: usize,
    outputs: usize,
    proved: usize,
    exact: usize,
    bits: usize,
    rounding: usize,
    /// Proved bit for bit, and equal but for rounding.
    exact_rounding: usize,
    unjudged: usize,
    panics: usize,
    edited: usize,
    edited_whole: usize,
}

/// Tries `n` pairs; false if something is proved that is not so, or the prover panics.
pub(super) fn run(n: usize, seed: u64) -> Result<bool, String> {
    let (mut counts, mut n_bad) = (Counts::default(), 0);
    let mut kinds: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for number in seed.. {
        if counts.pairs >= n || n_bad > MOST_BAD {
            break;
        }
        let mut rng = Rng::new(number ^ 0x51ab);
        let is_of_a_family = !number.is_multiple_of(3);
        let own = if is_of_a_family { None } else { base(number / 3) };
        let mut judge = None;
        for variant in 0..PER_MODULE {
            let made = match &own {
                Some(before) => variant_of(before, &mut rng).map(|after| (before.clone(), after)),
                None if is_of_a_family => {
                    judge = None;
                    of_a_family(&mut rng)
                }
                None => None,
            };
            let Some((before, after)) = made else { continue };
            counts.pairs += 1;
            let slot = kinds.entry(after.kind.unwrap_or("no edit")).or_default();
            slot.0 += 1;
            let judgement = attempt(&before, &after, &mut judge, number, &mut counts, &mut slot.1);
            if let Err(text) = judgement {
                n_bad += 1;
                let files = keep(&before, &after.module, number, variant)?;
                println!("seed {number}, variant {variant}: {text}\n    {}\n    {files}", after.what);
            }
        }
    }
    show(&counts, &kinds);
    Ok(n_bad == 0)
}

/// The most instructions that a run may execute: some loops never end.
const MAX_STEPS: u64 = 200_000;

/// How many reasons why a pair is not judged are shown.
const N_REASONS: usize = 20;

/// When to stop.
const MOST_BAD: usize = 40;

/// Proves a pair and judges what is proved. `n_whole` counts the pairs that are proved whole.
fn attempt(
    before: &Module,
    after: &Variant,
    judge: &mut Option<Result<Judge, String>>,
    seed: u64,
    counts: &mut Counts,
    n_whole: &mut usize,
) -> Result<(), String> {
    let proved = match prove(before, &after.module) {
        Ok(proved) => proved,
        Err(reason) if reason.starts_with(PANICKED) => {
            counts.panics += 1;
            return Err(reason);
        }
        Err(_) => {
            counts.unlike += 1;
            return Ok(());
        }
    };
    let n_proved = proved.leaves().len();
    counts.outputs += proved.proof.outputs.len();
    counts.proved += n_proved;
    counts.whole += usize::from(proved.proof.is_proved());
    *n_whole += usize::from(proved.proof.is_proved());
    counts.edited += usize::from(after.kind.is_some());
    counts.edited_whole += usize::from(after.kind.is_some() && proved.proof.is_proved());
    counts.exact += proved.proof.outputs.iter().filter(|output| is_exact(output)).count();
    if n_proved == 0 {
        return Ok(());
    }
    let judge = judge.get_or_insert_with(|| Judge::new(before, "", seed, MAX_STEPS));
    let Ok(judge) = judge else {
        counts.unjudged += 1;
        return Ok(());
    };
    match judged(judge, after, &proved.proof, seed) {
        Judgement::Bits => counts.bits += 1,
        Judgement::Rounding { is_exact } => {
            counts.rounding += 1;
            counts.exact_rounding += usize::from(is_exact);
            if is_exact {
                println!("seed {seed}: bits differ though proved bit for bit, equal but for rounding: {}", after.what);
            }
        }
        Judgement::Unjudged(reason) => {
            counts.unjudged += 1;
            if counts.unjudged <= N_REASONS {
                println!("seed {seed}: not judged: {}: {reason}", after.what);
            }
        }
        Judgement::Apart(text) => return Err(text),
    }
    Ok(())
}

/// What the evaluator says of a variant. Where only f64 makes it agree though a type was changed, it must also agree with what it was
/// before that change: nothing else than the type may then make it differ, and no f64 hides it.
fn judged(judge: &Judge, after: &Variant, proof: &Proof, seed: u64) -> Judgement {
    let widened = judge.judge(&after.module, proof, true);
    let Some(before_types) = &after.before_types else { return widened };
    if matches!(widened, Judgement::Apart(_))
        || !matches!(judge.judge(&after.module, proof, false), Judgement::Apart(_))
    {
        return widened;
    }
    match Judge::new(before_types, "", seed, MAX_STEPS) {
        Ok(judge) => judge.judge(&after.module, proof, false),
        Err(reason) => Judgement::Unjudged(reason),
    }
}

/// The module of a seed: a training step, or one of every four times any module.
fn base(seed: u64) -> Option<Module> {
    let mut rng = Rng::new(seed ^ 0x9a9e);
    let text = if seed.is_multiple_of(4) {
        let size =
            Size { replica_count: 1 + rng.below(2), num_partitions: 2 + rng.below(3), n_steps: 4 + rng.below(30) };
        random_module(seed, size).text
    } else {
        training_step(seed, 3 + rng.below(12)).text
    };
    let module = hlo_text::parse_module(&text).ok()?.module;
    hlo_ir::verify::verify(&module).ok()?;
    Some(module)
}

fn variant_of(before: &Module, rng: &mut Rng) -> Option<Variant> {
    let (mut module, mut what) = (before.clone(), Vec::new());
    if rng.one_in(2) {
        let n = rewrite(&mut module, 1 + rng.below(6), rng);
        what.push(format!("{n} rewrites"));
    }
    if !rng.one_in(5) {
        let n = if rng.one_in(2) { 1 } else { 1 + rng.below(5) };
        let half = (before.n_devices() / 2).max(1).to_string();
        let passes: Vec<String> = (0..n).map(|_| rng.pick::<&str>(&PASSES).replace("HALF", &half)).collect();
        let pipeline = passes.join(",");
        module = passed(&module, &pipeline)?;
        what.push(pipeline);
    }
    let (mut edit, mut before_types) = (None, None);
    if rng.below(3) > 0 {
        let made = edited(&module, rng.below(EDITS.len()), rng)?;
        what.push(format!("{} at {}", made.kind, made.place));
        before_types = (made.kind == OF_TYPES).then_some(module);
        (module, edit) = (made.module, Some(made.kind));
    }
    Some(Variant { module, what: what.join("; "), kind: edit, before_types })
}

/// A pair of a family, of which the second is sometimes rewritten, or edited once more.
fn of_a_family(rng: &mut Rng) -> Option<(Module, Variant)> {
    let family::Pair { family, before, mut after } = family::pair(rng)?;
    let (mut what, mut before_types) = (family.to_string(), None);
    if rng.one_in(4) {
        let n = rewrite(&mut after, 1 + rng.below(4), rng);
        what.push_str(&format!("; {n} rewrites"));
    }
    if rng.one_in(6)
        && let Some(made) = edited(&after, rng.below(EDITS.len()), rng)
    {
        what.push_str(&format!("; {} at {}", made.kind, made.place));
        before_types = (made.kind == OF_TYPES).then_some(after);
        after = made.module;
    }
    Some((before, Variant { module: after, what, kind: Some(family), before_types }))
}

/// The module after a pipeline; `None` where a pass refuses it.
fn passed(module: &Module, pipeline: &str) -> Option<Module> {
    let (passes, target) = bind_text(pipeline, &hlo_opt::registry::passes(), module.n_devices()).ok()?;
    let mut module = module.clone();
    let options = || RunOptions { target: Some(&target), ..RunOptions::default() };
    let mut run = || run_pipeline(&mut module, &mut Analyses::default(), &passes, options()).is_ok();
    catch_unwind(AssertUnwindSafe(&mut run)).unwrap_or(false).then_some(module)
}

/// Keeps a pair on disk, and says where.
pub(super) fn keep(before: &Module, after: &Module, seed: u64, variant: usize) -> Result<String, String> {
    let folder = workspace::target_dir().join("prove-check");
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut names = Vec::new();
    for (name, module) in [("before", before), ("after", after)] {
        let file = folder.join(format!("seed{seed}.{variant}.{name}.hlo"));
        let text = print_module(module, &PrintOptions::default());
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
        names.push(file.display().to_string());
    }
    Ok(names.join(" "))
}

fn show(counts: &Counts, kinds: &BTreeMap<&str, (usize, usize)>) {
    println!("{:<38} {:>8} {:>8}", "last edit", "pairs", "proved");
    for (kind, (n, n_whole)) in kinds {
        println!("{kind:<38} {n:>8} {n_whole:>8}");
    }
    let Counts { pairs, unlike, whole, outputs, proved, exact, .. } = counts;
    println!(
        "{pairs} pairs ({unlike} with other inputs or outputs): {whole} proved whole; {proved} of {outputs} outputs, {exact} bit for bit"
    );
    println!("of {} pairs with an edit or of a family {} are proved whole", counts.edited, counts.edited_whole);
    println!(
        "evaluated: {} equal bit for bit, {} but for rounding ({} of them with an output proved bit for bit), {} not judged; {} panics",
        counts.bits, counts.rounding, counts.exact_rounding, counts.unjudged, counts.panics
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMS: &str = "HloModule m, num_partitions=2\n\nENTRY %main {\n  %x = f32[64] parameter(0)\n  \
                        %y = f32[64] parameter(1)\n  %c = f32[] constant(4096)\n  \
                        %b = f32[64] broadcast(%c), dimensions={}\n  %big = f32[64] multiply(%x, %b)\n  \
                        %sum = f32[64] add(%big, %y)\n  %less = f32[64] subtract(%sum, %big)\n  \
                        ROOT %r = (f32[64], f32[64]) tuple(OUT)\n}\n";

    fn module(outputs: &str) -> Module {
        let text = SUMS.replace("  ROOT", "  %n = bf16[64] convert(%y)\n  %w = f32[64] convert(%n)\n  ROOT");
        hlo_text::parse_module(&text.replace("OUT", outputs)).unwrap().module
    }

    #[test]
    fn a_changed_type_is_held_against_what_rounds_as_it_does() {
        let before = module("%less, %y");
        let judge = Judge::new(&before, "", 1, 1000).unwrap();
        let mut proof = super::prove(&before, &before).unwrap().proof;
        // As of a sum that is made in another order: infinite inputs are left out then.
        proof.outputs[0].modulo = hlo_prove::Rules::of(hlo_prove::Rule::SumFlattens);
        // The first output is summed in another order, which f32 shows and f64 does not; the second is rounded or not.
        let variant = |outputs: &str| Variant {
            module: module(outputs),
            what: String::new(),
            kind: Some(OF_TYPES),
            before_types: Some(module("%y, %y")),
        };
        assert!(matches!(judged(&judge, &variant("%y, %w"), &proof, 1), Judgement::Apart(_)));
        proof.outputs[1].verdict = hlo_prove::Verdict::Unknown;
        assert!(matches!(judge.judge(&variant("%y, %w").module, &proof, false), Judgement::Apart(_)));
        let found = judged(&judge, &variant("%y, %w"), &proof, 1);
        assert!(matches!(found, Judgement::Rounding { .. } | Judgement::Bits), "{found:?}");
    }
}
