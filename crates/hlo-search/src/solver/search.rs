//! Minimizes a model: simplify, take it apart, bound each part, drop states, and begin again with what is left.
//!
//! [`minimize`] simplifies the model and works on its connected parts, always the one with the largest gap:
//! 1. A part that elimination solves cheaply is solved.
//! 2. Otherwise sweeps of messages bound it, descents from what they decode give assignments, and states that cannot be part of a
//!    better one are dropped. If many were dropped, the part is minimized anew from its simplification on.
//! 3. Otherwise elimination solves it if that fits at all, or the search branches over the states of one node, depth first.
//!
//! Everything is counted in table entries read, so a search that stops for its effort stops at the same place each time. The bound
//! is valid wherever it stops.

use super::descent::Descent;
use super::eliminate::{EliminationLimits, EliminationPlan};
use super::model::{Incidence, Model, has_empty_node};
use super::problem::{Cost, INFINITE};
use super::simplify::{Fold, Simplified, restrict_node, simplify};
use super::sweep::{Closed, Sweeper};
use super::tables::{is_infinite, plus};

/// What a search has used, and when it is to stop.
pub(super) struct Search<'a> {
    pub effort: u64,
    pub n_steps: u64,
    pub is_over: &'a dyn Fn() -> bool,
    /// Whether `is_over` ended it.
    pub was_stopped: bool,
    /// Told the bound and the cost of the whole as they get better.
    pub report: &'a dyn Fn(Cost, Cost),
    pub eliminations: Eliminations,
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
            last: EliminationLimits { n_entries: 1 << 27, n_steps: 1 << 32 },
        }
    }
}

impl Search<'_> {
    /// Whether the search is to stop.
    pub(super) fn is_out(&mut self) -> bool {
        self.was_stopped = self.was_stopped || (self.is_over)();
        self.was_stopped || self.n_steps >= self.effort
    }
}

/// What is wanted of a model.
#[derive(Clone, Copy)]
pub(super) struct Task<'a> {
    /// An allowed assignment of the origins.
    pub start: Option<&'a [u32]>,
    /// Only assignments that cost less are looked for.
    pub cutoff: Cost,
    /// A difference of bound and cost that is small enough.
    pub slack: Cost,
    /// How many branchings and new beginnings are above it.
    pub depth: u32,
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
    let Simplified::Rest(model, folds) = simplify(model, &mut search.n_steps) else { return nothing };
    let mut whole = Whole::new(model, folds, task);
    whole.improve(search);
    whole.finish(n_origins)
}

/// How far a part has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Fresh,
    Dropped,
    Swept,
    Done,
}

struct Part {
    model: Model,
    incidence: Incidence,
    stage: Stage,
    bound: Cost,
    cost: Cost,
    states: Option<Vec<u32>>,
    /// What dropped states cost at least.
    of_dropped: Cost,
}

impl Part {
    fn gap(&self) -> Cost {
        self.cost - self.bound
    }

    fn offer(&mut self, cost: Cost, states: Vec<u32>) {
        if cost < self.cost {
            (self.cost, self.states) = (cost, Some(states));
        }
    }

    /// Raises the bound by one of the states that are left.
    fn raise(&mut self, bound: Cost) {
        self.bound = self.bound.max(bound.min(self.cost).min(self.of_dropped));
    }
}

struct Whole<'a> {
    constant: Cost,
    parts: Vec<Part>,
    folds: Vec<Fold>,
    task: Task<'a>,
}

impl<'a> Whole<'a> {
    fn new(model: Model, folds: Vec<Fold>, task: Task<'a>) -> Self {
        let part = |model: Model| {
            let incidence = model.incidence();
            let states = task.start.map(|start| model.states_of(start));
            let cost = states.as_ref().map_or(INFINITE, |states| model.cost(states));
            let states = states.filter(|_| !is_infinite(cost));
            Part {
                incidence,
                stage: Stage::Fresh,
                bound: model.simple_bound().min(cost),
                cost,
                states,
                of_dropped: INFINITE,
                model,
            }
        };
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
        while !search.is_out() {
            let (bound, cost) = (self.bound(), self.cost());
            if self.task.depth == 0 {
                (search.report)(bound, cost);
            }
            if bound >= self.task.cutoff || cost - bound <= self.task.slack {
                return;
            }
            let open = self.parts.iter_mut().filter(|part| part.stage != Stage::Done && part.gap() > 0);
            let Some(part) = open.max_by_key(|part| part.gap()) else { return };
            let others = bound - part.bound;
            let cutoff = part.cost.min(self.task.cutoff - others);
            let share = if is_infinite(cost) { 0 } else { share_of(self.task.slack, part.cost, cost) };
            let task = Task { start: None, cutoff, slack: share, depth: self.task.depth };
            advance(search, part, task);
        }
    }

    fn finish(self, n_origins: usize) -> Outcome {
        let (bound, cost) = (self.bound(), self.cost());
        if is_infinite(cost) {
            return Outcome { bound, states: None, cost: INFINITE };
        }
        let mut assignment = vec![0; n_origins];
        for part in &self.parts {
            if let Some(states) = &part.states {
                part.model.write_states(states, &mut assignment);
            }
        }
        for fold in self.folds.iter().rev() {
            fold.write_state(&mut assignment);
        }
        Outcome { bound, states: Some(assignment), cost }
    }
}

/// A part's share of the slack of the whole.
fn share_of(slack: Cost, cost: Cost, of: Cost) -> Cost {
    if of <= 0 { 0 } else { (i128::from(slack) * i128::from(cost.max(0)) / i128::from(of)) as Cost }
}

fn advance(search: &mut Search, part: &mut Part, task: Task) {
    match part.stage {
        Stage::Fresh => {
            if !eliminate(search, part, search.eliminations.first) {
                sweep(search, part, task);
            }
        }
        Stage::Dropped => begin_anew(search, part, task),
        Stage::Swept => {
            if !eliminate(search, part, search.eliminations.last) {
                branch(search, part, task);
            }
        }
        Stage::Done => {}
    }
}

/// Solves a part by elimination, if that fits.
fn eliminate(search: &mut Search, part: &mut Part, limits: EliminationLimits) -> bool {
    let n_steps = limits.n_steps.min(search.effort.saturating_sub(search.n_steps));
    let limits = EliminationLimits { n_steps, ..limits };
    let Some(plan) = EliminationPlan::find(&part.model, &part.incidence, limits) else { return false };
    search.n_steps += plan.n_steps;
    let (cost, states) = plan.solve(&part.model);
    part.stage = Stage::Done;
    if let Some(states) = states {
        part.offer(cost, states);
    }
    part.raise(cost);
    true
}

/// Sweeps over a part, descends from what they decode, and drops states.
fn sweep(search: &mut Search, part: &mut Part, task: Task) {
    let n_states = part.model.n_states();
    let model = part.model.clone();
    let mut sweeper = Sweeper::new(&model);
    let mut cutoff = task.cutoff;
    let mut last_bound = part.bound;
    let mut is_closed = false;
    for round in 0..MOST_SWEEPS {
        if search.is_out() || part.cost.min(cutoff) - sweeper.bound() <= task.slack {
            break;
        }
        let n_before = sweeper.n_steps;
        let result = sweeper.sweep(cutoff);
        search.n_steps += sweeper.n_steps - n_before;
        if let Err(Closed) = result {
            is_closed = true;
            break;
        }
        if round % DESCENT_EVERY == 0 {
            descend(search, part, sweeper.states.clone(), round);
            cutoff = cutoff.min(part.cost);
        }
        if round % DESCENT_EVERY == DESCENT_EVERY - 1 {
            let gained = sweeper.bound() - last_bound;
            last_bound = sweeper.bound();
            let is_slow = gained < (cutoff - last_bound) / 50;
            if is_slow || sweeper.n_dropped * 4 > n_states {
                break;
            }
        }
    }
    if is_closed || sweeper.n_dropped > 0 {
        part.of_dropped = cutoff;
    }
    part.raise(if is_closed { cutoff } else { sweeper.bound() });
    let is_much = sweeper.n_dropped * 20 > n_states;
    part.stage = match (is_closed, is_much) {
        (true, _) => Stage::Done,
        (false, true) => Stage::Dropped,
        (false, false) => Stage::Swept,
    };
    part.model = sweeper.into_model();
}

const MOST_SWEEPS: u64 = 200;
const DESCENT_EVERY: u64 = 10;

/// Descends from an assignment, and keeps the result if it is better.
fn descend(search: &mut Search, part: &mut Part, states: Vec<u32>, round: u64) {
    let mut descent = Descent::new(&part.model, &part.incidence, states);
    descent.settle();
    let mut cost = part.model.cost(&descent.states);
    for number in 0..8 {
        descent.forest_round(round * 8 + number);
        let next = part.model.cost(&descent.states);
        if next == cost && number > 2 {
            break;
        }
        cost = next;
    }
    search.n_steps += descent.n_steps;
    let states = descent.states;
    part.offer(cost, states);
}

/// Minimizes a part of which states were dropped.
fn begin_anew(search: &mut Search, part: &mut Part, task: Task) {
    let model = part.model.clone().renamed();
    let start = part.states.clone();
    let task = Task { start: start.as_deref(), depth: task.depth + 1, ..task };
    let outcome = minimize(search, model, task);
    part.stage = Stage::Done;
    if let Some(states) = outcome.states {
        part.offer(outcome.cost, states);
    }
    part.raise(outcome.bound.min(task.cutoff));
}

/// Minimizes a part for each state of one node.
fn branch(search: &mut Search, part: &mut Part, task: Task) {
    part.stage = Stage::Done;
    let incidence = &part.incidence;
    let key = |node: &usize| (incidence.at(*node).len(), usize::MAX - part.model.nodes[*node].costs.len());
    let open = |node: &usize| part.model.nodes[*node].costs.len() > 1;
    let Some(node) = (0..part.model.nodes.len()).filter(open).max_by_key(key) else { return };
    let mut least_bound = INFINITE;
    let mut cutoff = task.cutoff;
    let start = part.states.clone();
    for state in 0..part.model.nodes[node].costs.len() as u32 {
        let mut model = part.model.clone();
        fix_state(&mut model, node, state);
        let task = Task { start: start.as_deref(), cutoff, slack: task.slack, depth: task.depth + 1 };
        let outcome = if search.is_out() {
            Outcome { bound: part.bound, states: None, cost: INFINITE }
        } else {
            minimize(search, model.renamed(), task)
        };
        least_bound = least_bound.min(outcome.bound.min(cutoff));
        if let Some(mut states) = outcome.states {
            states[node] = state;
            part.offer(outcome.cost, states);
            cutoff = cutoff.min(part.cost);
        }
    }
    part.raise(least_bound);
}

/// Leaves a node one state.
fn fix_state(model: &mut Model, node: usize, state: u32) {
    restrict_node(&mut model.nodes[node], &[state]);
    let mut cache = super::tables::TableCache::default();
    for edge in &mut model.edges {
        for side in 0..2 {
            if edge.ends[side] as usize == node {
                edge.table = cache.restricted((&edge.table, side), &[state]);
                if !edge.messages[side].is_empty() {
                    edge.messages[side] = vec![edge.messages[side][state as usize]];
                }
            }
        }
    }
}

/// The connected parts of a model, by their lowest nodes, without the constant.
fn connected_parts(model: Model) -> Vec<Model> {
    let incidence = model.incidence();
    let mut part_of = vec![u32::MAX; model.nodes.len()];
    let mut n_parts = 0;
    for first in 0..model.nodes.len() {
        if part_of[first] != u32::MAX {
            continue;
        }
        let mut waiting = vec![first];
        part_of[first] = n_parts;
        while let Some(node) = waiting.pop() {
            for incident in incidence.at(node) {
                if part_of[incident.other as usize] == u32::MAX {
                    part_of[incident.other as usize] = n_parts;
                    waiting.push(incident.other as usize);
                }
            }
        }
        n_parts += 1;
    }
    let mut parts = vec![Model { limits: model.limits, ..Model::default() }; n_parts as usize];
    let mut numbers = vec![0; part_of.len()];
    for (number, node) in model.nodes.into_iter().enumerate() {
        let part = &mut parts[part_of[number] as usize];
        numbers[number] = part.nodes.len() as u32;
        part.nodes.push(node);
    }
    for mut edge in model.edges {
        let part = part_of[edge.ends[0] as usize];
        edge.ends = edge.ends.map(|end| numbers[end as usize]);
        parts[part as usize].edges.push(edge);
    }
    parts
}
