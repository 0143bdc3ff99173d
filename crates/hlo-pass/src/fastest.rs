//! Runs a module through several pipelines and keeps the result that is predicted to be fastest.
//!
//! The ways form a tree: each begins with the module as it came, or with what another way made. All are priced by
//! [`hlo_analysis::time::predict`] on the same machine. Another way than the first is taken only if it saves a share of the
//! time, so a module for which nothing pays stays as it is.

use crate::STACK_BYTES;
use crate::report::{Candidate, FailedWay, WayChoice};
use crate::runner::{BoundPass, RunError, RunOptions, RunSummary, run_pipeline};
use hlo_analysis::Analyses;
use hlo_analysis::frequency::FrequencyOptions;
use hlo_analysis::time::{Machine, ModuleTime, predict};
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use std::thread::ScopedJoinHandle;

/// The least share of the predicted time that a later way has to save, where ways change little.
pub const LEAST_GAIN: f64 = 1e-3;

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
    /// How many times the first way's peak memory another one may need; `None` if memory does not count.
    pub most_memory: Option<f64>,
    /// The least share of the predicted time that another way than the first has to save.
    pub least_gain: f64,
    /// Whether a way that fails is left out while another one can be taken.
    pub leaves_out_failures: bool,
}

/// What one way came to.
struct Outcome {
    module: Module,
    analyses: Analyses,
    summary: RunSummary,
    /// The way that made the same module: the one that it continues, where its passes changed nothing.
    same_as: Option<usize>,
    /// `None` until it is predicted.
    figures: Option<Result<Figures, RunError>>,
}

/// What each way came to, and what stopped some, by number.
type Outcomes = (Vec<Option<Outcome>>, Vec<(usize, RunError)>);

/// What is predicted of a module.
#[derive(Clone, Copy, Default)]
struct Figures {
    time: ModuleTime,
    peak_bytes: Option<u64>,
}

/// What there is to do for one way.
#[derive(Clone, Copy)]
enum Task {
    Run(usize),
    Predict(usize),
}

/// What a task came to.
enum Done {
    Run(usize, Box<Result<Outcome, RunError>>),
    Predict(usize, Option<Result<Figures, RunError>>),
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
        options: RunOptions<'_>,
    ) -> Result<(RunSummary, WayChoice), RunError> {
        let RunOptions { check, after_pass, measures_peaks } = options;
        let measures_peaks = measures_peaks || self.most_memory.is_some();
        let plain = || RunOptions { check, after_pass: None, measures_peaks };
        let (outcomes, errors) = match after_pass {
            Some(after_pass) => {
                self.one_by_one(module, analyses, RunOptions { after_pass: Some(after_pass), ..plain() })?
            }
            None => self.beside_each_other(module, analyses, &plain),
        };
        let failed = self.failures(&outcomes, errors)?;
        let (outcomes, figures) = self.predicted(outcomes, measures_peaks)?;
        let chosen = self.fastest(&figures);
        let known = figures.iter().enumerate().filter_map(|(number, figures)| Some((number, figures.as_ref()?)));
        let (numbers, candidates): (Vec<usize>, Vec<Candidate>) =
            known.map(|(number, figures)| (number, self.candidate(number, figures))).unzip();
        let place = numbers.iter().position(|&number| number == chosen).unwrap_or(0);
        let choice = WayChoice { machine: self.machine.to_string(), candidates, chosen: place, failed };
        let Some(outcome) = outcomes.into_iter().nth(chosen).flatten() else {
            return Ok((RunSummary::default(), choice));
        };
        *module = outcome.module;
        *analyses = outcome.analyses;
        Ok((outcome.summary, choice))
    }

    /// The passes that the module went through on the way with this name: those of the ways that it continues, then its own.
    /// Without a name all ways run one after the other.
    pub fn passes_of(&self, name: Option<&str>) -> Vec<&BoundPass> {
        let Some(name) = name else { return self.ways.iter().flat_map(|way| &way.passes).collect() };
        let mut ways: Vec<&Way> = Vec::new();
        let mut next = self.ways.iter().find(|way| way.name == name);
        while let Some(way) = next {
            ways.push(way);
            next = way.after.map(|before| &self.ways[before]);
        }
        ways.into_iter().rev().flat_map(|way| &way.passes).collect()
    }

    /// The first way, if no other saves the least share of its time. Else, of the ways that are as fast as the fastest by this measure,
    /// the one whose kernels and collectives together take least: what is hidden behind other work in a prediction may not be in
    /// a run. Ways that need more memory than they may are left out.
    fn fastest(&self, figures: &[Option<Figures>]) -> usize {
        let known = self.ways.iter().zip(figures).enumerate();
        let known =
            known.filter(|(_, (way, _))| !way.is_reference).filter_map(|(number, (_, f))| Some((number, f.as_ref()?)));
        let known: Vec<(usize, &Figures)> = known.collect();
        let first_bytes = known.first().and_then(|(_, figures)| figures.peak_bytes);
        let most_bytes = self.most_memory.zip(first_bytes).map(|(times, bytes)| times * bytes as f64);
        let fits = |figures: &Figures| match (most_bytes, figures.peak_bytes) {
            (Some(most), Some(own)) => own as f64 <= most,
            (_, _) => true,
        };
        let known: Vec<(usize, ModuleTime)> = known
            .iter()
            .filter(|(_, figures)| fits(figures))
            .map(|(number, figures)| (*number, figures.time))
            .collect();
        let Some(&(first, _)) = known.first() else { return 0 };
        let best_s = known.iter().map(|(_, time)| time.critical_path_s).fold(f64::INFINITY, f64::min);
        let mut as_fast = known.iter().filter(|(_, time)| time.critical_path_s * (1.0 - self.least_gain) <= best_s);
        if as_fast.clone().any(|&(number, _)| number == first) {
            return first;
        }
        let busy_s = |time: &ModuleTime| time.compute_s + time.communication_s;
        let least = as_fast.clone().map(|(_, time)| busy_s(time)).fold(f64::INFINITY, f64::min);
        as_fast.find(|(_, time)| busy_s(time) * (1.0 - self.least_gain) <= least).map_or(first, |(number, _)| *number)
    }

    fn one_by_one(
        &self,
        module: &Module,
        analyses: &Analyses,
        mut options: RunOptions<'_>,
    ) -> Result<Outcomes, RunError> {
        let mut outcomes: Vec<Option<Outcome>> = Vec::with_capacity(self.ways.len());
        let mut errors = Vec::new();
        for (number, way) in self.ways.iter().enumerate() {
            let before = way.after.map(|number| outcomes[number].as_ref());
            let options = options.again();
            let outcome = match before {
                // What it begins with could not be made.
                Some(None) => Ok(None),
                Some(Some(before)) => way.kept(self.continued(way, before, options)),
                None => way.kept(self.begun(way, (module, analyses), options)),
            };
            outcomes.push(match outcome {
                Ok(outcome) => outcome,
                Err(error) if self.leaves_out_failures => {
                    errors.push((number, error));
                    None
                }
                Err(error) => return Err(error),
            });
        }
        Ok((outcomes, errors))
    }

    /// The ways that failed, and why.
    ///
    /// # Errors
    /// No way that may be taken is left, or none may be left out.
    fn failures(
        &self,
        outcomes: &[Option<Outcome>],
        mut errors: Vec<(usize, RunError)>,
    ) -> Result<Vec<FailedWay>, RunError> {
        errors.sort_by_key(|(number, _)| *number);
        let is_left = self.ways.iter().zip(outcomes).any(|(way, outcome)| !way.is_reference && outcome.is_some());
        if self.leaves_out_failures && is_left {
            let failed = errors.into_iter().map(|(number, error)| {
                let reason = error.diagnostics.first().map(|diagnostic| diagnostic.message.clone()).unwrap_or_default();
                FailedWay { way: self.ways[number].name, reason: format!("{}: {reason}", error.pass) }
            });
            return Ok(failed.collect());
        }
        match errors.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(Vec::new()),
        }
    }

    /// In waves: each way runs as soon as the wave of the one that it continues is over. Beside them run the predictions of the wave
    /// before.
    fn beside_each_other(
        &self,
        module: &Module,
        analyses: &Analyses,
        options: &(dyn Fn() -> RunOptions<'static> + Sync),
    ) -> Outcomes {
        let mut outcomes: Vec<Option<Outcome>> = self.ways.iter().map(|_| None).collect();
        let mut errors: Vec<(usize, RunError)> = Vec::new();
        let mut tasks: Vec<Task> = self.continuing(None).map(Task::Run).collect();
        while !tasks.is_empty() {
            let results = in_threads(&tasks, |&task| match task {
                Task::Run(number) => {
                    Done::Run(number, Box::new(self.outcome(number, (module, analyses), &outcomes, options())))
                }
                Task::Predict(number) => {
                    let outcome = outcomes[number].as_ref();
                    Done::Predict(number, outcome.map(|outcome| self.figures(outcome, options().measures_peaks)))
                }
            });
            tasks.clear();
            for result in results {
                match result {
                    Done::Run(number, result) => match self.ways[number].kept(*result) {
                        Ok(None) => {}
                        Ok(outcome) => {
                            tasks.extend(self.continuing(Some(number)).map(Task::Run));
                            let is_new = outcome.as_ref().is_some_and(|outcome| outcome.same_as.is_none());
                            tasks.extend(is_new.then_some(Task::Predict(number)));
                            outcomes[number] = outcome;
                        }
                        Err(error) => errors.push((number, error)),
                    },
                    Done::Predict(number, figures) => {
                        if let Some(outcome) = &mut outcomes[number] {
                            outcome.figures = figures;
                        }
                    }
                }
            }
        }
        (outcomes, errors)
    }

    /// The ways that begin where another one ends.
    fn continuing(&self, before: Option<usize>) -> impl Iterator<Item = usize> {
        self.ways.iter().enumerate().filter(move |(_, way)| way.after == before).map(|(number, _)| number)
    }

    /// Runs a way, beginning with the module as it came or where another way ends.
    fn outcome(
        &self,
        number: usize,
        (module, analyses): (&Module, &Analyses),
        outcomes: &[Option<Outcome>],
        options: RunOptions<'_>,
    ) -> Result<Outcome, RunError> {
        let way = &self.ways[number];
        match way.after.and_then(|before| outcomes[before].as_ref()) {
            Some(before) => match self.same(number, outcomes) {
                Some(same) => Ok(same),
                None => self.continued(way, before, options),
            },
            None => self.begun(way, (module, analyses), options),
        }
    }

    /// Runs a way from where another one ends.
    fn continued(&self, way: &Way, before: &Outcome, options: RunOptions<'_>) -> Result<Outcome, RunError> {
        let outcome = self.begun(way, (&before.module, &before.analyses), options)?;
        let same_as = way.after.filter(|_| outcome.summary.reports.iter().all(|report| !report.changed));
        Ok(Outcome {
            summary: before.summary.clone().and(outcome.summary),
            same_as: same_as.map(|after| before.same_as.unwrap_or(after)),
            ..outcome
        })
    }

    /// Runs a way's own passes.
    fn begun(
        &self,
        way: &Way,
        (module, analyses): (&Module, &Analyses),
        options: RunOptions<'_>,
    ) -> Result<Outcome, RunError> {
        let (mut module, mut analyses) = (module.clone(), analyses.clone());
        analyses.frequency_options = self.frequency_options;
        let summary = run_pipeline(&mut module, &mut analyses, &way.passes, options)?;
        analyses.frequency_options = self.frequency_options;
        Ok(Outcome { module, analyses, summary, same_as: None, figures: None })
    }

    /// What a way comes to, if a known one has run the same passes on the same module.
    fn same(&self, number: usize, outcomes: &[Option<Outcome>]) -> Option<Outcome> {
        let way = &self.ways[number];
        let begins_with = |way: &Way| {
            let before = way.after?;
            Some(outcomes[before].as_ref()?.same_as.unwrap_or(before))
        };
        let is_same = |&other: &usize| {
            let other = &self.ways[other];
            begins_with(other) == begins_with(way) && other.pipeline == way.pipeline
        };
        let twin = (0..number).find(|other| outcomes[*other].is_some() && is_same(other))?;
        let (before, made) = (outcomes[way.after?].as_ref()?, outcomes[twin].as_ref()?);
        let n_before = made.summary.reports.len() - way.passes.len();
        let own = RunSummary {
            reports: made.summary.reports[n_before..].to_vec(),
            times: made.summary.times[n_before..].to_vec(),
        };
        Some(Outcome {
            module: made.module.clone(),
            analyses: made.analyses.clone(),
            summary: before.summary.clone().and(own),
            same_as: Some(made.same_as.unwrap_or(twin)),
            figures: None,
        })
    }

    /// The ways that could be made and predicted, with their figures. Ways that made the same module have the same.
    #[expect(clippy::type_complexity, reason = "two lists of equal length")]
    fn predicted(
        &self,
        mut outcomes: Vec<Option<Outcome>>,
        measures_peaks: bool,
    ) -> Result<(Vec<Option<Outcome>>, Vec<Option<Figures>>), RunError> {
        let mut all: Vec<Option<Figures>> = Vec::with_capacity(outcomes.len());
        for (way, slot) in self.ways.iter().zip(&mut outcomes) {
            let figures = slot.as_mut().and_then(|outcome| match outcome.same_as {
                Some(same) => all[same].map(Ok),
                None => Some(outcome.figures.take().unwrap_or_else(|| self.figures(outcome, measures_peaks))),
            });
            all.push(match figures {
                Some(Err(error)) if !way.is_reference => return Err(error),
                figures => figures.and_then(Result::ok),
            });
        }
        Ok((outcomes, all))
    }

    fn figures(&self, outcome: &Outcome, measures_peak: bool) -> Result<Figures, RunError> {
        let (mut analyses, mut beside) = (outcome.analyses.clone(), outcome.analyses.clone());
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            let peak = measures_peak.then(|| thread.spawn_scoped(scope, move || beside.memory(&outcome.module)));
            let time = self.predict(&outcome.module, &mut analyses)?;
            let peak_bytes = peak.map(|thread| match thread.map(ScopedJoinHandle::join) {
                Ok(Ok(memory)) => memory.peak_bytes,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // The system gives no more threads.
                Err(_) => analyses.memory(&outcome.module).peak_bytes,
            });
            Ok(Figures { time, peak_bytes })
        })
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

    fn candidate(&self, number: usize, &Figures { time, peak_bytes }: &Figures) -> Candidate {
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
            critical_path_s: time.critical_path_s,
            compute_s: time.compute_s,
            communication_s: time.communication_s,
            is_partial: time.is_partial,
            peak_bytes,
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
fn in_threads<T: Copy + Send + Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let Some((first, rest)) = items.split_first() else { return Vec::new() };
    let work = &work;
    std::thread::scope(|scope| {
        let spawn = |item| {
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
