//! Arrays in the memory of the host, beside a device's own.
//!
//! XLA says it in two ways. Until its pass `host-offloader` has run, the layouts of the header (`entry_computation_layout`) alone put parameters and
//! results into the host's memory, and custom calls `MoveToHost` and `MoveToDevice` carry values across. Afterwards each value there has `S(5)` in its own layout.

use crate::custom_target::CustomTarget;
use crate::op::Flow;
use crate::shape::MemorySpace;
use crate::{InstId, Module, Shape};

/// Whether array leaf `leaf_idx` of an instruction's value lies in the memory of the host: the layouts of its own shape, of the header for
/// parameters of the entry, and the custom calls that move values decide.
pub fn is_on_host(module: &Module, inst: InstId, leaf_idx: usize) -> bool {
    let instruction = module.inst(inst);
    if let Some(CustomTarget::Move(to)) = CustomTarget::of(&instruction.attrs) {
        return to == MemorySpace::Host;
    }
    if leaf_is_on_host(module.shape(inst), leaf_idx) {
        return true;
    }
    if instruction.opcode.row().flow != Flow::Parameter || module.entry() != Some(instruction.parent) {
        return false;
    }
    let Some(layout) = &module.header.entry_computation_layout else { return false };
    let place = module.comp(instruction.parent).params.iter().position(|&param| param == inst);
    let stated = place.and_then(|place| layout.params.get(place));
    stated.is_some_and(|&shape| leaf_is_on_host(module.shapes.get(shape), leaf_idx))
}

fn leaf_is_on_host(shape: &Shape, leaf_idx: usize) -> bool {
    let (mut at, mut found) = (0, false);
    shape.for_each_leaf(&mut |_, leaf| {
        found |=
            at == leaf_idx && leaf.as_array().is_some_and(|array| array.memory_space() == MemorySpace::Host.number());
        at += 1;
    });
    found
}
