//! Weight-update sharding keeps what random training steps compute: bit for bit where sums are exact, nearly elsewhere.

use crate::equivalence::{Nearness, compare};
use crate::lockstep::parse_random;
use hlo_analysis::Analyses;
use hlo_eval::{EvalOptions, Inputs, Outputs, run};
use hlo_ir::{DType, Literal, Module, literal::Scalar};
use hlo_pass::Target;
use hlo_pass::pipeline::parse_pipeline;
use hlo_pass::report::{Artifact, PassReport};
use hlo_pass::runner::{RunOptions, bind, bind_text, run_pipeline};
use hlo_tests::random_module::{Input, Rng};
use hlo_tests::training_step::{TrainingStep, training_step};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Seeds when the environment does not say how many (`HLO_PROPTEST_CASES`) or from where on (`HLO_PROPTEST_FROM`).
const N_CASES: u64 = 100;

/// Sums in another order, some of them divided by small numbers or iterated.
const NEAR: Nearness = Nearness::WithinShare(1e-3);

/// Whole numbers from -3 to 3 for exact steps, others up to 3 else; equal on devices with equal keys.
pub(crate) fn draw(seed: u64, step: &TrainingStep) -> Inputs {
    let array = |leaf: usize, input: &Input, key: u32| {
        let mut rng = Rng::new(seed ^ ((leaf as u64) << 32) ^ (u64::from(key) << 48) ^ 0xABCD);
        let mut array = Literal::zeros(input.dtype, &input.dims).expect("dims of a small array");
        for i in 0..array.n_elems() {
            let whole = rng.below(7) as i64 - 3;
            let scalar = match (input.dtype, step.is_exact) {
                (DType::S32, _) => Scalar::Int(rng.below(5) as i64),
                (_, true) => Scalar::Float(whole as f64),
                (_, false) => Scalar::Float(rng.below(6000) as f64 / 1000.0 - 3.0),
            };
            assert!(array.set(i, scalar));
        }
        Arc::new(array)
    };
    let row = |(leaf, input): (usize, &Input)| {
        let mut known: BTreeMap<u32, Arc<Literal>> = BTreeMap::new();
        let keys = input.key_of_device.iter();
        keys.map(|&key| known.entry(key).or_insert_with(|| array(leaf, input, key)).clone()).collect()
    };
    Inputs { leaves: step.inputs.iter().enumerate().map(row).collect() }
}

fn evaluate(module: &Module, inputs: &Inputs) -> Result<Outputs, String> {
    let options = EvalOptions { max_steps: 5_000_000, n_threads: 1, ..EvalOptions::default() };
    run(module, inputs, &options).map_err(|e| e.to_string())
}

/// Options of the pass, with settings of the target in front: for profit or always, and on a cluster whose nodes hang on slow links, where updates are cut within
/// a node and their shards are summed across; and with all collectives decomposed for such a cluster.
const WAYS: [&str; 4] = [
    "profit=always",
    "profit=auto",
    "@machine=[(node,2,1,100),(gpu,HALF)];profit=always",
    "@machine=[(node,2,0.001),(gpu,HALF)];profit=always},decompose-collectives{algo=ring,min-gain=0",
];

/// Runs the passes on a step and compares; the number of updates in shards, or of reduce-scatters in several steps.
fn check(way: &str, step: &TrainingStep, seed: u64) -> Result<u64, String> {
    let mut module = parse_random(seed, &step.text);
    hlo_ir::verify::verify(&module).map_err(|e| format!("the generator made an invalid module: {e:?}"))?;
    let inputs = draw(seed, step);
    let before = evaluate(&module, &inputs)?;
    let half = step.n_devices / 2;
    if way.contains("HALF") && (half < 2 || step.n_devices % 2 == 1) {
        return Ok(0);
    }
    let way = way.replace("HALF", &half.to_string());
    let (machine, options) = way.rsplit_once(';').map_or(("", way.as_str()), |(machine, options)| (machine, options));
    let end = if machine.is_empty() { "" } else { ";" };
    let pipeline = format!("{machine}{end}shard-weight-update{{min-bytes=0,{options}}}");
    let registry = hlo_opt::registry::passes();
    let (passes, target) = bind_text(&pipeline, &registry, step.n_devices).expect("the passes");
    let options = RunOptions { check: true, target: Some(&target), ..RunOptions::default() };
    let summary = run_pipeline(&mut module, &mut Analyses::default(), &passes, options)
        .map_err(|e| format!("the pass fails: {:?}", e.diagnostics))?;
    let after = evaluate(&module, &inputs).map_err(|e| format!("after: {e}"))?;
    let near = if step.is_exact { Nearness::Exact } else { NEAR };
    compare(&before, &after, near)?;
    let counter = match way.contains("decompose") {
        true => "decompose-collectives.reduce-scatters-decomposed",
        false => "shard-weight-update.updates-sharded",
    };
    Ok(summary.reports.iter().filter_map(|report| report.stats.get(counter)).sum())
}

/// A module whose state crosses the entry in shards by the pass with these options, and what the pass says of it; `None` where a loop holds the step.
/// What is ambiguous is said with `state-pairs`, as its user would.
pub(crate) fn with_state_in_shards(
    module: &Module,
    asked: &str,
    memory_limit: Option<u64>,
) -> Result<Option<(Module, PassReport)>, String> {
    let target = Target { memory_limit, ..Target::unnamed().expect("a target") };
    let mut said: Vec<String> = Vec::new();
    loop {
        let pairs = said.join(",");
        let pipeline = format!("shard-weight-update{{min-bytes=0,{asked},state-pairs=[{pairs}]}}");
        let passes = bind(&parse_pipeline(&pipeline).expect("a pipeline"), hlo_wus::PASSES).expect("the pass");
        let options = RunOptions { check: true, target: Some(&target), ..RunOptions::default() };
        let mut main = module.clone();
        let error = match run_pipeline(&mut main, &mut Analyses::default(), &passes, options) {
            Ok(mut summary) => return Ok(summary.reports.pop().map(|report| (main, report))),
            Err(error) => error.diagnostics[0].message.clone(),
        };
        match error.rsplit_once("one of ") {
            _ if error.contains("takes a single training step") => return Ok(None),
            Some((_, candidates)) if said.len() < 32 => said.extend(candidates.split(", ").next().map(String::from)),
            Some(_) | None => return Err(format!("state-pairs=[{pairs}]: the pass fails: {error}")),
        }
    }
}

/// The modules `shard` and `unshard` beside a module whose state crosses the entry in shards, and the manifest.
pub(crate) fn artifacts(report: &PassReport) -> Option<(&Module, &Module, serde_json::Value)> {
    let file = |wanted: &str| report.files.iter().find(|(name, _)| name == wanted).map(|(_, file)| file);
    match (file("shard.hlo"), file("unshard.hlo"), file("manifest.json")) {
        (Some(Artifact::Module(shard)), Some(Artifact::Module(unshard)), Some(Artifact::Text(manifest))) => {
            Some((shard, unshard, serde_json::from_str(&manifest.text()).ok()?))
        }
        (_, _, _) => None,
    }
}

/// Whether `unshard(main(shard(inputs)))` is what the step computes.
pub(crate) fn equals_source(
    module: &Module,
    [shard, main, unshard]: [&Module; 3],
    step: &TrainingStep,
    seed: u64,
) -> Result<(), String> {
    let inputs = draw(seed, step);
    let before = evaluate(module, &inputs)?;
    let mut leaves = inputs.leaves;
    for module in [shard, main, unshard] {
        hlo_ir::verify::verify(module).map_err(|e| format!("{}: {e:?}", module.name))?;
        leaves = evaluate(module, &Inputs { leaves }).map_err(|e| format!("{}: {e}", module.name))?.leaves;
    }
    compare(&before, &Outputs { leaves }, if step.is_exact { Nearness::Exact } else { NEAR })
}

/// `unshard(main(shard(inputs)))` is what the step computes; the number of parameters in shards.
fn check_interface(step: &TrainingStep, seed: u64) -> Result<u64, String> {
    let module = parse_random(seed, &step.text);
    let Some((main, report)) = with_state_in_shards(&module, "state=auto", None)? else { return Ok(0) };
    let (shard, unshard, manifest) = artifacts(&report).ok_or("expected three files")?;
    equals_source(&module, [shard, &main, unshard], step, seed)?;
    let list = |name: &str| manifest[name].as_array().cloned().unwrap_or_default();
    let (params, outputs) = (list("params"), list("outputs"));
    let n_sharded = params.iter().filter(|p| p["sharded"] == true).count() as u64;
    // The next step takes what this one gives.
    for pair in list("state_pairs") {
        let at = |k: usize| pair[k].as_u64().unwrap_or(u64::MAX) as usize;
        let (param, output) = (params.get(at(0)), outputs.get(at(1)));
        if param.map(|p| &p["shard_shape"]) != output.map(|o| &o["shard_shape"]) {
            return Err(format!("state goes in as {param:?} and comes out as {output:?}"));
        }
    }
    if n_sharded > list("state_pairs").len() as u64 {
        return Err(format!("{n_sharded} parameters are in shards, fewer pairs: {manifest}"));
    }
    Ok(n_sharded)
}

/// Checks a seed; a failure is shrunk by taking fewer steps.
fn check_seed(way: &str, seed: u64, check: &dyn Fn(&TrainingStep, u64) -> Result<u64, String>) -> Result<u64, String> {
    let attempt = |n_steps: usize| {
        let step = training_step(seed, n_steps);
        catch_unwind(AssertUnwindSafe(|| check(&step, seed))).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            Err(format!("panics: {text}"))
        })
    };
    let full = 4 + (seed % 16) as usize;
    let mut failure = match attempt(full) {
        Ok(n) => return Ok(n),
        Err(error) => (full, error),
    };
    for n_steps in (0..full).rev() {
        if let Err(error) = attempt(n_steps) {
            failure = (n_steps, error);
        }
    }
    let (n_steps, error) = failure;
    Err(format!("{way}, seed {seed}, {n_steps} steps (of {full}): {error}"))
}

pub(crate) fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(otherwise)
}

#[test]
fn random_training_steps_compute_the_same() {
    let (from, n_cases) = (number("HLO_PROPTEST_FROM", 0), number("HLO_PROPTEST_CASES", N_CASES));
    let (mut failures, mut n_fired) = (Vec::new(), BTreeMap::new());
    for seed in from..from + n_cases {
        for way in WAYS {
            match check_seed(way, seed, &|step, seed| check(way, step, seed)) {
                Ok(n) => *n_fired.entry(way).or_insert(0) += u64::from(n > 0),
                Err(error) => failures.push(error),
            }
        }
    }
    assert!(failures.is_empty(), "{} of {n_cases} fail\n{}", failures.len(), failures.join("\n"));
    println!("of {n_cases} steps sharded: {n_fired:?}");
    assert!(n_fired[WAYS[0]] * 5 > n_cases, "updates were sharded in {n_fired:?} of {n_cases} steps");
    assert!(n_fired[WAYS[1]] > 0, "none was sharded for profit");
    assert!(n_fired[WAYS[2]] > 0, "none was sharded within nodes");
    assert!(n_fired[WAYS[3]] > 0, "no reduce-scatter was decomposed");
}

#[test]
fn random_training_steps_take_their_state_in_shards() {
    let (from, n_cases) = (number("HLO_PROPTEST_FROM", 0), number("HLO_PROPTEST_CASES", N_CASES));
    let (mut failures, mut n_sharded) = (Vec::new(), 0);
    for seed in from..from + n_cases {
        match check_seed("state=auto", seed, &check_interface) {
            Ok(n) => n_sharded += u64::from(n > 0),
            Err(error) => failures.push(error),
        }
    }
    assert!(failures.is_empty(), "{} of {n_cases} fail\n{}", failures.len(), failures.join("\n"));
    println!("of {n_cases} steps {n_sharded} take state in shards");
    assert!(n_sharded * 10 > n_cases, "{n_sharded} of {n_cases} steps take state in shards");
}
