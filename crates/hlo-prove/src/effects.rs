//! Which effects a program has: infeed, outfeed, transfers to a host, and custom calls that say they have some.

use crate::array::Value;
use hlo_ir::attrs::CustomAttrs;
use hlo_ir::custom_target::{self, CustomTarget};
use hlo_ir::op::Effects;
use hlo_ir::{InstId, Module};
use std::collections::BTreeMap;

/// How many chains there are.
pub(crate) const N_WORLDS: usize = 2;

/// The state of each chain.
pub(crate) type Worlds = [Value; N_WORLDS];

/// An effect as it was met.
pub(crate) struct Event {
    pub side: usize,
    pub inst: InstId,
    pub before: Value,
    pub after: Value,
    pub operands: Vec<Value>,
}

/// The worlds, and the effects that were met.
pub(crate) struct Outside {
    pub worlds: Worlds,
    pub events: Vec<Event>,
}

impl Outside {
    pub(crate) fn new(nothing: Value) -> Outside {
        Outside { worlds: [nothing.clone(), nothing], events: Vec::new() }
    }
}

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
            for (effect, _) in effects_of(module) {
                counts.entry(effect).or_default()[side] += 1;
            }
        }
    }
    let changed = counts.into_iter().filter(|(_, [a, b])| a != b);
    changed.map(|(what, [n_before, n_after])| ChangedEffect { what, n_before, n_after }).collect()
}

/// Whether a module has an effect that is seen from outside.
pub(crate) fn has_effects(module: &Module) -> bool {
    effects_of(module).next().is_some()
}

/// The first effect of some modules.
pub(crate) fn first_effect(modules: &[&Module]) -> String {
    let first = modules.iter().find_map(|module| effects_of(module).next());
    first.map_or_else(|| "an effect".to_string(), |(name, inst)| format!("`{name}` %{inst}"))
}

/// The effects of a module: what each is, and the name of its instruction.
fn effects_of(module: &Module) -> impl Iterator<Item = (String, &str)> {
    let insts = module.post_order().into_iter().flat_map(|comp| module.comp(comp).insts.iter().copied());
    insts.filter_map(|inst| Some((effect(module, inst)?, module.inst_name(inst))))
}

/// The first effect of what an instruction calls.
pub(crate) fn first_effect_within(module: &Module, inst: InstId) -> Option<String> {
    let called = module.callees_first(&module.called(inst));
    let mut insts = called.iter().flat_map(|&comp| module.comp(comp).insts.iter().copied());
    insts.find_map(|inst| Some(format!("`{}` %{}", effect(module, inst)?, module.inst_name(inst))))
}

/// The name of an effect: the op, or the custom call's target.
pub(crate) fn effect_name(module: &Module, inst: InstId) -> String {
    effect(module, inst).unwrap_or_else(|| module.inst(inst).opcode.name().to_string())
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
