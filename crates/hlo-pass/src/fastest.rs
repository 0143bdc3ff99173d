//! Runs a module through several pipelines and keeps the result that is predicted to be fastest.
//!
//! The ways form a tree: each begins with the module as it came, or with what another way made. All are priced by
//! [`hlo_analysis::time::predict`] on the same machine. Another way than the first is taken only if it saves a share of the
//! time, so a module for which nothing pays stays as it is.

use crate::report::{Candidate, FailedWay, WayChoice};
use crate::runner::{BoundPass, RunError, RunOptions, RunSummary, run_pipeline};
use crate::threads::in_threads;
use crate::{Deadline, MEMORY_LIMIT_RULE, PassError, Target};
use hlo_analysis::Analyses;
use hlo_analysis::frequency::Frequencies;
use hlo_analysis::time::{ModuleTime, predict};
use hlo_ir::Module;
use hlo_ir::diag::{Diagnostic, Entity};
use hlo_mesh::Machine;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The least share of the predicted time that a later way has to save, where ways change little.
pub const LEAST_GAIN: f64 = 1e-3;

/// Bytes beyond its share that a faster way may need: programs of a few KiB are not told apart by memory, which no device lacks.
pub const SPARE_BYTES: u64 = 64 << 10;

/// Gives what the compiler makes of a module for a machine before it runs it.
pub type AsCompiled = fn(&Module, &Machine) -> Option<Module>;

/// Peak memory that a way may need: so many times that of the first way, and so many bytes beyond.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemoryBound {
    /// Times the peak of the first way.
    pub times: f64,
    /// Bytes beyond.
    pub spare_bytes: u64,
}

/// One way to run a module.
pub struct Way {
    /// What it does, in a few words.
    pub name: &'static str,
    /// The way whose result it begins with; `None` is the module as it came.
    pub after: Option<usize>,
    /// Whether it is there to be compared with, and never taken.
    pub is_reference: bool,
    /// Whether it is taken only if every other way needs more memory than it may.
    pub is_last_resort: bool,
    /// Whether its passes keep the target's memory limit; if not, the limit only decides whether the way is left out.
    pub keeps_limit: bool,
    /// Its passes as `--pass` takes them.
    pub pipeline: String,
    /// Its passes.
    pub passes: Vec<BoundPass>,
}

/// The ways to choose from, and by what.
pub struct Ways {
    /// The ways; each comes after the one that it begins with.
    pub ways: Vec<Way>,
    /// The machine that runs the module, how often loops run where the module does not say, and the bytes that a way's module
    /// may take at its peak.
    pub target: Target,
    /// Gives the module that the compiler makes of a way's module, or `None` if it changes nothing. Times are those of that module.
    /// Absent where our own back end runs the module.
    pub as_compiled: Option<AsCompiled>,
    /// Whether the way with the least peak memory is taken, and the fastest only of several with the same.
    pub takes_least_memory: bool,
    /// How much peak memory a way may need; `None` if memory does not count.
    pub most_memory: Option<MemoryBound>,
    /// The least share of the predicted time that another way than the first has to save.
    pub least_gain: f64,
    /// Whether a way that fails is left out while another one can be taken.
    pub leaves_out_failures: bool,
}

/// What one way came to.
struct Outcome {
    module: Module,
    analyses: Analyses,
    /// What its own passes did.
    summary: RunSummary,
    /// The way that made the same module: the one that it continues, where its passes changed nothing.
    same_as: Option<usize>,
}

/// What is predicted of a module.
#[derive(Clone, Copy, Default)]
struct Figures {
    time: ModuleTime,
    peak_bytes: Option<u64>,
}

/// What each way came to, and what stopped some, by number.
type Outcomes = (Vec<Option<Outcome>>, Vec<(usize, RunError)>);

/// What there is to do for one way.
#[derive(Clone, Copy)]
enum Task {
    Run(usize),
    Predict(usize),
    /// Find the peak of memory.
    Measure(usize),
}

/// What is known of one way.
#[derive(Default)]
struct Slot {
    /// `None` where it could not be made.
    outcome: OnceLock<Option<Outcome>>,
    time: OnceLock<Result<ModuleTime, RunError>>,
    peak_bytes: OnceLock<u64>,
}

impl Slot {
    fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()?.as_ref()
    }
}

/// Ways on threads.
struct WaysOnThreads<'r> {
    ways: &'r Ways,
    /// The module as it came, and what is known of it.
    begin: (&'r Module, &'r Analyses),
    options: &'r (dyn Fn() -> RunOptions<'static> + Sync),
    slots: &'r [Slot],
    /// What stopped ways that may be taken.
    errors: Mutex<Vec<(usize, RunError)>>,
    /// The ways that need not be started any more.
    is_begun: Mutex<Vec<bool>>,
}

impl Ways {
    /// Runs all ways, and leaves the fastest one's result in `module` and `analyses`. Ways run beside each other on threads; with
    /// `after_pass`, one after the other.
    ///
    /// # Errors
    /// A way that may be taken failed, the time was over, or the machine has another number of devices than the module. `module` is then as it
    /// was.
    pub fn run(
        &self,
        module: &mut Module,
        analyses: &mut Analyses,
        options: RunOptions<'_>,
    ) -> Result<(RunSummary, WayChoice), RunError> {
        let RunOptions { check, after_pass, measures_peaks, deadline, .. } = options;
        let measures_peaks = measures_peaks
            || self.most_memory.is_some()
            || self.target.memory_limit.is_some()
            || self.takes_least_memory;
        let plain = || RunOptions { check, measures_peaks, deadline, ..RunOptions::default() };
        let slots: Vec<Slot> = self.ways.iter().map(|_| Slot::default()).collect();
        let mut errors = Vec::new();
        if let Some(after_pass) = after_pass {
            let options = RunOptions { after_pass: Some(after_pass), ..plain() };
            let (outcomes, failed) = self.one_by_one(module, analyses, options)?;
            errors.extend(failed);
            for (slot, outcome) in slots.iter().zip(outcomes) {
                let _ = slot.outcome.set(outcome);
            }
        }
        let on_threads = WaysOnThreads {
            ways: self,
            begin: (module, analyses),
            options: &plain,
            slots: &slots,
            errors: Mutex::default(),
            is_begun: Mutex::new(slots.iter().map(|slot| slot.outcome.get().is_some()).collect()),
        };
        errors.extend(on_threads.run());
        let least_failed = errors.iter().filter_map(|(_, error)| error.least_bytes).min();
        let mut failed = self.failures(&slots, errors)?;
        let (mut outcomes, mut figures) = self.predicted(slots)?;
        failed.extend(self.leave_out_large(module, &mut figures, least_failed)?);
        let chosen = self.fastest(&figures);
        let known = figures.iter().enumerate().filter_map(|(number, figures)| Some((number, figures.as_ref()?)));
        let (numbers, candidates): (Vec<usize>, Vec<Candidate>) =
            known.map(|(number, figures)| (number, self.candidate(number, figures))).unzip();
        let place = numbers.iter().position(|&number| number == chosen).unwrap_or(0);
        let choice = WayChoice { machine: self.target.machine.to_string(), candidates, chosen: place, failed };
        let mut summary = RunSummary::default();
        for (place, number) in self.chain_to(chosen).into_iter().rev().enumerate() {
            let Some(outcome) = outcomes[number].take() else { return Ok((RunSummary::default(), choice)) };
            if place == 0 {
                (*module, *analyses) = (outcome.module, outcome.analyses);
            }
            summary = outcome.summary.and(summary);
        }
        Ok((summary, choice))
    }

    /// The numbers of the ways that a way continues, the first one first, and its own.
    fn chain_to(&self, number: usize) -> Vec<usize> {
        let mut numbers: Vec<usize> =
            std::iter::successors(Some(number), |&number| self.ways.get(number)?.after).collect();
        numbers.reverse();
        numbers
    }

    /// The passes that the module went through on the way with this name: those of the ways that it continues, then its own.
    /// Without a name all ways run one after the other. Each pass with what it runs for.
    pub fn passes_of(&self, name: Option<&str>) -> Vec<(&BoundPass, Target)> {
        let of = |way: &'_ Way| -> Target { self.target_of(way) };
        let ways = self.numbers_of(name).into_iter().map(|number| &self.ways[number]);
        ways.flat_map(|way| way.passes.iter().map(move |pass| (pass, of(way)))).collect()
    }

    /// As [`Ways::passes_of`].
    pub fn into_passes_of(mut self, name: Option<&str>) -> Vec<(BoundPass, Target)> {
        let mut passes = Vec::new();
        for number in self.numbers_of(name) {
            let target = self.target_of(&self.ways[number]);
            let own = std::mem::take(&mut self.ways[number].passes);
            passes.extend(own.into_iter().map(|pass| (pass, target.clone())));
        }
        passes
    }

    /// The ways that run for the one with this name; all without a name.
    fn numbers_of(&self, name: Option<&str>) -> Vec<usize> {
        let Some(name) = name else { return (0..self.ways.len()).collect() };
        let number = self.ways.iter().position(|way| way.name == name);
        number.map_or_else(Vec::new, |number| self.chain_to(number))
    }

    /// Forgets the figures of ways that take more than the limit at their peak, and says so. `least_failed` is the
    /// least peak of the ways that failed because of it.
    ///
    /// # Errors
    /// No way is left.
    fn leave_out_large(
        &self,
        module: &Module,
        figures: &mut [Option<Figures>],
        least_failed: Option<u64>,
    ) -> Result<Vec<FailedWay>, RunError> {
        let Some(limit) = self.target.memory_limit else { return Ok(Vec::new()) };
        let (mut failed, mut least) = (Vec::new(), least_failed.unwrap_or(u64::MAX));
        for (way, figures) in self.ways.iter().zip(figures.iter_mut()).filter(|(way, _)| !way.is_reference) {
            let peak = figures.as_ref().and_then(|figures| figures.peak_bytes).filter(|&bytes| bytes > limit);
            if let Some(bytes) = peak {
                least = least.min(bytes);
                *figures = None;
                let reason = format!("memory: {bytes} bytes at the peak, more than the limit of {limit}");
                failed.push(FailedWay { way: way.name, reason });
            }
        }
        let is_left = self.ways.iter().zip(figures.iter()).any(|(way, figures)| !way.is_reference && figures.is_some());
        if is_left || failed.is_empty() {
            return Ok(failed);
        }
        let text = format!(
            "expected a program that takes at most {limit} bytes at its peak, found {least} bytes at least: give a larger \
             memory-limit; `hlo-opt plan zero` (the step of one device) and `hlo-opt plan parallel` (a global step) say what takes less"
        );
        let diagnostics = vec![Diagnostic::about(MEMORY_LIMIT_RULE, Entity::Module, text)];
        let module = Box::new(module.clone());
        Err(RunError { pass: "memory limit", diagnostics, least_bytes: Some(least), module })
    }

    /// The first way, if no other saves the least share of its time. Else, of the ways that are as fast as the fastest by this measure,
    /// the one whose kernels and collectives together take least: what is hidden behind other work in a prediction may not be in
    /// a run. Ways that need more memory than they may are left out, or all that need more than the least. If that leaves none, the last
    /// resort is taken, or else the way that needs least.
    fn fastest(&self, figures: &[Option<Figures>]) -> usize {
        let known = self.ways.iter().zip(figures).enumerate();
        let known =
            known.filter(|(_, (way, _))| !way.is_reference).filter_map(|(number, (_, f))| Some((number, f.as_ref()?)));
        let known: Vec<(usize, &Figures)> = known.collect();
        let first_bytes = figures.iter().flatten().next().and_then(|figures| figures.peak_bytes);
        let most_bytes = self
            .most_memory
            .zip(first_bytes)
            .map(|(bound, bytes)| bound.times * bytes as f64 + bound.spare_bytes as f64);
        let most_bytes = if self.takes_least_memory {
            let least = known.iter().filter_map(|(_, figures)| figures.peak_bytes).min();
            least.map(|bytes| bytes as f64 * (1.0 + self.least_gain))
        } else {
            most_bytes
        };
        let fits = |figures: &Figures| match (most_bytes, figures.peak_bytes) {
            (Some(most), Some(own)) => own as f64 <= most,
            (_, _) => true,
        };
        let of_least_memory = known.iter().filter_map(|(number, f)| Some((f.peak_bytes?, *number))).min();
        let known: Vec<(usize, ModuleTime)> = known
            .iter()
            .filter(|(number, figures)| !self.ways[*number].is_last_resort && fits(figures))
            .map(|(number, figures)| (*number, figures.time))
            .collect();
        let last_resort = self.ways.iter().position(|way| way.is_last_resort);
        if let (true, Some(number)) = (known.is_empty(), last_resort) {
            return number;
        }
        let Some(&(first, _)) = known.first() else { return of_least_memory.map_or(0, |(_, number)| number) };
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
                Some(Some(before)) => way.kept(self.continued(way, before, options).map(Some)),
                None => way.kept(self.begun(way, (module, analyses), options).map(Some)),
            };
            outcomes.push(match outcome {
                Ok(outcome) => outcome,
                Err(error) if self.leaves_out_failures && !error.is_out_of_time() => {
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
    /// No way that may be taken is left, or none may be left out. Ways that had no time are not left out: which ones those are is chance.
    fn failures(&self, slots: &[Slot], mut errors: Vec<(usize, RunError)>) -> Result<Vec<FailedWay>, RunError> {
        errors.sort_by_key(|(number, _)| *number);
        if let Some(place) = errors.iter().position(|(_, error)| error.is_out_of_time()) {
            return Err(errors.swap_remove(place).1);
        }
        let is_left = self.ways.iter().zip(slots).any(|(way, slot)| !way.is_reference && slot.outcome().is_some());
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

    /// Runs a way from where another one ends.
    fn continued(&self, way: &Way, before: &Outcome, options: RunOptions<'_>) -> Result<Outcome, RunError> {
        let outcome = self.begun(way, (&before.module, &before.analyses), options)?;
        let same_as = way.after.filter(|_| outcome.summary.reports.iter().all(|report| !report.changed));
        Ok(Outcome { same_as: same_as.map(|after| before.same_as.unwrap_or(after)), ..outcome })
    }

    /// The target of a way's passes.
    pub fn target_of(&self, way: &Way) -> Target {
        Target { memory_limit: self.target.memory_limit.filter(|_| way.keeps_limit), ..self.target.clone() }
    }

    /// Runs a way's own passes.
    fn begun(
        &self,
        way: &Way,
        (module, analyses): (&Module, &Analyses),
        mut options: RunOptions<'_>,
    ) -> Result<Outcome, RunError> {
        let (mut module, mut analyses) = (module.clone(), analyses.clone());
        let target = self.target_of(way);
        let options = RunOptions { target: Some(&target), ..options.again() };
        let summary = run_pipeline(&mut module, &mut analyses, &way.passes, options)?;
        Ok(Outcome { module, analyses, summary, same_as: None })
    }

    /// The ways that could be made and predicted, with their figures. Ways that made the same module have the same.
    #[expect(clippy::type_complexity, reason = "two lists of equal length")]
    fn predicted(&self, slots: Vec<Slot>) -> Result<(Vec<Option<Outcome>>, Vec<Option<Figures>>), RunError> {
        let (mut outcomes, mut all) = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
        for (way, slot) in self.ways.iter().zip(slots) {
            let outcome = slot.outcome.into_inner().flatten();
            let figures = match (outcome.as_ref().and_then(|outcome| outcome.same_as), slot.time.into_inner()) {
                (Some(same), _) => all[same],
                (None, Some(Ok(time))) => Some(Figures { time, peak_bytes: slot.peak_bytes.into_inner() }),
                (None, Some(Err(error))) if !way.is_reference || error.is_out_of_time() => return Err(error),
                (None, Some(Err(_)) | None) => None,
            };
            outcomes.push(outcome);
            all.push(figures);
        }
        Ok((outcomes, all))
    }

    /// The predicted time of a module on the machine.
    fn predict(&self, module: &Module, analyses: &mut Analyses, deadline: Deadline) -> Result<ModuleTime, RunError> {
        let fail = |diagnostic| RunError {
            pass: "predicted time",
            diagnostics: vec![diagnostic],
            least_bytes: None,
            module: Box::new(module.clone()),
        };
        deadline.check().map_err(|error| fail(PassError::from(error).diagnostic))?;
        let compiled = self.as_compiled.and_then(|compile| compile(module, &self.target.machine));
        let frequencies = match &compiled {
            Some(compiled) => Arc::new(Frequencies::compute(compiled, self.target.frequency)),
            None => analyses.frequencies(module),
        };
        predict(compiled.as_ref().unwrap_or(module), &frequencies, &self.target.machine)
            .map_err(|error| fail(Diagnostic::about("machine-size", Entity::Module, error.to_string())))
    }

    fn candidate(&self, number: usize, &Figures { time, peak_bytes }: &Figures) -> Candidate {
        let pipelines = self.chain_to(number).into_iter().map(|number| self.ways[number].pipeline.as_str());
        let pipeline: Vec<&str> = pipelines.filter(|text| !text.is_empty()).collect();
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
    fn kept(&self, result: Result<Option<Outcome>, RunError>) -> Result<Option<Outcome>, RunError> {
        match result {
            Ok(outcome) => Ok(outcome),
            Err(error) if self.is_reference && !error.is_out_of_time() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl WaysOnThreads<'_> {
    /// Runs, predicts and measures all ways: each begins as soon as the one that it continues has ended.
    /// Gives what stopped ways that may be taken, by number.
    fn run(self) -> Vec<(usize, RunError)> {
        let is_new = |number: &usize| self.slots[*number].outcome().is_some_and(|made| made.same_as.is_none());
        let known = (0..self.slots.len()).filter(is_new).flat_map(|number| self.figures_wanted(number));
        let tasks: Vec<Task> = self.begin_ready().into_iter().chain(known).collect();
        in_threads(tasks, |task| self.rank(*task), |task| self.work(task));
        self.errors.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// The tasks with the least rank come first: ways before figures, and of the ways those that most others continue.
    fn rank(&self, task: Task) -> usize {
        let n_ways = self.slots.len();
        match task {
            Task::Run(number) => n_ways - self.n_behind(number),
            Task::Predict(_) => n_ways + 1,
            Task::Measure(_) => n_ways + 2,
        }
    }

    /// How many ways stand one behind the other behind a way.
    fn n_behind(&self, number: usize) -> usize {
        let behind = (number + 1..self.slots.len()).filter(|&other| self.ways.ways[other].after == Some(number));
        behind.map(|other| 1 + self.n_behind(other)).max().unwrap_or(0)
    }

    /// Does a task; what can be done then.
    fn work(&self, task: Task) -> Vec<Task> {
        let measured = |number: usize| self.slots[number].outcome().map(|made| (made, &self.slots[number]));
        match task {
            Task::Run(number) => {
                let outcome = self.ways.ways[number].kept(self.outcome(number)).unwrap_or_else(|error| {
                    self.errors.lock().unwrap_or_else(PoisonError::into_inner).push((number, error));
                    None
                });
                let is_new = outcome.as_ref().is_some_and(|outcome| outcome.same_as.is_none());
                let _ = self.slots[number].outcome.set(outcome);
                let figures = is_new.then(|| self.figures_wanted(number)).into_iter().flatten();
                return self.begin_ready().into_iter().chain(figures).collect();
            }
            Task::Predict(number) => {
                if let Some((made, slot)) = measured(number) {
                    let deadline = (self.options)().deadline;
                    slot.time.get_or_init(|| self.ways.predict(&made.module, &mut made.analyses.clone(), deadline));
                }
            }
            Task::Measure(number) => {
                if let Some((made, slot)) = measured(number) {
                    slot.peak_bytes.get_or_init(|| made.analyses.clone().memory(&made.module).peak_bytes);
                }
            }
        }
        Vec::new()
    }

    fn figures_wanted(&self, number: usize) -> Vec<Task> {
        let measure = (self.options)().measures_peaks.then_some(Task::Measure(number));
        std::iter::once(Task::Predict(number)).chain(measure).collect()
    }

    /// The ways that can run now and have not begun. One that will come to the same as an earlier one waits for it.
    fn begin_ready(&self) -> Vec<Task> {
        let mut is_begun = self.is_begun.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |number: usize| self.slots[number].outcome.get().is_some();
        let is_ready = |number: &usize| {
            let after = self.ways.ways[*number].after;
            after.is_none_or(is_known) && self.twins(*number).all(is_known)
        };
        let ready = (0..self.slots.len()).filter(|&number| !is_begun[number]).filter(is_ready).collect::<Vec<_>>();
        ready.iter().for_each(|&number| is_begun[number] = true);
        ready.into_iter().map(Task::Run).collect()
    }

    /// The way whose module a way begins with; `None` is the module as it came, or one that is not known.
    fn begins_with(&self, number: usize) -> Option<usize> {
        let before = self.ways.ways[number].after?;
        Some(self.slots[before].outcome()?.same_as.unwrap_or(before))
    }

    /// The earlier ways that run the same passes on the same module.
    fn twins(&self, number: usize) -> impl Iterator<Item = usize> {
        let (way, begin) = (&self.ways.ways[number], self.begins_with(number));
        let others = (0..number).filter(move |_| begin.is_some());
        others.filter(move |&other| self.begins_with(other) == begin && self.ways.ways[other].pipeline == way.pipeline)
    }

    /// Runs a way, beginning with the module as it came or where another way ends; `None` if that could not be made.
    fn outcome(&self, number: usize) -> Result<Option<Outcome>, RunError> {
        let way = &self.ways.ways[number];
        let outcome = match way.after.map(|before| self.slots[before].outcome()) {
            Some(None) => return Ok(None),
            Some(Some(before)) => match self.same(number) {
                Some(same) => Ok(same),
                None => self.ways.continued(way, before, (self.options)()),
            },
            None => self.ways.begun(way, self.begin, (self.options)()),
        };
        outcome.map(Some)
    }

    /// What a way comes to, if a known one has run the same passes on the same module.
    fn same(&self, number: usize) -> Option<Outcome> {
        let (twin, made) = self.twins(number).find_map(|twin| Some((twin, self.slots[twin].outcome()?)))?;
        let Outcome { module, analyses, summary, same_as } = made;
        Some(Outcome {
            module: module.clone(),
            analyses: analyses.clone(),
            summary: summary.clone(),
            same_as: Some(same_as.unwrap_or(twin)),
        })
    }
}
