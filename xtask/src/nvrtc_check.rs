//! Compiles emitted kernels for real architectures with NVRTC, which needs no graphics processor.
//!
//! Kernels come from the op samples (each instruction of ENTRY by itself) and from the plans of whole programs; equal
//! ones are compiled once, some hundred to a program. NVRTC comes from its Python wheel and is driven by
//! `xtask/nvrtc/compile.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use hlo_gpu::kernel::{CudaKernels, EmitOptions, emit, prelude};
use hlo_gpu::lower::kernels::EmittedKernel;
use hlo_gpu::lower::{LowerOptions, lower};
use hlo_gpu::plan::Kernel;
use hlo_ir::{Module, Opcode};

use crate::arguments::{Arguments, Word, unknown};
use crate::{python, workspace};

/// Architectures that kernels must compile for.
const ARCHS: &str = "sm_80,sm_90,sm_100";
/// Kernels of one program.
const PER_PROGRAM: usize = 100;
/// The quick set takes every n-th sample's kernels, and the programs whose file name contains one of these.
const QUICK_STEP: usize = 7;
const QUICK_PROGRAMS: [&str; 1] = ["mlp_adam_bf16.hlo"];

struct Options {
    is_quick: bool,
    corpora: Vec<PathBuf>,
    archs: String,
}

fn options(words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut arguments = Arguments::new(words);
    let own = workspace::root().join("ir-samples/programs");
    let mut options = Options { is_quick: true, corpora: vec![own], archs: ARCHS.to_string() };
    while let Some(word) = arguments.next_word() {
        match word {
            Word::Flag(flag) if flag == "--all" => options.is_quick = false,
            Word::Flag(flag) if flag == "--corpus" => options.corpora.push(arguments.value(&flag)?.into()),
            Word::Flag(flag) if flag == "--archs" => options.archs = arguments.value(&flag)?,
            Word::Flag(word) | Word::Plain(word) => return Err(unknown("nvrtc-check", &word)),
        }
    }
    Ok(options)
}

/// Kernels by name; a name is that of the content.
type Kernels = BTreeMap<String, Kernel>;

fn parse(path: &Path) -> Result<Module, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    match hlo_text::parse_bytes(&bytes) {
        Ok(parsed) => Ok(parsed.module),
        Err(diagnostics) => Err(format!("{}: {:?}", path.display(), diagnostics.first())),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "hlo"));
    paths.sort();
    Ok(paths)
}

/// The kernels of a sample's single instructions; those that no kernel is written for are left out.
fn add_sample(module: &Module, kernels: &mut Kernels) {
    let Some(entry) = module.entry() else { return };
    for &inst in &module.comp(entry).insts {
        let opcode = module.inst(inst).opcode;
        if [Opcode::Parameter, Opcode::Constant, Opcode::Tuple, Opcode::GetTupleElement].contains(&opcode) {
            continue;
        }
        for is_elemental_only in [false, true] {
            if let Ok(EmittedKernel { kernel, .. }) =
                emit(module, inst, &EmitOptions { is_elemental_only, ..EmitOptions::default() })
            {
                kernels.insert(kernel.name.clone(), kernel);
            }
        }
    }
}

/// The passes before a program's lowering: none, and all.
const PIPELINES: [&str; 2] = ["", "convolution-to-dot,split-convolutions,propagate-layouts,fuse"];

/// The kernels of a per-device program's plans, as it is and fused. Other forms of programs are left out.
fn add_program(path: &Path, kernels: &mut Kernels) -> Result<(), String> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    if [".unopt", ".opt"].iter().any(|form| name.contains(form)) {
        return Ok(());
    }
    let module = parse(path)?;
    for pipeline in PIPELINES {
        let mut module = module.clone();
        if !pipeline.is_empty() {
            run_passes(pipeline, &mut module).map_err(|error| format!("{name}: {error}"))?;
        }
        let plan = lower(&module, &mut CudaKernels::default(), &LowerOptions::default());
        let plan = plan.map_err(|error| format!("{name}: {error}"))?;
        kernels.extend(plan.kernels.values().map(|kernel| (kernel.name.clone(), kernel.clone())));
    }
    Ok(())
}

fn run_passes(pipeline: &str, module: &mut Module) -> Result<(), String> {
    let calls = hlo_pass::pipeline::parse_pipeline(pipeline).map_err(|e| e.to_string())?;
    let passes = hlo_pass::runner::bind(&calls, hlo_gpu::PASSES).map_err(|e| e.to_string())?;
    let options = hlo_pass::runner::RunOptions::default();
    let outcome = hlo_pass::runner::run_pipeline(module, &mut hlo_analysis::Analyses::default(), &passes, options);
    outcome.map(|_| ()).map_err(|e| format!("{}: {:?}", e.pass, e.diagnostics))
}

fn collect(options: &Options) -> Result<Kernels, String> {
    let mut kernels = Kernels::new();
    let samples = files(&workspace::root().join("ir-samples/ops"))?;
    for path in samples.iter().step_by(if options.is_quick { QUICK_STEP } else { 1 }) {
        add_sample(&parse(path)?, &mut kernels);
    }
    for folder in &options.corpora {
        for path in files(folder)? {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if !options.is_quick || QUICK_PROGRAMS.contains(&name.as_str()) {
                add_program(&path, &mut kernels)?;
            }
        }
    }
    Ok(kernels)
}

/// Runs the check: whether all kernels compile for all architectures.
pub(crate) fn run(words: impl Iterator<Item = String>) -> Result<bool, String> {
    let options = options(words)?;
    let start = Instant::now();
    let kernels = collect(&options)?;
    let folder = workspace::target_dir().join("nvrtc");
    // Programs of an earlier run would be taken for this one's.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut programs = Vec::new();
    let all: Vec<&Kernel> = kernels.values().collect();
    for (i, part) in all.chunks(PER_PROGRAM).enumerate() {
        let path = folder.join(format!("kernels_{i}.cu"));
        let sources: Vec<&str> = part.iter().map(|kernel| kernel.source.as_str()).collect();
        fs::write(&path, format!("{}\n{}", prelude(), sources.join("\n")))
            .map_err(|e| format!("{}: {e}", path.display()))?;
        programs.push(path);
    }
    let python = python::environment("nvrtc-venv", &workspace::root().join("xtask/nvrtc/requirements.txt"))?;
    let n_workers = std::thread::available_parallelism().map_or(1, usize::from).min(programs.len().max(1));
    let script = workspace::root().join("xtask/nvrtc/compile.py");
    let workers: Vec<_> = (0..n_workers)
        .map(|worker| {
            let own = programs.iter().skip(worker).step_by(n_workers);
            let command =
                Command::new(&python).arg(&script).arg(&options.archs).args(own).stdout(Stdio::piped()).spawn();
            command.map_err(|e| format!("{}: {e}", python.display()))
        })
        .collect::<Result<_, String>>()?;
    let (mut n_cubins, mut is_good) = (0, true);
    for worker in workers {
        let output = worker.wait_with_output().map_err(|e| e.to_string())?;
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let result: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("{line}: {e}"))?;
            match result["log"].as_str() {
                None => n_cubins += 1,
                Some(log) => {
                    let first: Vec<&str> = log.lines().filter(|line| line.contains("error")).take(5).collect();
                    eprintln!("{} for {}:\n  {}", result["program"], result["arch"], first.join("\n  "));
                }
            }
        }
        is_good &= output.status.success();
    }
    let n_archs = options.archs.split(',').count();
    is_good &= n_cubins == programs.len() * n_archs && !programs.is_empty();
    println!(
        "{} distinct kernels in {} programs: {n_cubins} of {} cubins for {} in {:.1} s",
        all.len(),
        programs.len(),
        programs.len() * n_archs,
        options.archs,
        start.elapsed().as_secs_f64()
    );
    Ok(is_good)
}
