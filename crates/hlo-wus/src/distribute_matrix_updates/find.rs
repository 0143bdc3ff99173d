//! Finds the matrix updates of a computation: what all devices of a group compute alike round matrix products.
//!
//! Products that are equal on the devices, and what lies between two of them, make the core of an update. The core takes in what is
//! computed for it alone, as far as that makes fewer bytes of what it reads (a minimum cut). It takes in what is computed from it
//! alone, as far as that makes no more bytes of what it gives. Devices that hold equal values also run the instruction equally often, so that
//! a collective can stand there.

use super::stacked::{is_constant, is_stackable};
use crate::tables::IndexSet;
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::code::pinned_by_control;
use hlo_analysis::min_cut::{Network, UNCUTTABLE, Vertex};
use hlo_analysis::replication::Replication;
use hlo_ir::module::UserMap;
use hlo_ir::op::FactorRule;
use hlo_ir::{CompId, InstId, InstMap, Module};
use hlo_pass::{Deadline, OutOfTime};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What one matrix's update computes, in text order.
pub(super) struct MatrixUpdate {
    /// Its instructions.
    pub(super) members: EntitySet<InstId>,
    /// Those that something else reads, in text order.
    pub(super) outputs: Vec<InstId>,
}

/// Whether an instruction is a matrix product: every update has one.
pub(super) fn is_product(module: &Module, inst: InstId) -> bool {
    module.inst(inst).opcode.row().factors == FactorRule::Dot
}

struct Finder<'m> {
    module: &'m Module,
    comp: CompId,
    users: &'m UserMap,
    /// Places in the text.
    position: InstMap<u32>,
    live: EntitySet<InstId>,
    /// What may be a member.
    candidates: EntitySet<InstId>,
    /// Members of the updates found so far.
    taken: EntitySet<InstId>,
    deadline: Deadline,
}

/// The updates of a computation, in text order of their first products.
///
/// # Errors
/// The time is over.
pub(super) fn find_updates(
    module: &Module,
    comp: CompId,
    users: &UserMap,
    replication: &Replication,
    groups: &[Vec<u32>],
    deadline: Deadline,
) -> Result<Vec<MatrixUpdate>, OutOfTime> {
    let (live, pinned) = (module.live(comp), pinned_by_control(module, comp));
    let mut candidates = EntitySet::new();
    for &inst in &module.comp(comp).insts {
        let is_equal = live.contains(inst) && replication.is_equal_within(inst, 0, groups);
        if is_equal && !pinned.contains(inst) && is_stackable(module, inst) && !is_constant(module, inst) {
            candidates.insert(inst);
        }
    }
    let mut position: InstMap<u32> = InstMap::of(module, comp);
    (0..).zip(&module.comp(comp).insts).for_each(|(place, &inst)| position[inst] = place);
    let mut finder = Finder { module, comp, users, position, live, candidates, taken: EntitySet::new(), deadline };
    let cores = finder.cores();
    finder.taken.extend(cores.iter().flatten().copied());
    cores.into_iter().map(|core| finder.update(core)).collect()
}

impl Finder<'_> {
    fn is_product(&self, inst: InstId) -> bool {
        self.candidates.contains(inst) && is_product(self.module, inst)
    }

    /// Products and what lies between them, connected.
    fn cores(&self) -> Vec<Vec<InstId>> {
        let insts = &self.module.comp(self.comp).insts;
        let (mut follows, mut leads) = (EntitySet::new(), EntitySet::new());
        for &inst in insts.iter().filter(|&&inst| self.candidates.contains(inst)) {
            if self.is_product(inst) || self.module.inst(inst).operands.iter().any(|&o| follows.contains(o)) {
                follows.insert(inst);
            }
        }
        for &inst in insts.iter().rev().filter(|&&inst| self.candidates.contains(inst)) {
            if self.is_product(inst) || self.users[inst].iter().any(|&user| leads.contains(user)) {
                leads.insert(inst);
            }
        }
        let is_core = |inst: InstId| follows.contains(inst) && leads.contains(inst);
        let mut seen = EntitySet::new();
        let mut cores = Vec::new();
        for &first in insts.iter().filter(|&&inst| is_core(inst)) {
            if !seen.insert(first) {
                continue;
            }
            let mut core = vec![first];
            let mut next = 0;
            while let Some(&inst) = core.get(next) {
                next += 1;
                let around = self.module.inst(inst).operands.iter().chain(&self.users[inst]);
                core.extend(around.copied().filter(|&near| is_core(near) && seen.insert(near)));
            }
            cores.push(core);
        }
        cores
    }

    fn update(&mut self, core: Vec<InstId>) -> Result<MatrixUpdate, OutOfTime> {
        self.deadline.check()?;
        let mut members: EntitySet<InstId> = EntitySet::new();
        members.extend(core.iter().copied());
        let before = self.computed_for(&core, &members)?;
        members.extend(before.iter().copied());
        let mut all = core;
        all.extend(before);
        self.taken.extend(all.iter().copied());
        self.follow(&mut all, &mut members);
        all.sort_by_key(|&inst| self.position[inst]);
        let outputs = all.into_iter().filter(|&inst| self.is_read_outside(inst, &members)).collect();
        Ok(MatrixUpdate { members, outputs })
    }

    fn is_read_outside(&self, inst: InstId, members: &EntitySet<InstId>) -> bool {
        let is_root = self.module.comp(self.comp).root.expand() == Some(inst);
        is_root || self.users[inst].iter().any(|&user| self.live.contains(user) && !members.contains(user))
    }

    fn bytes(&self, inst: InstId) -> u64 {
        self.module.shape(inst).size_bytes()
    }

    /// What is computed for the core alone and is better computed with it: of all ways to cut between the two, one with the
    /// fewest bytes, and of those the one with the most work behind the cut.
    fn computed_for(&self, core: &[InstId], members: &EntitySet<InstId>) -> Result<Vec<InstId>, OutOfTime> {
        let mut own: IndexSet<InstId> = IndexSet::default();
        let operands =
            |inst: InstId| self.module.inst(inst).operands.iter().map(|&operand| (self.position[operand], operand));
        let mut open: BinaryHeap<(u32, InstId)> = core.iter().flat_map(|&inst| operands(inst)).collect();
        // The last in the text comes first: users before what they read.
        while let Some((_, inst)) = open.pop() {
            let is_free = self.candidates.contains(inst) && !self.taken.contains(inst) && !own.contains(&inst);
            let mut users = self.users[inst].iter().filter(|&&user| self.live.contains(user));
            if is_free && users.all(|user| members.contains(*user) || own.contains(user)) {
                own.insert(inst);
                open.extend(operands(inst));
            }
        }
        let mut network = Network::new();
        let mut vertices: SecondaryMap<InstId, Option<Vertex>> = SecondaryMap::new();
        own.iter().for_each(|&inst| vertices[inst] = Some(network.add_vertex()));
        let mut read: IndexSet<InstId> = IndexSet::default();
        for &inst in core.iter().chain(&own) {
            read.extend(
                self.module
                    .inst(inst)
                    .operands
                    .iter()
                    .filter(|&&o| !members.contains(o) && !is_constant(self.module, o)),
            );
        }
        for &value in &read {
            let from = vertices[value].unwrap_or(Network::SOURCE);
            let crosses = network.add_vertex();
            network.add_arc(from, crosses, u128::from(self.bytes(value)).max(1));
            for &user in &self.users[value] {
                let to = if members.contains(user) { Some(Network::SINK) } else { vertices[user] };
                if let Some(to) = to {
                    network.add_arc(crosses, to, UNCUTTABLE);
                    if vertices[value].is_some() {
                        network.add_arc(to, from, UNCUTTABLE);
                    }
                }
            }
        }
        let wanted: Vec<Vertex> = own.iter().filter_map(|&inst| vertices[inst]).collect();
        let cut = network.cut(&wanted, || self.deadline.check())?;
        let is_behind = |inst: &InstId| vertices[*inst].is_some_and(|vertex| cut.is_on_sink_side(vertex));
        Ok(own.into_iter().filter(is_behind).collect())
    }

    /// Takes in what is computed from members alone, where it makes no more bytes of what the members give.
    fn follow(&mut self, all: &mut Vec<InstId>, members: &mut EntitySet<InstId>) {
        let users = |inst: InstId| self.users[inst].iter().map(|&user| Reverse((self.position[user], user)));
        let mut open: BinaryHeap<Reverse<(u32, InstId)>> = all.iter().flat_map(|&inst| users(inst)).collect();
        while let Some(Reverse((_, inst))) = open.pop() {
            let operands = &self.module.inst(inst).operands;
            let is_only = || operands.iter().all(|&o| members.contains(o) || is_constant(self.module, o));
            if !self.candidates.contains(inst) || self.taken.contains(inst) || !is_only() {
                continue;
            }
            let given: IndexSet<InstId> =
                operands.iter().copied().filter(|&o| members.contains(o) && self.is_read_outside(o, members)).collect();
            let before: u64 = given.iter().map(|&o| self.bytes(o)).sum();
            members.insert(inst);
            let still: u64 = given.iter().filter(|&&o| self.is_read_outside(o, members)).map(|&o| self.bytes(o)).sum();
            if still + self.bytes(inst) > before {
                members.remove(inst);
            } else {
                all.push(inst);
                self.taken.insert(inst);
                open.extend(users(inst));
            }
        }
    }
}
