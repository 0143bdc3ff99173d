//! Which effects a program has: infeed, outfeed, transfers to a host, and custom calls that say they have some. A proof speaks of
//! outputs alone, so it says where these differ.

use hlo_ir::attrs::CustomAttrs;
use hlo_ir::custom_target::{self, CustomTarget};
use hlo_ir::op::Effects;
use hlo_ir::{InstId, Module};
use std::collections::BTreeMap;

/// An effect of which the modules have not the same number of instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedEffect {
    /// The op, or the custom call's target.
    pub what: String,
    /// How many instructions the first module has.
    pub n_before: usize,
    /// How many the others have together.
    pub n_after: usize,
}

/// The effects that the modules do not have alike, by name. Instructions are counted as they are written, not how often they run.
pub(crate) fn changed_effects(before: &Module, after: &[&Module]) -> Vec<ChangedEffect> {
    let mut counts: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for (side, modules) in [(0, &[before][..]), (1, after)] {
        for module in modules {
            let insts = module.post_order().into_iter().flat_map(|comp| &module.comp(comp).insts);
            for effect in insts.filter_map(|&inst| effect(module, inst)) {
                counts.entry(effect).or_default()[side] += 1;
            }
        }
    }
    let changed = counts.into_iter().filter(|(_, [a, b])| a != b);
    changed.map(|(what, [n_before, n_after])| ChangedEffect { what, n_before, n_after }).collect()
}

/// The effect that is seen from outside, of an instruction itself; annotations for partitioners have none, whatever they say.
fn effect(module: &Module, inst: InstId) -> Option<String> {
    let instruction = module.inst(inst);
    match instruction.opcode.row().effects {
        Effects::Pure | Effects::Random | Effects::Communicates | Effects::OfCallees => None,
        Effects::SideEffect => Some(instruction.opcode.name().to_string()),
        Effects::ByAttribute => {
            let custom = CustomAttrs::of(&instruction.attrs)?;
            let is_mark = CustomTarget::of(&instruction.attrs).is_some_and(CustomTarget::is_of_partitioner);
            let is_seen = custom_target::has_effect(&instruction.attrs) && !is_mark;
            is_seen.then(|| format!("custom-call {}", custom.custom_call_target.0))
        }
    }
}
