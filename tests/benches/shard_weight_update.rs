//! How long `shard-weight-update` takes on training steps of 18,000 to 300,000 instructions: seconds, and instructions per
//! second. `HLO_BENCH_FILE` names a file to run it on.

use divan::counter::ItemsCount;
use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::large_step::{Kind, large_step};

fn main() {
    divan::main();
}

fn time(bencher: divan::Bencher<'_, '_>, text: &str) {
    let module = hlo_text::parse_module(text).ok().map(|parsed| parsed.module);
    let (Some(module), Ok(calls)) = (module, parse_pipeline("shard-weight-update")) else {
        println!("no module to run on");
        return;
    };
    let Ok(passes) = bind(&calls, hlo_wus::PASSES) else { return };
    let run = |mut module: Module| {
        let summary = run_pipeline(&mut module, &mut Analyses::default(), &passes, RunOptions::default());
        (module, summary.is_ok())
    };
    let n_instructions = module.n_instructions();
    bencher.counter(ItemsCount::new(n_instructions)).with_inputs(|| module.clone()).bench_local_values(run);
}

const SIZES: [usize; 3] = [18_000, 75_000, 300_000];

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn one_step(bencher: divan::Bencher<'_, '_>, n_instructions: usize) {
    time(bencher, &large_step(Kind::Step, n_instructions));
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn clipped_by_the_global_norm(bencher: divan::Bencher<'_, '_>, n_instructions: usize) {
    time(bencher, &large_step(Kind::Clipped, n_instructions));
}

#[divan::bench(args = SIZES, sample_count = 5, sample_size = 1)]
fn in_a_loop(bencher: divan::Bencher<'_, '_>, n_instructions: usize) {
    time(bencher, &large_step(Kind::Loop, n_instructions));
}

#[divan::bench(sample_count = 15, sample_size = 1)]
fn file(bencher: divan::Bencher<'_, '_>) {
    let named = std::env::var_os("HLO_BENCH_FILE").and_then(|file| std::fs::read_to_string(file).ok());
    match named {
        Some(text) => time(bencher, &text),
        None => println!("HLO_BENCH_FILE names no file"),
    }
}
