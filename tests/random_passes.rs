//! Passes keep what random modules compute, bit for bit on every device.

use crate::lockstep::{are_equal, draw_for, parse_random};
use hlo_analysis::Analyses;
use hlo_eval::draw::{DrawOptions, Same, draw_inputs};
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::PassInfo;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, bind_text, run_pipeline};
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
    let (passes, target) = bind_text(pipeline, registry, module.n_devices()).expect(pipeline);
    let options = RunOptions { check: true, target: Some(&target), ..RunOptions::default() };
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
        // The generator writes no loops, no scatters into arrays that are made for them, and few slices of what is put together.
        let has_work = !["hoist-invariants", "scatter-to-select", "merge-slices"].contains(&pipeline);
        assert!(n_changed * 10 > n_cases || !has_work, "{pipeline} changed only {n_changed} of {n_cases} modules");
    }
}

/// Slices of slices, concatenations and pads of two arrays, each read once or several times, and as a result.
fn sliced_module(seed: u64) -> String {
    let mut state = seed;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    let mut arrays: Vec<(String, [usize; 2])> = vec![("x".into(), [5, 4]), ("y".into(), [3, 4])];
    let mut lines = vec!["%x = s32[5,4]{1,0} parameter(0)".to_string(), "%y = s32[3,4]{1,0} parameter(1)".into()];
    lines.push("%fill = s32[] constant(7)".into());
    for k in 0..14 {
        let (of, dims) = arrays[arrays.len() - 1 - below(arrays.len().min(4))].clone();
        let dim = below(2);
        let mut new = dims;
        let what = match below(5) {
            0 | 1 => {
                let rows = dims.map(|size| {
                    let low = below(size);
                    (low, low + 1 + below(size - low))
                });
                new = rows.map(|(low, high)| high - low);
                format!("slice(%{of}), slice={{[{}:{}], [{}:{}]}}", rows[0].0, rows[0].1, rows[1].0, rows[1].1)
            }
            2 => {
                let (low, high) = (below(3), below(3));
                new[dim] += low + high;
                let padding = if dim == 0 { format!("{low}_{high}x0_0") } else { format!("0_0x{low}_{high}") };
                format!("pad(%{of}, %fill), padding={padding}")
            }
            _ => {
                let alike: Vec<_> =
                    arrays.iter().filter(|(_, other)| other[1 - dim] == dims[1 - dim]).cloned().collect();
                let (other, of_other) = alike[below(alike.len())].clone();
                new[dim] += of_other[dim];
                format!("concatenate(%{of}, %{other}), dimensions={{{dim}}}")
            }
        };
        lines.push(format!("%v{k}_ = s32[{},{}]{{1,0}} {what}", new[0], new[1]));
        arrays.push((format!("v{k}_"), new));
    }
    let results: Vec<_> = arrays.iter().rev().take(3).cloned().collect();
    let shapes: Vec<String> = results.iter().map(|(_, dims)| format!("s32[{},{}]{{1,0}}", dims[0], dims[1])).collect();
    let names: Vec<String> = results.iter().map(|(name, _)| format!("%{name}")).collect();
    lines.push(format!("ROOT %out = ({}) tuple({})", shapes.join(", "), names.join(", ")));
    format!("HloModule sliced\n\nENTRY %main {{\n  {}\n}}\n", lines.join("\n  "))
}

#[test]
fn slices_taken_from_parts_keep_every_bit() {
    let mut n_changed = 0;
    for seed in 0..n_cases() * 5 {
        let text = sliced_module(seed);
        let before = parse_random(seed, &text);
        let mut after = before.clone();
        let passes =
            bind(&parse_pipeline("merge-slices").expect("a pipeline"), hlo_simplify::PASSES).expect("the pass");
        let options = RunOptions { check: true, ..RunOptions::default() };
        let summary = run_pipeline(&mut after, &mut Analyses::default(), &passes, options).expect(&text);
        n_changed += u64::from(summary.reports.iter().any(|report| report.changed));
        let draw = DrawOptions { seed, draws: Vec::new(), same: Same::All };
        let inputs = draw_inputs(&before, None, &draw).expect("inputs");
        let (a, b) = (evaluate(&before, &inputs), evaluate(&after, &inputs));
        let pairs = a.leaves.iter().flatten().zip(b.leaves.iter().flatten());
        assert!(pairs.into_iter().all(|(a, b)| are_equal(a, b)), "seed {seed}\n{text}");
    }
    assert!(n_changed > n_cases(), "{n_changed} modules were changed");
}

/// Few groups to choose from and many steps: collectives that go together are not rare.
fn few_devices(seed: u64) -> Size {
    Size { replica_count: 1 + (seed % 2) as usize, num_partitions: 2, n_steps: 80 }
}

/// Sums of up to four equal numbers are exact here, so a folded all-reduce is too.
#[test]
#[ignore = "takes long: .ci/nightly runs it"]
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
