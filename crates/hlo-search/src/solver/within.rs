//! Minimizes a model under limits: prices for what is taken, repaired assignments, dropped states, and branching.
//!
//! Notation: `L(p)` the least cost in the model with prices `p` less what the limits are worth ([`priced`]); it bounds from below for
//! any `p`. An assignment takes `D` of the limit in question and costs `E` with all other prices.
//!
//! 1. At prices 0 (or those of the model above in the branching) the model is minimized without limits. If its assignment is within
//!    them and takes all that has a price, it is the best.
//! 2. For the limit that is broken most: between a cheap assignment that breaks it and a dear one that does not (to begin with, the
//!    one that takes least) the next price is the one at which both cost the same, `(E_dear - E_cheap) / (D_cheap - D_dear)`. Its
//!    minimizer takes the place of one of them. This ends where `L` lies on the line between them, at the best price (Handler and
//!    Zang 1980). Every minimizer is also repaired to an assignment within the limits.
//!    If there are several limits, [`Within::ascend`] comes before.
//! 3. Sweeps over the model at the best prices drop states that cannot be part of a better assignment; then all begins anew.
//! 4. If none can be dropped, the search branches over the states of the node of which the assignments on both sides of the limit
//!    differ most.

mod ascend;

use super::facts::{Phase, Search};
use super::limits::{
    OverLimit, demand_only, drop_by_limits, has_demands, highest_price, is_within, price_of, priced, taken,
};
use super::model::{Incidence, Model, fix_state, has_empty_node};
use super::problem::{Cost, INFINITE};
use super::repair::Repair;
use super::search::{Outcome, Task, minimize};
use super::simplify::{Fold, Simplified, simplify};
use super::sweep::{Closed, Sweeper};
use super::tables::{is_infinite, plus};

const NOTHING: Outcome = Outcome { bound: INFINITE, states: None, cost: INFINITE };

/// Where the search under limits begins.
#[derive(Clone, Copy, Default)]
pub(super) struct Beginning<'a> {
    /// By limit; all 0 otherwise.
    pub prices: Option<&'a [u64]>,
    /// Assignments of the origins to be repaired.
    pub starts: &'a [Vec<u32>],
}

/// Minimizes a model whose origins are its nodes' own numbers, within its limits.
pub(super) fn minimize_within(search: &mut Search, model: Model, task: Task, beginning: Beginning) -> Outcome {
    let n_origins = model.nodes.len();
    search.n_steps += copy_steps(&model);
    let Some((rest, folds)) = reduce(search, model) else { return NOTHING };
    let incidence = rest.incidence();
    let start = task.start.map(|start| rest.states_of(&incidence, start));
    let inner = rest.clone().renamed();
    let task = Task { start: start.as_deref(), ..task };
    let outcome = if has_demands(&inner) {
        let mut within = Within::new(inner, task, beginning.prices);
        beginning.starts.iter().for_each(|start| within.offer_repaired(search, rest.states_of(&incidence, start)));
        within.run(search);
        Outcome { bound: within.bound, cost: within.cost, states: within.states }
    } else {
        minimize(search, inner, task)
    };
    let states = outcome.states.map(|states| {
        let mut assignment = vec![0; n_origins];
        rest.write_states(&states, &mut assignment);
        folds.iter().rev().for_each(|fold| fold.write_state(&mut assignment));
        assignment
    });
    Outcome { states, ..outcome }
}

/// Steps for a copy of a model, which is made for every price and every branch.
fn copy_steps(model: &Model) -> u64 {
    COPY_STEPS * (model.nodes.len() + model.edges.len()) as u64
}

/// What is left of a model after the limits and the costs dropped states; none if nothing is allowed.
fn reduce(search: &mut Search, mut model: Model) -> Option<(Model, Vec<Fold>)> {
    let Ok(()) = drop_by_limits(&mut model) else { return None };
    if has_empty_node(&model) {
        return None;
    }
    let Simplified::Rest(mut model, folds) = simplify(model, &mut search.n_steps) else { return None };
    match drop_by_limits(&mut model) {
        Ok(()) => Some((model, folds)),
        Err(OverLimit) => None,
    }
}

/// A minimizer at some prices.
pub(super) struct Point {
    pub(super) states: Vec<u32>,
    pub(super) taken: Vec<u64>,
    /// Without prices.
    pub(super) cost: Cost,
}

pub(super) struct Within {
    pub(super) model: Model,
    pub(super) incidence: Incidence,
    pub(super) bound: Cost,
    pub(super) cost: Cost,
    pub(super) states: Option<Vec<u32>>,
    /// The prices of the best bound.
    pub(super) prices: Vec<u64>,
    pub(super) cutoff: Cost,
    pub(super) task: Task<'static>,
    /// The last minimizers that broke a limit and that did not.
    pub(super) broken: Option<Vec<u32>>,
    pub(super) kept: Option<Vec<u32>>,
    /// How many steps the search for prices of several limits may take.
    pub(super) n_ascents: u32,
}

/// What it costs to copy, simplify and renumber a node or a pair, in entries of tables that are read in the same time.
const COPY_STEPS: u64 = 256;
const MOST_PRICES: usize = 12;
const MOST_LIMITS: usize = 6;
/// The bound at some prices need not be better: others will be tried.
const LEAST_GAP: f64 = 1e-5;
const MOST_SWEEPS: usize = 20;

impl Within {
    fn new(model: Model, task: Task, prices: Option<&[u64]>) -> Self {
        let prices_given = prices.is_some();
        let prices = prices.map_or_else(|| vec![0; model.limits.len()], <[u64]>::to_vec);
        let mut within = Within {
            incidence: model.incidence(),
            bound: model.simple_bound().min(task.cutoff),
            cost: INFINITE,
            states: None,
            prices,
            cutoff: task.cutoff,
            task: Task { start: None, depth: task.depth + 1, ..task },
            broken: None,
            kept: None,
            n_ascents: if prices_given { 6 } else { 40 },
            model,
        };
        if let Some(start) = task.start {
            within.offer(start);
        }
        within
    }

    /// Keeps an assignment if it is within the limits and the best.
    fn offer(&mut self, states: &[u32]) {
        let cost = self.model.cost(states);
        if cost < self.cost && !is_infinite(cost) && is_within(&self.model, states) {
            (self.cost, self.states) = (cost, Some(states.to_vec()));
            self.cutoff = self.cutoff.min(cost);
        }
    }

    fn raise(&mut self, bound: Cost) {
        self.bound = self.bound.max(bound.min(self.cutoff));
    }

    pub(super) fn is_done(&self, search: &mut Search) -> bool {
        search.is_out() || self.bound >= self.cutoff || self.cost - self.bound <= self.task.slack(self.cost)
    }

    fn run(&mut self, search: &mut Search) {
        let prices = self.prices.clone();
        let Some(mut point) = self.minimizer_at(search, &prices) else { return };
        if self.n_limits() > 1 {
            let Some(next) = self.ascend(search, point) else { return };
            point = next;
        }
        for _ in 0..MOST_LIMITS {
            if self.is_done(search) {
                return;
            }
            let Some(limit) = self.limit_to_price(&point) else { break };
            match self.price(search, limit, point) {
                Some(next) => point = next,
                None => return,
            }
        }
        if !self.is_done(search) {
            self.drop_or_branch(search);
        }
    }

    /// How many limits some node has a demand for.
    fn n_limits(&self) -> usize {
        let demands = self.model.nodes.iter().flat_map(|node| &node.demands);
        let mut is_used = vec![false; self.model.limits.len()];
        demands.for_each(|demand| is_used[demand.limit] = true);
        is_used.iter().filter(|is_used| **is_used).count()
    }

    /// The limit that is broken most, or that has a price and is not taken to the full.
    fn limit_to_price(&self, point: &Point) -> Option<usize> {
        let part = |limit: &usize| point.taken[*limit] as f64 / self.model.limits[*limit].max(1) as f64;
        let limits = 0..self.model.limits.len();
        let broken = limits.clone().filter(|limit| point.taken[*limit] > self.model.limits[*limit]);
        let most_broken = broken.max_by(|left, right| part(left).total_cmp(&part(right)));
        let is_idle = |limit: &usize| self.prices[*limit] > 0 && point.taken[*limit] < self.model.limits[*limit];
        most_broken.or_else(|| limits.filter(is_idle).min_by(|left, right| part(left).total_cmp(&part(right))))
    }

    /// Minimizes at some prices; none if that closes the search.
    pub(super) fn minimizer_at(&mut self, search: &mut Search, prices: &[u64]) -> Option<Point> {
        let model = priced(&self.model, prices);
        let start = self.states.clone();
        let gap = (self.task.gap / 4.0).max(LEAST_GAP);
        let task = Task { start: start.as_deref(), cutoff: self.cutoff, gap, ..self.task };
        let n_steps = search.n_steps;
        search.n_steps += copy_steps(&model);
        let minimize_aside = |search: &mut Search| search.aside(|search| minimize(search, model.renamed(), task));
        let outcome = search.with_little_effort(u64::MAX, minimize_aside);
        if outcome.bound.min(self.cutoff) > self.bound {
            self.prices = prices.to_vec();
        }
        self.raise(outcome.bound);
        search.report(self.bound, self.cost);
        search.note(Phase::Price, [self.model.n_states(); 2], n_steps);
        if self.bound >= self.cutoff {
            return None;
        }
        let states = outcome.states?;
        self.offer_repaired(search, states.clone());
        let point = Point { taken: taken(&self.model, &states), cost: self.model.cost(&states), states };
        let is_kept = point.taken.iter().zip(&self.model.limits).all(|(taken, limit)| taken <= limit);
        *(if is_kept { &mut self.kept } else { &mut self.broken }) = Some(point.states.clone());
        Some(point)
    }

    fn offer_repaired(&mut self, search: &mut Search, states: Vec<u32>) {
        let mut repair = Repair::new(&self.model, &self.incidence, states);
        if repair.repair() {
            repair.settle();
        }
        search.n_steps += repair.n_steps;
        let states = repair.states;
        self.offer(&states);
    }

    /// Finds the best price of a limit, the others unchanged; none if that closes the search.
    fn price(&mut self, search: &mut Search, limit: usize, point: Point) -> Option<Point> {
        let most = self.model.limits[limit];
        let other = if point.taken[limit] > most {
            self.least_taker(search, limit)?
        } else {
            let mut prices = self.prices.clone();
            prices[limit] = 0;
            self.minimizer_at(search, &prices)?
        };
        let (mut cheap, mut dear) = if point.taken[limit] > most { (point, other) } else { (other, point) };
        if cheap.taken[limit] <= most {
            return Some(cheap);
        }
        for _ in 0..MOST_PRICES {
            if self.is_done(search) {
                return None;
            }
            let mut prices = self.prices.clone();
            let with_others = |point: &Point| {
                let others = prices.iter().zip(&point.taken).enumerate().filter(|(other, _)| *other != limit);
                let worth = others.map(|(_, (price, taken))| u128::from(*price) * u128::from(*taken)).sum::<u128>();
                plus(point.cost, Cost::try_from(worth >> 24).unwrap_or(INFINITE))
            };
            let dearer = (with_others(&dear) - with_others(&cheap)).max(0);
            let price = price_of(dearer, cheap.taken[limit] - dear.taken[limit]).min(highest_price(&self.model, limit));
            if price == prices[limit] {
                break;
            }
            prices[limit] = price;
            let next = self.minimizer_at(search, &prices)?;
            let of_next = next.taken[limit];
            if [&cheap, &dear].iter().any(|point| point.taken[limit] == of_next) {
                return Some(next);
            }
            *(if of_next > most { &mut cheap } else { &mut dear }) = next;
        }
        Some(dear)
    }

    /// The assignment that takes least of a limit; none if that is too much.
    fn least_taker(&mut self, search: &mut Search, limit: usize) -> Option<Point> {
        let most = Cost::try_from(self.model.limits[limit]).unwrap_or(INFINITE);
        let model = demand_only(&self.model, limit);
        let task = Task { start: self.states.as_deref(), cutoff: INFINITE, gap: 0.0, ..self.task };
        let outcome = search.aside(|search| minimize(search, model.renamed(), task));
        if outcome.bound > most {
            self.raise(INFINITE);
            return None;
        }
        let states = outcome.states.filter(|_| outcome.cost <= most)?;
        self.offer_repaired(search, states.clone());
        self.kept = Some(states.clone());
        Some(Point { taken: taken(&self.model, &states), cost: self.model.cost(&states), states })
    }

    /// Drops states by the bound at the best prices, and begins anew; branches if there are too few.
    fn drop_or_branch(&mut self, search: &mut Search) {
        let model = priced(&self.model, &self.prices);
        let mut sweeper = Sweeper::new(&model);
        for _ in 0..MOST_SWEEPS {
            let result = sweeper.sweep(self.cutoff);
            if let Err(Closed) = result {
                search.n_steps += sweeper.n_steps;
                self.raise(INFINITE);
                return;
            }
        }
        search.n_steps += sweeper.n_steps;
        self.raise(sweeper.bound());
        let n_dropped = sweeper.n_dropped;
        let swept = sweeper.into_model();
        for (node, swept) in self.model.nodes.iter_mut().zip(&swept.nodes) {
            for (cost, swept) in node.costs.iter_mut().zip(&swept.costs).filter(|(_, swept)| is_infinite(**swept)) {
                *cost = *swept;
            }
        }
        if n_dropped * 20 > self.model.n_states() {
            let model = self.model.clone().renamed();
            self.follow(search, vec![(model, None)]);
        } else {
            let node = self.node_to_branch();
            let states = 0..self.model.nodes[node].costs.len() as u32;
            let model_of = |state: u32| {
                let mut model = self.model.clone();
                fix_state(&mut model, node, state);
                (model.renamed(), Some((node, state)))
            };
            let models = states.map(model_of).collect();
            self.follow(search, models);
        }
    }

    /// The node whose states on both sides of the limits differ most in what they take at the best prices.
    fn node_to_branch(&self) -> usize {
        let differs = |node: usize| {
            let (Some(broken), Some(kept)) = (&self.broken, &self.kept) else { return 0 };
            let demands = self.model.nodes[node].demands.iter();
            let differences = demands.map(|demand| {
                let [broken, kept] = [broken, kept].map(|states| demand.amounts[states[node] as usize]);
                u128::from(broken.abs_diff(kept)) * u128::from(self.prices[demand.limit].max(1))
            });
            differences.sum()
        };
        let n_allowed = |node: usize| self.model.nodes[node].costs.iter().filter(|cost| !is_infinite(**cost)).count();
        let key = |node: &usize| (n_allowed(*node) > 1, differs(*node), self.incidence.at(*node).len());
        (0..self.model.nodes.len()).max_by_key(key).unwrap_or(0)
    }

    /// Minimizes the models that together have all assignments that are left.
    fn follow(&mut self, search: &mut Search, models: Vec<(Model, Option<(usize, u32)>)>) {
        let mut least_bound = INFINITE;
        for (model, fixed) in models {
            let start = self.states.clone();
            let cutoff = self.cutoff.min(self.task.near(self.cost));
            let task = Task { start: start.as_deref(), cutoff, ..self.task };
            let beginning = Beginning { prices: Some(&self.prices), starts: &[] };
            let outcome = if search.is_out() {
                Outcome { bound: self.bound, ..NOTHING }
            } else if fixed.is_some() {
                search.aside(|search| minimize_within(search, model, task, beginning))
            } else {
                minimize_within(search, model, task, beginning)
            };
            least_bound = least_bound.min(outcome.bound.min(cutoff));
            if let Some(mut states) = outcome.states {
                if let Some((node, state)) = fixed {
                    states[node] = state;
                }
                self.offer(&states);
            }
        }
        self.raise(least_bound);
    }
}
