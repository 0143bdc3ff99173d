//! Rewrites a model to a smaller one with the same least cost.
//!
//! Until nothing changes, at each node:
//! 1. States that nothing allows are dropped, and each state `s` for which another `t` never costs more:
//!    `u[t] + sum over edges of max_j (T[t, j] - T[s, j]) <= u[s]`; under limits `t` must also take no more of each. States with
//!    equal costs are the case where both directions hold: the lower one stays.
//! 2. Edges whose table is a sum of costs of its ends go into the ends' costs.
//! 3. Two nodes whose edge allows each state of one with one state of the other become one (the module `merge`).
//! 4. A node with one state goes into its neighbours' costs; a node with no, one or two edges is *folded*: the least over its states
//!    becomes a constant, costs of its neighbour, or the table of its two neighbours. Nodes with demands are not folded.
//!
//! [`Fold::write_state`], in reverse order, gives the states of the nodes that went away.
//!
//! Cost: the square of a node's states for each visit and edge, and `s·a·b` for a fold of `s` states between `a` and `b`, once for
//! each distinct input.
//!
//! Reference: bucket elimination (Dechter 1999) for nodes of at most two neighbours; dominance as *dead-end elimination* (Goldstein
//! 1994).

mod dominance;
mod merge;

use super::model::{Edge, Model, Node, plus_all, restrict_node};
use super::problem::Cost;
use super::tables::{Table, TableCache, is_infinite, min_plus, plus};
use dominance::needed_states;
use std::collections::VecDeque;
use std::sync::Arc;

/// A node that went away, with what it cost when it did.
pub(super) struct Fold {
    origin: u32,
    labels: Arc<[u32]>,
    costs: Vec<Cost>,
    links: Vec<Link>,
}

struct Link {
    origin: u32,
    labels: Arc<[u32]>,
    table: Arc<Table>,
    /// The end of the table that is the folded node.
    side: usize,
}

impl Fold {
    /// Writes the best state of the node, given those of its neighbours, into an assignment of the origins.
    pub(super) fn write_state(&self, assignment: &mut [u32]) {
        let mut costs = self.costs.clone();
        for link in &self.links {
            let wanted = assignment[link.origin as usize];
            let state = link.labels.iter().position(|label| *label == wanted).unwrap_or(0);
            for (cost, entry) in costs.iter_mut().zip(link.table.row(1 - link.side, state)) {
                *cost = plus(*cost, *entry);
            }
        }
        let best = (0..costs.len()).min_by_key(|state| costs[*state]).unwrap_or(0);
        assignment[self.origin as usize] = self.labels[best];
    }
}

/// What a model was rewritten to.
pub(super) enum Simplified {
    /// The rest, and the nodes that went away, first to last.
    Rest(Model, Vec<Fold>),
    /// No assignment is allowed.
    Infeasible,
}

/// Rewrites a model; adds the entries that it read to `n_steps`.
pub(super) fn simplify(model: Model, n_steps: &mut u64) -> Simplified {
    let n_nodes = model.nodes.len();
    let mut incident = vec![Vec::new(); n_nodes];
    for (number, edge) in model.edges.iter().enumerate() {
        for end in edge.ends {
            incident[end as usize].push(number as u32);
        }
    }
    let mut simplifier = Simplifier {
        constant: model.constant,
        nodes: model.nodes.into_iter().map(Some).collect(),
        edges: model.edges.into_iter().map(Some).collect(),
        incident,
        limits: model.limits,
        queue: (0..n_nodes as u32).collect(),
        is_queued: vec![true; n_nodes],
        cache: TableCache::default(),
        folds: Vec::new(),
        n_steps: 0,
    };
    let result = simplifier.run();
    *n_steps += simplifier.n_steps + simplifier.cache.n_steps;
    match result {
        Ok(()) => simplifier.finish(),
        Err(NothingAllowed) => Simplified::Infeasible,
    }
}

/// No assignment is allowed.
struct NothingAllowed;

pub(super) struct Simplifier {
    pub(super) constant: Cost,
    pub(super) nodes: Vec<Option<Node>>,
    pub(super) edges: Vec<Option<Edge>>,
    /// By node, its edges in no particular order.
    pub(super) incident: Vec<Vec<u32>>,
    pub(super) limits: Vec<u64>,
    pub(super) queue: VecDeque<u32>,
    pub(super) is_queued: Vec<bool>,
    pub(super) cache: TableCache,
    pub(super) folds: Vec<Fold>,
    pub(super) n_steps: u64,
}

/// A fold makes no table larger than this, unless it takes the place of larger ones.
const MOST_FOLDED_ENTRIES: usize = 1 << 16;

impl Simplifier {
    fn run(&mut self) -> Result<(), NothingAllowed> {
        while let Some(at) = self.queue.pop_front() {
            self.is_queued[at as usize] = false;
            if let Some(mut node) = self.nodes[at as usize].take() {
                self.drop_states(at, &mut node)?;
                self.drop_separable_edges(at, &mut node);
                self.nodes[at as usize] = match self.find_twin(at) {
                    Some(twin) => {
                        self.merge(at, node, &twin);
                        None
                    }
                    None => self.fold(at, node)?,
                };
            }
        }
        Ok(())
    }

    fn finish(self) -> Simplified {
        let mut numbers = vec![0; self.nodes.len()];
        let mut nodes = Vec::new();
        for (number, node) in numbers.iter_mut().zip(self.nodes) {
            *number = nodes.len() as u32;
            nodes.extend(node);
        }
        let renumbered = |edge: Edge| Edge { ends: edge.ends.map(|end| numbers[end as usize]), ..edge };
        let edges = self.edges.into_iter().flatten().map(renumbered).collect();
        Simplified::Rest(Model { constant: self.constant, nodes, edges, limits: self.limits }, self.folds)
    }

    pub(super) fn visit_later(&mut self, at: u32) {
        if !std::mem::replace(&mut self.is_queued[at as usize], true) {
            self.queue.push_back(at);
        }
    }

    /// The edges of a node, and which end of them it is.
    pub(super) fn edges_of(&self, at: u32) -> impl Iterator<Item = (u32, &Edge, usize)> {
        let numbers = self.incident[at as usize].iter();
        numbers.filter_map(move |number| {
            let edge = self.edges[*number as usize].as_ref()?;
            Some((*number, edge, usize::from(edge.ends[0] != at)))
        })
    }

    fn drop_states(&mut self, at: u32, node: &mut Node) -> Result<(), NothingAllowed> {
        let kept = self.states_to_keep(at, node);
        if kept.is_empty() {
            return Err(NothingAllowed);
        }
        if kept.len() == node.costs.len() {
            return Ok(());
        }
        restrict_node(node, &kept);
        for number in self.incident[at as usize].clone() {
            if let Some(edge) = &mut self.edges[number as usize] {
                let side = usize::from(edge.ends[0] != at);
                edge.table = self.cache.restricted((&edge.table, side), &kept);
                restrict_message(&mut edge.messages[side], &kept);
                let other = edge.ends[1 - side];
                self.visit_later(other);
            }
        }
        Ok(())
    }

    fn states_to_keep(&mut self, at: u32, node: &Node) -> Vec<u32> {
        let edges: Vec<(&Table, usize)> = self.edges_of(at).map(|(_, edge, side)| (&*edge.table, side)).collect();
        let is_allowed = |state: &usize| {
            let of_edges = edges.iter().all(|(table, side)| !is_infinite(table.least(*side)[*state].cost));
            of_edges && !is_infinite(node.costs[*state]) && !self.breaks_limit(node, *state)
        };
        let kept: Vec<usize> = (0..node.costs.len()).filter(is_allowed).collect();
        let mut n_steps = 0;
        let kept = needed_states(node, &edges, kept, &mut n_steps);
        self.n_steps += n_steps;
        kept.into_iter().map(|state| state as u32).collect()
    }

    fn breaks_limit(&self, node: &Node, state: usize) -> bool {
        node.demands.iter().any(|demand| demand.amounts[state] > self.limits[demand.limit])
    }

    fn drop_separable_edges(&mut self, at: u32, node: &mut Node) {
        for number in self.incident[at as usize].clone() {
            let is_separable = |edge: &mut Edge| edge.table.is_separable();
            let Some(edge) = self.edges[number as usize].take_if(is_separable) else { continue };
            let side = usize::from(edge.ends[0] != at);
            let first = edge.table.row(1 - side, 0);
            plus_all(&mut node.costs, first);
            let other = edge.ends[1 - side];
            if let Some(neighbour) = &mut self.nodes[other as usize] {
                let of_first = edge.table.row(side, 0);
                for (cost, entry) in neighbour.costs.iter_mut().zip(of_first) {
                    *cost = plus(*cost, entry - of_first[0]);
                }
            }
            self.visit_later(other);
        }
        let edges = &self.edges;
        self.incident[at as usize].retain(|number| edges[*number as usize].is_some());
    }

    /// The node, if it stays.
    fn fold(&mut self, at: u32, node: Node) -> Result<Option<Node>, NothingAllowed> {
        if node.costs.len() > 1 && !node.demands.is_empty() {
            return Ok(Some(node));
        }
        let numbers = self.incident[at as usize].clone();
        match numbers[..] {
            [] => {
                let least = node.costs.iter().copied().min().unwrap_or_default();
                self.constant = plus(self.constant, least);
            }
            [first] => self.fold_into_neighbour(at, &node, first),
            [first, second] if self.is_small_fold(at, first, second) => self.fold_between(at, &node, first, second),
            // The edges of a node with one state are separable, and gone, unless they are infinite somewhere. Then the visit of the
            // neighbour, which is still to come, drops those states.
            _ => return Ok(Some(node)),
        }
        self.take_from_limits(&node)?;
        let record = self.fold_record(at, node);
        self.folds.push(record);
        for number in numbers {
            if let Some(edge) = self.edges[number as usize].take() {
                edge.ends.into_iter().filter(|end| *end != at).for_each(|end| self.visit_later(end));
            }
        }
        Ok(None)
    }

    /// Subtracts what a node takes of the limits, which has one state if it takes anything.
    fn take_from_limits(&mut self, node: &Node) -> Result<(), NothingAllowed> {
        for demand in &node.demands {
            let limit = &mut self.limits[demand.limit];
            *limit = limit.checked_sub(demand.amounts[0]).ok_or(NothingAllowed)?;
        }
        Ok(())
    }

    /// The edge's table and which end of it a node is.
    fn side_at(&self, at: u32, number: u32) -> Option<(&Edge, usize)> {
        let edge = self.edges[number as usize].as_ref()?;
        Some((edge, usize::from(edge.ends[0] != at)))
    }

    fn fold_into_neighbour(&mut self, at: u32, node: &Node, number: u32) {
        let Some((edge, side)) = self.side_at(at, number) else { return };
        let other = edge.ends[1 - side];
        let Some(neighbour) = &self.nodes[other as usize] else { return };
        let mut message = vec![0; neighbour.costs.len()];
        self.n_steps += min_plus(&node.costs, edge.table.side(side), &mut message);
        if let Some(neighbour) = &mut self.nodes[other as usize] {
            plus_all(&mut neighbour.costs, &message);
        }
    }

    /// Whether the table between the neighbours is no larger than what it takes the place of, or small.
    fn is_small_fold(&self, at: u32, first: u32, second: u32) -> bool {
        let sizes = [first, second].map(|number| {
            let (edge, side) = self.side_at(at, number)?;
            let other = edge.ends[1 - side];
            Some((other, edge.table.n_entries(), self.nodes[other as usize].as_ref()?.costs.len()))
        });
        let [Some(first), Some(second)] = sizes else { return false };
        let n_folded = first.2 * second.2;
        let are_joined = self.edges_of(first.0).any(|(_, edge, side)| edge.ends[1 - side] == second.0);
        are_joined || n_folded <= 4 * (first.1 + second.1) || n_folded <= MOST_FOLDED_ENTRIES
    }

    fn fold_between(&mut self, at: u32, node: &Node, first: u32, second: u32) {
        let (Some(mut first), Some(mut second)) = (self.side_at(at, first), self.side_at(at, second)) else { return };
        if first.0.ends[1 - first.1] > second.0.ends[1 - second.1] {
            std::mem::swap(&mut first, &mut second);
        }
        let sides = [first, second];
        let ends = sides.map(|(edge, side)| edge.ends[1 - side]);
        let messages = sides.map(|(edge, side)| edge.messages[1 - side].clone());
        let tables = sides.map(|(edge, side)| (edge.table.clone(), side));
        let [first, second] = &tables;
        let table = self.cache.folded(&node.costs, (&first.0, first.1), (&second.0, second.1));
        self.add_edge(Edge { ends, table, messages });
    }

    /// Adds an edge, or adds it to the one that its ends have.
    pub(super) fn add_edge(&mut self, added: Edge) {
        let of_first = self.incident[added.ends[0] as usize].iter().copied();
        let joins = |number: &u32| self.edges[*number as usize].as_ref().is_some_and(|edge| edge.ends == added.ends);
        let found = of_first.into_iter().find(joins);
        match found.and_then(|number| self.edges[number as usize].as_mut()) {
            Some(edge) => {
                edge.table = self.cache.joined(&edge.table, &added.table);
                for (message, of_added) in edge.messages.iter_mut().zip(added.messages) {
                    if message.is_empty() {
                        *message = of_added;
                    } else {
                        plus_all(message, &of_added);
                    }
                }
            }
            None => {
                let number = self.edges.len() as u32;
                added.ends.iter().for_each(|end| self.incident[*end as usize].push(number));
                self.edges.push(Some(added));
            }
        }
    }

    pub(super) fn fold_record(&self, at: u32, node: Node) -> Fold {
        let link = |(_, edge, side): (u32, &Edge, usize)| {
            let neighbour = self.nodes[edge.ends[1 - side] as usize].as_ref()?;
            Some(Link { origin: neighbour.origin, labels: neighbour.labels.clone(), table: edge.table.clone(), side })
        };
        // The edge that the fold made is not the node's.
        let links = self.edges_of(at).filter_map(link).collect();
        Fold { origin: node.origin, labels: node.labels, costs: node.costs, links }
    }
}

fn restrict_message(message: &mut Vec<Cost>, kept: &[u32]) {
    if !message.is_empty() {
        *message = kept.iter().map(|state| message[*state as usize]).collect();
    }
}
