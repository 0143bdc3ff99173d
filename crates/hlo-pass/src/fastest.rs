//! Runs a module through several pipelines and keeps the result that is predicted to be fastest.
//!
//! The ways form a tree: each begins with the module as it came, or with what another way made. All are priced by
//! [`hlo_analysis::time::predict`] on the same machine. A later way is taken only if it saves [`LEAST_GAIN`] of the time, so a
//! module for which nothing pays stays as it is.

use crate::report::{Candidate, Choice};
use crate::runner::{AfterPass, BoundPass, RunError, RunOptions, RunSummary, run_pipeline};
use hlo_analysis::Analyses;
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
}

impl Ways {
    /// Runs all ways, and leaves the fastest one's result in `module` and `analyses`.
    ///
    /// # Errors
    /// A way failed, or the machine has another number of devices than the module. `module` is then as it was.
    pub fn run(
        &self,
        module: &mut Module,
        analyses: &mut Analyses,
        check: bool,
        after_pass: AfterPass<'_>,
    ) -> Result<(RunSummary, Choice), RunError> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(self.ways.len());
        for way in &self.ways {
            let (mut work, summary, params) = match way.after.and_then(|before| outcomes.get(before)) {
                Some(before) => (before.module.clone(), before.summary.clone(), before.analyses.params.clone()),
                None => (module.clone(), RunSummary::default(), analyses.params.clone()),
            };
            let mut own = Analyses::new(params);
            own.frequency_options = self.frequency_options;
            let options = RunOptions { check, after_pass: Some(&mut *after_pass) };
            let more = run_pipeline(&mut work, &mut own, &way.passes, options)?;
            own.frequency_options = self.frequency_options;
            let time = self.predict(&work, &mut own)?;
            outcomes.push(Outcome { module: work, analyses: own, summary: summary.and(more), time });
        }
        let mut chosen = self.ways.iter().position(|way| !way.is_reference).unwrap_or(0);
        for (number, outcome) in outcomes.iter().enumerate().filter(|(number, _)| !self.ways[*number].is_reference) {
            let bar_s = outcomes[chosen].time.critical_path_s * (1.0 - LEAST_GAIN);
            if outcome.time.critical_path_s < bar_s {
                chosen = number;
            }
        }
        let candidates = (0..outcomes.len()).map(|number| self.candidate(number, &outcomes[number])).collect();
        let choice = Choice { machine: self.machine.to_string(), candidates, chosen };
        let Some(outcome) = outcomes.into_iter().nth(chosen) else { return Ok((RunSummary::default(), choice)) };
        *module = outcome.module;
        *analyses = outcome.analyses;
        Ok((outcome.summary, choice))
    }

    /// The predicted time of a module on the machine.
    fn predict(&self, module: &Module, analyses: &mut Analyses) -> Result<ModuleTime, RunError> {
        let frequencies = analyses.frequencies(module);
        predict(module, &frequencies, &self.machine).map_err(|error| RunError {
            pass: "predicted time",
            diagnostics: vec![Diagnostic::about("machine", Entity::Module, error.to_string())],
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
            pipeline: pipeline.join(","),
            critical_path_s: outcome.time.critical_path_s,
            compute_s: outcome.time.compute_s,
            communication_s: outcome.time.communication_s,
            is_partial: outcome.time.is_partial,
            peak_bytes: peak_memory(&outcome.module).peak_bytes,
        }
    }
}
