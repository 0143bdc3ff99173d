//! Time limits: passes that work long poll them, and a pipeline that has no time left leaves the module as it was.

use hlo_analysis::Analyses;
use hlo_ir::Module;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::options::Options;
use hlo_pass::pipeline::{Pipeline, parse_pipeline};
use hlo_pass::report::PassReport;
use hlo_pass::runner::{RunError, RunOptions, bind, run_pipeline};
use hlo_pass::{Deadline, PassCx, PassError, TargetSpec};
use hlo_tests::root;
use std::time::Duration;

/// Passes that search or have a round for each of many instructions, each with a sample that it has work on.
const LONG: &[(&str, &str)] = &[
    ("shard-weight-update{min-bytes=0}", "passes/shard-weight-update/sgd.hlo"),
    ("distribute-matrix-updates{profit=always}", "passes/distribute-matrix-updates/muon.hlo"),
    ("@machine=[(node,2,1),(gpu,4,100)];decompose-collectives", "passes/decompose-collectives/two-levels.hlo"),
    ("propagate-shardings", "passes/propagate-shardings/best.hlo"),
    ("propagate-shardings{order=shardy}", "passes/propagate-shardings/best.hlo"),
    ("propagate-shardings{order=gspmd}", "passes/propagate-shardings/best.hlo"),
    ("spmd-partition", "global/tp_mlp_sgd.unopt.hlo"),
    ("search-strategies{devices=8}", "passes/search-strategies/worked.hlo"),
    ("search-strategies{algo=dp,devices=6}", "passes/search-strategies/mlp-dp.hlo"),
    ("assign-mesh-layout{mesh='m1:4,m2:2',layout=auto}", "passes/assign-mesh-layout/auto.hlo"),
    ("assign-mesh-layout{mesh='m1:4,m2:2',layout='a:m2',names='a=%x:0'}", "passes/assign-mesh-layout/auto.hlo"),
];

fn read(sample: &str) -> Module {
    let path = root().join(sample);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    hlo_text::parse_module(&text).unwrap_or_else(|diags| panic!("{sample}: {diags:?}")).module
}

fn text(module: &Module) -> String {
    print_module(module, &PrintOptions::default())
}

/// Runs one pass on its own, without the runner that asks before it.
fn run_alone(pipeline: &str, module: &mut Module, deadline: Deadline) -> Result<(), PassError> {
    let Pipeline { calls, settings } = Pipeline::parse(pipeline).expect("a pipeline");
    let mut spec = TargetSpec::default();
    settings.iter().for_each(|(name, value)| spec.set(name, value).expect("a setting"));
    let target = spec.target(module.n_devices()).expect("a target");
    let passes = hlo_opt::registry::passes();
    let info = passes.iter().find(|info| info.name == calls[0].name).expect("a known pass");
    let options = Options::check(info.name, info.options, &calls[0].options).expect("good options");
    let pass = (info.build)(&options).unwrap_or_else(|e| panic!("{pipeline}: {e}"));
    let (mut analyses, mut report) = (Analyses::default(), PassReport::new(info.name));
    let mut cx = PassCx { deadline, ..PassCx::new(&mut analyses, &mut report, &target) };
    pass.run(module, &mut cx).map(|_| ())
}

#[test]
fn passes_that_work_long_poll_the_deadline() {
    for &(pipeline, sample) in LONG {
        let before = read(sample);
        let long = Deadline::within(Duration::from_secs(3600));
        run_alone(pipeline, &mut before.clone(), long).unwrap_or_else(|e| panic!("{pipeline} on {sample}: {e:?}"));
        let mut module = before.clone();
        let stopped = run_alone(pipeline, &mut module, Deadline::within(Duration::ZERO));
        let diagnostic = stopped.expect_err(&format!("{pipeline} on {sample} does not ask")).diagnostic;
        assert_eq!(diagnostic.rule, "deadline", "{pipeline}: {diagnostic:?}");
        assert!(diagnostic.message.ends_with("limit 0 s; the module stays as it was"), "{}", diagnostic.message);
        assert_eq!(text(&module), text(&before), "{pipeline} on {sample}");
    }
}

fn run(pipeline: &str, module: &mut Module, deadline: Deadline) -> Result<usize, RunError> {
    let passes = bind(&parse_pipeline(pipeline).expect("a pipeline"), &hlo_opt::registry::passes()).expect("passes");
    let options = RunOptions { deadline, ..RunOptions::default() };
    run_pipeline(module, &mut Analyses::default(), &passes, options).map(|summary| summary.reports.len())
}

#[test]
fn a_pipeline_stops_before_the_next_pass() {
    let mut module = read("passes/shard-weight-update/sgd.hlo");
    let before = text(&module);
    let error = run("cse,dce", &mut module, Deadline::within(Duration::ZERO)).expect_err("no time");
    assert!(error.is_out_of_time() && error.pass == "cse", "{:?}", error.diagnostics);
    assert_eq!(text(&module), before);
    assert_eq!(run("cse,dce", &mut module, Deadline::within(Duration::from_secs(3600))).expect("time"), 2);
}
