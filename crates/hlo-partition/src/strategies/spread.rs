//! Spreads strategies from the operators that have one to all others.
//!
//! Breadth first from the configured operators: first to those that take what an operator gives, then to those that compute what it
//! takes, then to those that share a parameter with it. An operator takes the candidate that needs no redistribution where it
//! touches operators that have theirs; if there is none, the one of least cost. Operators of several computed inputs wait until all of
//! these have a strategy. What is decided stays. Operators that nothing reaches take their first candidate.
//!
//! Candidates are, first, the layouts of neighbours as they are (which MindSpore has as `Layout`), then all strategies.
//!
//! Reference: *Automatic Parallel Strategy Search* of MindSpore's design documents, "Sharding Strategy Propagation Algorithm". It speaks
//! of redistributions along edges; parameters, which no operator computes, take the layout of the first operator that is decided.

use super::layouts::{Assignment, candidates, sharding_of};
use super::operators::{OperatorGraph, OperatorId, Port};
use super::redistributions::{LayoutId, Redistributions};
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::values::CutId;
use crate::sharding::{ArraySharding, AtomList};
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_pass::report::PassReport;
use std::collections::VecDeque;

/// Strategies so far.
pub(super) struct Spread<'a> {
    pub graph: &'a ShardingGraph,
    pub operators: &'a OperatorGraph,
    pub mesh: &'a ModuleMesh,
    pub redistributions: Redistributions<'a>,
    chosen: SecondaryMap<OperatorId, Option<Assignment>>,
    /// How each value is cut where it is computed, as far as it is known.
    layout: SecondaryMap<CutId, Option<LayoutId>>,
    /// The operators in the order in which they were decided.
    pub order: Vec<OperatorId>,
    /// How many were decided by which rule.
    pub counts: SpreadCounts,
}

/// How operators came to their strategies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct SpreadCounts {
    pub n_without_cost: u64,
    pub n_least_cost: u64,
    pub n_unreached: u64,
}

impl SpreadCounts {
    /// Puts the counts into a report.
    pub(super) fn tell(&self, report: &mut PassReport) {
        report.count("spread-without-cost", self.n_without_cost);
        report.count("spread-least-cost", self.n_least_cost);
        report.count("spread-unreached", self.n_unreached);
    }
}

impl<'a> Spread<'a> {
    pub(super) fn new(graph: &'a ShardingGraph, operators: &'a OperatorGraph, mesh: &'a ModuleMesh) -> Spread<'a> {
        Spread {
            graph,
            operators,
            mesh,
            redistributions: Redistributions::new(mesh),
            chosen: SecondaryMap::new(),
            layout: SecondaryMap::new(),
            order: Vec::new(),
            counts: SpreadCounts::default(),
        }
    }

    /// The strategy of an operator, if it is decided.
    pub(super) fn assignment(&self, id: OperatorId) -> Option<&Assignment> {
        self.chosen[id].as_ref()
    }

    /// How a value is cut where it is computed, if that is decided.
    pub(super) fn sharding(&self, value: CutId) -> Option<&ArraySharding> {
        self.redistributions.layout(self.layout[value]?)
    }

    /// Decides an operator.
    pub(super) fn choose(&mut self, id: OperatorId, assignment: Assignment) {
        let operator = &self.operators.operators[id];
        for port in &operator.outputs {
            self.layout[port.value] = Some(self.redistributions.id(sharding_of(port, &assignment)));
        }
        for port in &operator.inputs {
            if self.operators.producer(port.value).is_none() && self.layout[port.value].is_none() {
                self.layout[port.value] = Some(self.redistributions.id(sharding_of(port, &assignment)));
            }
        }
        self.chosen[id] = Some(assignment);
        self.order.push(id);
    }

    /// Decides how a value is cut that no operator computes.
    pub(super) fn fix(&mut self, value: CutId, layout: ArraySharding) {
        self.layout[value] = Some(self.redistributions.id(layout));
    }

    /// Spreads to all operators.
    pub(super) fn run(&mut self) {
        let mut queue: VecDeque<OperatorId> = self.order.iter().copied().collect();
        let (mut waiting, mut is_waiting) = (VecDeque::new(), EntitySet::new());
        let topological = self.operators.topological();
        let mut unreached = topological.into_iter();
        loop {
            while let Some(id) = queue.pop_front() {
                for next in self.successors(id) {
                    self.reach(next, &mut queue, (&mut waiting, &mut is_waiting));
                }
                for next in self.predecessors(id) {
                    if self.chosen[next].is_none() {
                        self.decide(next);
                        queue.push_back(next);
                    }
                }
                for next in self.partners(id) {
                    self.reach(next, &mut queue, (&mut waiting, &mut is_waiting));
                }
            }
            // Those that wait for what waits for them: the first one does not wait any longer.
            if let Some(next) = waiting.pop_front() {
                if self.chosen[next].is_none() {
                    self.decide(next);
                    queue.push_back(next);
                }
                continue;
            }
            let Some(next) = unreached.by_ref().find(|&id| self.chosen[id].is_none()) else { return };
            let first = candidates(&self.operators.operators[next], self.mesh).into_iter().next();
            self.counts.n_unreached += 1;
            self.choose(next, first.unwrap_or_default());
            queue.push_back(next);
        }
    }

    fn reach(
        &mut self,
        next: OperatorId,
        queue: &mut VecDeque<OperatorId>,
        (waiting, is_waiting): (&mut VecDeque<OperatorId>, &mut EntitySet<OperatorId>),
    ) {
        if self.chosen[next].is_some() {
            return;
        }
        if self.predecessors(next).iter().all(|&giver| self.chosen[giver].is_some()) {
            self.decide(next);
            queue.push_back(next);
        } else if is_waiting.insert(next) {
            waiting.push_back(next);
        }
    }

    fn successors(&self, id: OperatorId) -> Vec<OperatorId> {
        let outputs = &self.operators.operators[id].outputs;
        let takers = outputs.iter().flat_map(|port| self.operators.takers(port.value));
        takers.map(|&(taker, _)| taker).filter(|&taker| taker != id && self.chosen[taker].is_none()).collect()
    }

    fn predecessors(&self, id: OperatorId) -> Vec<OperatorId> {
        let inputs = &self.operators.operators[id].inputs;
        let givers = inputs.iter().filter_map(|port| self.operators.producer(port.value));
        givers.filter(|&giver| giver != id).collect()
    }

    /// Operators that take the same parameters.
    fn partners(&self, id: OperatorId) -> Vec<OperatorId> {
        let inputs = self.operators.operators[id].inputs.iter();
        let shared = inputs.filter(|port| self.operators.producer(port.value).is_none());
        let takers = shared.flat_map(|port| self.operators.takers(port.value));
        takers.map(|&(taker, _)| taker).filter(|&taker| taker != id && self.chosen[taker].is_none()).collect()
    }

    /// Takes the candidate that needs no redistribution, or the least.
    fn decide(&mut self, id: OperatorId) {
        let mut best: Option<(f64, Assignment)> = None;
        for candidate in self.followers(id) {
            let cost = self.cost(id, &candidate);
            if cost == 0.0 {
                self.counts.n_without_cost += 1;
                return self.choose(id, candidate);
            }
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, candidate));
            }
        }
        for candidate in candidates(&self.operators.operators[id], self.mesh) {
            let cost = self.cost(id, &candidate);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, candidate));
            }
        }
        match &best {
            Some((0.0, _)) => self.counts.n_without_cost += 1,
            Some(_) | None => self.counts.n_least_cost += 1,
        }
        self.choose(id, best.map(|(_, candidate)| candidate).unwrap_or_default());
    }

    /// What the operator's redistributions with its decided neighbours cost, in bytes.
    pub(super) fn cost(&mut self, id: OperatorId, assignment: &Assignment) -> f64 {
        let (operators, graph) = (self.operators, self.graph);
        let operator = &operators.operators[id];
        let mut cost = 0.0;
        for port in &operator.inputs {
            let Some(from) = self.layout[port.value] else { continue };
            let to = self.redistributions.id(sharding_of(port, assignment));
            cost += graph.values[port.value].bytes() * self.redistributions.cost_per_byte(from, to);
        }
        for port in &operator.outputs {
            let bytes = graph.values[port.value].bytes();
            if bytes == 0.0 {
                continue;
            }
            let from = self.redistributions.id(sharding_of(port, assignment));
            for &(taker, input) in operators.takers(port.value) {
                let Some(of_taker) = self.chosen[taker].as_ref().filter(|_| taker != id) else { continue };
                let Some(wanted) = operators.operators[taker].inputs.get(usize::from(input)) else { continue };
                let to = sharding_of(wanted, of_taker);
                let to = self.redistributions.id(to);
                cost += bytes * self.redistributions.cost_per_byte(from, to);
            }
        }
        cost
    }

    /// The layouts of decided neighbours as they are: all of them together, then each alone.
    fn followers(&self, id: OperatorId) -> Vec<Assignment> {
        let operator = &self.operators.operators[id];
        let mut known: Vec<(&Port, ArraySharding)> = Vec::new();
        for port in &operator.inputs {
            known.extend(self.sharding(port.value).map(|layout| (port, layout.clone())));
        }
        for port in &operator.outputs {
            for &(taker, input) in self.operators.takers(port.value) {
                let wanted = self.operators.operators[taker].inputs.get(usize::from(input));
                if let (Some(wanted), Some(of_taker)) = (wanted, &self.chosen[taker]) {
                    known.push((port, sharding_of(wanted, of_taker)));
                    break;
                }
            }
        }
        let mut out: Vec<Assignment> = Vec::new();
        let single = known.iter().map(std::slice::from_ref);
        for set in std::iter::once(known.as_slice()).chain(single) {
            let merged = self.followed(id, set);
            if !out.contains(&merged) {
                out.push(merged);
            }
        }
        out
    }

    /// The assignment that these layouts make together: the first word on a class holds, and an axis cuts one class.
    fn followed(&self, id: OperatorId, known: &[(&Port, ArraySharding)]) -> Assignment {
        let operator = &self.operators.operators[id];
        let mut out: Assignment = smallvec::smallvec![AtomList::new(); operator.classes.len()];
        let mut used = AtomList::new();
        for (port, layout) in known {
            for (class, atoms) in port.classes.iter().zip(&layout.dims) {
                let of_class = &operator.classes[usize::from(*class)];
                if of_class.why_whole().is_some() || !out[usize::from(*class)].is_empty() {
                    continue;
                }
                for &atom in atoms {
                    let taken = &mut out[usize::from(*class)];
                    let n = self.mesh.n_places(taken) * self.mesh.size(atom);
                    if used.contains(&atom) || of_class.granule % n != 0 {
                        break;
                    }
                    taken.push(atom);
                    used.push(atom);
                }
            }
        }
        out
    }
}
