//! A pass keeps what a module computes however the module is written: each module and a rewritten one that computes the same
//! ([`hlo_tests::equal_rewrites`]) go through the same pipeline, and all four give the same outputs on every device.

use crate::equivalence::{Nearness, compare, distances};
use crate::lockstep::{draw_for, parse, parse_random};
use hlo_analysis::Analyses;
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{DType, Literal, Module};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::equal_rewrites::rewrite;
use hlo_tests::random_module::{Rng, Size, random_module};
use hlo_tests::training_step::training_step;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Modules when the environment does not say how many (`HLO_PROPTEST_CASES`) or from which seed on (`HLO_PROPTEST_FROM`).
const N_MODULES: u64 = 400;

/// The least module that counts.
const MIN_INSTRUCTIONS: usize = 10;

/// Sums in another order, some of them divided by small numbers or iterated.
const NEAR: Nearness = Nearness::WithinShare(1e-3);

/// For training steps, whose sums may be taken in another order.
const OF_STEPS: [&str; 8] = [
    "shard-weight-update{min-bytes=0,profit=always}",
    "inline-calls,simplify-tuples,sink-all-reduce,reassociate-all-reduce,sink-all-reduce",
    "inline-calls,simplify-tuples,hoist-invariants,split-tuple-all-reduce,sink-all-reduce,reassociate-all-reduce,\
     fold-all-reduce-of-all-reduce,sink-all-reduce,flatten-update,all-reduce-to-reduce-scatter,dce,\
     hoist-conversions,shard-weight-update{min-bytes=0,profit=always},dce,combine-collectives{mode=variadic}",
    "combine-collectives{mode=variadic}",
    "combine-collectives{mode=packed}",
    "simplify-algebra,cse,all-reduce-to-reduce-scatter",
    "inline-calls,cse,simplify-algebra,simplify-tuples,dce",
    "simplify-algebra,shard-weight-update{min-bytes=0,profit=always},simplify-algebra,cse,dce",
];

/// For random modules, in which every bit stays.
const OF_MODULES: [&str; 5] = [
    "inline-calls,simplify-tuples,cse,dce",
    "simplify-algebra",
    "combine-collectives{mode=variadic,threshold-bytes=64},split-tuple-all-reduce{ops=all}",
    "combine-collectives{mode=packed}",
    "hoist-invariants,hoist-conversions,cse",
];

/// A module, its inputs, and how near outputs must be after a pass.
struct Case {
    module: Module,
    inputs: Inputs,
    near: Nearness,
    pipeline: &'static str,
}

fn case(seed: u64) -> Case {
    let mut rng = Rng::new(seed ^ 0x9a9e);
    if seed.is_multiple_of(4) {
        let size =
            Size { replica_count: 1 + rng.below(2), num_partitions: 2 + rng.below(3), n_steps: 20 + rng.below(60) };
        let random = random_module(seed, size);
        // Layouts by the number of the module among the random ones.
        let module = parse_random(seed / 4, &random.text);
        let inputs = draw_for(seed, &random.inputs);
        return Case { module, inputs, near: Nearness::Exact, pipeline: rng.pick::<&str>(&OF_MODULES) };
    }
    let step = training_step(seed, 4 + rng.below(16));
    let near = if step.is_exact { Nearness::Exact } else { NEAR };
    let inputs = crate::random_steps::draw(seed, &step);
    Case { module: parse_random(seed, &step.text), inputs, near, pipeline: rng.pick::<&str>(&OF_STEPS) }
}

fn evaluate(what: &str, module: &Module, inputs: &Inputs) -> Result<Outputs, String> {
    let options = EvalOptions { max_steps: 5_000_000, n_threads: 1, ..EvalOptions::default() };
    run(module, inputs, &options).map_err(|e| format!("{what}: {e}\n{}", text(module)))
}

fn text(module: &Module) -> String {
    print_module(module, &PrintOptions::default())
}

/// The module after a pipeline, and whether it is another one.
fn passed(what: &str, module: &Module, pipeline: &str) -> Result<(Module, bool), String> {
    let passes = bind(&parse_pipeline(pipeline).expect(pipeline), &hlo_opt::registry::passes()).expect(pipeline);
    let mut module = module.clone();
    let options = RunOptions { check: true, ..RunOptions::default() };
    match run_pipeline(&mut module, &mut Analyses::default(), &passes, options) {
        Ok(summary) => Ok((module, summary.reports.iter().any(|report| report.changed))),
        Err(error) => Err(format!("{what}: {:?}\n{}", error.diagnostics, text(&error.module))),
    }
}

/// How much farther from what f64 gives an output may be after a pass than before it.
const MOST_WORSE: f64 = 10.0;

/// The module with f64 in the place of f32.
fn widened(module: &Module) -> Module {
    parse("in f64", &text(module).replace("f32", "f64"))
}

fn widened_inputs(inputs: &Inputs) -> Inputs {
    let array = |array: &Arc<Literal>| {
        if array.dtype() != DType::F32 {
            return array.clone();
        }
        let mut wide = Literal::zeros(DType::F64, array.dims()).expect("dims of an array");
        for i in 0..array.n_elems() {
            assert!(array.get(i).is_some_and(|scalar| wide.set(i, scalar)));
        }
        Arc::new(wide)
    };
    Inputs { leaves: inputs.leaves.iter().map(|row| row.iter().map(array).collect()).collect() }
}

/// Whether outputs are about as near to what f64 gives as those of the module as it came: an output that is zero but for rounding
/// has no largest element to compare with.
fn is_as_accurate(module: &Module, inputs: &Inputs, before: &Outputs, after: &Outputs) -> Result<bool, String> {
    let truth = evaluate("in f64", &widened(module), &widened_inputs(inputs))?;
    let pairs = distances(&truth, before).into_iter().zip(distances(&truth, after));
    Ok(pairs.into_iter().all(|(before, after)| after <= before * MOST_WORSE))
}

/// What came of a seed.
struct Outcome {
    /// Whether the rewritten module is large enough and has a collective.
    counts: bool,
    /// Whether the pipeline changed it.
    is_changed: bool,
    n_rewrites: usize,
}

fn check(seed: u64, max_rewrites: usize) -> Result<Outcome, String> {
    let Case { module, inputs, near, pipeline } = case(seed);
    let mut rewritten = module.clone();
    let n_rewrites = rewrite(&mut rewritten, max_rewrites, &mut Rng::new(seed ^ 0x0e0a));
    hlo_ir::verify::verify(&rewritten).map_err(|e| format!("a rewrite is invalid: {e:?}\n{}", text(&rewritten)))?;
    let expected = evaluate("the module", &module, &inputs)?;
    let same = |what: &str, other: &Module, near: Nearness| {
        let found = evaluate(what, other, &inputs)?;
        match compare(&expected, &found, near) {
            Err(_) if near != Nearness::Exact && is_as_accurate(&module, &inputs, &expected, &found)? => Ok(()),
            outcome => outcome.map_err(|e| format!("{what}, {pipeline}: {e}\n{}", text(&rewritten))),
        }
    };
    same("rewritten", &rewritten, Nearness::Exact)?;
    let (after, _) = passed("the module", &module, pipeline)?;
    same("after the pipeline", &after, near)?;
    let (after, is_changed) = passed("the rewritten module", &rewritten, pipeline)?;
    same("rewritten, after the pipeline", &after, near)?;
    let insts = rewritten.computations().iter().flat_map(|&comp| &rewritten.comp(comp).insts);
    let has_collective = insts.into_iter().any(|&inst| rewritten.inst(inst).opcode.row().collective.is_some());
    Ok(Outcome { counts: has_collective && rewritten.n_instructions() >= MIN_INSTRUCTIONS, is_changed, n_rewrites })
}

/// Checks a seed; a failure is told with as few rewrites as it needs.
fn check_seed(seed: u64) -> Result<Outcome, String> {
    let attempt = |n: usize| {
        catch_unwind(AssertUnwindSafe(|| check(seed, n))).unwrap_or_else(|panic| {
            Err(format!("panics: {}", panic.downcast_ref::<String>().cloned().unwrap_or_default()))
        })
    };
    let most = 1 + (seed % 12) as usize;
    let first = match attempt(most) {
        Ok(outcome) => return Ok(outcome),
        Err(error) => error,
    };
    let fewer = (0..most).find_map(|n| attempt(n).err().map(|error| (n, error)));
    let (n, error) = fewer.unwrap_or((most, first));
    Err(format!("seed {seed}, {n} rewrites: {error}"))
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn a_module_written_in_another_way_computes_the_same_after_every_pipeline() {
    let (from, n_cases) = (number("HLO_PROPTEST_FROM", 0), number("HLO_PROPTEST_CASES", N_MODULES));
    let (mut failures, mut n_counted, mut n_changed, mut n_rewrites) = (Vec::new(), 0u64, 0u64, 0usize);
    let mut fired: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for seed in from..from + n_cases {
        match check_seed(seed) {
            Ok(outcome) if outcome.counts => {
                n_counted += 1;
                n_changed += u64::from(outcome.is_changed);
                n_rewrites += outcome.n_rewrites;
                let slot = fired.entry(case(seed).pipeline).or_default();
                *slot = (slot.0 + u64::from(outcome.is_changed), slot.1 + 1);
            }
            Ok(_) => {}
            Err(error) => failures.push(error),
        }
        if failures.len() > 4 {
            break;
        }
    }
    println!(
        "seeds {from} to {}: {n_counted} modules count, {n_rewrites} rewrites, {n_changed} changed",
        from + n_cases
    );
    for (pipeline, (changed, all)) in &fired {
        println!("  {changed} of {all}: {pipeline}");
    }
    assert!(failures.is_empty(), "{} of {n_cases} fail\n{}", failures.len(), failures.join("\n"));
    assert!(n_counted * 2 > n_cases, "{n_counted} of {n_cases} modules have a collective");
    assert!(n_changed * 10 >= n_counted * 3, "{n_changed} of {n_counted} modules were changed");
}
