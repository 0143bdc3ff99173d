//! Minimizes a model: simplify, take it apart, bound each part, drop states, and begin again with what is left.
//!
//! [`minimize`] simplifies the model and works on its connected parts, always the one with the largest gap:
//! 1. A part that elimination solves cheaply is solved.
//! 2. Otherwise sweeps of messages bound it, descents from what they decode give assignments, and states that cannot be part of a
//!    better one are dropped. If many were dropped, the part is minimized anew from its simplification on.
//! 3. Otherwise elimination solves it if that fits at all.
//! 4. Otherwise messages between blocks of nodes bound it and drop states, the blocks small at first, then larger.
//! 5. Otherwise the search branches over the states of one node, depth first.
//!
//! Everything is counted in table entries read, so a search that stops for its effort stops at the same place each time. The bound
//! is valid wherever it stops.

mod parts;

use super::facts::{Phase, Search};
use super::model::{Model, connected_parts, has_empty_node};
use super::problem::{Cost, INFINITE};
use super::simplify::{Fold, Simplified, simplify};
use super::tables::{is_infinite, plus};
use parts::{Part, advance};

/// What is wanted of a model.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    /// An allowed assignment of the origins.
    pub start: Option<&'a [u32]>,
    /// Only assignments that cost less are looked for.
    pub cutoff: Cost,
    /// The gap that is small enough, as a part of the cost and what is outside of the model.
    pub gap: f64,
    pub outside: Cost,
    /// How many branchings and new beginnings are above it.
    pub depth: u32,
}

impl Task<'_> {
    /// The difference of bound and cost that is small enough.
    pub(super) fn slack(&self, cost: Cost) -> Cost {
        if is_infinite(cost) { 0 } else { (self.gap * cost.saturating_add(self.outside).max(0) as f64) as Cost }
    }

    /// Below what other assignments are worth looking for, where one costs `cost`.
    pub(super) fn near(&self, cost: Cost) -> Cost {
        cost - self.slack(cost)
    }
}

/// What came of a model.
pub(super) struct Outcome {
    /// No assignment costs less than this or the task's cutoff.
    pub bound: Cost,
    /// The best assignment of the origins, if one was found.
    pub states: Option<Vec<u32>>,
    /// What it costs; [`INFINITE`] without one.
    pub cost: Cost,
}

/// Minimizes a model whose origins are its nodes' own numbers.
pub(super) fn minimize(search: &mut Search, model: Model, task: Task) -> Outcome {
    let n_origins = model.nodes.len();
    let nothing = Outcome { bound: INFINITE, states: None, cost: INFINITE };
    if has_empty_node(&model) {
        return nothing;
    }
    let (n_states, n_steps) = (model.n_states(), search.n_steps);
    let Simplified::Rest(model, folds) = simplify(model, &mut search.n_steps) else { return nothing };
    search.note(Phase::Simplify, [n_states, model.n_states()], n_steps);
    let mut whole = Whole::new(model, folds, task);
    whole.improve(search);
    if search.is_out() {
        whole.parts.iter_mut().for_each(|part| part.find_some_states(search));
    }
    whole.finish(n_origins)
}

struct Whole<'a> {
    constant: Cost,
    parts: Vec<Part>,
    folds: Vec<Fold>,
    task: Task<'a>,
}

impl<'a> Whole<'a> {
    fn new(model: Model, folds: Vec<Fold>, task: Task<'a>) -> Self {
        let part = |model: Model| Part::new(model, task.start);
        let constant = model.constant;
        Whole { constant, parts: connected_parts(model).into_iter().map(part).collect(), folds, task }
    }

    fn bound(&self) -> Cost {
        self.parts.iter().fold(self.constant, |sum, part| plus(sum, part.bound))
    }

    fn cost(&self) -> Cost {
        self.parts.iter().fold(self.constant, |sum, part| plus(sum, part.cost))
    }

    fn improve(&mut self, search: &mut Search) {
        loop {
            let (bound, cost) = (self.bound(), self.cost());
            search.report(bound.min(self.task.cutoff), cost);
            if search.is_out() || bound >= self.task.cutoff || cost - bound <= self.task.slack(cost) {
                return;
            }
            let open = self.parts.iter().enumerate().filter(|(_, part)| part.is_open());
            let Some((number, _)) = open.max_by_key(|(_, part)| part.gap()) else { return };
            self.improve_part(search, number, bound);
        }
    }

    fn improve_part(&mut self, search: &mut Search, number: usize, bound: Cost) {
        let of_others = |parts: &[Part]| {
            let others = parts.iter().enumerate().filter(|(other, _)| *other != number);
            others.fold(self.constant, |sum, (_, part)| plus(sum, part.cost))
        };
        let (others_bound, others_cost) = (bound - self.parts[number].bound, of_others(&self.parts));
        let part = &mut self.parts[number];
        let outside = if is_infinite(others_cost) || is_infinite(part.cost) {
            0
        } else {
            part_of(others_cost + part.cost + self.task.outside, part.cost, others_cost - self.constant + part.cost)
                - part.cost
        };
        let cutoff = part.cost.min(self.task.cutoff - others_bound);
        let task = Task { start: None, cutoff, outside, ..self.task };
        let saved = search.outside;
        search.outside = saved.map(|(bound, cost)| (plus(bound, others_bound), plus(cost, others_cost)));
        advance(search, part, task);
        search.outside = saved;
    }

    fn finish(self, n_origins: usize) -> Outcome {
        let (bound, cost) = (self.bound(), self.cost());
        if is_infinite(cost) {
            return Outcome { bound, states: None, cost: INFINITE };
        }
        let mut assignment = vec![0; n_origins];
        for part in &self.parts {
            part.write_states(&mut assignment);
        }
        for fold in self.folds.iter().rev() {
            fold.write_state(&mut assignment);
        }
        Outcome { bound, states: Some(assignment), cost }
    }
}

/// `whole * cost / of`.
fn part_of(whole: Cost, cost: Cost, of: Cost) -> Cost {
    if of <= 0 { 0 } else { (i128::from(whole) * i128::from(cost) / i128::from(of)) as Cost }
}
