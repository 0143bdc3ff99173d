//! `hlo-opt bisect`: runs a pipeline pass by pass, and names the first pass after which the results differ.

use crate::compare::arguments::BisectArgs;
use crate::compare::{Judge, Reference, of_verdict};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::machine::TargetText;
use crate::output::Staged;
use crate::params::Said;
use crate::progress::Progress;
use crate::{Failure, descriptions, exit, presets, registry};
use hlo_analysis::Analyses;
use hlo_eval::global::GlobalProgram;
use hlo_ir::Module;
use hlo_ir::devices::find_n_devices;
use hlo_ir::print::{PrintOptions, print_module};
use hlo_pass::Target;
use hlo_pass::pipeline::{PassCall, Pipeline, PipelineError};
use hlo_pass::report::Artifact;
use hlo_pass::runner::{BoundPass, RunOptions, bind, run_pipeline};
use std::path::Path;

/// Bisects; every pass that changes the module is followed by an evaluation.
///
/// # Errors
/// Wrong usage, an invalid module, a pass that fails, or an evaluation that cannot go on.
pub(crate) fn run(args: &BisectArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    if args.preset.is_none() && args.pipelines.is_empty() {
        return Err(Failure::Usage("expected --pass or --preset, found no pass to run".into()));
    }
    let said = Said::read(args.judge.inputs.replicated_params.as_deref(), console)?;
    let progress = Progress::start(console.shows_progress);
    progress.now("reading and verifying");
    let (source, loaded) = read_completed(&args.file, args.judge.counts, Takes::Any, console)?;
    let wrong = |text: String| Failure::File(format!("{}: {text}", source.name));
    let params = said.of(&source, source.whole(), &loaded, console)?;
    let mut analyses = Analyses::new(params.clone()).with_program(loaded.known_program());
    progress.now("comparing ways to run the module");
    let passes = passes(args, &loaded.module, &analyses, console, &wrong)?;
    let reference = Reference::of(&loaded.module, loaded.decision()).map_err(|error| wrong(error.to_string()))?;
    let mut judge = Judge::new(&args.judge, &source.name, reference, &params)?;
    let mut module = loaded.module.clone();
    // What brings the state into shards and back, once a pass has changed the signature.
    let (mut shard, mut unshard): (Option<Module>, Option<Module>) = (None, None);
    let (mut n_compared, mut n_devices) = (0, loaded.module.n_devices());
    let mut undecided: Option<String> = None;
    for (i, (pass, target)) in passes.iter().enumerate() {
        progress.now(&format!("pass {} of {}: {}", i + 1, passes.len(), pass.name));
        let before = module.clone();
        let options = RunOptions { target: Some(target), ..RunOptions::default() };
        let summary = run_pipeline(&mut module, &mut analyses, std::slice::from_ref(pass), options);
        let summary = summary.map_err(|error| {
            let messages: Vec<String> = error.diagnostics.iter().map(|d| d.message.clone()).collect();
            wrong(format!("pass {} (`{}`) fails: {}", i + 1, pass.name, messages.join("; ")))
        })?;
        let Some(report) = summary.reports.into_iter().next().filter(|report| report.changed) else { continue };
        for (name, artifact) in report.files {
            match (name.as_str(), artifact) {
                ("shard.hlo", Artifact::Module(found)) => shard = Some(*found),
                ("unshard.hlo", Artifact::Module(found)) => unshard = Some(*found),
                (_, Artifact::Module(_) | Artifact::Text(_)) => {}
            }
        }
        // A step of one device is the whole of what a pass has put onto several.
        if module.n_devices() != n_devices && loaded.module.n_devices() == 1 {
            n_devices = module.n_devices();
            let whole = GlobalProgram::on(&loaded.module, n_devices).map_err(|error| wrong(error.to_string()))?;
            judge = Judge::new(&args.judge, &source.name, Reference::Global(Box::new(whole)), &params)?;
        }
        let chain: Vec<&Module> = shard.iter().chain([&module]).chain(&unshard).collect();
        let kind = analyses.program_kind(&module);
        let verdict =
            judge.judge(&format!("{} after pass {} (`{}`)", source.name, i + 1, pass.name), (&chain, kind), console)?;
        n_compared += 1;
        if !verdict.is_same() {
            let place = format!("pass {} of {} changes the results: {}\n", i + 1, passes.len(), pass.name);
            console.print((place + &of_verdict(&verdict, &args.judge, &loaded.module)).as_bytes())?;
            if let Some(folder) = &args.out_dir {
                write_both(folder, &before, &module)?;
            }
            return Ok(exit::DIFFERENT);
        }
        if verdict.is_undecided() {
            undecided = Some(of_verdict(&verdict, &args.judge, &loaded.module));
        }
    }
    let text =
        format!("no pass changes the results: {} passes, {n_compared} of them change the module\n", passes.len());
    console.print((text + undecided.as_deref().unwrap_or_default()).as_bytes())?;
    Ok(if undecided.is_some() { exit::UNKNOWN } else { exit::OK })
}

/// The passes of the way that the preset takes for this module, then those of `--pass`; each with what it runs for.
fn passes(
    args: &BisectArgs,
    module: &Module,
    analyses: &Analyses,
    console: &mut Console<'_>,
    wrong: &dyn Fn(String) -> Failure,
) -> Result<Vec<(BoundPass, Target)>, Failure> {
    let mut passes: Vec<(BoundPass, Target)> = Vec::new();
    let pipelines = args.pipelines.iter().map(|text| Pipeline::parse(text)).collect::<Result<Vec<_>, _>>();
    let pipelines = pipelines.map_err(usage)?;
    let target = TargetText::of(&args.target, &pipelines)?.target(find_n_devices(module).max(1))?;
    if let Some(text) = &args.preset {
        let ways = presets::ways(&presets::parse(text)?, target.clone())?;
        let (mut module, mut analyses) = (module.clone(), analyses.clone());
        let (_, choice) = ways.run(&mut module, &mut analyses, RunOptions::default()).map_err(|error| {
            let messages: Vec<String> = error.diagnostics.iter().map(|d| d.message.clone()).collect();
            wrong(format!("--preset {text}: pass `{}`: {}", error.pass, messages.join("; ")))
        })?;
        if let Some(taken) = choice.taken() {
            console.say(&format!("note: --preset {text} takes `{}`: {}\n", taken.way, taken.pipeline));
            passes = ways.into_passes_of(Some(taken.way));
        }
    }
    let mut calls: Vec<PassCall> = pipelines.into_iter().flat_map(|pipeline| pipeline.calls).collect();
    calls.iter_mut().try_for_each(descriptions::read_into)?;
    let own = bind(&calls, &registry::passes()).map_err(usage)?;
    passes.extend(own.into_iter().map(|pass| (pass, target.clone())));
    Ok(passes)
}

fn usage(error: PipelineError) -> Failure {
    Failure::Usage(format!("--pass: {error}"))
}

/// Writes both modules into a folder, which is made if it is not there.
fn write_both(folder: &Path, before: &Module, after: &Module) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)
        .map_err(|error| Failure::File(format!("cannot make `{}`: {error}", folder.display())))?;
    let options = PrintOptions { expand_mesh_groups: true, ..PrintOptions::default() };
    let staged = [("before.hlo", before), ("after.hlo", after)].map(|(name, module)| {
        let text = print_module(module, &options);
        Staged::write(&folder.join(name), |sink| sink.write_all(text.as_bytes()))
    });
    let staged: Vec<Staged> = staged.into_iter().collect::<Result<_, _>>()?;
    staged.into_iter().try_for_each(Staged::commit)
}
