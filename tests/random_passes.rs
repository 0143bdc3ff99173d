//! Passes keep what random modules compute, bit for bit on every device.

use crate::lockstep::{are_equal, draw_for, parse_random};
use hlo_analysis::Analyses;
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::PassInfo;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::random_module::{Size, random_module};

/// Seeds for each pass when the environment does not say how many.
const N_CASES: u64 = 60;

fn evaluate(module: &Module, inputs: &Inputs) -> Outputs {
    let options = EvalOptions { max_steps: 5_000_000, n_threads: 1, ..EvalOptions::default() };
    run(module, inputs, &options).unwrap_or_else(|e| panic!("{e}\n{}", print_module(module, &PrintOptions::default())))
}

fn check(pipeline: &str, registry: &[&'static PassInfo], size: Size, seed: u64) -> bool {
    let random = random_module(seed, size);
    let mut module = parse_random(seed, &random.text);
    let inputs = draw_for(seed, &random.inputs);
    let before = evaluate(&module, &inputs);
    let passes = bind(&parse_pipeline(pipeline).expect(pipeline), registry).expect(pipeline);
    let options = RunOptions { check: true, ..RunOptions::default() };
    let summary = match run_pipeline(&mut module, &mut Analyses::default(), &passes, options) {
        Ok(summary) => summary,
        Err(error) => panic!("{pipeline}, seed {seed}: {:?}\n{}", error.diagnostics, random.text),
    };
    let after = evaluate(&module, &inputs);
    for (leaf, (a, b)) in before.leaves.iter().zip(&after.leaves).enumerate() {
        for (device, (a, b)) in a.iter().zip(b).enumerate() {
            let place = format!("{pipeline}, seed {seed}: result {leaf} differs on device {device}");
            assert!(are_equal(a, b), "{place}\n{}", random.text);
        }
    }
    summary.reports.iter().any(|report| report.changed)
}

fn n_cases() -> u64 {
    std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES)
}

fn size_of(seed: u64) -> Size {
    Size { replica_count: 1 + (seed % 4) as usize, num_partitions: 1 + (seed / 4 % 4) as usize, n_steps: 16 }
}

#[test]
fn clean_ups_keep_every_bit_on_every_device() {
    let n_cases = n_cases();
    let all = hlo_simplify::PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(",");
    for pipeline in hlo_simplify::PASSES.iter().map(|pass| pass.name).chain([all.as_str()]) {
        let n_changed =
            (0..n_cases).filter(|&seed| check(pipeline, hlo_simplify::PASSES, size_of(seed), seed)).count() as u64;
        // The generator writes no loops, and no scatters into arrays that are made for them.
        let has_work = !["hoist-invariants", "scatter-to-select"].contains(&pipeline);
        assert!(n_changed * 10 > n_cases || !has_work, "{pipeline} changed only {n_changed} of {n_cases} modules");
    }
}

/// Few groups to choose from and many steps: collectives that go together are not rare.
fn few_devices(seed: u64) -> Size {
    Size { replica_count: 1 + (seed % 2) as usize, num_partitions: 2, n_steps: 80 }
}

/// Sums of up to four equal numbers are exact here, so a folded all-reduce is too.
#[test]
fn collectives_in_another_form_give_the_same_bits() {
    let n_cases = n_cases();
    for pipeline in [
        "combine-collectives{mode=packed}",
        "combine-collectives{mode=variadic,threshold-bytes=64},split-tuple-all-reduce{ops=all}",
        "fold-all-reduce-of-all-reduce",
        "make-async",
        "schedule-collectives",
        "schedule-collectives,make-async,schedule-collectives",
        "split-microbatches{profit=always,parts=2,gradients=joined}",
        "split-microbatches{profit=always,parts=2,gradients=summed}",
    ] {
        let check = |&seed: &u64| check(pipeline, hlo_collectives::PASSES, few_devices(seed), seed);
        let n_changed = (0..n_cases).filter(check).count() as u64;
        assert!(n_changed * 30 > n_cases, "{pipeline} changed only {n_changed} of {n_cases} modules");
    }
}
