//! Brings an assignment within the limits, and lowers its cost there.
//!
//! Repair: of each node, the move that costs least for what it gives back of the broken limits; the moves are done from the cheapest
//! on until nothing is broken, and looked for again while that helps. Descent: single nodes move while they gain and the limits hold.
//!
//! Cost: each round reads a row of each table for each node.

use super::limits::taken;
use super::model::{Incidence, Model};
use super::problem::Cost;
use super::tables::{is_infinite, plus};

/// An assignment on its way within the limits.
pub(super) struct Repair<'a> {
    model: &'a Model,
    incidence: &'a Incidence,
    pub states: Vec<u32>,
    taken: Vec<u64>,
    /// How many table entries were read.
    pub n_steps: u64,
}

struct Move {
    node: u32,
    to: u32,
    /// Cost for each part of a limit that it gives back.
    price: f64,
}

const MOST_ROUNDS: usize = 30;

impl<'a> Repair<'a> {
    pub(super) fn new(model: &'a Model, incidence: &'a Incidence, states: Vec<u32>) -> Self {
        let taken = taken(model, &states);
        Repair { model, incidence, states, taken, n_steps: 0 }
    }

    /// Whether the assignment came within the limits.
    pub(super) fn repair(&mut self) -> bool {
        for _ in 0..MOST_ROUNDS {
            if self.is_within() {
                return true;
            }
            let mut moves: Vec<Move> = (0..self.states.len()).filter_map(|node| self.best_move(node)).collect();
            moves.sort_by(|left, right| left.price.total_cmp(&right.price));
            let mut has_moved = false;
            for Move { node, to, .. } in moves {
                let costs = self.costs_at(node as usize);
                if !is_infinite(costs[to as usize]) && self.relief(node as usize, to) > 0.0 {
                    self.go(node as usize, to);
                    has_moved = true;
                }
                if self.is_within() {
                    return true;
                }
            }
            if !has_moved {
                return false;
            }
        }
        self.is_within()
    }

    /// Moves single nodes to their gain, within the limits, until none can.
    pub(super) fn settle(&mut self) {
        for _ in 0..MOST_ROUNDS {
            let mut has_moved = false;
            for node in 0..self.states.len() {
                let costs = self.costs_at(node);
                let own = costs[self.states[node] as usize];
                let cheaper = (0..costs.len() as u32).filter(|state| costs[*state as usize] < own);
                let fitting = cheaper.filter(|state| self.fits(node, *state));
                if let Some(best) = fitting.min_by_key(|state| costs[*state as usize]) {
                    self.go(node, best);
                    has_moved = true;
                }
            }
            if !has_moved {
                return;
            }
        }
    }

    fn is_within(&self) -> bool {
        self.taken.iter().zip(&self.model.limits).all(|(taken, limit)| taken <= limit)
    }

    fn costs_at(&mut self, node: usize) -> Vec<Cost> {
        let mut costs = self.model.nodes[node].costs.clone();
        for incident in self.incidence.at(node) {
            let table = &self.model.edges[incident.edge as usize].table;
            let row = table.row(1 - incident.side as usize, self.states[incident.other as usize] as usize);
            costs.iter_mut().zip(row).for_each(|(cost, entry)| *cost = plus(*cost, *entry));
            self.n_steps += row.len() as u64;
        }
        costs
    }

    fn best_move(&mut self, node: usize) -> Option<Move> {
        let is_broken = |limit: usize| self.taken[limit] > self.model.limits[limit];
        if !self.model.nodes[node].demands.iter().any(|demand| is_broken(demand.limit)) {
            return None;
        }
        let costs = self.costs_at(node);
        let own = costs[self.states[node] as usize];
        let price = |to: u32| {
            let relief = self.relief(node, to);
            let is_move = relief > 0.0 && !is_infinite(costs[to as usize]);
            is_move.then(|| Move { node: node as u32, to, price: (costs[to as usize] - own) as f64 / relief })
        };
        (0..costs.len() as u32).filter_map(price).min_by(|left, right| left.price.total_cmp(&right.price))
    }

    /// How much less the limits are broken after a move, in parts of them.
    fn relief(&self, node: usize, to: u32) -> f64 {
        let of_limit = |limit: usize, amounts: &[u64]| {
            let most = self.model.limits[limit];
            let others = self.taken[limit] - amounts[self.states[node] as usize];
            let [before, after] = [self.taken[limit], others.saturating_add(amounts[to as usize])];
            (before.saturating_sub(most) as f64 - after.saturating_sub(most) as f64) / most.max(1) as f64
        };
        self.model.nodes[node].demands.iter().map(|demand| of_limit(demand.limit, &demand.amounts)).sum()
    }

    fn fits(&self, node: usize, to: u32) -> bool {
        self.model.nodes[node].demands.iter().all(|demand| {
            let others = self.taken[demand.limit] - demand.amounts[self.states[node] as usize];
            others.saturating_add(demand.amounts[to as usize]) <= self.model.limits[demand.limit]
        })
    }

    fn go(&mut self, node: usize, to: u32) {
        for demand in &self.model.nodes[node].demands {
            let taken = &mut self.taken[demand.limit];
            *taken = (*taken - demand.amounts[self.states[node] as usize]).saturating_add(demand.amounts[to as usize]);
        }
        self.states[node] = to;
    }
}
