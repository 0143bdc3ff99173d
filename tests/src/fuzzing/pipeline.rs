//! Modules through pipelines: the result verifies, keeps every promise of its passes, and gives the same results on all devices.
//!
//! A case is HLO text; its first lines may be `// pass: PIPELINE`, as in samples. The evaluator judges modules whose devices meet in
//! all collectives; what it cannot run, or not within its limits, is not judged.

use super::{headers, in_words, verified};
use hlo_analysis::Analyses;
use hlo_eval::draw::{DrawOptions, Same, draw_inputs};
use hlo_eval::{EvalError, EvalOptions, Inputs, Outputs, entry_leaves, run};
use hlo_ir::cost::Costs;
use hlo_ir::diag::Diagnostic;
use hlo_ir::literal::Scalar;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::sharding::Sharding;
use hlo_ir::verify::verify;
use hlo_ir::{DType, Literal, Module, Shape};
use hlo_opt::registry;
use hlo_pass::runner::{RunError, RunOptions, RunSummary, bind_text, run_pipeline};
use std::sync::Arc;

/// Where a case names no pipeline.
const CLEAN_UPS: &str = "inline-calls,simplify-tuples,simplify-algebra,hoist-invariants,cse,dce";
/// Passes that keep every bit; others sum in another order.
const EXACT: [&str; 9] = [
    "simplify-algebra",
    "cse",
    "dce",
    "inline-calls",
    "hoist-invariants",
    "simplify-tuples",
    "split-tuple-all-reduce",
    "combine-collectives",
    "fuse",
];
const MAX_DEVICES: usize = 16;
/// Tiles that one sharding makes: each has a row in what a partitioner looks at, so that a million take seconds.
const MAX_TILES: i64 = 1 << 16;
const MAX_INPUT_BYTES: u64 = 1 << 20;
/// Arithmetic of all instructions, each once: with the sanitizer a product of 1024 x 1024 takes longer than a case may.
const MAX_FLOPS: u64 = 1 << 26;
/// Of a chain of passes: each may give more work to the next.
const MAX_PASSES: usize = 12;

pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    let Ok(text) = std::str::from_utf8(bytes) else { return Ok(()) };
    let pipeline = headers(text, "pass").next().unwrap_or(CLEAN_UPS);
    let Some(before) = verified(text) else { return Ok(()) };
    if before.n_devices() > MAX_DEVICES || makes_many_tiles(&before) {
        return Ok(());
    }
    let mut after = before.clone();
    let Some(outcome) = run_text(&mut after, pipeline) else { return Ok(()) };
    let has_changed = outcome.as_ref().is_ok_and(|summary| summary.reports.iter().any(|report| report.changed));
    let names: Vec<&str> = outcome.iter().flat_map(|summary| &summary.times).map(|time| time.pass).collect();
    let is_exact = names.iter().all(|name| EXACT.contains(name));
    expect_sound(outcome)?;
    match has_changed {
        true => computes_the_same(&before, &after, is_exact)
            .map_err(|why| format!("{pipeline}: {why}\n{}", print_module(&after, &PrintOptions::default()))),
        false => Ok(()),
    }
}

fn makes_many_tiles(module: &Module) -> bool {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let leaves = insts.filter_map(|&inst| module.sharding(inst)).flat_map(|sharding| match sharding {
        Sharding::Single(leaf) => std::slice::from_ref(leaf),
        Sharding::Tuple(leaves) => leaves,
    });
    let n_tiles = |dims: hlo_ir::Dims| dims.iter().fold(1i64, |n, &dim| n.saturating_mul(dim));
    leaves.filter_map(|leaf| leaf.tiles_of_dims()).any(|dims| n_tiles(dims) > MAX_TILES)
}

/// Runs a pipeline and holds each pass to its contract; none if the text is no pipeline.
pub(super) fn run_text(module: &mut Module, pipeline: &str) -> Option<Result<RunSummary, RunError>> {
    let (passes, target) = bind_text(pipeline, &registry::passes(), module.n_devices()).ok()?;
    if passes.len() > MAX_PASSES {
        return None;
    }
    let options = RunOptions { check: true, target: Some(&target), ..RunOptions::default() };
    Some(run_pipeline(module, &mut Analyses::default(), &passes, options))
}

/// A pass may refuse a module; it may not break it, nor its own word. What it makes may be too large to count: that is refused too.
pub(super) fn expect_sound(outcome: Result<RunSummary, RunError>) -> Result<(), String> {
    let Err(RunError { pass, diagnostics, module, .. }) = outcome else { return Ok(()) };
    let breaks_rules = |diags: Vec<Diagnostic>| diags.iter().any(|diag| diag.rule != "module-bytes");
    let is_broken =
        verify(&module).is_err_and(breaks_rules) || diagnostics.iter().any(|diag| diag.rule.starts_with("pass-"));
    match is_broken {
        true => Err(format!("{pass}: {}\n{}", in_words(&diagnostics), print_module(&module, &PrintOptions::default()))),
        false => Ok(()),
    }
}

fn computes_the_same(before: &Module, after: &Module, is_exact: bool) -> Result<(), String> {
    let n_bytes: u64 = entry_leaves(before).iter().map(|leaf| leaf.shape.size_bytes()).fold(0, u64::saturating_add);
    // Passes may give the devices other shardings of the entry: those are other inputs, which the passes' own tests make.
    // A global program that is partitioned has inputs and results for each device, even where a tile has the dims of the whole.
    let same_signature = before.n_devices() == after.n_devices()
        && result_shape(before) == result_shape(after)
        && entry_leaves(before).iter().map(|l| &l.shape).eq(entry_leaves(after).iter().map(|l| &l.shape));
    if !same_signature || n_bytes.saturating_mul(before.n_devices() as u64) > MAX_INPUT_BYTES {
        return Ok(());
    }
    let costs = Costs::new(before);
    let insts = before.computations().iter().flat_map(|&comp| &before.comp(comp).insts);
    if insts.map(|&inst| costs.of(inst).flops).fold(0, u64::saturating_add) > MAX_FLOPS {
        return Ok(());
    }
    let drawn = DrawOptions { seed: 1, draws: Vec::new(), same: Same::Auto };
    let Ok(inputs) = draw_inputs(before, None, &drawn) else { return Ok(()) };
    let Ok(expected) = evaluate(before, &inputs) else { return Ok(()) };
    let found = match evaluate(after, &inputs) {
        Ok(found) => found,
        Err(error) if is_limit(&error) => return Ok(()),
        Err(error) => return Err(format!("the result does not run: {error}")),
    };
    if is_exact {
        return compare(&expected, &found, &mut |expected, found| are_equal(expected, found));
    }
    // Results that move far when inputs move a little prove nothing about sums in another order.
    let Ok(moved) = evaluate(before, &nudged(&inputs)) else { return Ok(()) };
    let share = 64.0 * coarsest_ulp(before);
    let is_near = &mut |a: &Literal, b: &Literal| are_near(a, b, share);
    if share > 0.1 || has_non_finite(&expected) || compare(&expected, &moved, is_near).is_err() {
        return Ok(());
    }
    compare(&expected, &found, &mut |a, b| are_near(a, b, 4.0 * share))
}

fn result_shape(module: &Module) -> Option<&Shape> {
    let root = module.comp(module.entry()?).root.expand()?;
    Some(module.shape(root))
}

fn evaluate(module: &Module, inputs: &Inputs) -> Result<Outputs, EvalError> {
    let options = EvalOptions { max_steps: 20_000, max_array_bytes: 1 << 20, n_threads: 1, ..EvalOptions::default() };
    run(module, inputs, &options)
}

fn is_limit(error: &EvalError) -> bool {
    match error {
        EvalError::Limit(_) => true,
        EvalError::At { source, .. } => is_limit(source),
        EvalError::Unsupported(_) | EvalError::NoElements | EvalError::Invalid(_) | EvalError::Divergent(_) => false,
    }
}

fn compare(
    expected: &Outputs,
    found: &Outputs,
    is_fine: &mut dyn FnMut(&Literal, &Literal) -> bool,
) -> Result<(), String> {
    if expected.leaves.len() != found.leaves.len() {
        return Err(format!("expected {} outputs, found {}", expected.leaves.len(), found.leaves.len()));
    }
    for (leaf, (expected, found)) in expected.leaves.iter().zip(&found.leaves).enumerate() {
        if let Some(device) = expected.iter().zip(found).position(|(a, b)| !is_fine(a, b)) {
            let (expected, found) = (&expected[device], &found[device]);
            return Err(format!("output {leaf} of device {device}: expected {expected:?}, found {found:?}"));
        }
    }
    Ok(())
}

/// Bit for bit, any NaN equal to any other.
fn are_equal(a: &Literal, b: &Literal) -> bool {
    let number = |x: f64, y: f64| x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan());
    let scalar = |i| match (a.get(i), b.get(i)) {
        (Some(Scalar::Float(x)), Some(Scalar::Float(y))) => number(x, y),
        (Some(Scalar::Complex(a, b)), Some(Scalar::Complex(x, y))) => number(a, x) && number(b, y),
        (x, y) => x == y,
    };
    (a.dtype(), a.dims()) == (b.dtype(), b.dims()) && (0..a.n_elems()).all(scalar)
}

/// Every float within this share of the largest; integers of modules with floats may come from them, and say little.
fn are_near(a: &Literal, b: &Literal, share: f64) -> bool {
    if (a.dtype(), a.dims()) != (b.dtype(), b.dims()) {
        return false;
    }
    let (a, b) = (parts(a), parts(b));
    let largest = a.iter().fold(0.0f64, |max, v| max.max(v.abs()));
    a.iter().zip(&b).all(|(x, y)| (x - y).abs() <= share * largest.max(f64::from(f32::MIN_POSITIVE)))
}

/// The floats of an array.
fn parts(array: &Literal) -> Vec<f64> {
    let of = |scalar| match scalar {
        Scalar::Pred(_) | Scalar::Int(_) | Scalar::Uint(_) => [0.0, 0.0],
        Scalar::Float(v) => [v, 0.0],
        Scalar::Complex(re, im) => [re, im],
    };
    (0..array.n_elems()).filter_map(|i| array.get(i)).flat_map(of).collect()
}

fn has_non_finite(outputs: &Outputs) -> bool {
    outputs.leaves.iter().flatten().any(|array| parts(array).iter().any(|v| !v.is_finite()))
}

/// Inputs moved by less than the allowed share.
fn nudged(inputs: &Inputs) -> Inputs {
    let nudge = |array: &Arc<Literal>| {
        let mut array = Literal::clone(array);
        for i in 0..array.n_elems() {
            if let Some(Scalar::Float(v)) = array.get(i) {
                let sign = if i % 2 == 0 { 1.0 } else { -1.0 };
                array.set(i, Scalar::Float(v * (1.0 + sign * 1e-6)));
            }
        }
        Arc::new(array)
    };
    Inputs { leaves: inputs.leaves.iter().map(|row| row.iter().map(nudge).collect()).collect() }
}

/// The distance of 1 to the next number, in the narrowest float type of the module.
fn coarsest_ulp(module: &Module) -> f64 {
    let mut worst = 0.0f64;
    for &comp in module.computations() {
        for &inst in &module.comp(comp).insts {
            module.shape(inst).for_each_leaf(&mut |_, shape| {
                if let Shape::Array(array) = shape {
                    worst = worst.max(ulp_of_one(array.dtype));
                }
            });
        }
    }
    worst
}

fn ulp_of_one(dtype: DType) -> f64 {
    let dtype = dtype.real_part();
    let is_seen = |ulp: &f64| Literal::scalar(dtype, Scalar::Float(1.0 + ulp)).get(0) != Some(Scalar::Float(1.0));
    match dtype.is_float() {
        // f64 is rounded as coarsely as f32 by the nudge.
        true => (0..24).map(|k| 0.5f64.powi(k)).take_while(is_seen).last().unwrap_or(1.0),
        false => 0.0,
    }
}
