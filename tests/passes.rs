//! Every sample of every pass: it fires or it does not, as the header says; what it leaves is valid, gives the same
//! results, and is left alone by a second run. Only then is the text compared with its snapshot.

use crate::equivalence::{self, Nearness};
use hlo_analysis::Analyses;
use hlo_analysis::values::{CallSites, entered};
use hlo_ir::devices::find_n_devices;
use hlo_ir::op::CalleeEntry;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{InstId, Module, Opcode};
use hlo_pass::runner::{RunOptions, RunSummary, bind_text, run_pipeline};
use hlo_tests::random_module::Rng;
use hlo_tests::unequal_layouts::give_unequal_layouts;
use hlo_tests::{Sample, root, samples};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Passes that add in another order than the module they read.
const REORDER_SUMS: &[&str] = &[
    "all-reduce-to-reduce-scatter",
    "shard-weight-update",
    "fold-all-reduce-of-all-reduce",
    "reassociate-all-reduce",
    "sink-all-reduce",
    "decompose-collectives",
    "stack-branches",
];

/// Passes that read global programs which say on how many devices they run.
const GLOBAL: &[&str] = &["spmd-partition", "propagate-shardings"];

/// Passes that say on how many devices a global program runs.
const CUTTING: &[&str] =
    &["assign-mesh-layout", "apply-strategies", "propagate-strategies", "search-strategies", "search-parallelization"];

fn parse(name: &str, text: &str) -> Module {
    let parsed = hlo_text::parse_module(text);
    let module = parsed.unwrap_or_else(|diags| panic!("{}", hlo_text::render(&diags, name, text, false))).module;
    hlo_ir::verify::verify(&module).unwrap_or_else(|diags| panic!("{name}: {diags:?}"));
    module
}

/// Runs a pipeline with all checks of the runner on.
fn run(name: &str, module: &mut Module, pipeline: &str) -> RunSummary {
    let registry = hlo_opt::registry::passes();
    let bound = bind_text(pipeline, &registry, module.n_devices());
    let (passes, target) = bound.unwrap_or_else(|e| panic!("{name}: {e}"));
    let options = RunOptions { check: true, target: Some(&target), ..Default::default() };
    run_pipeline(module, &mut Analyses::default(), &passes, options)
        .unwrap_or_else(|e| panic!("{name}: pass {}: {:?}", e.pass, e.diagnostics))
}

fn text(module: &Module) -> String {
    print_module(module, &PrintOptions { expand_mesh_groups: true, ..PrintOptions::default() })
}

fn is_cutting(pipeline: &str) -> bool {
    CUTTING.iter().any(|pass| pipeline.contains(pass))
}

/// Whether a pipeline reads a global program.
fn is_on_global(pipeline: &str) -> bool {
    is_cutting(pipeline) || GLOBAL.iter().any(|pass| pipeline.contains(pass))
}

/// Whether a module gives the same results before and after the pipeline of its sample.
fn check_results(
    name: &str,
    sample: &Sample,
    pipeline: &str,
    (before, after): (&Module, &Module),
) -> Result<(), String> {
    let reorders = REORDER_SUMS.iter().any(|p| pipeline.contains(p)) || sample.header("sums") == Some("reordered");
    let near = match reorders {
        true => Nearness::WithinShare(2e-5),
        false => Nearness::Exact,
    };
    let draw = sample.header("draw").unwrap_or("");
    let is_same = match is_on_global(pipeline) {
        true => equivalence::check_global(before, after, draw),
        false => equivalence::check(before, after, draw, near),
    };
    is_same.map_err(|e| format!("{name}: {e}"))
}

fn check_sample(pass: &str, sample: &Sample) -> Result<(), String> {
    let name = format!("{pass}/{}", sample.name());
    let pipeline = sample.header("pass").ok_or_else(|| format!("{name}: expected a line `// pass:`"))?;
    let before = parse(&name, &sample.text);
    let n_devices = sample.header("devices").map_or(Ok(1), str::parse::<usize>).map_err(|e| format!("{name}: {e}"))?;
    let is_cut = is_cutting(pipeline);
    let is_global = is_on_global(pipeline);
    let mut after = before.clone();
    let summary = run(&name, &mut after, pipeline);
    let n_found = match is_global {
        true => find_n_devices(if is_cut { &after } else { &before }),
        false => before.n_devices(),
    };
    if n_devices != n_found {
        return Err(format!("{name}: expected {n_devices} devices, found {n_found}"));
    }
    let has_changed = summary.reports.iter().any(|r| r.changed);
    let must_change = match sample.header("expect") {
        None => true,
        Some("unchanged") => false,
        Some(other) => return Err(format!("{name}: expected `// expect: unchanged`, found `{other}`")),
    };
    if has_changed != must_change {
        let why: Vec<_> = summary.reports.iter().filter_map(|r| r.unchanged_because.as_deref()).collect();
        return Err(format!("{name}: expected changed={must_change}, found changed={has_changed} {why:?}"));
    }
    if let Some(report) = summary.reports.iter().find(|r| !r.changed && r.unchanged_because.is_none()) {
        return Err(format!("{name}: {} changed nothing and does not say why", report.pass));
    }
    if let Some(reason) = sample.header("reason") {
        let given = summary.reports.iter().flat_map(|r| {
            r.unchanged_because.iter().chain(r.decisions.iter().map(|d| &d.reason)).cloned().collect::<Vec<_>>()
        });
        let given: Vec<String> = given.collect();
        if !given.iter().any(|g| g.contains(reason)) {
            return Err(format!("{name}: expected the reason `{reason}`, found {given:?}"));
        }
    }
    for report in &summary.reports {
        let mut said = BTreeSet::new();
        let mut left = report.decisions.iter().filter(|d| d.action == "left");
        if let Some(again) = left.find(|d| !said.insert((&d.subject, &d.computation, &d.reason))) {
            return Err(format!("{name}: {} leaves `{}` twice: {}", report.pass, again.subject, again.reason));
        }
    }
    if !has_changed {
        return (print_module(&before, &PrintOptions::default()) == print_module(&after, &PrintOptions::default()))
            .then_some(())
            .ok_or_else(|| format!("{name}: the text differs"));
    }
    let printed = text(&after);
    check_results(&name, sample, pipeline, (&before, &parse(&name, &printed)))?;
    check_meetings(&after).map_err(|e| format!("{name}: {e}"))?;
    let mut again = parse(&name, &printed);
    let second = run(&name, &mut again, pipeline);
    if second.reports.iter().any(|r| r.changed) || text(&again) != printed {
        return Err(format!("{name}: a second run changes the module again"));
    }
    snapshot(pass, sample.name(), &printed, &summary);
    Ok(())
}

/// All devices of a collective's group come to it together: whatever decides whether they run its computation is equal on them.
fn check_meetings(module: &Module) -> Result<(), String> {
    let facts = Analyses::default().replication(module);
    let sites = CallSites::find(module, module.post_order());
    let insts = module.post_order().into_iter().flat_map(|comp| module.comp(comp).insts.clone());
    for inst in insts.filter(|&inst| module.inst(inst).opcode.row().collective.is_some()) {
        let Ok(groups) = module.device_groups(inst) else { continue };
        let (mut open, mut seen) = (vec![module.inst(inst).parent], BTreeSet::new());
        while let Some(comp) = open.pop() {
            for around in sites.of(comp).iter().map(|site| site.inst) {
                let selector = match entered(module, around) {
                    Some((CalleeEntry::Branches, _)) => module.inst(around).operands.first().copied(),
                    Some((CalleeEntry::Loop, callees)) => module.comp(callees[0]).root.expand(),
                    Some((CalleeEntry::Call, _)) | None => None,
                };
                if selector.is_some_and(|selector| !facts.is_equal_within(selector, 0, &groups.groups)) {
                    let (name, around) = (module.inst_name(inst), module.inst_name(around));
                    return Err(format!(
                        "expected all devices of a group at %{name} together, but %{around} parts them"
                    ));
                }
                if seen.insert(module.inst(around).parent) {
                    open.push(module.inst(around).parent);
                }
            }
        }
    }
    Ok(())
}

/// Compares text and counters with the snapshot; `INSTA_UPDATE=always` writes it.
fn snapshot(pass: &str, behaviour: &str, printed: &str, summary: &RunSummary) {
    let mut content = printed.trim_end().to_string();
    content.push('\n');
    for (what, n) in summary.reports.iter().flat_map(|r| &r.stats) {
        let _ = write!(content, "\n// {what}: {n}");
    }
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(root().join("../tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(format!("{pass}__{behaviour}"), content));
}

#[test]
fn a_gather_in_a_branch_that_parts_devices_is_noticed() {
    let text = |name: &str| {
        let sample = samples("passes/shard-weight-update").into_iter().find(|s| s.name() == name);
        sample.unwrap_or_else(|| panic!("expected a sample {name}")).text
    };
    let mut module = parse("equal-look", &text("equal-look"));
    run("equal-look", &mut module, "shard-weight-update{min-bytes=0,state=auto}");
    assert_eq!(check_meetings(&module), Ok(()));
    let look = module.computations().iter().find(|&&c| module.comp_name(c) == "look").expect("a branch");
    let is_gather = |i: &InstId| module.inst(*i).opcode == Opcode::AllGather;
    assert!(module.comp(*look).insts.iter().any(is_gather), "the polarity: a gather in a branch that all choose alike");
    // The same program with a predicate of which nothing is known.
    let number = "parameter(3), sharding={replicated}";
    let divergent = print_module(&module, &PrintOptions::default()).replace(number, "parameter(3)");
    assert!(check_meetings(&parse("divergent", &divergent)).is_err_and(|e| e.contains("%summary parts them")));
}

#[test]
fn every_sample_of_every_pass() {
    let failures: Vec<String> = hlo_opt::registry::passes()
        .iter()
        .flat_map(|pass| samples(&format!("passes/{}", pass.name)).into_iter().map(|s| (pass.name, s)))
        .filter_map(|(pass, sample)| check_sample(pass, &sample).err())
        .collect();
    assert!(failures.is_empty(), "{} samples fail\n{}", failures.len(), failures.join("\n"));
}

/// Draws of layouts for each sample when the environment does not say how many.
const N_LAYOUTS: u64 = 1;

/// Whether a sample's pipeline changed the module whose arrays have random layouts, after comparing the results. A pass may refuse it.
fn check_with_layouts(pass: &str, sample: &Sample, seed: u64) -> Result<bool, String> {
    let name = format!("{pass}/{} with layouts by seed {seed}", sample.name());
    let pipeline = sample.header("pass").ok_or_else(|| format!("{name}: expected a line `// pass:`"))?;
    let mut before = parse(&name, &sample.text);
    give_unequal_layouts(&mut before, &mut Rng::new(seed));
    hlo_ir::verify::verify(&before).map_err(|e| format!("{name}: the layouts made it invalid: {e:?}"))?;
    let bound = bind_text(pipeline, &hlo_opt::registry::passes(), before.n_devices());
    let (passes, target) = bound.map_err(|e| format!("{name}: {e}"))?;
    let options = RunOptions { check: true, target: Some(&target), ..Default::default() };
    let mut after = before.clone();
    let Ok(summary) = run_pipeline(&mut after, &mut Analyses::default(), &passes, options) else { return Ok(false) };
    if !summary.reports.iter().any(|report| report.changed) {
        return Ok(false);
    }
    let printed = text(&after);
    match check_results(&name, sample, pipeline, (&before, &parse(&name, &printed))) {
        Ok(()) => Ok(true),
        // Numbers from hidden state: no pass can be judged by them.
        Err(e) if e.contains(": before: ") && e.contains("hidden state") => Ok(false),
        Err(e) => Err(format!("{e}\n{}\n{printed}", text(&before))),
    }
}

/// No pass takes an operand's layout for its result's.
#[test]
fn every_sample_of_every_pass_with_unequal_layouts() {
    let n_layouts = std::env::var("HLO_PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(N_LAYOUTS);
    let (mut failures, mut unchanged) = (Vec::new(), Vec::new());
    for pass in hlo_opt::registry::passes() {
        let mut n_changed = 0;
        for sample in samples(&format!("passes/{}", pass.name)) {
            for seed in 0..n_layouts {
                match check_with_layouts(pass.name, &sample, seed) {
                    Ok(has_changed) => n_changed += usize::from(has_changed),
                    Err(failure) => failures.push(failure),
                }
            }
        }
        if n_changed == 0 {
            unchanged.push(pass.name);
        }
    }
    assert!(failures.is_empty(), "{} modules differ\n{}", failures.len(), failures.join("\n"));
    assert_eq!(unchanged, [""; 0], "passes that refused every sample with unequal layouts");
}

/// Folders of samples and passes are the same names.
#[test]
fn every_folder_is_a_pass() {
    let mut folders: Vec<String> = std::fs::read_dir(root().join("passes"))
        .expect("the folder of pass samples")
        .map(|entry| entry.expect("a readable folder").file_name().to_string_lossy().into_owned())
        .collect();
    folders.sort();
    let mut passes: Vec<&str> = hlo_opt::registry::passes().iter().map(|p| p.name).collect();
    passes.sort_unstable();
    assert_eq!(folders, passes);
}

/// The judge would see a wrong result.
#[test]
fn equivalence_sees_small_errors() {
    let sample = samples("passes/shard-weight-update").into_iter().find(|s| s.name() == "sgd").expect("the sample");
    let before = parse("sgd", &sample.text);
    let draw = sample.header("draw").unwrap_or("");
    let near = Nearness::WithinShare(2e-5);
    for (from, to) in [
        ("constant(-0.01)", "constant(-0.0101)"),
        ("to_apply=%add", "to_apply=%maximum"),
        ("{{0,1,2,3}}", "{{0,1},{2,3}}"),
    ] {
        let maximum = "%maximum (c: f32[], d: f32[]) -> f32[] {\n  %c = f32[] parameter(0)\n  \
                       %d = f32[] parameter(1)\n  ROOT %m = f32[] maximum(%c, %d)\n}\n\nENTRY";
        let wrong = sample.text.replace("ENTRY", maximum).replace(from, to);
        let error = equivalence::check(&before, &parse("wrong", &wrong), draw, near).expect_err(from);
        assert!(error.contains("differs by"), "{from}: {error}");
    }
    assert_eq!(equivalence::check(&before, &before, draw, Nearness::Exact), Ok(()));
}
