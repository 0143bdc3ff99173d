//! Random networks of convolutions compute the same after the passes that the GPU backend runs on them.

use hlo_analysis::Analyses;
use hlo_eval::draw::{DrawOptions, draw_inputs};
use hlo_eval::{EvalOptions, Outputs, run};
use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::verify::verify;
use hlo_ir::{Literal, Module, Opcode, Scalar};
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_run::HostProgram;
use hlo_tests::random_convolutions::random_convolutions;

fn parse(text: &str) -> Module {
    hlo_text::parse_module(text).unwrap_or_else(|d| panic!("{:?}\n{text}", d[0])).module
}

/// How many convolutions stand in fusions after a pipeline; what is computed differs by at most `tolerance` of the largest element.
fn check(pipeline: &str, seed: u64, tolerance: f64) -> usize {
    let text = random_convolutions(seed);
    let mut module = parse(&text);
    let inputs = draw_inputs(&module, None, &DrawOptions { seed, ..DrawOptions::default() }).expect("inputs");
    let evaluated =
        |module: &Module| run(module, &inputs, &EvalOptions::default()).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let before = evaluated(&module);
    let passes = bind(&parse_pipeline(pipeline).expect(pipeline), hlo_gpu::PASSES).expect(pipeline);
    let options = RunOptions { check: true, ..RunOptions::default() };
    if let Err(error) = run_pipeline(&mut module, &mut Analyses::default(), &passes, options) {
        panic!("{pipeline}, seed {seed}: {:?}\n{text}", error.diagnostics);
    }
    let after = evaluated(&module);
    let arrays = |outputs: &Outputs| outputs.leaves.iter().map(|row| row[0].as_ref().clone()).collect::<Vec<Literal>>();
    let (before, after) = (arrays(&before), arrays(&after));
    let differs = first_difference(&before.iter().collect::<Vec<_>>(), &after.iter().collect::<Vec<_>>(), tolerance);
    assert!(differs.is_none(), "{pipeline}, seed {seed}: result {differs:?} differs\n{text}");
    let entry = module.entry();
    let fused =
        module.computations().iter().filter(|&&comp| Some(comp) != entry).flat_map(|&comp| &module.comp(comp).insts);
    fused.filter(|&&inst| module.inst(inst).opcode == Opcode::Convolution).count()
}

/// Seeds, unless the environment says how many.
fn n_cases() -> u64 {
    std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}

fn floats(literal: &Literal) -> Vec<f64> {
    let float = |scalar: Option<Scalar>| match scalar {
        Some(Scalar::Float(x)) => x,
        other => panic!("expected a float, found {other:?}"),
    };
    (0..literal.n_elems()).map(|i| float(literal.get(i))).collect()
}

/// The first result that differs by more than `tolerance` of its largest element.
fn first_difference(expected: &[&Literal], found: &[&Literal], tolerance: f64) -> Option<usize> {
    assert_eq!(expected.len(), found.len());
    expected.iter().zip(found).position(|(a, b)| {
        let (a, b) = (floats(a), floats(b));
        let largest = a.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let is_near =
            |(x, y): (&f64, &f64)| x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= tolerance * largest;
        !a.iter().zip(&b).all(is_near)
    })
}

#[test]
fn fusions_of_convolutions_keep_every_bit() {
    let n_cases = n_cases();
    let n_fused: usize = (0..n_cases).map(|seed| check("propagate-layouts,fuse", seed, 0.0)).sum();
    assert!(n_fused as u64 > n_cases, "{n_fused} of {n_cases} networks");
}

#[test]
fn convolutions_in_parts_and_as_products_add_up_the_same() {
    // Of other seeds some compare what is nearly equal, and select by that.
    for seed in 0..60 {
        check("split-convolutions{parts=2},propagate-layouts,fuse", seed, 2e-5);
        check("convolution-to-dot{most-time=1000000},split-convolutions{parts=4},propagate-layouts,fuse", seed, 2e-5);
    }
}

/// The plans of these networks, compiled for the host.
#[test]
fn fused_networks_run_as_in_the_evaluator() {
    let passes =
        bind(&parse_pipeline("split-convolutions{parts=2},propagate-layouts,fuse").expect("passes"), hlo_gpu::PASSES);
    let passes = passes.expect("passes");
    for seed in 0..n_cases() / 25 {
        let text = random_convolutions(seed);
        let mut module = parse(&text);
        let inputs = draw_inputs(&module, None, &DrawOptions { seed, ..DrawOptions::default() }).expect("inputs");
        let expected = run(&module, &inputs, &EvalOptions::default()).expect("results");
        let options = RunOptions { check: true, ..RunOptions::default() };
        if let Err(error) = run_pipeline(&mut module, &mut Analyses::default(), &passes, options) {
            panic!("seed {seed}: {:?}\n{text}", error.diagnostics);
        }
        let plan = lower(&module, &mut CudaKernels::default(), &LowerOptions::default()).expect("a plan");
        verify(&plan).unwrap_or_else(|e| panic!("seed {seed}: {e:?}\n{text}"));
        let own: Vec<Literal> = inputs.leaves.iter().map(|row| row[0].as_ref().clone()).collect();
        let found =
            HostProgram::new(&plan).and_then(|program| program.run(&[own])).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let expected: Vec<&Literal> = expected.leaves.iter().map(|row| row[0].as_ref()).collect();
        let differs = first_difference(&expected, &found[0].iter().collect::<Vec<_>>(), 2e-4);
        assert!(differs.is_none(), "seed {seed}: result {differs:?} differs\n{text}");
    }
}

/// What another instruction waits for stays outside of a fusion, and is not computed a second time.
#[test]
fn what_others_wait_for_is_computed_once() {
    let mut module = parse(
        "HloModule m
ENTRY e {
  x = f32[4,6,5,16] parameter(0)
  w = f32[3,3,16,16] parameter(1)
  conv = f32[4,6,5,16] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  negated = f32[4,6,5,16] negate(conv)
  later = f32[4,6,5,16] add(x, x), control-predecessors={negated}
  ROOT t = (f32[4,6,5,16], f32[4,6,5,16]) tuple(negated, later)
}",
    );
    let passes = bind(&parse_pipeline("fuse").expect("a pass"), hlo_gpu::PASSES).expect("a pass");
    run_pipeline(&mut module, &mut Analyses::default(), &passes, RunOptions { check: true, ..RunOptions::default() })
        .expect("a result");
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    assert_eq!(insts.filter(|&&inst| module.inst(inst).opcode == Opcode::Convolution).count(), 1);
}
