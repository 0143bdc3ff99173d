//! Runs a module through several pipelines and keeps the result that is predicted to be fastest.
//!
//! The ways form a tree: each begins with the module as it came, or with what another way made. All are priced by
//! [`hlo_analysis::time::predict`] on the same machine. A later way is taken only if it saves [`LEAST_GAIN`] of the time, so a
//! module for which nothing pays stays as it is.

use crate::report::{Candidate, WayChoice};
use crate::runner::{AfterPass, BoundPass, RunError, RunOptions, RunSummary, run_pipeline};
use hlo_analysis::Analyses;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::memory::peak_memory;
use hlo_analysis::time::{Machine, ModuleTime, predict};
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};

/// The least share of the predicted time that a later way has to save.
const LEAST_GAIN: f64 = 1e-3;

/// One way to run a module.
pub struct Way {
    /// What it does, in a few words.
    pub name: &'static str,
    /// The way whose result it begins with; `None` is the module as it came.
    pub after: Option<usize>,
    /// Whether it is there to be compared with, and never taken.
    pub is_reference: bool,
    /// Its passes as `--pass` takes them.
    pub pipeline: String,
    /// Its passes.
    pub passes: Vec<BoundPass>,
}

/// The ways to choose from, and by what.
pub struct Ways {
    /// The ways; each comes after the one that it begins with.
    pub ways: Vec<Way>,
    /// The machine that runs the module.
    pub machine: Machine,
    /// How often loops run where the module does not say.
    pub frequency_options: FrequencyOptions,
}

/// What one way came to.
struct Outcome {
    module: Module,
    analyses: Analyses,
    summary: RunSummary,
    time: ModuleTime,
    peak_bytes: u64,
}

impl Outcome {
    /// What a way that continues this one begins with.
    fn start(&self) -> (Module, RunSummary, ParamFacts) {
        (self.module.clone(), self.summary.clone(), self.analyses.params.clone())
    }
}

impl Ways {
    /// Runs all ways, and leaves the fastest one's result in `module` and `analyses`.
    ///
    /// # Errors
    /// A way that may be taken failed, or the machine has another number of devices than the module. `module` is then as it was.
    pub fn run(
        &self,
        module: &mut Module,
        analyses: &mut Analyses,
        check: bool,
        after_pass: AfterPass<'_>,
    ) -> Result<(RunSummary, WayChoice), RunError> {
        let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(self.ways.len());
        for way in &self.ways {
            let before = way.after.and_then(|number| outcomes.get(number)?.as_ref());
            let start = match way.after {
                Some(_) => before.map(Outcome::start),
                None => Some((module.clone(), RunSummary::default(), analyses.params.clone())),
            };
            let Some((work, summary, params)) = start else {
                outcomes.push(None);
                continue;
            };
            let options = RunOptions { check, after_pass: Some(&mut *after_pass) };
            match self.outcome(way, work, params, before, options) {
                Ok(more) => outcomes.push(Some(Outcome { summary: summary.and(more.summary), ..more })),
                // What stops a way that is never taken does not stop the others.
                Err(_) if way.is_reference => outcomes.push(None),
                Err(error) => return Err(error),
            }
        }
        let mut chosen: Option<(usize, f64)> = None;
        for (number, (way, outcome)) in self.ways.iter().zip(&outcomes).enumerate() {
            let Some(outcome) = outcome.as_ref().filter(|_| !way.is_reference) else { continue };
            let seconds = outcome.time.critical_path_s;
            if chosen.is_none_or(|(_, best_s)| seconds < best_s * (1.0 - LEAST_GAIN)) {
                chosen = Some((number, seconds));
            }
        }
        let known = outcomes.iter().enumerate().filter_map(|(number, outcome)| Some((number, outcome.as_ref()?)));
        let (numbers, candidates): (Vec<usize>, Vec<Candidate>) =
            known.map(|(number, outcome)| (number, self.candidate(number, outcome))).unzip();
        let chosen = chosen.map_or(0, |(number, _)| number);
        let place = numbers.iter().position(|&number| number == chosen).unwrap_or(0);
        let choice = WayChoice { machine: self.machine.to_string(), candidates, chosen: place };
        let Some(outcome) = outcomes.into_iter().nth(chosen).flatten() else {
            return Ok((RunSummary::default(), choice));
        };
        *module = outcome.module;
        *analyses = outcome.analyses;
        Ok((outcome.summary, choice))
    }

    /// Runs one way from where it begins: the result of `before`, whose figures it has if its passes change nothing.
    fn outcome(
        &self,
        way: &Way,
        mut module: Module,
        params: ParamFacts,
        before: Option<&Outcome>,
        options: RunOptions<'_>,
    ) -> Result<Outcome, RunError> {
        let mut analyses = Analyses::new(params);
        analyses.frequency_options = self.frequency_options;
        let summary = run_pipeline(&mut module, &mut analyses, &way.passes, options)?;
        analyses.frequency_options = self.frequency_options;
        let (time, peak_bytes) = match before.filter(|_| summary.reports.iter().all(|report| !report.changed)) {
            Some(before) => (before.time, before.peak_bytes),
            None => (self.predict(&module, &mut analyses)?, peak_memory(&module).peak_bytes),
        };
        Ok(Outcome { module, analyses, summary, time, peak_bytes })
    }

    /// The predicted time of a module on the machine.
    fn predict(&self, module: &Module, analyses: &mut Analyses) -> Result<ModuleTime, RunError> {
        let frequencies = analyses.frequencies(module);
        predict(module, &frequencies, &self.machine).map_err(|error| RunError {
            pass: "predicted time",
            diagnostics: vec![Diagnostic::about("machine-size", Entity::Module, error.to_string())],
            module: Box::new(module.clone()),
        })
    }

    fn candidate(&self, number: usize, outcome: &Outcome) -> Candidate {
        let mut pipeline: Vec<&str> = Vec::new();
        let mut next = Some(number);
        while let Some(way) = next.and_then(|number| self.ways.get(number)) {
            pipeline.extend(Some(way.pipeline.as_str()).filter(|text| !text.is_empty()));
            next = way.after;
        }
        pipeline.reverse();
        Candidate {
            way: self.ways[number].name,
            is_reference: self.ways[number].is_reference,
            pipeline: pipeline.join(","),
            critical_path_s: outcome.time.critical_path_s,
            compute_s: outcome.time.compute_s,
            communication_s: outcome.time.communication_s,
            is_partial: outcome.time.is_partial,
            peak_bytes: outcome.peak_bytes,
        }
    }
}
