//! Solves a model exactly by bucket elimination (Dechter 1999), where its tables stay small.
//!
//! Nodes are removed one after another. Removing `v` sums all tables that have it and keeps, for each combination of states of the
//! other nodes in them (its *scope*), the least over the states of `v`. Afterwards the states are read off in reverse order.
//!
//! A table lists its nodes in the order of removal, the first one consecutive in memory: it is the next to be removed.
//!
//! Cost: for each node the product of its states and those of its scope, times its tables. [`EliminationPlan::find`] counts this
//! beforehand, for the order that removes the node of the smallest scope first ("min-weight"), and gives up over a limit.

use super::model::{Incidence, Model};
use super::problem::{Cost, INFINITE};
use super::tables::plus;
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

impl EliminationPlan {
    /// A plan within limits, if the order that it tries is.
    pub(super) fn find(model: &Model, incidence: &Incidence, limits: EliminationLimits) -> Option<Self> {
        let n = model.nodes.len();
        let size = |node: u32| model.nodes[node as usize].costs.len() as u64;
        let neighbours = |node: usize| incidence.at(node).iter().map(|incident| incident.other).collect();
        let mut graph: Vec<BTreeSet<u32>> = (0..n).map(neighbours).collect();
        let weight = |graph: &[BTreeSet<u32>], node: u32| {
            graph[node as usize].iter().fold(size(node), |product, other| product.saturating_mul(size(*other)))
        };
        let mut waiting: BTreeSet<(u64, u32)> = (0..n as u32).map(|node| (weight(&graph, node), node)).collect();
        let mut plan = EliminationPlan { order: Vec::new(), scopes: Vec::new(), n_entries: 0, n_steps: 0 };
        while let Some((of_node, node)) = waiting.pop_first() {
            let scope: Vec<u32> = std::mem::take(&mut graph[node as usize]).into_iter().collect();
            plan.n_entries = plan.n_entries.saturating_add(of_node / size(node));
            plan.n_steps = plan.n_steps.saturating_add(of_node);
            if plan.n_entries > limits.n_entries || plan.n_steps > limits.n_steps {
                return None;
            }
            for other in &scope {
                waiting.remove(&(weight(&graph, *other), *other));
            }
            for other in &scope {
                let joined = &mut graph[*other as usize];
                joined.remove(&node);
                joined.extend(scope.iter().filter(|joined| *joined != other));
            }
            waiting.extend(scope.iter().map(|other| (weight(&graph, *other), *other)));
            plan.order.push(node);
            plan.scopes.push(scope);
        }
        plan.sort_scopes();
        Some(plan)
    }

    fn sort_scopes(&mut self) {
        let mut places = vec![0; self.order.len()];
        for (place, node) in self.order.iter().enumerate() {
            places[*node as usize] = place as u32;
        }
        for scope in &mut self.scopes {
            scope.iter_mut().for_each(|node| *node = places[*node as usize]);
            scope.sort_unstable();
        }
    }

    /// The least cost without the constant, and states that cost it; none where it is infinite.
    pub(super) fn solve(&self, model: &Model) -> (Cost, Option<Vec<u32>>) {
        let mut buckets: Vec<Vec<Factor>> = self.order.iter().map(|_| Vec::new()).collect();
        let mut places = vec![0; self.order.len()];
        for (place, node) in self.order.iter().enumerate() {
            places[*node as usize] = place as u32;
        }
        for edge in &model.edges {
            let [first, second] = edge.ends.map(|end| places[end as usize]);
            let later = if first < second { 1 } else { 0 };
            let scope = if later == 1 { vec![first, second] } else { vec![second, first] };
            buckets[scope[0] as usize].push(Factor { scope, costs: Cow::Borrowed(edge.table.side(later)) });
        }
        let sizes: Vec<usize> = self.order.iter().map(|node| model.nodes[*node as usize].costs.len()).collect();
        let mut least: Cost = 0;
        for (place, scope) in self.scopes.iter().enumerate() {
            let own = &model.nodes[self.order[place] as usize].costs;
            let costs = remove(own, &buckets[place], scope, &sizes);
            match scope.first() {
                Some(next) => {
                    let factor = Factor { scope: scope.clone(), costs: Cow::Owned(costs) };
                    buckets[*next as usize].push(factor);
                }
                None => least = plus(least, costs[0]),
            }
        }
        if least >= INFINITE { (INFINITE, None) } else { (least, Some(self.read_states(model, &buckets, &sizes))) }
    }

    fn read_states(&self, model: &Model, buckets: &[Vec<Factor>], sizes: &[usize]) -> Vec<u32> {
        let mut by_place = vec![0; self.order.len()];
        let mut states = vec![0; self.order.len()];
        for (place, node) in self.order.iter().enumerate().rev() {
            let mut costs = model.nodes[*node as usize].costs.clone();
            for factor in &buckets[place] {
                add_row(&mut costs, &factor.costs, factor.offset(&by_place, sizes));
            }
            let best = (0..costs.len()).min_by_key(|state| costs[*state]).unwrap_or(0);
            by_place[place] = best;
            states[*node as usize] = best as u32;
        }
        states
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

    /// Where the entries of the first node begin, given the states of the others.
    fn offset(&self, by_place: &[usize], sizes: &[usize]) -> usize {
        self.scope[1..].iter().map(|place| by_place[*place as usize] * self.stride(*place, sizes)).sum()
    }
}

fn add_row(costs: &mut [Cost], entries: &[Cost], offset: usize) {
    for (cost, entry) in costs.iter_mut().zip(&entries[offset..]) {
        *cost = plus(*cost, *entry);
    }
}

/// For each combination of states of `scope`, the least over the states of the first node of `factors`.
fn remove(own: &[Cost], factors: &[Factor], scope: &[u32], sizes: &[usize]) -> Vec<Cost> {
    let (inner, outer) = match scope {
        [] => (1, &[][..]),
        [inner, outer @ ..] => (sizes[*inner as usize], outer),
    };
    let n_outer: usize = outer.iter().map(|place| sizes[*place as usize]).product();
    let inner_stride = |factor: &Factor| scope.first().map_or(0, |place| factor.stride(*place, sizes));
    let (varying, constant): (Vec<&Factor>, Vec<&Factor>) = factors.iter().partition(|factor| inner_stride(factor) > 0);
    let strides = |factor: &&Factor| outer.iter().map(|place| factor.stride(*place, sizes)).collect::<Vec<_>>();
    let varying_strides: Vec<Vec<usize>> = varying.iter().map(strides).collect();
    let constant_strides: Vec<Vec<usize>> = constant.iter().map(strides).collect();
    let mut digits = vec![0; outer.len()];
    let mut out = Vec::with_capacity(n_outer * inner);
    let (mut base, mut row) = (own.to_vec(), own.to_vec());
    for _ in 0..n_outer {
        let offset = |strides: &Vec<usize>| strides.iter().zip(&digits).map(|(stride, digit)| stride * digit).sum();
        base.copy_from_slice(own);
        for (factor, strides) in constant.iter().zip(&constant_strides) {
            add_row(&mut base, &factor.costs, offset(strides));
        }
        let offsets: Vec<usize> = varying_strides.iter().map(offset).collect();
        for state in 0..inner {
            out.push(least_of(&base, &mut row, &varying, &offsets, |factor| state * inner_stride(factor)));
        }
        advance(&mut digits, outer, sizes);
    }
    out
}

/// The least of the sums of `base` and one row of each factor.
fn least_of(
    base: &[Cost],
    row: &mut [Cost],
    factors: &[&Factor],
    offsets: &[usize],
    shift: impl Fn(&Factor) -> usize,
) -> Cost {
    row.copy_from_slice(base);
    for (factor, offset) in factors.iter().zip(offsets) {
        add_row(row, &factor.costs, offset + shift(factor));
    }
    row.iter().copied().min().unwrap_or(INFINITE)
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
