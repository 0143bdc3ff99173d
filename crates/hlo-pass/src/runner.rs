//! Runs a pipeline: times each pass, verifies after a change, and with `check` holds each pass to its contract.

use crate::pipeline::{PassCall, Pipeline, PipelineError};
use crate::report::{Decision, PassReport};
use crate::{Changed, Deadline, Options, Pass, PassCx, PassError, PassInfo, Target, deadline};
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::in_flight::meetings;
use hlo_analysis::memory::memory_sizes;
use hlo_analysis::{Analyses, Preserved};
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_ir::print::{PrintOptions, print_module};
use hlo_ir::{Module, Opcode};
use hlo_spmd::{TupleCollective, split_tuples};
use std::time::{Duration, Instant};

/// A pass ready to run.
pub struct BoundPass {
    /// Its name.
    pub name: &'static str,
    pass: Box<dyn Pass>,
}

impl BoundPass {
    /// Returns whether the pass may leave files beside the module.
    pub fn writes_files(&self) -> bool {
        self.pass.writes_files()
    }
}

/// Looks the passes of a pipeline up and builds them.
///
/// # Errors
/// An unknown pass or option (with the nearest known name), or a value that the pass refuses.
pub fn bind(calls: &[PassCall], registry: &[&'static PassInfo]) -> Result<Vec<BoundPass>, PipelineError> {
    calls
        .iter()
        .map(|call| {
            let wanted = call.name.replace('_', "-");
            let Some(info) = registry.iter().find(|p| p.name == wanted) else {
                return Err(PipelineError::unknown("pass", &call.name, registry.iter().map(|p| p.name)));
            };
            let options = Options::check(info.name, info.options, &call.options)?;
            let pass = (info.build)(&options).map_err(|e| PipelineError::new(format!("pass `{}`: {e}", info.name)))?;
            Ok(BoundPass { name: info.name, pass })
        })
        .collect()
}

/// Reads a pipeline, settings included, for a module on `n_devices` devices.
///
/// # Errors
/// As [`Pipeline::parse`] and [`bind`]; a machine that cannot have so many devices.
pub fn bind_text(
    text: &str,
    registry: &[&'static PassInfo],
    n_devices: usize,
) -> Result<(Vec<BoundPass>, Target), PipelineError> {
    let pipeline = Pipeline::parse(text)?;
    let target = pipeline.target_spec()?.target(n_devices).map_err(|error| PipelineError::new(error.to_string()))?;
    Ok((bind(&pipeline.calls, registry)?, target))
}

/// Called with a pass's name and the module it left.
pub type AfterPass<'a> = &'a mut dyn FnMut(&str, &Module);

/// What the runner does besides running.
#[derive(Default)]
pub struct RunOptions<'a> {
    /// Compare the printed module with what the pass says of it, and recompute what it says it preserved.
    pub check: bool,
    /// Called after each pass with its name and the module.
    pub after_pass: Option<AfterPass<'a>>,
    /// Compute the report's peaks of memory.
    pub measures_peaks: bool,
    /// When to stop: between passes, and within those that poll it.
    pub deadline: Deadline,
    /// The machine, trip counts and limit; [`Target::unnamed`] with the analyses' trip counts if absent.
    pub target: Option<&'a Target>,
}

impl RunOptions<'_> {
    /// The same for one more pipeline.
    pub(crate) fn again(&mut self) -> RunOptions<'_> {
        let after_pass: Option<AfterPass<'_>> = match &mut self.after_pass {
            Some(hook) => Some(&mut **hook),
            None => None,
        };
        let RunOptions { check, measures_peaks, deadline, target, .. } = *self;
        RunOptions { check, after_pass, measures_peaks, deadline, target }
    }
}

/// What a pipeline did.
#[derive(Clone, Debug, Default)]
pub struct RunSummary {
    /// One report for each pass run, in order.
    pub reports: Vec<PassReport>,
    /// Wall time of each pass and of the verifier after it.
    pub times: Vec<PassTime>,
}

impl RunSummary {
    /// This pipeline, then `more`.
    #[must_use]
    pub fn and(mut self, more: RunSummary) -> RunSummary {
        self.reports.extend(more.reports);
        self.times.extend(more.times);
        self
    }
}

/// Wall time of one pass.
#[derive(Clone, Debug)]
pub struct PassTime {
    /// The pass.
    pub pass: &'static str,
    /// The pass itself.
    pub run: Duration,
    /// The verifier (and checks) after it.
    pub verify: Duration,
}

/// What stopped a pipeline; the module is as it was before the pass that failed.
#[derive(Debug)]
pub struct RunError {
    /// The pass.
    pub pass: &'static str,
    /// What is wrong.
    pub diagnostics: Vec<Diagnostic>,
    /// The least peak memory that the pass found, where none is within its limit.
    pub least_bytes: Option<u64>,
    /// Entities of the diagnostics live in this module.
    pub module: Box<Module>,
}

impl RunError {
    /// Whether the time was over: nothing is wrong with the module or the passes.
    pub fn is_out_of_time(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.rule == deadline::RULE)
    }
}

/// Runs `passes` on `module` in order.
///
/// # Errors
/// A pass failed, left an invalid module, or (with `check`) broke its contract, or the time was over before the last pass was done. `module`
/// is then as it was before that pass.
pub fn run_pipeline(
    module: &mut Module,
    analyses: &mut Analyses,
    passes: &[BoundPass],
    mut options: RunOptions<'_>,
) -> Result<RunSummary, RunError> {
    let mut summary = RunSummary::default();
    let target = match options.target {
        Some(target) => target.clone(),
        None => Target { frequency: analyses.frequency_options, ..unnamed(module)? },
    };
    analyses.frequency_options = target.frequency;
    for bound in passes {
        let started = Instant::now();
        let mut work = module.clone();
        let before = options.check.then(|| print_module(module, &PrintOptions::default()));
        let mut report = PassReport::new(bound.name);
        let split =
            if bound.pass.takes_single_all_reduces() { split_before(&mut work, bound.name)? } else { Vec::new() };
        let mut of_split = (!split.is_empty()).then(|| {
            let mut fresh = analyses.clone();
            fresh.invalidate(Preserved::NONE);
            fresh
        });
        let mut cx = PassCx {
            analyses: of_split.as_mut().unwrap_or(analyses),
            report: &mut report,
            target: &target,
            measures_peaks: options.measures_peaks,
            deadline: options.deadline,
        };
        let outcome = cx.check_deadline().and_then(|()| bound.pass.run(&mut work, &mut cx));
        let run = started.elapsed();
        let fail = |work: Module, diagnostics| {
            let module = Box::new(work);
            RunError { pass: bound.name, diagnostics, least_bytes: None, module }
        };
        let changed = match outcome {
            Ok(changed) => changed,
            Err(PassError { diagnostic, least_bytes }) => {
                return Err(RunError { least_bytes, ..fail(work, vec![diagnostic]) });
            }
        };
        match (changed, of_split) {
            (Changed::Yes(_), Some(of_split)) => {
                *analyses = of_split;
                report.decisions.splice(0..0, split);
            }
            // A split from which nothing comes is none.
            (Changed::No, Some(_)) => work = module.clone(),
            (Changed::Yes(_) | Changed::No, None) => {}
        }
        let started = Instant::now();
        if let Changed::Yes(_) = changed {
            keep_result_sharding(module, &mut work);
        }
        if let Changed::Yes(_) = changed
            && let Err(diagnostics) = hlo_ir::verify::verify(&work)
        {
            return Err(fail(work, diagnostics));
        }
        if let Some(before) = before
            && let Err(diagnostic) = check_contract(&before, &work, changed, analyses)
                .and_then(|()| check_in_flight(meetings(module).len(), &work))
        {
            return Err(fail(work, vec![diagnostic]));
        }
        if let Changed::Yes(preserved) = changed {
            analyses.invalidate(preserved);
            *module = work;
        }
        report.changed = changed != Changed::No;
        summary.times.push(PassTime { pass: bound.name, run, verify: started.elapsed() });
        summary.reports.push(report);
        if let Some(hook) = &mut options.after_pass {
            hook(bound.name, module);
        }
    }
    Ok(summary)
}

fn unnamed(module: &Module) -> Result<Target, RunError> {
    Target::unnamed().map_err(|error| RunError {
        pass: "machine",
        diagnostics: vec![Diagnostic::about("machine", Entity::Module, error.to_string())],
        least_bytes: None,
        module: Box::new(module.clone()),
    })
}

/// Splits the all-reduces of several arrays in a module for a pass that looks at single ones; a decision for each.
fn split_before(work: &mut Module, pass: &'static str) -> Result<Vec<Decision>, RunError> {
    let met = split_tuples(work, &[Opcode::AllReduce]).map_err(|error| {
        let diagnostics = vec![PassError::from(error).diagnostic];
        RunError { pass, diagnostics, least_bytes: None, module: Box::new(work.clone()) }
    })?;
    let split = met.into_iter().filter_map(|TupleCollective { inst, outcome }| {
        let told = Decision::about(work, inst, "split", "each operand gets an all-reduce of its own");
        outcome.ok().map(|collectives| Decision { collectives, ..told })
    });
    Ok(split.collect())
}

/// What the annotation of the entry's result says stays true where a pass puts another root of the same shape in the place of one.
fn keep_result_sharding(before: &Module, after: &mut Module) {
    let root = |module: &Module| module.comp(module.entry()?).root.expand();
    let (Some(old), Some(new)) = (root(before), root(after)) else { return };
    let is_lost = after.sharding(new).is_none()
        && before.n_devices() == after.n_devices()
        && before.shape(old).same_type(after.shape(new));
    if let Some(sharding) = before.sharding(old).filter(|_| is_lost) {
        after.marks_mut(new).sharding = Some(sharding.clone());
    }
}

/// No pass may bring collectives into flight at once that share more than one device.
fn check_in_flight(n_before: usize, after: &Module) -> Result<(), Diagnostic> {
    let found = meetings(after);
    let Some(meeting) = found.last().filter(|_| found.len() > n_before) else { return Ok(()) };
    let (a, b) = meeting.devices;
    let message = format!(
        "begins while `%{}` is in flight, and devices {a} and {b} take part in both",
        after.inst_name(meeting.earlier)
    );
    Err(Diagnostic::about("pass-in-flight", Entity::Inst(meeting.later), message))
}

/// Holds a pass to what it said: changed or not, and which analyses still hold.
fn check_contract(before: &str, after: &Module, changed: Changed, analyses: &mut Analyses) -> Result<(), Diagnostic> {
    let is_same = print_module(after, &PrintOptions::default()) == before;
    match (changed, is_same) {
        (Changed::No, false) => Err(Diagnostic::about(
            "pass-changed",
            Entity::Module,
            "the pass says it changed nothing, but the text differs",
        )),
        (Changed::Yes(_), true) => Err(Diagnostic::about(
            "pass-changed",
            Entity::Module,
            "the pass says it changed the module, but the text is the same",
        )),
        (Changed::Yes(preserved), false) => {
            if preserved.frequencies {
                check_frequencies(after, analyses)?;
            }
            if preserved.peak_memory {
                check_peak_memory(after, analyses)?;
            }
            if !preserved.replication {
                return Ok(());
            }
            let (kept, fresh) =
                (analyses.replication(after), Analyses::new(analyses.params.clone()).replication(after));
            for &comp in after.computations() {
                for &inst in &after.comp(comp).insts {
                    for leaf in 0..after.shape(inst).n_leaves() {
                        if kept.classes(inst, leaf).is_some() && kept.classes(inst, leaf) != fresh.classes(inst, leaf) {
                            return Err(Diagnostic::about(
                                "pass-preserved",
                                Entity::Inst(inst),
                                "the pass says that replication facts still hold, but this one differs",
                            ));
                        }
                    }
                }
            }
            Ok(())
        }
        (Changed::No, true) => Ok(()),
    }
}

/// Compares the kept peak of memory with a fresh one.
fn check_peak_memory(after: &Module, analyses: &mut Analyses) -> Result<(), Diagnostic> {
    let (fresh, kept) = (memory_sizes(after), analyses.memory(after));
    if kept == fresh {
        return Ok(());
    }
    let (kept, fresh) = (kept.peak_bytes, fresh.peak_bytes);
    let message = format!("the pass says that the peak of memory is {kept} bytes, but it is {fresh}");
    Err(Diagnostic::about("pass-preserved", Entity::Module, message))
}

/// Compares kept frequencies with fresh ones, for every computation.
fn check_frequencies(after: &Module, analyses: &mut Analyses) -> Result<(), Diagnostic> {
    let fresh = Frequencies::compute(after, analyses.frequency_options);
    let kept = analyses.frequencies(after);
    match after.computations().iter().find(|&&comp| kept.of(comp) != fresh.of(comp)) {
        None => Ok(()),
        Some(&comp) => Err(Diagnostic::about(
            "pass-preserved",
            Entity::Comp(comp),
            "the pass says that frequencies still hold, but this computation's differs",
        )),
    }
}
