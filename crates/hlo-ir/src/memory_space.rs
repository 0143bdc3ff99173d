//! Arrays in the memory of the host, beside a device's own.
//!
//! XLA says it in two ways. Until its pass `host-offloader` has run, the layouts of the header (`entry_computation_layout`) alone put parameters and
//! results into the host's memory, and custom calls (`MoveToHost`, `MoveToDevice`, `annotate_device_placement`) carry values across. Afterwards each value there has `S(5)` in its own layout.

use crate::attrs::ParameterAttrs;
use crate::custom_target::CustomTarget;
use crate::op::Flow;
use crate::shape::MemorySpace;
use crate::{InstId, Module, Shape};

/// Whether array leaf `leaf_idx` of an instruction's value lies in the memory of the host: see [`leaves_on_host`].
pub fn is_on_host(module: &Module, inst: InstId, leaf_idx: usize) -> bool {
    leaves_on_host(module, inst).get(leaf_idx).copied().unwrap_or(false)
}

/// For each leaf of an instruction's value, whether it lies in the memory of the host: the layouts of its own shape, of the header for
/// parameters of the entry, and the custom calls that move values decide.
pub fn leaves_on_host(module: &Module, inst: InstId) -> Vec<bool> {
    let instruction = module.inst(inst);
    let mut leaves = of_shape(module.shape(inst));
    if let Some(CustomTarget::Move(to)) = CustomTarget::of(&instruction.attrs) {
        if let Some(memory) = to.memory(instruction) {
            leaves.fill(memory == MemorySpace::Host);
        }
        return leaves;
    }
    if instruction.opcode.row().flow != Flow::Parameter || module.entry() != Some(instruction.parent) {
        return leaves;
    }
    let number = ParameterAttrs::of(&instruction.attrs).and_then(|attrs| usize::try_from(attrs.number).ok());
    let layout = module.header.entry_computation_layout.as_ref();
    if let Some(&stated) = layout.zip(number).and_then(|(layout, number)| layout.params.get(number)) {
        leaves.iter_mut().zip(of_shape(module.shapes.get(stated))).for_each(|(leaf, stated)| *leaf |= stated);
    }
    leaves
}

fn of_shape(shape: &Shape) -> Vec<bool> {
    let mut leaves = Vec::new();
    shape.for_each_leaf(&mut |_, leaf| {
        leaves.push(leaf.as_array().is_some_and(|array| array.memory_space() == MemorySpace::Host.number()));
    });
    leaves
}
