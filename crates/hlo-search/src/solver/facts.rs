//! What a search has used and found so far, by phase.

use super::eliminate::EliminationLimits;
use super::problem::{Cost, INFINITE};
use super::tables::is_infinite;

/// A kind of step of the solver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// States and nodes that go without a look at bounds.
    Simplify,
    /// A solution in which what repeats is tied.
    Tie,
    /// Messages, descents, and the states that they drop.
    Sweep,
    Eliminate,
    /// Messages between blocks of nodes.
    Block,
    Branch,
    /// Prices of limits.
    Price,
}

/// What the steps of one phase did together, between steps of other phases.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PhaseFact {
    pub phase: Phase,
    pub n_runs: u64,
    /// Sums over the runs: of the states that they were given, and of those that they left.
    pub n_states_before: u64,
    pub n_states_after: u64,
    /// Table entries read.
    pub n_steps: u64,
    /// Of the whole, as far as it was known when the phase ended.
    pub lower_bound: Cost,
    /// Likewise; [`INFINITE`] without an assignment.
    pub cost: Cost,
}

/// Up to what size parts are solved by elimination.
#[derive(Clone, Copy)]
pub(super) struct Eliminations {
    /// Without a look at bounds.
    pub first: EliminationLimits,
    /// When bounds drop no more states.
    pub last: EliminationLimits,
}

impl Default for Eliminations {
    fn default() -> Self {
        Eliminations {
            first: EliminationLimits { n_entries: 1 << 18, n_steps: 1 << 20 },
            last: EliminationLimits { n_entries: 1 << 28, n_steps: 1 << 32 },
        }
    }
}

/// After so many facts a search counts all others in the last one.
const MOST_FACTS: usize = 64;

/// What a search has used, and when it is to stop.
pub(super) struct Search<'a> {
    pub effort: u64,
    pub n_steps: u64,
    pub is_over: &'a dyn Fn() -> bool,
    /// Whether `is_over` ended it.
    pub was_stopped: bool,
    pub eliminations: Eliminations,
    pub phases: Vec<PhaseFact>,
    /// Told the bound and the cost of the whole as they get better.
    pub progress: &'a dyn Fn(Cost, Cost),
    /// The bound and the cost of what is not in the model at hand; none where the model is not a part of the whole, but a case of it.
    pub outside: Option<(Cost, Cost)>,
    /// The best bound and cost of the whole that were reported.
    pub best: (Cost, Cost),
}

impl<'a> Search<'a> {
    pub(super) fn new(effort: u64, is_over: &'a dyn Fn() -> bool, progress: &'a dyn Fn(Cost, Cost)) -> Self {
        Search {
            effort,
            n_steps: 0,
            is_over,
            was_stopped: false,
            eliminations: Eliminations::default(),
            phases: Vec::new(),
            progress,
            outside: Some((0, 0)),
            best: (-INFINITE, INFINITE),
        }
    }

    /// Whether the search is to stop.
    pub(super) fn is_out(&mut self) -> bool {
        self.was_stopped = self.was_stopped || (self.is_over)();
        self.was_stopped || self.n_steps >= self.effort
    }

    /// Tells the bound and the cost of the model at hand.
    pub(super) fn report(&mut self, bound: Cost, cost: Cost) {
        let Some((outside_bound, outside_cost)) = self.outside else { return };
        let whole_cost = if is_infinite(cost) || is_infinite(outside_cost) { INFINITE } else { cost + outside_cost };
        let whole_bound = if is_infinite(bound) { whole_cost } else { (bound + outside_bound).min(whole_cost) };
        let best = (self.best.0.max(whole_bound), self.best.1.min(whole_cost));
        if best != self.best {
            self.best = best;
            (self.progress)(best.0.min(best.1), best.1);
        }
    }

    /// Runs a step for a model that is a case of the whole, or changed, so that its bounds are none of the whole.
    pub(super) fn aside<T>(&mut self, run: impl FnOnce(&mut Self) -> T) -> T {
        let outside = self.outside.take();
        let result = run(self);
        self.outside = outside;
        result
    }

    /// Runs a step that may use no more than an eighth of the effort that is left, and no more than `most`.
    pub(super) fn with_little_effort<T>(&mut self, most: u64, run: impl FnOnce(&mut Self) -> T) -> T {
        let effort = self.effort;
        let left = effort.saturating_sub(self.n_steps);
        self.effort = effort.min(self.n_steps.saturating_add((left / 8).min(most)));
        let result = run(self);
        self.effort = effort;
        result
    }

    /// Adds a run to the facts; `n_steps_before` is what was used when it began.
    pub(super) fn note(&mut self, phase: Phase, n_states: [usize; 2], n_steps_before: u64) {
        let [n_states_before, n_states_after] = n_states.map(|n| n as u64);
        let n_steps = self.n_steps - n_steps_before;
        let (lower_bound, cost) = self.best;
        let is_full = self.phases.len() >= MOST_FACTS;
        match self.phases.last_mut() {
            Some(last) if last.phase == phase || is_full => {
                last.n_runs += 1;
                last.n_states_before += n_states_before;
                last.n_states_after += n_states_after;
                last.n_steps += n_steps;
                (last.lower_bound, last.cost) = (lower_bound, cost);
            }
            _ => {
                let n_runs = 1;
                self.phases.push(PhaseFact {
                    phase,
                    n_runs,
                    n_states_before,
                    n_states_after,
                    n_steps,
                    lower_bound,
                    cost,
                });
            }
        }
    }
}
