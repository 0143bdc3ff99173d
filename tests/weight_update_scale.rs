//! Weight-update sharding takes time in proportion to the module, whatever surrounds the updates. CPU time of this thread, so that
//! other work on the machine does not count.

use crate::lockstep::parse;
use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::runner::{RunOptions, bind, run_pipeline};
use hlo_tests::large_step::{Kind, large_step};
use rustix::time::{ClockId, clock_gettime};

/// Instructions of the small module.
const SMALL: usize = 4_000;
/// How many times larger the large one is.
const GROWTH: usize = 8;
/// How many times longer it may take: what is quadratic takes 64 times as long, what is linear 8 to 12 times (caches).
const LONGER: f64 = 20.0;

/// CPU time of this thread, in seconds.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The shortest time of some runs, in seconds, and the number of updates in shards.
fn shortest(module: &Module, n_runs: usize) -> (f64, u64) {
    let passes = bind(&parse_pipeline("shard-weight-update").expect("a pipeline"), hlo_wus::PASSES).expect("the pass");
    let (mut best, mut n_sharded) = (f64::INFINITY, 0);
    for _ in 0..n_runs {
        let mut module = module.clone();
        let start = cpu_s();
        let summary = run_pipeline(&mut module, &mut Analyses::default(), &passes, RunOptions::default());
        best = best.min(cpu_s() - start);
        let summary = summary.unwrap_or_else(|e| panic!("{:?}", e.diagnostics));
        n_sharded = summary.reports[0].stats["shard-weight-update.updates-sharded"];
    }
    (best, n_sharded)
}

#[test]
fn time_grows_with_the_module() {
    for kind in Kind::ALL {
        let sized = |n| parse(&format!("{kind:?} of {n}"), &large_step(kind, n));
        let (small, large) = (sized(SMALL), sized(SMALL * GROWTH));
        let (short, n_few) = shortest(&small, 5);
        let (long, n_many) = shortest(&large, 3);
        let growth = large.n_instructions() as f64 / small.n_instructions() as f64;
        println!("{kind:?}: {growth:.1} times the instructions, {:.1} times the time", long / short);
        assert!(n_few > 100 && n_many > 7 * n_few, "{kind:?}: {n_few} and {n_many} updates in shards");
        assert!((growth - GROWTH as f64).abs() < 0.5, "{kind:?}: {growth} times the instructions");
        assert!(
            long / short < LONGER,
            "{kind:?}: {short} s for {SMALL} instructions, {long} s for {GROWTH} times as many"
        );
    }
}
