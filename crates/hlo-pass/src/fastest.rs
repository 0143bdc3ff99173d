//! Runs a module through several pipelines and keeps the result that is predicted to be fastest.
//!
//! The ways form a tree: each begins with the module as it came, or with what another way made. All are priced by
//! [`hlo_analysis::time::predict`] on the same machine. A later way is taken only if it saves [`LEAST_GAIN`] of the time, so a
//! module for which nothing pays stays as it is.

use crate::STACK_BYTES;
use crate::report::{Candidate, WayChoice};
use crate::runner::{AfterPass, BoundPass, RunError, RunOptions, RunSummary, run_pipeline};
use hlo_analysis::Analyses;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::time::{Machine, ModuleTime, predict};
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use std::thread::ScopedJoinHandle;

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
    /// Whether its passes changed nothing of what it continues.
    is_as_before: bool,
    time: ModuleTime,
    peak_bytes: u64,
}

impl Ways {
    /// Runs all ways, and leaves the fastest one's result in `module` and `analyses`. Ways run beside each other on threads; with
    /// `after_pass`, one after the other.
    ///
    /// # Errors
    /// A way that may be taken failed, or the machine has another number of devices than the module. `module` is then as it was.
    pub fn run(
        &self,
        module: &mut Module,
        analyses: &mut Analyses,
        check: bool,
        after_pass: Option<AfterPass<'_>>,
    ) -> Result<(RunSummary, WayChoice), RunError> {
        let mut outcomes = match after_pass {
            Some(after_pass) => self.one_by_one(module, analyses, check, after_pass)?,
            None => self.beside_each_other(module, analyses, check)?,
        };
        self.price(&mut outcomes)?;
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

    fn one_by_one(
        &self,
        module: &Module,
        analyses: &Analyses,
        check: bool,
        after_pass: AfterPass<'_>,
    ) -> Result<Vec<Option<Outcome>>, RunError> {
        let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(self.ways.len());
        for way in &self.ways {
            let before = way.after.map(|number| outcomes[number].as_ref());
            let options = RunOptions { check, after_pass: Some(&mut *after_pass) };
            let outcome = match before {
                // What it begins with could not be made.
                Some(None) => None,
                Some(Some(before)) => way.kept(self.continued(way, before, options))?,
                None => way.kept(self.begun(way, module, analyses, options))?,
            };
            outcomes.push(outcome);
        }
        Ok(outcomes)
    }

    /// In waves: each way runs as soon as the wave of the one that it continues is over.
    fn beside_each_other(
        &self,
        module: &Module,
        analyses: &Analyses,
        check: bool,
    ) -> Result<Vec<Option<Outcome>>, RunError> {
        let mut outcomes: Vec<Option<Outcome>> = self.ways.iter().map(|_| None).collect();
        let mut errors: Vec<(usize, RunError)> = Vec::new();
        let mut wave: Vec<usize> = self.continuing(None).collect();
        while !wave.is_empty() {
            let results = in_threads(&wave, |number| {
                let (way, options) = (&self.ways[number], RunOptions { check, after_pass: None });
                match way.after.and_then(|before| outcomes[before].as_ref()) {
                    Some(before) => self.continued(way, before, options),
                    None => self.begun(way, module, analyses, options),
                }
            });
            let mut next = Vec::new();
            for (number, result) in wave.into_iter().zip(results) {
                match self.ways[number].kept(result) {
                    Ok(None) => {}
                    Ok(outcome) => {
                        outcomes[number] = outcome;
                        next.extend(self.continuing(Some(number)));
                    }
                    Err(error) => errors.push((number, error)),
                }
            }
            wave = next;
        }
        match errors.into_iter().min_by_key(|(number, _)| *number) {
            Some((_, error)) => Err(error),
            None => Ok(outcomes),
        }
    }

    /// The ways that begin where another one ends.
    fn continuing(&self, before: Option<usize>) -> impl Iterator<Item = usize> {
        self.ways.iter().enumerate().filter(move |(_, way)| way.after == before).map(|(number, _)| number)
    }

    /// Runs a way that begins with the module as it came.
    fn begun(
        &self,
        way: &Way,
        module: &Module,
        analyses: &Analyses,
        options: RunOptions<'_>,
    ) -> Result<Outcome, RunError> {
        let outcome = self.unpriced(way, module.clone(), analyses.clone(), options)?;
        Ok(Outcome { is_as_before: false, ..outcome })
    }

    /// Runs a way from where another one ends.
    fn continued(&self, way: &Way, before: &Outcome, options: RunOptions<'_>) -> Result<Outcome, RunError> {
        let outcome = self.unpriced(way, before.module.clone(), before.analyses.clone(), options)?;
        Ok(Outcome { summary: before.summary.clone().and(outcome.summary), ..outcome })
    }

    fn unpriced(
        &self,
        way: &Way,
        mut module: Module,
        mut analyses: Analyses,
        options: RunOptions<'_>,
    ) -> Result<Outcome, RunError> {
        analyses.frequency_options = self.frequency_options;
        let summary = run_pipeline(&mut module, &mut analyses, &way.passes, options)?;
        analyses.frequency_options = self.frequency_options;
        let is_as_before = summary.reports.iter().all(|report| !report.changed);
        Ok(Outcome { module, analyses, summary, is_as_before, time: ModuleTime::default(), peak_bytes: 0 })
    }

    /// Predicts times and peaks, each way on a thread of its own. A way whose passes change nothing has the figures of the one
    /// that it continues.
    fn price(&self, outcomes: &mut [Option<Outcome>]) -> Result<(), RunError> {
        let is_new = |&number: &usize| outcomes[number].as_ref().is_some_and(|outcome| !outcome.is_as_before);
        let new: Vec<usize> = (0..outcomes.len()).filter(is_new).collect();
        let figures = in_threads(&new, |number| outcomes[number].as_ref().map(|outcome| self.figures(outcome)));
        let mut priced: Vec<Option<(ModuleTime, u64)>> = vec![None; outcomes.len()];
        for (number, figures) in new.into_iter().zip(figures) {
            match figures {
                Some(Ok(figures)) => priced[number] = Some(figures),
                Some(Err(_)) | None if self.ways[number].is_reference => {}
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        for (number, outcome) in outcomes.iter_mut().enumerate() {
            if outcome.as_ref().is_some_and(|outcome| outcome.is_as_before) {
                priced[number] = self.ways[number].after.and_then(|before| priced[before]);
            }
            *outcome = outcome.take().zip(priced[number]).map(|(outcome, (time, peak_bytes))| Outcome {
                time,
                peak_bytes,
                ..outcome
            });
        }
        Ok(())
    }

    fn figures(&self, outcome: &Outcome) -> Result<(ModuleTime, u64), RunError> {
        let mut analyses = outcome.analyses.clone();
        let time = self.predict(&outcome.module, &mut analyses)?;
        Ok((time, analyses.peak_bytes(&outcome.module)))
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

impl Way {
    /// What becomes of a way's result. What stops a way that is never taken does not stop the others.
    fn kept(&self, result: Result<Outcome, RunError>) -> Result<Option<Outcome>, RunError> {
        match result {
            Ok(outcome) => Ok(Some(outcome)),
            Err(_) if self.is_reference => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Results of `work` on each item, in their order; each on a thread of its own but the first.
fn in_threads<R: Send>(items: &[usize], work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let Some((&first, rest)) = items.split_first() else { return Vec::new() };
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |&item: &usize| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            (item, thread.spawn_scoped(scope, move || work(item)))
        };
        let others: Vec<_> = rest.iter().map(spawn).collect();
        let mut results = vec![work(first)];
        results.extend(others.into_iter().map(|(item, thread)| match thread.map(ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            // The system gives no more threads.
            Err(_) => work(item),
        }));
        results
    })
}
