//! Every clean-up pass keeps what random modules compute, bit for bit on every device.

use crate::lockstep::{are_equal, draw_for, parse};
use hlo_analysis::Analyses;
use hlo_eval::{Inputs, Options, Outputs, run};
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::random_module::{Size, random_module};

/// Seeds for each pass when the environment does not say how many.
const N_CASES: u64 = 60;

fn evaluate(module: &Module, inputs: &Inputs) -> Outputs {
    let options = Options { max_steps: 5_000_000, n_threads: 1, ..Options::default() };
    run(module, inputs, &options).unwrap_or_else(|e| panic!("{e}\n{}", print_module(module, &PrintOptions::default())))
}

fn check(pipeline: &str, seed: u64) -> bool {
    let (replica_count, num_partitions) = (1 + (seed % 4) as usize, 1 + (seed / 4 % 4) as usize);
    let random = random_module(seed, Size { replica_count, num_partitions, n_steps: 16 });
    let mut module = parse(&format!("seed {seed}"), &random.text);
    let inputs = draw_for(seed, &random.inputs);
    let before = evaluate(&module, &inputs);
    let passes = bind(&parse_pipeline(pipeline).expect(pipeline), hlo_simplify::PASSES).expect(pipeline);
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

#[test]
fn clean_ups_keep_every_bit_on_every_device() {
    let n_cases = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_CASES);
    let all = hlo_simplify::PASSES.iter().map(|pass| pass.name).collect::<Vec<_>>().join(",");
    for pipeline in hlo_simplify::PASSES.iter().map(|pass| pass.name).chain([all.as_str()]) {
        let n_changed = (0..n_cases).filter(|&seed| check(pipeline, seed)).count() as u64;
        assert!(n_changed * 10 > n_cases, "{pipeline} changed only {n_changed} of {n_cases} modules");
    }
}
