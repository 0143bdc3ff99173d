//! Convolutions with what follows them element by element (a bias, an activation and the mask of what stays, a residual), and with the reversals
//! and reshapes of their operands, which a kernel computes by an index.

use crate::kernel::keeps_runs;
use cranelift_entity::SecondaryMap;
use hashbrown::{HashMap, HashSet};
use hlo_analysis::fusion::Group;
use hlo_ir::module::UserMap;
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};

/// Instructions of one such fusion.
const MOST_MEMBERS: usize = 64;

/// What an instruction is to a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Relation {
    /// It does not depend on it.
    #[default]
    None,
    Member,
    /// It depends on a member and is none.
    After,
}

/// A fusion for each convolution that has something to take in. Inputs of one depend on no member of it, by way of other fusions either.
pub(super) fn find_convolutions(module: &Module, comp: CompId) -> Vec<Group> {
    let insts = &module.comp(comp).insts;
    let marks = insts.iter().filter_map(|&inst| module.inst(inst).marks.as_ref());
    // A fusion does not stand for its members: what others wait for would be computed a second time, outside of it.
    let waited_for: HashSet<InstId> = marks.flat_map(|marks| marks.control_predecessors.iter().copied()).collect();
    let is_convolution = |&inst: &InstId| {
        module.inst(inst).opcode == Opcode::Convolution && !has_order(module, inst) && !waited_for.contains(&inst)
    };
    let convs: Vec<InstId> = insts.iter().copied().filter(is_convolution).collect();
    if convs.is_empty() {
        return Vec::new(); // the users of all of the module are asked for convolutions alone
    }
    let users = module.users();
    let mut groups: Vec<Group> = Vec::new();
    let mut group_of: HashMap<InstId, usize> = HashMap::new();
    for conv in convs {
        let found = Found { module, comp, users: &users, conv, group_of: &group_of, waited_for: &waited_for };
        if let Some(group) = found.group() {
            group_of.extend(group.members.iter().map(|&member| (member, groups.len())));
            groups.push(group);
        }
    }
    groups
}

fn has_order(module: &Module, inst: InstId) -> bool {
    module.inst(inst).marks.as_ref().is_some_and(|m| !m.control_predecessors.is_empty())
}

struct Found<'a> {
    module: &'a Module,
    comp: CompId,
    users: &'a UserMap,
    conv: InstId,
    /// Which other convolution's fusion an instruction is in.
    group_of: &'a HashMap<InstId, usize>,
    /// Instructions that others wait for.
    waited_for: &'a HashSet<InstId>,
}

impl Found<'_> {
    fn group(&self) -> Option<Group> {
        let maps = self.maps_of_operands();
        let mut members = self.followers();
        let bytes = |inst: InstId| self.module.shape(inst).memory_bytes();
        let outputs = |members: &[InstId]| -> Vec<InstId> {
            members.iter().copied().filter(|&member| self.is_needed_beside(member, members)).collect()
        };
        // A result in a wider type, or several, would cost what the convolution's own does not.
        let written: u64 = outputs(&members).into_iter().map(bytes).sum();
        if written > bytes(self.conv) + bytes(self.conv) / 2 {
            members = vec![self.conv];
        }
        if members.len() + maps.len() == 1 {
            return None;
        }
        let results = outputs(&members);
        let text = &self.module.comp(self.comp).insts;
        let filled = self.fills_of(&members);
        let all: HashSet<InstId> = members.iter().chain(&maps).chain(&filled).copied().collect();
        let in_order =
            |of: &dyn Fn(InstId) -> bool| text.iter().copied().filter(|&inst| of(inst)).collect::<Vec<InstId>>();
        let all_in_order = in_order(&|inst| all.contains(&inst));
        let mut inputs = Vec::new();
        for &operand in all_in_order.iter().flat_map(|&inst| &self.module.inst(inst).operands) {
            if !all.contains(&operand) && !inputs.contains(&operand) {
                inputs.push(operand);
            }
        }
        Some(Group {
            members: in_order(&|inst| members.contains(&inst) || maps.contains(&inst)),
            all: all_in_order,
            inputs,
            outputs: in_order(&|inst| results.contains(&inst)),
        })
    }

    fn is_root(&self, inst: InstId) -> bool {
        self.module.comp(self.comp).root.expand() == Some(inst)
    }

    fn is_needed_beside(&self, member: InstId, members: &[InstId]) -> bool {
        self.is_root(member) || self.users[member].iter().any(|user| !members.contains(user))
    }

    /// Reversals, reshapes and transposes that keep the fastest dim, of which only the convolution reads the result.
    fn maps_of_operands(&self) -> Vec<InstId> {
        let mut found: Vec<InstId> = Vec::new();
        for &operand in &self.module.inst(self.conv).operands {
            let (mut at, mut user) = (operand, self.conv);
            while self.users[at].iter().all(|&other| other == user)
                && !self.is_root(at)
                && !self.group_of.contains_key(&at)
                && keeps_runs(self.module, at)
                && !has_order(self.module, at)
                && !self.waited_for.contains(&at)
            {
                found.push(at);
                user = at;
                let Some(&next) = self.module.inst(at).operands.first() else { break };
                at = next;
            }
        }
        found
    }

    /// How each instruction stands to the convolution, its only member so far. What depends on one member of a fusion depends on all.
    fn relations(&self) -> SecondaryMap<InstId, Relation> {
        let mut relations = SecondaryMap::with_capacity(self.module.n_inst_slots());
        relations[self.conv] = Relation::Member;
        let mut fusions_after: HashSet<usize> = HashSet::new();
        loop {
            let n_before = fusions_after.len();
            for &inst in &self.module.comp(self.comp).insts {
                if relations[inst] == Relation::Member {
                    continue;
                }
                let own = self.group_of.get(&inst);
                let is_after = own.is_some_and(|group| fusions_after.contains(group))
                    || self.needs(inst).any(|other| relations[other] != Relation::None);
                if is_after {
                    relations[inst] = Relation::After;
                    fusions_after.extend(own);
                }
            }
            if fusions_after.len() == n_before {
                return relations;
            }
        }
    }

    fn needs(&self, inst: InstId) -> impl Iterator<Item = InstId> {
        let node = self.module.inst(inst);
        let order = node.marks.as_ref().map(|marks| marks.control_predecessors.as_slice()).unwrap_or_default();
        node.operands.iter().chain(order).copied()
    }

    /// The convolution and what can be computed of its elements one by one.
    fn followers(&self) -> Vec<InstId> {
        let mut relations = self.relations();
        let mut members = vec![self.conv];
        let Some(shape) = self.module.shape(self.conv).as_array() else { return members };
        // The text goes from operands to users: what depends on a member by way of no other instruction is found to be one in its turn.
        for &inst in &self.module.comp(self.comp).insts {
            let node = self.module.inst(inst);
            let relation = |inst: InstId| relations[inst];
            let of_member = node.operands.iter().any(|&operand| relation(operand) == Relation::Member);
            let is_like = |other: &ArrayShape| other.dims == shape.dims && other.is_same_order(shape);
            let fits = of_member
                && members.len() < MOST_MEMBERS
                && node.opcode.is_elementwise()
                && self.module.called(inst).is_empty()
                && !has_order(self.module, inst)
                && !self.waited_for.contains(&inst)
                && !self.group_of.contains_key(&inst)
                && self.module.shape(inst).as_array().is_some_and(is_like)
                && node.operands.iter().all(|&operand| relation(operand) != Relation::After);
            if fits {
                relations[inst] = Relation::Member;
                members.push(inst);
            }
        }
        members
    }

    /// Constants and broadcasts that members read: they are done again inside.
    fn fills_of(&self, members: &[InstId]) -> Vec<InstId> {
        let mut found = Vec::new();
        let followers = members.iter().filter(|&&member| member != self.conv);
        let mut open: Vec<InstId> =
            followers.flat_map(|&member| self.module.inst(member).operands.iter().copied()).collect();
        while let Some(at) = open.pop() {
            let is_scalar = self.module.shape(at).as_array().is_some_and(|shape| shape.n_elems() == 1);
            let opcode = self.module.inst(at).opcode;
            let is_fill = opcode == Opcode::Broadcast || (opcode == Opcode::Constant && is_scalar);
            if is_fill && !found.contains(&at) && !members.contains(&at) && !has_order(self.module, at) {
                found.push(at);
                open.extend(self.module.inst(at).operands.iter().copied());
            }
        }
        found
    }
}
