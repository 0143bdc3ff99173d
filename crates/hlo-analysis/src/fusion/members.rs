//! What belongs to one fusion: connected instructions of one stage, what they compute again, read and give.

use super::edges::Edges;
use super::role::Role;
use super::stages::Stages;
use hlo_ir::{CompId, InstId, InstMap, Module};

/// The instructions of one fusion.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Members in text order, without those that are computed again.
    pub members: Vec<InstId>,
    /// Members and all that is computed again for them, in text order.
    pub all: Vec<InstId>,
    /// What it reads from outside, in order of first use.
    pub inputs: Vec<InstId>,
    /// Members that are needed outside, in text order.
    pub outputs: Vec<InstId>,
}

/// Connected fusable instructions of one stage, and what goes beside them ([`super::siblings`]).
pub(super) fn components(module: &Module, comp: CompId, edges: &Edges, stages: &Stages) -> Vec<Vec<InstId>> {
    let mut leader: InstMap<Option<InstId>> = InstMap::of(module, comp);
    fn find(leader: &mut InstMap<Option<InstId>>, mut inst: InstId) -> InstId {
        while let Some(up) = leader[inst] {
            if let Some(above) = leader[up] {
                leader[inst] = Some(above);
            }
            inst = up;
        }
        inst
    }
    for &inst in edges.order.iter().filter(|&&i| edges.roles[i] == Role::Fusable) {
        for (&operand, &is_fusable) in module.inst(inst).operands.iter().zip(&edges.is_fusable[inst]) {
            if is_fusable && edges.roles[operand] == Role::Fusable && stages[operand] == stages[inst] {
                let (a, b) = (find(&mut leader, operand), find(&mut leader, inst));
                if a != b {
                    leader[b] = Some(a);
                }
            }
        }
    }
    for &inst in &edges.order {
        if let Some(beside) = edges.beside[inst].filter(|&beside| stages[beside] == stages[inst]) {
            let (a, b) = (find(&mut leader, beside), find(&mut leader, inst));
            if a != b {
                leader[b] = Some(a);
            }
        }
    }
    let mut of_leader: InstMap<Option<u32>> = InstMap::of(module, comp);
    let mut found: Vec<Vec<InstId>> = Vec::new();
    for &inst in edges.order.iter().filter(|&&i| edges.roles[i] == Role::Fusable) {
        let first = find(&mut leader, inst);
        let slot = *of_leader[first].get_or_insert_with(|| {
            found.push(Vec::new());
            found.len() as u32 - 1
        });
        found[slot as usize].push(inst);
    }
    found
}

/// What an instruction is to the group that is being completed.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Place {
    #[default]
    Unseen,
    Member,
    /// Computed again by the group.
    Repeated,
    Input,
}

/// The place of each instruction in the text.
pub(super) fn positions(module: &Module, comp: CompId) -> InstMap<u32> {
    let mut position: InstMap<u32> = InstMap::of(module, comp);
    for (i, &inst) in module.comp(comp).insts.iter().enumerate() {
        position[inst] = i as u32;
    }
    position
}

/// For each instruction of a computation its place in one group after another: the number of the group, and the place.
pub(super) struct Marks {
    places: InstMap<(u32, Place)>,
    group: u32,
}

impl Marks {
    /// Marks of a computation of which nothing is known.
    pub(super) fn of(module: &Module, comp: CompId) -> Marks {
        Marks { places: InstMap::of(module, comp), group: 0 }
    }

    fn place(&self, inst: InstId) -> Place {
        let (group, place) = self.places[inst];
        if group == self.group { place } else { Place::Unseen }
    }

    /// Finds what members repeat, read and give.
    pub(super) fn complete(
        &mut self,
        module: &Module,
        edges: &Edges,
        position: &InstMap<u32>,
        members: Vec<InstId>,
    ) -> Group {
        self.group += 1;
        members.iter().for_each(|&member| self.places[member] = (self.group, Place::Member));
        let mut work: Vec<InstId> = members.clone();
        let mut all = members.clone();
        let mut inputs = Vec::new();
        while let Some(inst) = work.pop() {
            for (&operand, &is_fusable) in module.inst(inst).operands.iter().zip(&edges.is_fusable[inst]) {
                let place = self.place(operand);
                if place == Place::Member || place == Place::Repeated {
                    continue;
                }
                if is_fusable && edges.roles[operand] == Role::Repeatable {
                    self.places[operand] = (self.group, Place::Repeated);
                    all.push(operand);
                    work.push(operand);
                } else if place == Place::Unseen {
                    self.places[operand] = (self.group, Place::Input);
                    inputs.push(operand);
                }
            }
        }
        // A member's operand may have become an input and been taken in later by another way.
        inputs.retain(|&input| self.place(input) == Place::Input);
        inputs.sort_unstable_by_key(|&inst| position[inst]);
        all.sort_unstable_by_key(|&inst| position[inst]);
        let is_outside = |user: &InstId| self.place(*user) != Place::Member;
        let is_needed = |m: &InstId| edges.root == Some(*m) || edges.users[*m].iter().any(is_outside);
        let outputs = members.iter().copied().filter(is_needed).collect();
        Group { members, all, inputs, outputs }
    }
}
