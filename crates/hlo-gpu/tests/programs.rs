//! Whole training steps: lowered to a plan, run by the host executor on all devices, and compared with the evaluator.
//!
//! The quick test takes the smallest programs; `HLO_GPU_PROGRAMS` names others (parts of file names between commas), and
//! `HLO_GPU_CORPUS` another folder with a `manifest.json`.

use hlo_eval::draw::{Draw, DrawOptions, Same, draw_inputs};
use hlo_eval::{Options, run};
use hlo_gpu::host::Program;
use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::verify::verify;
use hlo_ir::{DType, Literal, Module, Scalar, Shape};
use std::path::PathBuf;
use std::time::Instant;

/// One loop, one step with replicas, one with partitions.
const QUICK: &str = "mlp_sgd.hlo,mlp_sgd.repl.hlo,mlp_momentum.hlo";

struct Step {
    file: String,
    draws: Vec<Draw>,
    path: PathBuf,
}

fn programs() -> Vec<Step> {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ir-samples/programs");
    let folder = PathBuf::from(std::env::var("HLO_GPU_CORPUS").unwrap_or_else(|_| own.to_string()));
    let wanted = std::env::var("HLO_GPU_PROGRAMS").unwrap_or_else(|_| QUICK.to_string());
    let manifest = std::fs::read_to_string(folder.join("manifest.json")).expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_str(&manifest).expect("JSON");
    let entry = |entry: &serde_json::Value| {
        let file = entry["file"].as_str().expect("a file").to_string();
        let is_per_device = ["spmd", "repl"].contains(&entry["form"].as_str().unwrap_or_default());
        let is_wanted = wanted.split(',').any(|part| file.contains(part));
        let draws = Draw::parse_list(entry["draw"].as_str().unwrap_or_default()).expect("draws");
        (is_per_device && is_wanted).then(|| Step { path: folder.join(&file), file, draws })
    };
    manifest.as_array().expect("a list").iter().filter_map(entry).collect()
}

fn floats(literal: &Literal) -> Vec<f64> {
    let float = |i| match literal.get(i) {
        Some(Scalar::Float(x)) => x,
        other => panic!("{other:?}"),
    };
    (0..literal.n_elems()).map(float).collect()
}

/// Relative to the largest element. Where a program computes in small floats, its wider results carry their rounding.
fn tolerance(module: &Module) -> f64 {
    let is_small = |inst| match module.shape(inst) {
        Shape::Array(array) => matches!(array.dtype, DType::BF16 | DType::F16),
        _ => false,
    };
    let comps = module.computations().iter();
    if comps.flat_map(|&comp| module.comp(comp).insts.iter()).any(|&inst| is_small(inst)) { 2e-2 } else { 2e-5 }
}

/// The largest difference relative to the largest element, over the tolerance.
fn difference(found: &Literal, expected: &Literal, tolerance: f64) -> f64 {
    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()));
    if !expected.dtype().is_float() {
        return if found == expected { 0.0 } else { f64::INFINITY };
    }
    let (found, expected) = (floats(found), floats(expected));
    let largest = expected.iter().fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let errors = found.iter().zip(&expected).map(|(f, e)| if (f - e).is_nan() { f64::INFINITY } else { (f - e).abs() });
    errors.fold(0.0, f64::max) / largest / tolerance
}

/// Runs passes of this crate with all checks of the runner on.
fn run_passes(pipeline: &str, module: &mut hlo_ir::Module) -> Result<(), String> {
    let calls = hlo_pass::pipeline::parse_pipeline(pipeline).map_err(|e| e.to_string())?;
    let passes = hlo_pass::runner::bind(&calls, hlo_gpu::PASSES).map_err(|e| e.to_string())?;
    let options = hlo_pass::runner::RunOptions { check: true, after_pass: None };
    let mut analyses = hlo_analysis::Analyses::default();
    let outcome = hlo_pass::runner::run_pipeline(module, &mut analyses, &passes, options);
    outcome.map(|_| ()).map_err(|e| format!("{}: {:?}", e.pass, e.diagnostics))
}

fn check(program: &Step, pipeline: Option<&str>) -> Result<String, String> {
    let bytes = std::fs::read(&program.path).map_err(|e| e.to_string())?;
    let module = hlo_text::parse_bytes(&bytes).map_err(|d| format!("{:?}", d[0]))?.module;
    let mut optimized = module.clone();
    pipeline.map_or(Ok(()), |pipeline| run_passes(pipeline, &mut optimized))?;
    let started = Instant::now();
    let plan = lower(&optimized, &mut CudaKernels::default(), &LowerOptions::default()).map_err(|e| e.to_string())?;
    verify(&plan).map_err(|e| format!("{e:?}"))?;
    let lowered = started.elapsed();
    let draw = DrawOptions { seed: 3, draws: program.draws.clone(), same: Same::Auto };
    let inputs = draw_inputs(&module, None, &draw).map_err(|e| e.to_string())?;
    let started = Instant::now();
    let compiled = Program::new(&plan).map_err(|e| e.to_string())?;
    let compile_time = started.elapsed();
    let n_devices = module.n_devices();
    let of_device =
        |device: usize| inputs.leaves.iter().map(|row| row[device].as_ref().clone()).collect::<Vec<Literal>>();
    let own: Vec<Vec<Literal>> = (0..n_devices).map(of_device).collect();
    let started = Instant::now();
    let found = compiled.run(&own).map_err(|e| e.to_string())?;
    let run_time = started.elapsed();
    let expected = run(&module, &inputs, &Options::default()).map_err(|e| e.to_string())?;
    let tolerance = tolerance(&module);
    let mut worst = (0.0f64, 0, 0);
    for (leaf, row) in expected.leaves.iter().enumerate() {
        for (device, literal) in row.iter().enumerate() {
            let difference = difference(&found[device][leaf], literal, tolerance);
            if difference > worst.0 {
                worst = (difference, device, leaf);
            }
        }
    }
    let (difference, device, leaf) = worst;
    if difference > 1.0 {
        return Err(format!("{difference:.2} times the tolerance at device {device}, leaf {leaf}"));
    }
    Ok(format!(
        "{} kernels, {difference:.3} of the tolerance; lowered in {lowered:.2?}, compiled in {compile_time:.2?}, run in {run_time:.2?}",
        plan.kernels.len()
    ))
}

#[test]
fn programs_agree_with_the_evaluator() {
    check_all(None);
}

#[test]
fn fused_programs_agree_with_the_evaluator() {
    check_all(Some("propagate-layouts,fuse"));
}

fn check_all(pipeline: Option<&str>) {
    let programs = programs();
    assert!(!programs.is_empty());
    let mut failures = Vec::new();
    for program in &programs {
        match check(program, pipeline) {
            Ok(line) => println!("{}: {line}", program.file),
            Err(reason) => {
                println!("{}: WRONG: {reason}", program.file);
                failures.push(format!("{}: {reason}", program.file));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {} are wrong:\n{}", failures.len(), programs.len(), failures.join("\n"));
}
