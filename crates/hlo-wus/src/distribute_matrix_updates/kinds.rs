//! The kinds of matrix updates of a module.

use super::alike::{Constants, Ordered, alike, ordered};
use super::find::{find_updates, is_product};
use crate::tables::IndexSet;
use hlo_analysis::code::code_computations;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module};
use hlo_pass::{OutOfTime, PassCx};

/// Updates that are alike.
pub(super) struct Kind {
    pub(super) comp: CompId,
    pub(super) groups: Vec<Vec<u32>>,
    pub(super) updates: Vec<Ordered>,
}

impl Kind {
    /// An instruction to report it at.
    pub(super) fn first(&self) -> InstId {
        self.updates[0].insts[0]
    }

    /// How many there are, for the report.
    pub(super) fn text(&self) -> String {
        let (n, n_devices) = (self.updates.len(), self.groups.first().map_or(1, Vec::len));
        format!("{n} updates are alike, {} for each of {n_devices} devices", n.div_ceil(n_devices))
    }

    /// The bytes of what all updates give.
    pub(super) fn given_bytes(&self, module: &Module) -> u64 {
        let outputs = self.updates.iter().flat_map(|update| update.outputs.iter().map(|&output| update.insts[output]));
        outputs.map(|output| module.shape(output).size_bytes()).sum()
    }
}

/// The kinds of updates of which there are several, computation by computation.
///
/// # Errors
/// The time is over.
pub(super) fn find_kinds(module: &Module, cx: &mut PassCx<'_>) -> Result<Vec<Kind>, OutOfTime> {
    let mut kinds = Vec::new();
    let all_groups = groups_of_collectives(module);
    if all_groups.is_empty() {
        return Ok(kinds);
    }
    let comps = code_computations(module);
    let mut insts = comps.iter().flat_map(|&comp| &module.comp(comp).insts);
    if !insts.any(|&inst| is_product(module, inst)) {
        return Ok(kinds);
    }
    let (replication, users) = (cx.analyses.replication(module), module.users());
    for comp in comps {
        let mut seen: IndexSet<InstId> = IndexSet::default();
        for groups in &all_groups {
            let mut constants = Constants::default();
            let updates = find_updates(module, comp, &users, &replication, groups, cx.deadline)?;
            let updates = updates.iter().map(|update| ordered(module, update, &mut constants));
            let updates = updates.filter(|update| !update.insts.iter().any(|inst| seen.contains(inst))).collect();
            let more = alike(updates).into_iter().filter(|updates| updates.len() > 1);
            for updates in more {
                seen.extend(updates.iter().flat_map(|update| update.insts.iter().copied()));
                kinds.push(Kind { comp, groups: groups.clone(), updates });
            }
        }
    }
    Ok(kinds)
}

/// The sets of groups of the module's collectives that hold all devices, the largest groups first.
fn groups_of_collectives(module: &Module) -> Vec<Vec<Vec<u32>>> {
    let mut found: IndexSet<Vec<Vec<u32>>> = IndexSet::default();
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        let Flow::Collective(_) = module.inst(inst).opcode.row().flow else { continue };
        let Ok(groups) = module.device_groups(inst) else { continue };
        let size = groups.uniform_size().unwrap_or(0);
        if size > 1 && size * groups.groups.len() == module.n_devices() {
            found.insert(groups.groups);
        }
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|groups| std::cmp::Reverse(groups.first().map_or(0, Vec::len)));
    found
}

/// Whether one update of a kind reads what is computed from another one.
pub(super) fn is_any_dependent(module: &Module, kind: &Kind, members: &IndexSet<InstId>) -> bool {
    let mut follows: IndexSet<InstId> = IndexSet::default();
    for &inst in &module.comp(kind.comp).insts {
        let instruction = module.inst(inst);
        let before = instruction.marks.iter().flat_map(|marks| &marks.control_predecessors);
        let mut earlier = instruction.operands.iter().chain(before);
        if !members.contains(&inst) && earlier.any(|o| members.contains(o) || follows.contains(o)) {
            follows.insert(inst);
        }
    }
    kind.updates
        .iter()
        .any(|update| update.inputs.iter().any(|input| follows.contains(input) || members.contains(input)))
}
