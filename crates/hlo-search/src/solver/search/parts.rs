//! A connected part of a model, and the steps that close its gap.

use super::{Outcome, Task, minimize};
use crate::solver::blocks::Blocks;
use crate::solver::descent::{Descent, cheapest};
use crate::solver::eliminate::{EliminationLimits, EliminationPlan};
use crate::solver::facts::{Phase, Search};
use crate::solver::model::{Incidence, Model, fix_state};
use crate::solver::problem::{Cost, INFINITE};
use crate::solver::sweep::{Closed, Sweeper};
use crate::solver::tables::is_infinite;

/// How far a part has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Fresh,
    /// Sweeps dropped many states.
    Dropped,
    /// Sweeps dropped few states.
    Swept,
    /// Small blocks dropped few states.
    SmallBlocks,
    /// So did larger ones.
    LargeBlocks,
    Done,
}

/// A connected part, the best of its assignments and a bound.
pub(super) struct Part {
    model: Model,
    incidence: Incidence,
    progress: Progress,
    pub bound: Cost,
    /// [`INFINITE`] without an assignment.
    pub cost: Cost,
    states: Option<Vec<u32>>,
    /// What dropped states cost at least.
    of_dropped: Cost,
}

impl Part {
    /// A part of which nothing is known but an assignment of the origins.
    pub(super) fn new(model: Model, start: Option<&[u32]>) -> Self {
        let incidence = model.incidence();
        let states = start.map(|start| model.states_of(&incidence, start));
        let cost = states.as_ref().map_or(INFINITE, |states| model.cost(states));
        let states = states.filter(|_| !is_infinite(cost));
        Part {
            incidence,
            progress: Progress::Fresh,
            bound: model.simple_bound().min(cost),
            cost,
            states,
            of_dropped: INFINITE,
            model,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.progress != Progress::Done && self.gap() > 0
    }

    pub(super) fn gap(&self) -> Cost {
        self.cost - self.bound
    }

    /// Writes the best assignment into one of the origins.
    pub(super) fn write_states(&self, assignment: &mut [u32]) {
        if let Some(states) = &self.states {
            self.model.write_states(states, assignment);
        }
    }

    /// Descends from anywhere, so that a search that is out of effort has an assignment.
    pub(super) fn find_some_states(&mut self, search: &mut Search) {
        if self.states.is_none() && self.progress != Progress::Done {
            let states = self.model.nodes.iter().map(|node| cheapest(&node.costs)).collect();
            descend(search, self, states, 0);
        }
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

/// Does the next step for a part.
pub(super) fn advance(search: &mut Search, part: &mut Part, task: Task) {
    match part.progress {
        Progress::Fresh => {
            if !eliminate(search, part, search.eliminations.first) {
                sweep(search, part, task);
            }
        }
        Progress::Dropped => begin_anew(search, part, task),
        Progress::Swept => {
            if !eliminate(search, part, search.eliminations.last) {
                sweep_blocks(search, part, task, Progress::SmallBlocks);
            }
        }
        Progress::SmallBlocks => sweep_blocks(search, part, task, Progress::LargeBlocks),
        Progress::LargeBlocks => branch(search, part, task),
        Progress::Done => {}
    }
}

/// Solves a part by elimination, if that fits.
fn eliminate(search: &mut Search, part: &mut Part, limits: EliminationLimits) -> bool {
    let n_steps = limits.n_steps.min(search.effort.saturating_sub(search.n_steps));
    let limits = EliminationLimits { n_steps, ..limits };
    let Some(plan) = EliminationPlan::find(&part.model, &part.incidence, limits) else { return false };
    let n_steps = search.n_steps;
    search.n_steps += plan.n_steps;
    let (cost, states) = plan.solve(&part.model);
    search.note(Phase::Eliminate, [part.model.n_states(), part.model.nodes.len()], n_steps);
    part.progress = Progress::Done;
    if let Some(states) = states {
        part.offer(cost, states);
    }
    part.raise(cost);
    true
}

/// Sweeps over a part, descends from what they decode, and drops states.
fn sweep(search: &mut Search, part: &mut Part, task: Task) {
    let (n_states, n_steps) = (part.model.n_states(), search.n_steps);
    let model = part.model.clone();
    let mut sweeper = Sweeper::new(&model);
    if let Some(states) = part.states.clone() {
        descend(search, part, states, MOST_SWEEPS);
    }
    let mut cutoff = task.cutoff.min(part.cost);
    let is_closed = sweep_while_it_helps(search, part, &mut sweeper, task, &mut cutoff).is_err();
    if is_closed || sweeper.n_dropped > 0 {
        part.of_dropped = cutoff;
    }
    part.raise(if is_closed { cutoff } else { sweeper.bound() });
    let is_much = sweeper.n_dropped * MUCH > n_states;
    part.progress = match (is_closed, is_much) {
        (true, _) => Progress::Done,
        (false, true) => Progress::Dropped,
        (false, false) => Progress::Swept,
    };
    let n_left = if is_closed { 0 } else { n_states - sweeper.n_dropped };
    part.model = sweeper.into_model();
    search.note(Phase::Sweep, [n_states, n_left], n_steps);
}

const MOST_SWEEPS: u64 = 200;
const DESCENT_EVERY: u64 = 10;
/// A part begins anew if one of so many states was dropped.
const MUCH: usize = 20;

fn sweep_while_it_helps(
    search: &mut Search,
    part: &mut Part,
    sweeper: &mut Sweeper,
    task: Task,
    cutoff: &mut Cost,
) -> Result<(), Closed> {
    let mut last_bound = part.bound;
    let n_states = part.model.n_states();
    for round in 0..MOST_SWEEPS {
        if search.is_out() || sweeper.bound() >= task.near(part.cost) {
            break;
        }
        let n_before = sweeper.n_steps;
        let result = sweeper.sweep(*cutoff);
        search.n_steps += sweeper.n_steps - n_before;
        result?;
        if round % DESCENT_EVERY == 0 {
            descend(search, part, sweeper.states.clone(), round);
            *cutoff = part.cost.min(*cutoff);
            search.report(sweeper.bound().min(*cutoff), part.cost);
        }
        if round % DESCENT_EVERY == DESCENT_EVERY - 1 {
            let is_slow = sweeper.bound() - last_bound < (*cutoff - sweeper.bound()) / 50;
            last_bound = sweeper.bound();
            if is_slow || sweeper.n_dropped * 4 > n_states {
                break;
            }
        }
    }
    Ok(())
}

/// Sweeps over blocks of a part, and drops states. `next` says how large the blocks are, and comes after it.
fn sweep_blocks(search: &mut Search, part: &mut Part, task: Task, next: Progress) {
    let (n_states, n_steps) = (part.model.n_states(), search.n_steps);
    let model = part.model.clone();
    let block_steps = if next == Progress::SmallBlocks { 1 << 17 } else { 1 << 21 };
    let mut blocks = Blocks::new(&model, block_steps);
    if blocks.n_blocks() * 2 > model.nodes.len() {
        part.progress = next;
        return;
    }
    let mut cutoff = task.cutoff.min(part.cost);
    let is_closed = sweep_blocks_while_it_helps(search, part, &mut blocks, task, &mut cutoff).is_err();
    if is_closed || blocks.n_dropped > 0 {
        part.of_dropped = part.of_dropped.min(cutoff);
    }
    part.raise(if is_closed { cutoff } else { blocks.bound() });
    let is_much = blocks.n_dropped * MUCH > n_states;
    part.progress = match (is_closed, is_much) {
        (true, _) => Progress::Done,
        (false, true) => Progress::Dropped,
        (false, false) => next,
    };
    let n_left = if is_closed { 0 } else { n_states - blocks.n_dropped };
    part.model = blocks.into_model();
    search.note(Phase::Block, [n_states, n_left], n_steps);
}

const MOST_BLOCK_SWEEPS: u64 = 30;

fn sweep_blocks_while_it_helps(
    search: &mut Search,
    part: &mut Part,
    blocks: &mut Blocks,
    task: Task,
    cutoff: &mut Cost,
) -> Result<(), Closed> {
    let mut last_bound = part.bound;
    for round in 0..MOST_BLOCK_SWEEPS {
        if search.is_out() || blocks.bound() >= task.near(part.cost) {
            break;
        }
        let is_slow = round > 2 && blocks.bound() - last_bound < (*cutoff - blocks.bound()) / 100;
        last_bound = blocks.bound();
        let n_before = blocks.n_steps;
        blocks.most_steps = n_before.saturating_add(search.effort.saturating_sub(search.n_steps));
        let result = blocks.sweep(*cutoff, is_slow || round + 1 == MOST_BLOCK_SWEEPS);
        search.n_steps += blocks.n_steps - n_before;
        if result.is_ok() {
            descend(search, part, blocks.states.clone(), round);
            *cutoff = part.cost.min(*cutoff);
        }
        search.report(blocks.bound().max(part.bound).min(*cutoff), part.cost);
        result?;
        if is_slow {
            break;
        }
    }
    Ok(())
}

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
    part.progress = Progress::Done;
    if let Some(states) = outcome.states {
        part.offer(outcome.cost, states);
    }
    part.raise(outcome.bound.min(task.cutoff));
}

/// Minimizes a part for each state of one node.
fn branch(search: &mut Search, part: &mut Part, task: Task) {
    part.progress = Progress::Done;
    let n_steps = search.n_steps;
    let Some((node, states)) = node_to_branch(part) else { return };
    let mut least_bound = INFINITE;
    let mut cutoff = task.cutoff.min(task.near(part.cost));
    let start = part.states.clone();
    let n_states = states.len();
    for state in states {
        let mut model = part.model.clone();
        fix_state(&mut model, node, state);
        let task = Task { start: start.as_deref(), cutoff, depth: task.depth + 1, ..task };
        let outcome = if search.is_out() {
            Outcome { bound: part.bound, states: None, cost: INFINITE }
        } else {
            search.aside(|search| minimize(search, model.renamed(), task))
        };
        least_bound = least_bound.min(outcome.bound.min(cutoff));
        if let Some(mut states) = outcome.states {
            states[node] = state;
            part.offer(outcome.cost, states);
            cutoff = cutoff.min(task.near(part.cost));
        }
    }
    part.raise(least_bound);
    search.note(Phase::Branch, [n_states, 1], n_steps);
}

/// The node with most edges, of the fewest states, and its states, the best assignment's first.
fn node_to_branch(part: &Part) -> Option<(usize, Vec<u32>)> {
    let n_allowed = |node: usize| part.model.nodes[node].costs.iter().filter(|cost| !is_infinite(**cost)).count();
    let key = |node: &usize| (part.incidence.at(*node).len(), usize::MAX - n_allowed(*node), *node);
    let node = (0..part.model.nodes.len()).filter(|node| n_allowed(*node) > 1).max_by_key(key)?;
    let costs = &part.model.nodes[node].costs;
    let mut states: Vec<u32> = (0..costs.len() as u32).filter(|state| !is_infinite(costs[*state as usize])).collect();
    let best = part.states.as_ref().map(|states| states[node]);
    states.sort_by_key(|state| Some(*state) != best);
    Some((node, states))
}
