//! Whole training steps: lowered to a plan, run by the host executor on all devices, and compared with the evaluator; as
//! they are, and after `convolution-to-dot,split-convolutions,propagate-layouts,fuse`.
//!
//! The quick test takes the smallest programs; `HLO_GPU_PROGRAMS` names others (parts of file names between commas), and
//! `HLO_GPU_CORPUS` another folder with a `manifest.json`: `cargo xtask host-check` sets them and runs this.

use hlo_eval::draw::{Draw, DrawOptions, Same, draw_inputs};
use hlo_eval::{EvalOptions, run};
use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::verify::verify;
use hlo_ir::{DType, Literal, Module, Scalar, Shape};
use hlo_run::HostProgram;
use std::path::PathBuf;
use std::time::Instant;

/// One loop, one step with replicas, one with partitions.
const QUICK: &str = "mlp_sgd.hlo,mlp_sgd.repl.hlo,mlp_momentum.hlo";

/// The passes before the lowering; none, and all.
const PIPELINES: [&str; 2] = ["", "convolution-to-dot,split-convolutions,propagate-layouts,fuse"];

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
        let is_per_device = ["spmd", "spmd_gspmd", "repl"].contains(&entry["form"].as_str().unwrap_or_default());
        let is_wanted = wanted.split(',').any(|part| file.contains(part));
        let draws = Draw::parse_list(entry["draw"].as_str().unwrap_or_default()).expect("draws");
        (is_per_device && is_wanted).then(|| Step { path: folder.join(&file), file, draws })
    };
    let mut programs: Vec<Step> = manifest.as_array().expect("a list").iter().filter_map(entry).collect();
    // The largest last.
    programs.sort_by_key(|step| std::fs::metadata(&step.path).map(|metadata| metadata.len()).unwrap_or(0));
    programs
}

/// The same module with its training loops cut to a few rounds: long ones amplify rounding until no comparison means
/// anything. Numbers above 5 that a loop's condition compares with become 3; where a body writes summaries every 100
/// rounds, they become 5 and the period 2, so that both branches are taken.
fn shorten_loops(text: &str) -> String {
    let name = |rest: &str| {
        let end = |c: char| !(c.is_alphanumeric() || "_.-".contains(c));
        rest.trim_start_matches('%').split(end).next().unwrap_or_default().to_string()
    };
    let conditions: Vec<String> = text.split("condition=").skip(1).map(name).collect();
    let has_branches = text.contains(" conditional(");
    let limit = if has_branches { 5 } else { 3 };
    let mut is_inside = false;
    let shorten = |line: &str| {
        if line.ends_with('{') && !line.starts_with(' ') {
            is_inside = conditions.contains(&name(line));
        } else if line.starts_with('}') {
            is_inside = false;
        }
        let found = line.split_once("s32[] constant(").and_then(|(head, rest)| Some((head, rest.split_once(')')?)));
        match found {
            Some((head, (number, tail))) if is_inside && number.parse::<i64>().is_ok_and(|n| n > 5) => {
                format!("{head}s32[] constant({limit}){tail}\n")
            }
            Some((head, ("100", tail))) if has_branches => format!("{head}s32[] constant(2){tail}\n"),
            _ => format!("{line}\n"),
        }
    };
    text.lines().map(shorten).collect()
}

fn floats(literal: &Literal) -> Vec<f64> {
    let parts = |i| match literal.get(i) {
        Some(Scalar::Float(x)) => vec![x],
        Some(Scalar::Complex(re, im)) => vec![re, im],
        other => panic!("{other:?}"),
    };
    (0..literal.n_elems()).flat_map(parts).collect()
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

/// The largest difference relative to the largest element.
fn difference(found: &Literal, expected: &Literal) -> f64 {
    assert_eq!((found.dtype(), found.dims()), (expected.dtype(), expected.dims()));
    if !expected.dtype().is_float() && !expected.dtype().is_complex() {
        return if found == expected { 0.0 } else { f64::INFINITY };
    }
    let (found, expected) = (floats(found), floats(expected));
    let finite = expected.iter().filter(|x| x.is_finite());
    let largest = finite.fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let error = |(f, e): (&f64, &f64)| match (f - e).is_nan() {
        _ if f == e => 0.0,
        true => f64::INFINITY,
        false => (f - e).abs(),
    };
    let errors = found.iter().zip(&expected).map(error);
    errors.fold(0.0, f64::max) / largest
}

/// Runs passes of this crate with all checks of the runner on.
fn run_passes(pipeline: &str, module: &mut hlo_ir::Module) -> Result<(), String> {
    let calls = hlo_pass::pipeline::parse_pipeline(pipeline).map_err(|e| e.to_string())?;
    let passes = hlo_pass::runner::bind(&calls, hlo_gpu::PASSES).map_err(|e| e.to_string())?;
    let options = hlo_pass::runner::RunOptions { check: true, ..Default::default() };
    let mut analyses = hlo_analysis::Analyses::default();
    let outcome = hlo_pass::runner::run_pipeline(module, &mut analyses, &passes, options);
    outcome.map(|_| ()).map_err(|e| format!("{}: {:?}", e.pass, e.diagnostics))
}

/// Lowers, compiles and runs a module: `[device][leaf]`, and a row's columns.
fn run_plan(module: &Module, inputs: &[Vec<Literal>]) -> Result<(Vec<Vec<Literal>>, String), String> {
    let plan = lower(module, &mut CudaKernels::default(), &LowerOptions::default()).map_err(|e| e.to_string())?;
    verify(&plan).map_err(|e| format!("{e:?}"))?;
    let started = Instant::now();
    let compiled = HostProgram::new(&plan).map_err(|e| e.to_string())?;
    let compile_s = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let found = compiled.run(inputs).map_err(|e| e.to_string())?;
    let run_s = started.elapsed().as_secs_f64();
    Ok((found, format!("{:5} kernels {compile_s:6.1} s compile {run_s:7.1} s run", plan.kernels.len())))
}

/// A row for each pipeline; an error if one is wrong.
fn check(program: &Step, pipelines: &[&str]) -> Result<String, String> {
    let text = std::fs::read_to_string(&program.path).map_err(|e| e.to_string())?;
    let module = hlo_text::parse_module(&shorten_loops(&text)).map_err(|d| format!("{:?}", d[0]))?.module;
    let draw = DrawOptions { seed: 3, draws: program.draws.clone(), same: Same::Auto };
    let inputs = draw_inputs(&module, None, &draw).map_err(|e| e.to_string())?;
    let of_device =
        |device: usize| inputs.leaves.iter().map(|row| row[device].as_ref().clone()).collect::<Vec<Literal>>();
    let own: Vec<Vec<Literal>> = (0..module.n_devices()).map(of_device).collect();
    let started = Instant::now();
    let expected = run(&module, &inputs, &EvalOptions::default()).map_err(|e| e.to_string())?;
    let mut rows = format!("{:30} evaluated in {:.1} s", program.file, started.elapsed().as_secs_f64());
    let tolerance = tolerance(&module);
    let mut is_wrong = false;
    for &pipeline in pipelines {
        let mut optimized = module.clone();
        if !pipeline.is_empty() {
            run_passes(pipeline, &mut optimized)?;
        }
        let (found, columns) = run_plan(&optimized, &own)?;
        let mut worst = (0.0f64, 0, 0);
        for (leaf, row) in expected.leaves.iter().enumerate() {
            for (device, literal) in row.iter().enumerate() {
                let difference = difference(&found[device][leaf], literal);
                if difference > worst.0 {
                    worst = (difference, device, leaf);
                }
            }
        }
        let (worst, device, leaf) = worst;
        let form = if pipeline.is_empty() { "as it is" } else { "fused" };
        rows += &format!("\n    {form:8} {columns}  worst {worst:.1e} of at most {tolerance:.0e}");
        if worst > tolerance {
            rows += &format!("  WRONG at device {device}, leaf {leaf}");
            is_wrong = true;
        }
    }
    if is_wrong { Err(rows) } else { Ok(rows) }
}

#[test]
fn programs_agree_with_the_evaluator() {
    let programs = programs();
    assert!(!programs.is_empty(), "no program of these names");
    let mut failures = Vec::new();
    for program in &programs {
        let outcome =
            std::panic::catch_unwind(|| check(program, &PIPELINES)).unwrap_or_else(|_| Err("it panicked".to_string()));
        match outcome {
            Ok(rows) => println!("{rows}"),
            Err(reason) => {
                println!("{}: FAILED: {reason}", program.file);
                failures.push(format!("{}: {reason}", program.file));
            }
        }
    }
    println!("{} of {} programs agree with the evaluator", programs.len() - failures.len(), programs.len());
    assert!(failures.is_empty(), "{} of {} are wrong:\n{}", failures.len(), programs.len(), failures.join("\n"));
}

/// Complex numbers, 4-bit integers and 8-bit floats in collectives, reductions, a product and moves, on four devices.
#[test]
fn other_element_types_agree_with_the_evaluator() {
    let file = "element_types.hlo".to_string();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/element_types.hlo").into();
    let draws = vec![Draw::Normal(1.0), Draw::Normal(1.0), Draw::Below(30000), Draw::Normal(2.0)];
    let pipelines = ["expand-operations", "expand-operations,propagate-layouts,fuse"];
    let rows = check(&Step { file, draws, path }, &pipelines);
    println!("{}", rows.unwrap_or_else(|reason| panic!("{reason}")));
}
