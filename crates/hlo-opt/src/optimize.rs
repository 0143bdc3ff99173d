//! The main job: read, verify, run passes, print.

use crate::arguments::{Check, Emit, OptimizeArgs};
use crate::complete::{Takes, complete, refuse_global, refuse_per_device};
use crate::console::Console;
use crate::input::{Loaded, Part, SEPARATOR, Source};
use crate::machine::TargetText;
use crate::notes::{self, Notes};
use crate::output::Staged;
use crate::output_format::OutputFormat;
use crate::params::Said;
use crate::presets::PresetInput;
use crate::progress::Progress;
use crate::prove::passes::prove_passes;
use crate::report::{self, Before, Detail, Document, DocumentFormat, ModuleReport, Predicted, Pricing, Scope, Size};
use crate::{
    Failure, descriptions, emit, exit, graph, input, output, output_format, presets, registry, sharding_picture,
};
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::program_kind::{DumpStage, ProgramKind};
use hlo_gpu::lower::LowerOptions;
use hlo_ir::Module;
use hlo_ir::devices::find_n_devices;
use hlo_ir::print::{PrintOptions, print_module, write_module};
use hlo_pass::fastest::Ways;
use hlo_pass::pipeline::{PassCall, Pipeline, PipelineError, nearest, parse_pipeline};
use hlo_pass::report::Artifact;
use hlo_pass::runner::{AfterPass, BoundPass, RunError, RunOptions, RunSummary, bind, run_pipeline};
use hlo_pass::{Deadline, MEMORY_LIMIT_RULE, PassError, STACK_BYTES, Target};
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Where there is nothing to read.
const NO_FILE: &str = "expected a file, or HLO on stdin";

/// Runs the main job.
///
/// # Errors
/// Wrong usage, an invalid input, a pass that failed, or a file that cannot be read or written.
pub(crate) fn run(args: &OptimizeArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    if args.list_passes {
        return console.print((registry::list() + &presets::list()).as_bytes()).map(|()| exit::OK);
    }
    check_report(args)?;
    // The machine's size is the module's; that all else is well is known before.
    let work = Work::new(args, None)?;
    check_directory(args, &work)?;
    let said = Said::read(args.replicated_params.as_deref(), console)?;
    let source = match args.files.as_slice() {
        [] if console.stdin_is_terminal => return Err(Failure::Usage(NO_FILE.into())),
        [] => Source::read(Path::new("-"), DumpStage::AfterPartitioner, console)?,
        files => {
            input::expect_files(files)?;
            Source::of(
                files,
                if work.partitions() { DumpStage::BeforePartitioner } else { DumpStage::AfterPartitioner },
                console,
            )?
        }
    };
    if args.files.is_empty() && source.is_empty() {
        return Err(Failure::Usage(NO_FILE.into()));
    }
    let parts = if args.split_input_file { source.parts() } else { vec![source.whole()] };

    let is_shown = args.output.is_none() && !args.verify_only && console.stdout_is_terminal;
    output_format::check(args.output_format, args.emit == Emit::Hlo, parts.len(), is_shown)?;
    let mut job = Job::new(args, &work, &said, &source);
    let mut done = Vec::with_capacity(parts.len());
    for (i, &part) in parts.iter().enumerate() {
        if i > 0 {
            job.out.extend_from_slice(SEPARATOR.as_bytes());
            job.out.push(b'\n');
        }
        done.extend(job.part(part, console)?);
    }
    if !job.errors.is_empty() {
        return Err(Failure::Diagnostics(job.errors));
    }
    let is_proved = job.unproved.is_empty();
    let out = job.out;
    let document = Document { file: source.name.clone(), pipeline: pipeline_text(args), modules: done };
    // The report comes first and takes its name last: if one of the two files cannot be written, neither is there.
    let report = explain(args, &document, console)?;
    let files: Vec<&(String, Artifact)> =
        document.modules.iter().flat_map(|m| &m.reports).flat_map(|report| &report.files).collect();
    for module in &document.modules {
        written_once(module.reports.iter().flat_map(|report| &report.files))?;
    }
    if !args.verify_only && !files.is_empty() {
        write_directory(args, &out, &files, parts.len())?;
    } else if !args.verify_only {
        match &args.output {
            Some(path) => output::write_whole(path, &out)?,
            None => console.print(&out)?,
        }
    }
    report.map_or(Ok(()), Staged::commit)?;
    let has_changed = document.modules.iter().any(|m| m.reports.iter().any(|r| r.changed));
    Ok(match (is_proved, args.require_change && !has_changed) {
        (false, _) => exit::UNKNOWN,
        (true, true) => exit::UNCHANGED,
        (true, false) => exit::OK,
    })
}

/// Says so before any work if there can be no such report.
///
/// # Errors
/// A page without a file, or of what is no optimized HLO; a report in the place of the output; what is no module in the place of an input.
fn check_report(args: &OptimizeArgs) -> Result<(), Failure> {
    let inputs: Vec<&Path> = args.files.iter().map(PathBuf::as_path).collect();
    output::expect_no_input("--report-file", args.report_file.as_ref(), &inputs)?;
    if args.emit != Emit::Hlo {
        output::expect_no_input("-o with --emit", args.output.as_ref(), &inputs)?;
    }
    if let (Some(report), Some(output)) = (&args.report_file, &args.output)
        && output::is_same_file(report, output)
    {
        return Err(same_file(report));
    }
    let usage = |text: &str| Err(Failure::Usage(format!("--report html: {text}")));
    if args.report != Some(DocumentFormat::Html) {
        return Ok(());
    }
    if args.report_file.is_none() {
        return usage("expected --report-file FILE for the page, found none");
    }
    if args.emit != Emit::Hlo {
        return usage("expected --emit hlo, found another output: a page compares modules");
    }
    if args.verify_only { usage("expected a run, found --verify-only") } else { Ok(()) }
}

/// Says so before any work if the passes write files beside the module and nothing says where to.
///
/// # Errors
/// No `-o`, or one that names a file.
fn check_directory(args: &OptimizeArgs, work: &Work) -> Result<(), Failure> {
    let Some(writer) = work.writer_of_files().filter(|_| !args.verify_only) else { return Ok(()) };
    match &args.output {
        None => Err(Failure::Usage(format!(
            "{writer} writes several files: expected -o DIRECTORY, found no -o (-o /tmp/sharded, for example)"
        ))),
        Some(path) if path.is_file() => Err(Failure::Usage(format!(
            "{writer} writes several files: expected -o DIRECTORY, found file `{}`",
            path.display()
        ))),
        Some(_) => Ok(()),
    }
}

fn same_file(path: &Path) -> Failure {
    let path = path.display();
    Failure::Usage(format!("--report-file: expected another file than the output's, found `{path}` for both"))
}

/// A file that a pass made beside a module, printed.
fn printed(args: &OptimizeArgs, artifact: &Artifact) -> String {
    match artifact {
        Artifact::Module(module) => {
            let options = PrintOptions { form: args.format.into(), expand_mesh_groups: true };
            print_module(module, &options)
        }
        Artifact::Text(late) => late.text(),
    }
}

/// Each file beside a module belongs to one pass: what two passes in a row write would convert to a module in between.
fn written_once<'f>(files: impl Iterator<Item = &'f (String, Artifact)>) -> Result<(), Failure> {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in files {
        if names.contains(&name.as_str()) {
            return Err(Failure::Usage(format!(
                "expected one pass that writes `{name}`, found two: state can cross the interface in shards once"
            )));
        }
        names.push(name);
    }
    Ok(())
}

/// Writes `main.hlo`, or what a proto is called, and the files beside it into the directory that `-o` names: all or nothing. Each
/// file is printed and written on a thread of its own.
fn write_directory(
    args: &OptimizeArgs,
    main: &[u8],
    files: &[&(String, Artifact)],
    n_parts: usize,
) -> Result<(), Failure> {
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let name = args.output_format.file_name();
    let what = format!("the pipeline makes {name}, {}", names.join(", "));
    let Some(directory) = &args.output else {
        return Err(Failure::Usage(format!("{what}: expected -o DIRECTORY, found no -o")));
    };
    if n_parts > 1 {
        return Err(Failure::Usage(format!("{what}: expected one module, found {n_parts} with --split-input-file")));
    }
    let report = args.report_file.as_deref();
    if let Some(report) = report
        .filter(|report| names.iter().chain([&name]).any(|name| output::is_same_file(report, &directory.join(name))))
    {
        return Err(same_file(report));
    }
    let is_new = !directory.exists();
    if !is_new && !directory.is_dir() {
        return Err(Failure::Usage(format!("{what}: expected -o DIRECTORY, found file `{}`", directory.display())));
    }
    let failed = |error: std::io::Error| Failure::File(format!("cannot write `{}`: {error}", directory.display()));
    if is_new {
        std::fs::create_dir(directory).map_err(failed)?;
    }
    let write = |name: &str, bytes: &[u8]| Staged::write(&directory.join(name), |sink| sink.write_all(bytes));
    let staged: Result<Vec<Staged>, Failure> = std::thread::scope(|scope| {
        let beside = files.iter().map(|(name, artifact)| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let work = move || write(name, printed(args, artifact).as_bytes());
            (thread.spawn_scoped(scope, work), work)
        });
        let beside: Vec<_> = beside.collect();
        let main = write(name, main);
        let ended = beside.into_iter().map(|(thread, work)| match thread.map(ScopedJoinHandle::join) {
            Ok(Ok(staged)) => staged,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // The system gives no more threads.
            Err(_) => work(),
        });
        std::iter::once(main).chain(ended).collect()
    });
    match staged {
        Ok(staged) => staged.into_iter().try_for_each(Staged::commit),
        Err(failure) => {
            if is_new {
                let _ = std::fs::remove_dir(directory);
            }
            Err(failure)
        }
    }
}

/// What is done to a module.
struct Work {
    preset: Option<Preset>,
    /// The calls of `--pass`.
    calls: Vec<PassCall>,
    /// These calls' passes, then what the GPU backend wants.
    passes: Vec<BoundPass>,
    /// How times are predicted.
    pricing: Pricing,
    /// The machine, trip counts and limit of all passes.
    target: Target,
    /// The options that say it, as the user wrote them.
    target_words: String,
}

impl Work {
    /// Whether anything is asked for besides a print.
    fn is_any(&self) -> bool {
        self.preset.is_some() || !self.passes.is_empty()
    }

    /// Whether the program of each device is made of a global one.
    fn partitions(&self) -> bool {
        let ways = self.preset.iter().flat_map(|preset| &preset.ways.ways).flat_map(|way| &way.passes);
        ways.chain(&self.passes).any(|pass| pass.name == presets::PARTITIONING)
    }

    /// The preset, or else the pass, that may write files beside the module.
    fn writer_of_files(&self) -> Option<String> {
        let may_write = |passes: &[BoundPass]| passes.iter().find(|pass| pass.writes_files()).map(|pass| pass.name);
        let preset = self.preset.as_ref().and_then(|preset| {
            let mut taken = preset.ways.ways.iter().filter(|way| !way.is_reference);
            taken.find_map(|way| may_write(&way.passes)).map(|_| format!("--preset {}", preset.call.name))
        });
        preset.or_else(|| may_write(&self.passes).map(|name| format!("pass `{name}`")))
    }

    /// The number of devices that options name, for which a global program is planned.
    fn n_devices(&self) -> usize {
        presets::devices_of(self.calls.iter().chain(self.preset.iter().map(|preset| &preset.call)))
    }
}

/// The preset asked for.
struct Preset {
    call: PassCall,
    ways: Ways,
}

impl Preset {
    /// Whether the module as it came is one of the ways that are compared. Its prediction fails only where all do.
    fn predicts_input(&self) -> bool {
        let ways = &self.ways.ways;
        ways.len() > 1 && ways.iter().any(|way| way.after.is_none() && way.passes.is_empty())
    }
}

impl Work {
    /// Reads the arguments for a module on so many devices; `None` is any number.
    fn new(args: &OptimizeArgs, n_devices: Option<usize>) -> Result<Work, Failure> {
        let usage = |error: PipelineError| Failure::Usage(format!("--pass: {error}"));
        let pipelines = args.pipelines.iter().map(|text| Pipeline::parse(text)).collect::<Result<Vec<_>, _>>();
        let pipelines = pipelines.map_err(usage)?;
        let text = TargetText::of(&args.target, &pipelines)?;
        let target = n_devices.map_or_else(|| text.target_of_any_size(), |n| text.target(n))?;
        let preset = args.preset.as_deref().map(|text| {
            let mut call = presets::parse(text)?;
            presets::fill_matmul(&mut call, args.matmul.into());
            Ok(Preset { ways: presets::ways(&call, target.clone())?, call })
        });
        let calls: Vec<PassCall> = pipelines.into_iter().flat_map(|pipeline| pipeline.calls).collect();
        let preset: Option<Preset> = preset.transpose()?;
        let pricing = match &preset {
            Some(Preset { ways, .. }) => Pricing {
                machine: target.machine.clone(),
                frequency_options: target.frequency,
                as_compiled: ways.as_compiled,
            },
            None => presets::pricing(target.clone()),
        };
        let passes = bound_passes(args, &calls)?;
        let work = Work { preset, passes, calls, pricing, target, target_words: text.words };
        match args.print_ir_after.as_deref() {
            Some(wanted) if !wanted.is_empty() => work.check_runs(wanted)?,
            Some(_) | None => {}
        }
        Ok(work)
    }

    /// Refuses to print after a pass that will not run.
    fn check_runs(&self, wanted: &str) -> Result<(), Failure> {
        let ways = self.preset.iter().flat_map(|preset| &preset.ways.ways).flat_map(|way| &way.passes);
        let mut names: Vec<&str> = ways.chain(&self.passes).map(|pass| pass.name).collect();
        names.sort();
        names.dedup();
        if names.contains(&wanted.replace('_', "-").as_str()) {
            return Ok(());
        }
        let run = if names.is_empty() { "no pass runs".into() } else { format!("these run: {}", names.join(", ")) };
        Err(Failure::Usage(format!("--print-ir-after: `{wanted}` is not in the pipeline; {run}")))
    }
}

/// Refuses a program of each device whose peak is above the memory limit.
///
/// # Errors
/// The peak, as the error of no pass.
fn keep_limit(module: &Module, analyses: &mut Analyses, limit: Option<u64>) -> Result<(), RunError> {
    let Some(limit) = limit.filter(|_| analyses.program_kind(module).kind != ProgramKind::Global) else {
        return Ok(());
    };
    let peak_bytes = analyses.memory(module).peak_bytes;
    if peak_bytes <= limit {
        return Ok(());
    }
    let message = "no pass that was named brings it down; --preset sharded-state keeps weights and state in shards";
    let PassError { diagnostic, least_bytes } = PassError::above_limit(limit, peak_bytes, message);
    Err(RunError {
        pass: MEMORY_LIMIT_RULE,
        diagnostics: vec![diagnostic],
        least_bytes,
        module: Box::new(module.clone()),
    })
}

/// What was asked for, for the report.
fn pipeline_text(args: &OptimizeArgs) -> String {
    let preset = args.preset.iter().map(|preset| format!("preset {preset}"));
    let last = args.emit.is_of_plan().then(|| presets::gpu_passes(args.matmul.into()));
    preset.chain(args.pipelines.iter().cloned()).chain(last).collect::<Vec<_>>().join(",")
}

/// Looks the passes of these calls up, and those that the GPU backend wants.
fn bound_passes(args: &OptimizeArgs, calls: &[PassCall]) -> Result<Vec<BoundPass>, Failure> {
    let usage = |error: PipelineError| Failure::Usage(format!("--pass: {error}"));
    let known = registry::passes();
    let mut calls = calls.to_vec();
    if args.emit.is_of_plan() {
        calls.extend(parse_pipeline(&presets::gpu_passes(args.matmul.into())).map_err(usage)?);
    }
    calls.iter_mut().try_for_each(descriptions::read_into)?;
    let passes = bind(&calls, &known).map_err(usage)?;
    if let Some(wanted) = args.print_ir_after.as_deref().filter(|name| !name.is_empty())
        && !known.iter().any(|p| p.name == wanted.replace('_', "-"))
    {
        let near = nearest(wanted, known.iter().map(|p| p.name));
        let near = near.map_or(String::new(), |near| format!(", did you mean `{near}`?"));
        return Err(Failure::Usage(format!("--print-ir-after: unknown pass: `{wanted}`{near}")));
    }
    Ok(passes)
}

/// A module after its passes.
pub(crate) struct Optimized {
    /// The module; places are those of the text that it was read from.
    pub loaded: Loaded,
    /// What happened.
    pub report: ModuleReport,
    /// Whether a pass changed something.
    pub has_changed: bool,
    params: ParamFacts,
    pricing: Pricing,
}

/// Runs the preset and the passes that the arguments name on a module that was read from `source` and completed.
///
/// # Errors
/// Wrong usage, or a pass that failed.
pub(crate) fn optimize_loaded(
    args: &OptimizeArgs,
    source: &Source,
    loaded: Loaded,
    console: &mut Console<'_>,
) -> Result<Optimized, Failure> {
    let work = Work::new(args, None)?;
    let said = Said::read(args.replicated_params.as_deref(), console)?;
    let part = source.whole();
    let params = said.of(source, part, &loaded, console)?;
    let mut job = Job::new(args, &work, &said, source);
    let progress = Progress::start(console.shows_progress);
    match job.optimize(part, loaded, params, &progress, console)? {
        // Nobody sees here what was said.
        Some(_) if !job.unproved.is_empty() => Err(Failure::Diagnostics(job.unproved)),
        done => done.ok_or(Failure::Diagnostics(job.errors)),
    }
}

/// The report of one module as a JSON document, and its summary, which is empty where nothing of size was done or declined.
pub(crate) fn json_and_summary(args: &OptimizeArgs, source: &Source, report: ModuleReport) -> (String, String) {
    let document = Document { file: source.name.clone(), pipeline: pipeline_text(args), modules: vec![report] };
    (report::as_json(&document), report::summaries(&document))
}

/// What all parts of a file share.
struct Job<'a> {
    args: &'a OptimizeArgs,
    work: &'a Work,
    said: &'a Said,
    source: &'a Source,
    /// What to print.
    out: Vec<u8>,
    /// Rendered diagnostics of the parts that failed.
    errors: String,
    /// What `--check=prove` says of parts of which a pass is not proved.
    unproved: String,
}

impl<'a> Job<'a> {
    fn new(args: &'a OptimizeArgs, work: &'a Work, said: &'a Said, source: &'a Source) -> Job<'a> {
        Job { args, work, said, source, out: Vec::new(), errors: String::new(), unproved: String::new() }
    }

    /// Does one module; `None` if it failed, with its diagnostics in `errors`.
    fn part(&mut self, part: Part<'_>, console: &mut Console<'_>) -> Result<Option<ModuleReport>, Failure> {
        let progress = Progress::start(console.shows_progress);
        let mut clock = Clock::default();
        progress.now("reading and verifying");
        let mut loaded = match self.source.load(part, console.has_color) {
            Ok(loaded) => loaded,
            Err(Failure::Diagnostics(text)) => {
                self.errors.push_str(&text);
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        if self.work.is_any() || self.args.counts.is_any() {
            let input = self.work.preset.as_ref().map(|preset| presets::input_of(&preset.call));
            let takes = match input {
                _ if self.args.quiet => Takes::AnySilently,
                Some(PresetInput::PerDevice) => Takes::PerDeviceAlone,
                Some(PresetInput::Global) => Takes::Global,
                None if self.work.partitions() => Takes::Any,
                None if self.args.emit.is_of_plan() => Takes::PerDeviceAlone,
                None => Takes::PerDevice,
            };
            match complete(self.source, part, &mut loaded, (self.args.counts, takes), console) {
                Err(Failure::Diagnostics(text)) => {
                    self.errors.push_str(&text);
                    return Ok(None);
                }
                completed => completed?,
            }
        }
        let params = match self.said.of(self.source, part, &loaded, console) {
            Ok(params) => params,
            Err(Failure::Diagnostics(text)) => {
                self.errors.push_str(&text);
                return Ok(None);
            }
            Err(failure) => return Err(failure),
        };
        clock.lap("read and verify");
        if self.args.verify_only {
            return Ok(Some(ModuleReport::new(&loaded.module)));
        }
        let Some(mut done) = self.optimize(part, loaded, params, &progress, console)? else { return Ok(None) };
        clock.skip();
        progress.now("printing");
        match self.print(&done, console)? {
            Ok(bytes) if self.out.is_empty() => self.out = bytes,
            Ok(bytes) => self.out.extend_from_slice(&bytes),
            Err(error) => {
                self.errors.push_str(&format!("error: {}: {error}\n", self.source.name));
                return Ok(None);
            }
        }
        clock.lap("print");
        let passes = std::mem::replace(&mut done.report.times, clock.laps);
        let place = 1.min(done.report.times.len());
        done.report.times.splice(place..place, passes);
        Ok(Some(done.report))
    }

    /// Runs the preset and the passes on a module that was read from `part`; `None` if one failed, with its diagnostics in `errors`.
    fn optimize(
        &mut self,
        part: Part<'_>,
        mut loaded: Loaded,
        params: ParamFacts,
        progress: &Progress,
        console: &mut Console<'_>,
    ) -> Result<Option<Optimized>, Failure> {
        if let Err(failure) = self.check_kind(part, &loaded, console.has_color) {
            let Failure::Diagnostics(text) = failure else { return Err(failure) };
            self.errors.push_str(&text);
            return Ok(None);
        }
        let n_devices = find_n_devices(&loaded.module).max(self.work.n_devices());
        let work = &Work::new(self.args, Some(n_devices))?;
        let deadline = self.args.timeout.map_or_else(Deadline::default, Deadline::within);
        let mut analyses = Analyses::new(params).with_program(loaded.known_program());
        let mut report = ModuleReport::new(&loaded.module);
        let mut module = std::mem::take(&mut loaded.module);
        let unproved = (self.args.check == Some(Check::Prove)).then(|| (module.clone(), analyses.clone()));
        let preset = work.preset.as_ref().map(|preset| &preset.call);
        let pricing = Some(&work.pricing).filter(|_| self.is_priced());
        let before = pricing.map(|pricing| Before::start(&module, &analyses, pricing.clone(), self.scope(work)));
        let words = work.target_words.as_str();
        let is_compared = pricing.is_some() && preset.is_none();
        let notes = is_compared
            .then(|| Notes::keep(&module, &analyses.params, &work.calls, (&work.target, words), deadline))
            .flatten();
        progress.now(if preset.is_some() { "comparing ways to run the module" } else { "running passes" });
        let dumps = self.args.print_ir_after.as_deref();
        let mut after_pass = |pass: &str, module: &Module| {
            progress.now(&format!("after {pass}"));
            if dumps.is_some_and(|only| only.is_empty() || only.replace('_', "-") == pass) {
                let text = print_module(module, &PrintOptions::default());
                console.say(&format!("// module after pass `{pass}`\n{text}"));
            }
        };
        let summary = match self.run_work(work, &mut module, &mut analyses, &mut after_pass, deadline, &mut report) {
            Ok(summary) => summary,
            Err(error) => {
                // Names are asked of the module in which the pass stopped, places of the text as it was read.
                loaded.module = *error.module;
                self.fail(part, &loaded, error.pass, error.diagnostics, console.has_color);
                return Ok(None);
            }
        };
        if let Some((before, analyses)) = unproved {
            self.prove(work, before, analyses, &module, &report, progress, console)?;
        }
        let has_changed = summary.reports.iter().any(|r| r.changed);
        report.note = notes.and_then(|notes| notes.about(&module));
        let predicted = Predicted::of(report.choice.as_ref(), work.passes.is_empty());
        let totals = before.map(|before| before.and_after((&module, &analyses), has_changed, predicted));
        (report.totals, report.views) = totals.map_or((None, None), |(totals, views)| (Some(totals), views));
        let known = preset.zip(report.choice.as_ref());
        report.recommendation = known.and_then(|(preset, choice)| notes::recommendation(preset, choice, words));
        report.after = Size::of(&module);
        report.reports = summary.reports;
        let times = summary.times.iter();
        let times =
            times.flat_map(|t| [(format!("pass {}", t.pass), t.run), (format!("verify after {}", t.pass), t.verify)]);
        report.times = times.collect();
        loaded.module = module;
        Ok(Some(Optimized { loaded, params: analyses.params, pricing: work.pricing.clone(), report, has_changed }))
    }

    /// Refuses a module that is not what the preset, or the GPU backend, is about.
    ///
    /// # Errors
    /// The program of each device, or of all devices together, where the other was expected.
    fn check_kind(&self, part: Part<'_>, loaded: &Loaded, has_color: bool) -> Result<(), Failure> {
        let takes = self.work.preset.as_ref().map(|preset| presets::input_of(&preset.call));
        match takes {
            Some(PresetInput::PerDevice) => refuse_global(self.source, part, loaded, has_color),
            Some(PresetInput::Global) => refuse_per_device(self.source, part, loaded, has_color),
            None if self.args.emit.is_of_plan() && !self.work.partitions() => {
                refuse_global(self.source, part, loaded, has_color)
            }
            None => Ok(()),
        }
    }

    /// Proves the passes of the way that was taken, then the others, and says so.
    #[allow(clippy::too_many_arguments)] // what one run began with and came to
    fn prove(
        &mut self,
        work: &Work,
        before: Module,
        mut analyses: Analyses,
        after: &Module,
        report: &ModuleReport,
        progress: &Progress,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let mut passes: Vec<(&BoundPass, Target)> = Vec::new();
        if let Some(Preset { ways, .. }) = &work.preset {
            let taken = report.choice.as_ref().and_then(|choice| choice.taken());
            if taken.is_some() {
                analyses.frequency_options = ways.target.frequency;
            }
            passes.extend(ways.passes_of(taken.map(|taken| taken.way)));
        }
        passes.extend(work.passes.iter().map(|pass| (pass, work.target.clone())));
        let wrong = |text: String| Failure::File(format!("{}: {text}", self.source.name));
        let checked = prove_passes(before, analyses, after, &passes, progress).map_err(wrong)?;
        console.tell(&checked.text)?;
        if checked.n_unknown > 0 {
            self.unproved.push_str(&checked.text);
        }
        Ok(())
    }

    /// What `--emit` and `--output-format` ask for of a module; the inner error is one of the module.
    fn print(&self, done: &Optimized, console: &mut Console<'_>) -> Result<Result<Vec<u8>, String>, Failure> {
        let module = &done.loaded.module;
        let mut text = String::new();
        if self.args.emit == Emit::Dot {
            return Ok(Ok(graph::dot(module, self.args.around.as_deref(), self.args.depth)?.into_bytes()));
        }
        if self.args.emit == Emit::ShardingSvg {
            return Ok(Ok(sharding_picture::svg(module, self.args.around.as_deref())?.into_bytes()));
        }
        if self.args.emit.is_of_plan() {
            let options = LowerOptions {
                params: done.params.clone(),
                matmul: self.args.matmul.into(),
                machine: Some(done.pricing.machine.clone()),
                frequency: done.pricing.frequency_options,
                ..LowerOptions::default()
            };
            let written = emit::write(module, self.args.emit, &options, &mut text);
            return Ok(written.map(|()| text.into_bytes()).map_err(|e| e.to_string()));
        }
        if self.args.output_format == OutputFormat::Text {
            let options = PrintOptions { form: self.args.format.into(), expand_mesh_groups: done.has_changed };
            write_module(module, &options, &mut text);
            return Ok(Ok(text.into_bytes()));
        }
        let proto = output_format::proto(module, &done.loaded.kept, self.args.output_format, done.has_changed);
        Ok(proto.map(|(bytes, note)| {
            note.into_iter().for_each(|note| console.say(&format!("note: {note}\n")));
            bytes
        }))
    }

    /// Whether somebody reads what the module costs before and after.
    fn is_priced(&self) -> bool {
        let is_read = !self.args.quiet || report_format(self.args).is_some();
        let is_page = report_format(self.args) == Some(DocumentFormat::Html);
        is_page || is_read && self.work.is_any() && self.args.emit == Emit::Hlo
    }

    /// What is measured before and after the passes.
    fn scope(&self, work: &Work) -> Scope {
        let is_predicted = work.preset.as_ref().is_some_and(Preset::predicts_input);
        match (report_format(self.args), is_predicted) {
            (Some(DocumentFormat::Html), _) => Scope::Page,
            (Some(DocumentFormat::Text | DocumentFormat::Json) | None, true) => Scope::Untimed,
            (Some(DocumentFormat::Text | DocumentFormat::Json) | None, false) => Scope::Figures,
        }
    }

    /// Runs the preset and the passes on a module. The report gets the preset's choice.
    fn run_work(
        &self,
        work: &Work,
        module: &mut Module,
        analyses: &mut Analyses,
        after_pass: AfterPass<'_>,
        deadline: Deadline,
        report: &mut ModuleReport,
    ) -> Result<RunSummary, RunError> {
        let mut summary = RunSummary::default();
        let check = self.args.check.is_some();
        let measures_peaks = self.is_priced();
        let target = Some(&work.target);
        match work.preset.as_ref().map(|preset| &preset.ways) {
            Some(ways) if ways.ways.len() > 1 => {
                let is_watched = self.args.print_ir_after.is_some();
                let watch: Option<AfterPass<'_>> = if is_watched { Some(&mut *after_pass) } else { None };
                let options = RunOptions { check, after_pass: watch, measures_peaks, deadline, target };
                let (more, choice) = ways.run(module, analyses, options)?;
                report.choice = Some(choice);
                summary = more;
            }
            Some(ways) => {
                for way in &ways.ways {
                    let options =
                        RunOptions { check, after_pass: Some(&mut *after_pass), measures_peaks, deadline, target };
                    summary = run_pipeline(module, analyses, &way.passes, options)?;
                }
            }
            None => {}
        }
        let options = RunOptions { check, after_pass: Some(after_pass), measures_peaks, deadline, target };
        summary = summary.and(run_pipeline(module, analyses, &work.passes, options)?);
        keep_limit(module, analyses, work.target.memory_limit)?;
        Ok(summary)
    }

    fn fail(
        &mut self,
        part: Part<'_>,
        loaded: &Loaded,
        pass: &str,
        mut diags: Vec<hlo_ir::diag::Diagnostic>,
        has_color: bool,
    ) {
        for diag in &mut diags {
            // What a preset asks of all ways together, such as a limit, is no pass.
            if registry::passes().iter().any(|known| known.name == pass) {
                diag.message = format!("pass `{pass}`: {}", diag.message);
            }
        }
        self.errors.push_str(&self.source.render(part, Some(loaded), diags, has_color));
    }
}

/// Measures one phase after another.
struct Clock {
    last: Instant,
    laps: Vec<(String, Duration)>,
}

impl Default for Clock {
    fn default() -> Clock {
        Clock { last: Instant::now(), laps: Vec::new() }
    }
}

impl Clock {
    fn lap(&mut self, what: &str) {
        self.laps.push((what.into(), self.last.elapsed()));
        self.skip();
    }

    fn skip(&mut self) {
        self.last = Instant::now();
    }
}

/// The form of the report that was asked for.
fn report_format(args: &OptimizeArgs) -> Option<DocumentFormat> {
    let implied = if args.report_file.is_some() { Some(DocumentFormat::Json) } else { None };
    args.report.or(implied).or(args.verbose.then_some(DocumentFormat::Text))
}

/// Writes the summary, and the report, counters and times that were asked for; gives the report's file if it has one.
fn explain(args: &OptimizeArgs, document: &Document, console: &mut Console<'_>) -> Result<Option<Staged>, Failure> {
    let format = report_format(args);
    let detail = if args.verbose { Detail::Everything } else { Detail::Grouped };
    let text = match format {
        Some(DocumentFormat::Json) => report::as_json(document),
        Some(DocumentFormat::Html) => report::page(document),
        Some(DocumentFormat::Text) => report::as_text(document, detail),
        None => String::new(),
    };
    // A report on stderr has the summary itself, and JSON there stays JSON.
    if !args.quiet && (args.report_file.is_some() || format.is_none()) {
        console.say(&report::summaries(document));
    }
    let file = match &args.report_file {
        Some(path) => Some(Staged::write(path, |sink| sink.write_all(text.as_bytes()))?),
        None => {
            if !text.is_empty() {
                console.tell(&text)?;
            }
            None
        }
    };
    if args.stats {
        console.say(&report::stats(document));
    }
    if args.time_passes {
        console.say(&report::times(document));
    }
    Ok(file)
}
