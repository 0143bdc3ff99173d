//! Improves an assignment by block descent: the rest is fixed, and a block of nodes takes its best states.
//!
//! Blocks are single nodes (*iterated conditional modes*, Besag 1986), and sets of nodes whose edges among themselves form a forest,
//! which dynamic programming solves exactly. A round adds nodes in a shuffled order, each that closes no circle; the shuffle depends
//! on nothing but the round's number.
//!
//! Cost: a round reads the tables inside its forest once, and one row of each other table.

use super::model::{Incidence, Incident, Model};
use super::problem::Cost;
use super::tables::{min_plus, plus};
use std::collections::VecDeque;

/// An assignment of a model on its way down.
pub(super) struct Descent<'a> {
    model: &'a Model,
    incidence: &'a Incidence,
    pub states: Vec<u32>,
    /// How many table entries were read.
    pub n_steps: u64,
}

/// The place of a node in a forest that hangs from its roots.
struct Hanging {
    node: u32,
    /// The edge to the node above it, unless it is a root.
    above: Option<Incident>,
}

impl<'a> Descent<'a> {
    pub(super) fn new(model: &'a Model, incidence: &'a Incidence, states: Vec<u32>) -> Self {
        Descent { model, incidence, states, n_steps: 0 }
    }

    /// The costs of a node's states with the neighbours that `counts` says at their states.
    fn costs_at(&mut self, node: usize, counts: impl Fn(u32) -> bool) -> Vec<Cost> {
        let mut costs = self.model.nodes[node].costs.clone();
        for incident in self.incidence.at(node).iter().filter(|incident| counts(incident.other)) {
            let table = &self.model.edges[incident.edge as usize].table;
            let row = table.row(1 - incident.side as usize, self.states[incident.other as usize] as usize);
            for (cost, entry) in costs.iter_mut().zip(row) {
                *cost = plus(*cost, *entry);
            }
            self.n_steps += row.len() as u64;
        }
        costs
    }

    /// Moves single nodes until none can be moved to its gain.
    pub(super) fn settle(&mut self) {
        let n = self.model.nodes.len();
        let mut queue: VecDeque<u32> = (0..n as u32).collect();
        let mut is_queued = vec![true; n];
        while let Some(at) = queue.pop_front() {
            is_queued[at as usize] = false;
            let costs = self.costs_at(at as usize, |_| true);
            let best = cheapest(&costs);
            if costs[best as usize] >= costs[self.states[at as usize] as usize] {
                continue;
            }
            self.states[at as usize] = best;
            for incident in self.incidence.at(at as usize) {
                if !std::mem::replace(&mut is_queued[incident.other as usize], true) {
                    queue.push_back(incident.other);
                }
            }
        }
    }

    /// Gives the nodes of one forest their best states.
    pub(super) fn forest_round(&mut self, round: u64) {
        let is_inside = self.choose_forest(round);
        let order = self.hang(&is_inside);
        let mut values: Vec<Vec<Cost>> = vec![Vec::new(); is_inside.len()];
        for hanging in &order {
            values[hanging.node as usize] = self.costs_at(hanging.node as usize, |other| !is_inside[other as usize]);
        }
        let mut message = Vec::new();
        for hanging in order.iter().rev() {
            let Some(above) = hanging.above else { continue };
            let table = &self.model.edges[above.edge as usize].table;
            message.resize(table.n_states(1 - above.side as usize), 0);
            self.n_steps += min_plus(&values[hanging.node as usize], table.side(above.side as usize), &mut message);
            for (value, added) in values[above.other as usize].iter_mut().zip(&message) {
                *value = plus(*value, *added);
            }
        }
        for hanging in &order {
            let costs = &mut values[hanging.node as usize];
            if let Some(above) = hanging.above {
                let state = self.states[above.other as usize] as usize;
                let row = self.model.edges[above.edge as usize].table.row(1 - above.side as usize, state);
                costs.iter_mut().zip(row).for_each(|(cost, entry)| *cost = plus(*cost, *entry));
            }
            self.states[hanging.node as usize] = cheapest(costs);
        }
    }

    /// Which nodes are in the forest.
    fn choose_forest(&self, round: u64) -> Vec<bool> {
        let n = self.model.nodes.len();
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_cached_key(|node| shuffled(round, u64::from(*node)));
        let mut is_inside = vec![false; n];
        let mut trees: Vec<u32> = (0..n as u32).collect();
        let mut joined = Vec::new();
        for node in order {
            joined.clear();
            let inside = self.incidence.at(node as usize).iter().filter(|incident| is_inside[incident.other as usize]);
            joined.extend(inside.map(|incident| root(&mut trees, incident.other)));
            joined.sort();
            if joined.windows(2).any(|pair| pair[0] == pair[1]) {
                continue;
            }
            is_inside[node as usize] = true;
            joined.iter().for_each(|tree| trees[*tree as usize] = node);
        }
        is_inside
    }

    /// The nodes of the forest, each after the one above it.
    fn hang(&self, is_inside: &[bool]) -> Vec<Hanging> {
        let mut order: Vec<Hanging> = Vec::new();
        let mut is_reached = vec![false; is_inside.len()];
        for first in 0..is_inside.len() {
            if !is_inside[first] || is_reached[first] {
                continue;
            }
            let mut next = order.len();
            is_reached[first] = true;
            order.push(Hanging { node: first as u32, above: None });
            while next < order.len() {
                let node = order[next].node;
                next += 1;
                for incident in self.incidence.at(node as usize) {
                    let other = incident.other as usize;
                    if is_inside[other] && !std::mem::replace(&mut is_reached[other], true) {
                        let above = Incident { edge: incident.edge, side: 1 - incident.side, other: node };
                        order.push(Hanging { node: incident.other, above: Some(above) });
                    }
                }
            }
        }
        order
    }
}

/// The state that costs least.
pub(super) fn cheapest(costs: &[Cost]) -> u32 {
    (0..costs.len()).min_by_key(|state| costs[*state]).unwrap_or(0) as u32
}

/// The root of a node's tree, with the path to it halved.
fn root(trees: &mut [u32], mut node: u32) -> u32 {
    while trees[node as usize] != node {
        trees[node as usize] = trees[trees[node as usize] as usize];
        node = trees[node as usize];
    }
    node
}

/// A number that looks random: the finalizer of SplitMix64.
fn shuffled(round: u64, number: u64) -> u64 {
    let mut bits = round.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 29)
}
