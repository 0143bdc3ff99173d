//! The tasks of a computation before it is fused: fusible groups, and instructions of no group.

use crate::fusion::{FusionLimits, Group, StagedEdges, find_groups_of};
use cranelift_entity::EntitySet;
use hlo_ir::{CompId, InstId, InstMap, Module};
use std::rc::Rc;

/// What becomes one task, or none.
#[derive(Clone, Debug)]
pub(super) enum Unit {
    /// A fusible group.
    Kernel(Rc<Group>),
    /// An instruction of no group.
    Inst(InstId),
}

/// The units of a computation.
pub(super) struct Units<'m> {
    module: &'m Module,
    comp: CompId,
    groups: Vec<Rc<Group>>,
    of_inst: InstMap<Option<u32>>,
}

impl<'m> Units<'m> {
    /// The units of a computation of a prepared module; `staged` is what was found when it was prepared.
    pub(super) fn of(module: &'m Module, comp: CompId, staged: Option<StagedEdges>) -> Units<'m> {
        let groups = find_groups_of(module, comp, staged, FusionLimits::default());
        let groups: Vec<Rc<Group>> = groups.into_iter().map(Rc::new).collect();
        let mut of_inst = InstMap::of(module, comp);
        for (number, group) in (0..).zip(&groups) {
            group.members.iter().for_each(|&member| of_inst[member] = Some(number));
        }
        Units { module, comp, groups, of_inst }
    }

    /// The unit's group, if it is not a single instruction.
    fn group(&self, inst: InstId) -> Option<(usize, &Rc<Group>)> {
        let number = self.of_inst[inst]? as usize;
        Some((number, self.groups.get(number)?))
    }

    /// What the unit of an instruction reads.
    fn inputs(&self, inst: InstId) -> &[InstId] {
        self.group(inst).map_or(self.module.inst(inst).operands.as_slice(), |(_, group)| &group.inputs)
    }

    /// What must be computed: the root, what has an effect, and what the units of these read. What only groups read that
    /// compute it again is not.
    fn needed(&self, effectful: &EntitySet<CompId>) -> InstMap<bool> {
        let (module, comp) = (self.module, self.module.comp(self.comp));
        let live = module.live_given(self.comp, effectful);
        let mut is_used: InstMap<bool> = InstMap::of(module, self.comp);
        for &inst in comp.insts.iter().filter(|&&inst| live.contains(inst)) {
            module.inst(inst).operands.iter().for_each(|&operand| is_used[operand] = true);
        }
        let ends = comp.insts.iter().copied().filter(|&inst| live.contains(inst) && !is_used[inst]);
        let mut open: Vec<InstId> = ends.chain(comp.root.expand()).collect();
        let mut needed: InstMap<bool> = InstMap::of(module, self.comp);
        while let Some(inst) = open.pop() {
            if !std::mem::replace(&mut needed[inst], true) {
                open.extend(self.inputs(inst).iter().filter(|&&input| !needed[input]));
            }
        }
        needed
    }

    /// The needed units, each after those that it reads, else in text order.
    pub(super) fn in_order(&self, effectful: &EntitySet<CompId>) -> Vec<Unit> {
        let mut is_done: InstMap<bool> = InstMap::of(self.module, self.comp);
        let mut is_group_done = vec![false; self.groups.len()];
        let needed = self.needed(effectful);
        let mut order = Vec::new();
        let mut open: Vec<(InstId, bool)> = Vec::new();
        for &inst in self.module.comp(self.comp).insts.iter().filter(|&&inst| needed[inst]) {
            open.push((inst, false));
            while let Some((at, are_inputs_done)) = open.pop() {
                let group = self.group(at);
                let is_known = group.map_or_else(|| is_done[at], |(number, _)| is_group_done[number]);
                if is_known {
                    continue;
                }
                if are_inputs_done {
                    match group {
                        Some((number, group)) => {
                            is_group_done[number] = true;
                            order.push(Unit::Kernel(group.clone()));
                        }
                        None => {
                            is_done[at] = true;
                            order.push(Unit::Inst(at));
                        }
                    }
                    continue;
                }
                open.push((at, true));
                open.extend(self.inputs(at).iter().rev().map(|&input| (input, false)));
            }
        }
        order
    }
}
