//! Which op samples the lowering refuses, and why: all others lower to a plan that the verifier accepts, after `expand-operations`.
//! `refused.txt` holds a line for each refused sample, and is held to both ways.
//!
//! A refusal comes before anything runs and names an instruction of the sample.

use hlo_gpu::GpuError;
use hlo_gpu::kernel::CudaKernels;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::verify::verify;
use hlo_ir::Module;
use std::path::{Path, PathBuf};

/// What per-device training steps and the passes are made of; no sample of these may be refused but for element types that
/// such steps do not have.
const CENSUS: &[&str] = &[
    "all-gather",
    "all-reduce",
    "broadcast",
    "call",
    "compare",
    "constant",
    "dot",
    "multiply",
    "divide",
    "exponential",
    "log",
    "rsqrt",
    "sqrt",
    "maximum",
    "power",
    "concatenate",
    "conditional",
    "convolution",
    "copy",
    "dynamic-slice",
    "dynamic-update-slice",
    "gather",
    "get-tuple-element",
    "iota",
    "pad",
    "parameter",
    "partition-id",
    "reduce",
    "reduce-scatter",
    "reduce-window",
    "replica-id",
    "reshape",
    "reverse",
    "scatter",
    "select",
    "select-and-scatter",
    "slice",
    "transpose",
    "tuple",
    "while",
];

fn samples() -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ir-samples/ops");
    let entries = std::fs::read_dir(folder).expect("a folder of samples");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a readable folder").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "hlo"));
    paths.sort();
    let name = |path: &Path| path.file_stem().expect("a file name").to_string_lossy().into_owned();
    paths.into_iter().map(|path| (name(&path), path)).collect()
}

fn names_an_instruction(module: &Module, error: &GpuError) -> bool {
    let GpuError::Unsupported { instruction, .. } = error else { return false };
    let insts = module.computations().iter().flat_map(|&comp| module.comp(comp).insts.iter());
    insts.into_iter().any(|&inst| module.inst_name(inst) == instruction)
}

#[test]
fn exactly_these_samples_are_refused() {
    let mut found = String::new();
    let samples = samples();
    for (name, path) in &samples {
        let text = std::fs::read_to_string(path).expect("a readable sample");
        let mut module = hlo_text::parse_module(&text).unwrap_or_else(|d| panic!("{name}: {:?}", d[0])).module;
        let calls = hlo_pass::pipeline::parse_pipeline("expand-operations").expect("a pipeline");
        let passes = hlo_pass::runner::bind(&calls, hlo_gpu::PASSES).expect("passes");
        let options = hlo_pass::runner::RunOptions { check: true, ..Default::default() };
        hlo_pass::runner::run_pipeline(&mut module, &mut hlo_analysis::Analyses::default(), &passes, options)
            .unwrap_or_else(|e| panic!("{name}: {:?}", e.diagnostics));
        match lower(&module, &mut CudaKernels::default(), &LowerOptions::default()) {
            Ok(plan) => verify(&plan).unwrap_or_else(|e| panic!("{name}: {e:?}")),
            Err(error) => {
                assert!(names_an_instruction(&module, &error), "{name}: {error}");
                found += &format!("{name}: {error}\n");
            }
        }
    }
    let listed = include_str!("refused.txt");
    for line in found.lines() {
        assert!(listed.lines().any(|l| l == line), "refused, but not listed in refused.txt:\n{line}\n\nall:\n{found}");
    }
    for line in listed.lines() {
        assert!(found.lines().any(|l| l == line), "listed in refused.txt, but not refused:\n{line}");
    }
    for op in CENSUS {
        assert!(samples.iter().any(|(name, _)| name == op), "no sample {op}");
        let refusal = found.lines().find(|line| line.split(':').next() == Some(*op));
        assert!(
            refusal.is_none_or(|line| ["found c64", "found s4"].iter().any(|end| line.ends_with(end))),
            "{op} is refused"
        );
    }
}
