//! Runs modules on the same inputs as a reference, and tells which outputs are further apart than is allowed.

use super::arguments::JudgeArgs;
use super::difference::{LeafDifference, Measure, Move, Moved, Tolerance, measures, moved, moves_of};
use super::pairing::{Candidate, Reference, Ways};
use super::sides::Sides;
use crate::Failure;
use crate::arrays::ChosenInputs;
use crate::console::Console;
use crate::elided;
use hlo_analysis::annotations::ParamFacts;
use hlo_analysis::program_kind::ProgramDecision;
use hlo_eval::{EvalError, EvalOptions, Inputs, Outputs};
use hlo_ir::Module;
use std::time::Instant;

/// A reference, and inputs with what it makes of them.
pub(crate) struct Judge<'a> {
    args: &'a JudgeArgs,
    chosen: ChosenInputs<'a>,
    /// Its name in messages.
    name: &'a str,
    reference: Reference<'a>,
    trials: Vec<Trial>,
    /// The sides that choices of the reference have taken in all trials.
    sides: Sides,
    deadline: Option<Instant>,
}

struct Trial {
    inputs: Inputs,
    outputs: Outputs,
    tolerance: Tolerance,
    /// How each output is measured.
    measures: Vec<Measure>,
    /// Whether the tolerance knows what moved inputs change.
    is_widened: bool,
}

/// What the trials of a module come to.
pub(crate) struct Verdict {
    /// The trial that the differences are of: the first one in which an output differs, else the last.
    pub trial: u64,
    /// One for each output leaf.
    pub leaves: Vec<LeafDifference>,
    /// The largest difference of all trials, as a share of what its output is measured by.
    pub largest_share: f64,
    /// On how many devices.
    pub n_devices: usize,
    /// Whether the outputs are those of a global program.
    pub is_global: bool,
    /// Trials in which what is hidden is counted: all but those with inputs of which NaN may come on purpose.
    pub n_counted: usize,
    /// A line about choices of which a side was taken in no trial.
    pub one_sided: Option<String>,
    /// How much NaN and infinities hide, for each output.
    pub hidden: Vec<Hidden>,
}

/// How many elements of an output are NaN in both programs, or infinite as all of it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Hidden {
    /// In the trial that hides the least, over all devices.
    n_least: usize,
    /// In the trial that hides the least but for that one; there may be one such as the first step of an optimizer.
    n_second: Option<usize>,
    /// Trials so far.
    n_trials: usize,
    /// Elements of the output, over all devices.
    pub n_elems: usize,
    /// In all trials together.
    pub n_in_all: usize,
}

impl Hidden {
    /// Whether so much is hidden in every trial that "the same" would say nothing.
    pub(crate) fn is_undecided(self) -> bool {
        self.n_hidden() as f64 > MOST_HIDDEN * self.n_elems as f64
    }

    /// How many elements all trials hide; of three and more, all but one.
    pub(crate) fn n_hidden(self) -> usize {
        self.n_second.filter(|_| self.n_trials > 2).unwrap_or(self.n_least)
    }

    /// The same after one more trial.
    fn after(self, leaf: &LeafDifference) -> Hidden {
        let new = leaf.n_hiding;
        let (n_least, n_second) = match self.n_trials {
            0 => (new, None),
            _ => (
                self.n_least.min(new),
                Some(self.n_second.map_or(self.n_least.max(new), |n| n.min(self.n_least.max(new)))),
            ),
        };
        let (n_trials, n_in_all) = (self.n_trials + 1, self.n_in_all + new);
        Hidden { n_least, n_second, n_trials, n_elems: leaf.n_elems, n_in_all }
    }
}

/// The share of an output's elements that may be hidden.
const MOST_HIDDEN: f64 = 0.01;

impl Verdict {
    /// Whether all outputs are near enough.
    pub(crate) fn is_same(&self) -> bool {
        self.leaves.iter().all(|leaf| leaf.first.is_none())
    }

    /// Whether no output differs, but too much of one of them is hidden.
    pub(crate) fn is_undecided(&self) -> bool {
        self.is_same() && self.hidden.iter().any(|hidden| hidden.is_undecided())
    }
}

impl<'a> Judge<'a> {
    /// Reads the flags; `promises` are what `--replicated-params` says of the reference's entry.
    ///
    /// # Errors
    /// Wrong usage.
    pub(crate) fn new(
        args: &'a JudgeArgs,
        name: &'a str,
        reference: Reference<'a>,
        promises: &ParamFacts,
    ) -> Result<Judge<'a>, Failure> {
        let chosen = ChosenInputs::parse(&args.inputs)?.with_promises(promises.clone());
        let deadline = args.timeout.and_then(|time| Instant::now().checked_add(time));
        let sides = Sides::of(reference.module());
        Ok(Judge { args, chosen, name, reference, trials: Vec::new(), sides, deadline })
    }

    /// Whether the inputs that the user names can be read.
    ///
    /// # Errors
    /// They cannot, or are not those of the reference.
    pub(crate) fn check_inputs(&self, console: &mut Console<'_>) -> Result<(), Failure> {
        match self.args.inputs.inputs {
            Some(_) => self.reference.inputs(&self.chosen, 0, console).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The same with another time to stop at.
    pub(crate) fn until(self, deadline: Option<Instant>) -> Judge<'a> {
        Judge { deadline, ..self }
    }

    /// Compares modules that run one after the other with the reference, until a trial differs.
    ///
    /// # Errors
    /// The signatures differ, the inputs do not fit, or an evaluation cannot go on.
    pub(crate) fn judge(
        &mut self,
        name: &str,
        (chain, program): (&[&Module], ProgramDecision),
        console: &mut Console<'_>,
    ) -> Result<Verdict, Failure> {
        let candidate = Candidate::beside(&self.reference, (chain, program)).map_err(|difference| {
            let reference = self.name;
            Failure::File(format!("`{name}` has another signature than `{reference}`: {difference}"))
        })?;
        let n_trials = self.args.trials.unwrap_or_else(|| self.chosen.n_trials(self.reference.module()));
        let (n_devices, is_global) = (self.reference.module().n_devices(), self.reference.is_global());
        let mut verdict = Verdict {
            trial: 0,
            leaves: Vec::new(),
            largest_share: 0.0,
            n_devices,
            is_global,
            n_counted: 0,
            one_sided: None,
            hidden: Vec::new(),
        };
        let mut ways: Option<Ways> = None;
        for trial in 0..n_trials {
            self.prepare(trial, console)?;
            let Some(Trial { inputs, outputs, tolerance, measures, is_widened }) = self.trials.get(trial as usize)
            else {
                break;
            };
            let (tolerance, mut measures, is_widened) = (*tolerance, measures.clone(), *is_widened);
            let ways = ways.get_or_insert_with(|| Ways::of(&candidate, outputs.leaves.len()));
            let wrong = |error: EvalError| elided::failure(name, &error);
            let found = candidate.run(inputs, &self.options()).map_err(wrong)?;
            let mut leaves = ways.differences(&candidate, (outputs, &found), (tolerance, &measures)).map_err(wrong)?;
            if !is_widened && leaves.iter().any(|leaf| leaf.first.is_some()) {
                let options = self.options();
                let reference = (self.name, &self.reference);
                for Move { share, is_meant } in moves_of(self.reference.module()) {
                    let moved_inputs = moved(inputs, share);
                    // Nothing is compared on moved inputs: their choices do not count.
                    let mut unseen = Sides::of(self.reference.module());
                    let (moved_outputs, _) = run_reference(reference, &moved_inputs, &options, &mut unseen)?;
                    let (inputs, outputs) = ([inputs, &moved_inputs], [outputs, &moved_outputs]);
                    measures = tolerance.widened(&measures, &Moved { share, inputs, outputs, is_meant: &is_meant });
                }
                leaves = ways.differences(&candidate, (outputs, &found), (tolerance, &measures)).map_err(wrong)?;
            }
            if let Some(kept) = self.trials.get_mut(trial as usize).filter(|_| !leaves.is_empty()) {
                kept.is_widened |= measures != kept.measures;
                kept.measures = measures;
            }
            verdict.hidden.resize(leaves.len(), Hidden::default());
            if !self.chosen.may_give_nan(self.reference.module(), trial) {
                for (hidden, leaf) in verdict.hidden.iter_mut().zip(&leaves) {
                    *hidden = hidden.after(leaf);
                }
                verdict.n_counted += 1;
            }
            let largest_share = leaves.iter().map(LeafDifference::share).fold(verdict.largest_share, f64::max);
            verdict = Verdict { trial, leaves, largest_share, ..verdict };
            if !verdict.is_same() {
                break;
            }
        }
        verdict.one_sided = self.sides.note(self.reference.module());
        Ok(verdict)
    }

    /// Makes the inputs of a trial and runs the reference on them, if that is not done.
    fn prepare(&mut self, trial: u64, console: &mut Console<'_>) -> Result<(), Failure> {
        if trial < self.trials.len() as u64 {
            return Ok(());
        }
        let inputs = self.reference.inputs(&self.chosen, trial, console)?;
        let options = self.options();
        let (outputs, parting) = run_reference((self.name, &self.reference), &inputs, &options, &mut self.sides)?;
        if let Some(parting) = parting.filter(|_| trial == 0) {
            console.say(&format!("note: `{}`: {parting}: each device is compared with its own\n", self.name));
        }
        let tolerance = match self.args.rtol {
            Some(share) => Tolerance { share, is_said: true, ..Tolerance::floor(self.args.atol) },
            None => Tolerance::floor(self.args.atol),
        };
        let tolerance = Tolerance { may_overflow: trial > 0 && self.chosen.draws_by_need(), ..tolerance };
        let measures = measures(&inputs, &outputs);
        self.trials.push(Trial { inputs, outputs, tolerance, measures, is_widened: self.args.rtol.is_some() });
        Ok(())
    }

    fn options(&self) -> EvalOptions {
        EvalOptions { max_steps: self.args.max_steps, deadline: self.deadline, ..EvalOptions::default() }
    }
}

/// The outputs of a reference on all devices, and where copies of a value part in a global program.
fn run_reference(
    (name, reference): (&str, &Reference<'_>),
    inputs: &Inputs,
    options: &EvalOptions,
    sides: &mut Sides,
) -> Result<(Outputs, Option<String>), Failure> {
    reference.run(inputs, options, sides).map_err(|error| elided::failure(name, &error))
}
