//! Solves a model exactly by bucket elimination (Dechter 1999), where its tables stay small.
//!
//! Nodes are removed one after another. Removing `v` sums all tables that have it and keeps, for each combination of states of the
//! other nodes in them (its *scope*), the least over the states of `v`. Afterwards the states are read off in reverse order.
//!
//! A table lists its nodes in the order of removal, the first one consecutive in memory: it is the next to be removed.
//!
//! Cost: for each node the product of its states and those of its scope, times its tables; two bytes stay for each combination of
//! states of a scope. [`EliminationPlan::find`] counts this beforehand, for the order that removes the node of the smallest scope first
//! ("min-weight"), and gives up over a limit.

use super::model::{Incidence, Model};
use super::problem::{Cost, INFINITE};
use super::tables::{is_infinite, plus};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// In which order the nodes of a model are removed.
pub(super) struct EliminationPlan {
    order: Vec<u32>,
    /// By place in the order, the other nodes in the tables of that node, by place in the order.
    scopes: Vec<Vec<u32>>,
    /// How many entries all tables together have.
    pub n_entries: u64,
    /// How many entries are read.
    pub n_steps: u64,
}

/// How large an elimination may be.
#[derive(Clone, Copy)]
pub(super) struct EliminationLimits {
    pub n_entries: u64,
    pub n_steps: u64,
}

/// Of one table.
const MOST_IN_TABLE: u64 = 1 << 26;

impl EliminationPlan {
    /// A plan within limits, if the order that it tries is.
    pub(super) fn find(model: &Model, incidence: &Incidence, limits: EliminationLimits) -> Option<Self> {
        let mut plan = EliminationPlan { order: Vec::new(), scopes: Vec::new(), n_entries: 0, n_steps: 0 };
        let is_numbered = model.nodes.iter().all(|node| node.costs.len() <= usize::from(u16::MAX));
        (is_numbered && plan.fill(model, incidence, limits, None)).then_some(plan)
    }

    /// A plan for a model that is known to be small, with `last` removed after all others.
    pub(super) fn find_with_last(model: &Model, incidence: &Incidence, last: u32) -> Self {
        let mut plan = EliminationPlan { order: Vec::new(), scopes: Vec::new(), n_entries: 0, n_steps: 0 };
        plan.fill(model, incidence, EliminationLimits { n_entries: u64::MAX, n_steps: u64::MAX }, Some(last));
        plan
    }

    /// Chooses the order; whether it stays within the limits.
    fn fill(&mut self, model: &Model, incidence: &Incidence, limits: EliminationLimits, last: Option<u32>) -> bool {
        let n = model.nodes.len();
        let size = |node: u32| model.nodes[node as usize].costs.len() as u64;
        let neighbours = |node: usize| incidence.at(node).iter().map(|incident| incident.other).collect();
        let mut graph: Vec<BTreeSet<u32>> = (0..n).map(neighbours).collect();
        let weight = |graph: &[BTreeSet<u32>], node: u32| {
            graph[node as usize].iter().fold(size(node), |product, other| product.saturating_mul(size(*other)))
        };
        let rank = |graph: &[BTreeSet<u32>], node: u32| if Some(node) == last { u64::MAX } else { weight(graph, node) };
        let mut waiting: BTreeSet<(u64, u32)> = (0..n as u32).map(|node| (rank(&graph, node), node)).collect();
        while let Some((_, node)) = waiting.pop_first() {
            let of_node = weight(&graph, node);
            let scope: Vec<u32> = std::mem::take(&mut graph[node as usize]).into_iter().collect();
            self.n_entries = self.n_entries.saturating_add(of_node / size(node));
            self.n_steps = self.n_steps.saturating_add(of_node);
            let is_limited = limits.n_entries < u64::MAX;
            let is_large = is_limited && of_node / size(node) > MOST_IN_TABLE;
            if is_large || self.n_entries > limits.n_entries || self.n_steps > limits.n_steps {
                return false;
            }
            for other in &scope {
                waiting.remove(&(rank(&graph, *other), *other));
            }
            for other in &scope {
                let joined = &mut graph[*other as usize];
                joined.remove(&node);
                joined.extend(scope.iter().filter(|joined| *joined != other));
            }
            waiting.extend(scope.iter().map(|other| (rank(&graph, *other), *other)));
            self.order.push(node);
            self.scopes.push(scope);
        }
        self.sort_scopes();
        true
    }

    fn sort_scopes(&mut self) {
        let mut places = vec![0; self.order.len()];
        for (place, node) in self.order.iter().enumerate() {
            places[*node as usize] = place as u32;
        }
        for scope in &mut self.scopes {
            scope.iter_mut().for_each(|node| *node = places[*node as usize]);
            scope.sort();
        }
    }

    /// The least cost without the constant, and states that cost it; none where it is infinite.
    pub(super) fn solve(&self, model: &Model) -> (Cost, Option<Vec<u32>>) {
        let mut run = Run::new(self, model);
        let mut choices: Vec<Vec<u16>> = Vec::with_capacity(self.order.len());
        for place in 0..self.order.len() {
            let mut of_place = Vec::new();
            run.remove(place, Some(&mut of_place));
            choices.push(of_place);
        }
        let states = || {
            let mut by_place = vec![0; self.order.len()];
            for (place, scope) in self.scopes.iter().enumerate().rev() {
                let mut stride = 1;
                let mut at = 0;
                for other in scope {
                    at += by_place[*other as usize] * stride;
                    stride *= run.sizes[*other as usize];
                }
                by_place[place] = usize::from(choices[place][at]);
            }
            let mut states = vec![0; self.order.len()];
            self.order.iter().zip(by_place).for_each(|(node, state)| states[*node as usize] = state as u32);
            states
        };
        (run.least, (!is_infinite(run.least)).then(states))
    }

    /// By state of the last node, the least cost with it, without the constant.
    pub(super) fn marginals(&self, model: &Model) -> Vec<Cost> {
        let mut run = Run::new(self, model);
        let Some(last) = self.order.len().checked_sub(1) else { return Vec::new() };
        (0..last).for_each(|place| run.remove(place, None));
        let mut costs = model.nodes[self.order[last] as usize].costs.clone();
        run.buckets[last].iter().for_each(|factor| add_row(&mut costs, &factor.costs, 0));
        costs.iter_mut().for_each(|cost| *cost = plus(*cost, run.least));
        costs
    }
}

/// An elimination as it runs.
struct Run<'a> {
    plan: &'a EliminationPlan,
    model: &'a Model,
    /// By place, the tables of which its node is the first.
    buckets: Vec<Vec<Factor<'a>>>,
    /// By place, how many states its node has.
    sizes: Vec<usize>,
    /// The sum of what parts that are done cost at least.
    least: Cost,
}

impl<'a> Run<'a> {
    fn new(plan: &'a EliminationPlan, model: &'a Model) -> Self {
        let mut places = vec![0; plan.order.len()];
        for (place, node) in plan.order.iter().enumerate() {
            places[*node as usize] = place as u32;
        }
        let mut buckets: Vec<Vec<Factor>> = plan.order.iter().map(|_| Vec::new()).collect();
        for edge in &model.edges {
            let [first, second] = edge.ends.map(|end| places[end as usize]);
            let (scope, later) = if first < second { (vec![first, second], 1) } else { (vec![second, first], 0) };
            buckets[scope[0] as usize].push(Factor { scope, costs: Cow::Borrowed(edge.table.side(later)) });
        }
        let sizes = plan.order.iter().map(|node| model.nodes[*node as usize].costs.len()).collect();
        Run { plan, model, buckets, sizes, least: 0 }
    }

    /// Removes the node at a place; writes its best state for each combination of its scope's states.
    fn remove(&mut self, place: usize, choices: Option<&mut Vec<u16>>) {
        let factors = std::mem::take(&mut self.buckets[place]);
        let own = &self.model.nodes[self.plan.order[place] as usize].costs;
        let scope = &self.plan.scopes[place];
        let costs = least_by_scope(own, &factors, scope, &self.sizes, choices);
        match scope.first() {
            Some(next) => {
                let factor = Factor { scope: scope.clone(), costs: Cow::Owned(costs) };
                self.buckets[*next as usize].push(factor);
            }
            None => self.least = plus(self.least, costs[0]),
        }
    }
}

/// A table of several nodes.
struct Factor<'a> {
    /// By place in the order of removal, rising; the first one is consecutive in memory.
    scope: Vec<u32>,
    costs: Cow<'a, [Cost]>,
}

impl Factor<'_> {
    /// How far apart two states of a node stand; 0 for a node that is not in the scope.
    fn stride(&self, place: u32, sizes: &[usize]) -> usize {
        let at = self.scope.iter().position(|other| *other == place);
        at.map_or(0, |at| self.scope[..at].iter().map(|place| sizes[*place as usize]).product())
    }
}

fn add_row(costs: &mut [Cost], entries: &[Cost], offset: usize) {
    for (cost, entry) in costs.iter_mut().zip(&entries[offset..]) {
        *cost = plus(*cost, *entry);
    }
}

/// For each combination of states of `scope`, the least over the states of the first node of `factors`, and where it stands.
fn least_by_scope(
    own: &[Cost],
    factors: &[Factor],
    scope: &[u32],
    sizes: &[usize],
    mut choices: Option<&mut Vec<u16>>,
) -> Vec<Cost> {
    let (n_inner, outer) = match scope {
        [] => (1, &[][..]),
        [inner, outer @ ..] => (sizes[*inner as usize], outer),
    };
    let n_outer: usize = outer.iter().map(|place| sizes[*place as usize]).product();
    let walks: Vec<Walk> = factors.iter().map(|factor| Walk::new(factor, scope.first(), outer, sizes)).collect();
    let (varying, fixed): (Vec<Walk>, Vec<Walk>) = walks.into_iter().partition(|walk| walk.inner > 0);
    let mut digits = vec![0; outer.len()];
    let mut out = Vec::with_capacity(n_outer * n_inner);
    let (mut base, mut row) = (own.to_vec(), own.to_vec());
    let mut rows: Vec<(&[Cost], usize)> = Vec::with_capacity(varying.len());
    for _ in 0..n_outer {
        base.copy_from_slice(own);
        fixed.iter().for_each(|walk| add_row(&mut base, walk.costs, walk.offset(&digits)));
        rows.clear();
        rows.extend(varying.iter().map(|walk| (&walk.costs[walk.offset(&digits)..], walk.inner)));
        for state in 0..n_inner {
            let (least, at) = match rows[..] {
                [(costs, inner)] => least_sum(&base, &costs[state * inner..]),
                _ => {
                    row.copy_from_slice(&base);
                    rows.iter().for_each(|(costs, inner)| add_row(&mut row, costs, state * inner));
                    least_of(row.iter().copied())
                }
            };
            out.push(if is_infinite(least) { INFINITE } else { least });
            choices.iter_mut().for_each(|choices| choices.push(at));
        }
        advance(&mut digits, outer, sizes);
    }
    out
}

/// How a table's entries stand in the order of another scope.
struct Walk<'a> {
    costs: &'a [Cost],
    /// The distance of two states of the scope's first node; 0 if the table does not have it.
    inner: usize,
    /// Likewise for the others.
    outer: Vec<usize>,
}

impl<'a> Walk<'a> {
    fn new(factor: &'a Factor, inner: Option<&u32>, outer: &[u32], sizes: &[usize]) -> Self {
        Walk {
            costs: &factor.costs,
            inner: inner.map_or(0, |place| factor.stride(*place, sizes)),
            outer: outer.iter().map(|place| factor.stride(*place, sizes)).collect(),
        }
    }

    fn offset(&self, digits: &[usize]) -> usize {
        self.outer.iter().zip(digits).map(|(stride, digit)| stride * digit).sum()
    }
}

fn least_sum(base: &[Cost], costs: &[Cost]) -> (Cost, u16) {
    least_of(base.iter().zip(costs).map(|(base, cost)| base + cost))
}

fn least_of(costs: impl Iterator<Item = Cost>) -> (Cost, u16) {
    let keep_less = |least: (Cost, u16), cost: (u16, Cost)| if cost.1 < least.0 { (cost.1, cost.0) } else { least };
    (0..).zip(costs).fold((Cost::MAX, 0), keep_less)
}

/// Counts to the next combination of states, the first node's fastest.
fn advance(digits: &mut [usize], places: &[u32], sizes: &[usize]) {
    for (digit, place) in digits.iter_mut().zip(places) {
        *digit += 1;
        if *digit < sizes[*place as usize] {
            return;
        }
        *digit = 0;
    }
}
