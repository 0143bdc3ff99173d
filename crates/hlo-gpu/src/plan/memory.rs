//! What a plan takes of a device's memory, in the terms in which XLA counts.

use super::{Place, Plan, Step};
use hlo_ir::Literal;
use std::collections::BTreeSet;

/// Bytes on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PlanMemory {
    /// ENTRY's parameters.
    pub argument_bytes: u64,
    /// ENTRY's result, aliased leaves included.
    pub output_bytes: u64,
    /// Outputs that lie in parameters.
    pub alias_bytes: u64,
    /// The arena.
    pub temp_bytes: u64,
    /// Constants.
    pub constant_bytes: u64,
}

impl PlanMemory {
    /// Arguments, outputs and arena, memory that is two of them once.
    pub fn peak_bytes(&self) -> u64 {
        (self.argument_bytes + self.output_bytes + self.temp_bytes).saturating_sub(self.alias_bytes)
    }
}

impl Plan {
    /// What the plan takes of each device's memory.
    pub fn memory(&self) -> PlanMemory {
        let bytes = |id: super::BufferId| self.buffers[id].shape.memory_bytes();
        let is_aliased = |id: &super::BufferId| matches!(self.buffers[*id].place, Place::Parameter(_));
        let constants: BTreeSet<_> = self.buffers.values().filter_map(constant_of).collect();
        PlanMemory {
            argument_bytes: self.parameters.iter().map(|&b| bytes(b)).sum(),
            output_bytes: self.outputs.iter().map(|&b| bytes(b)).sum(),
            alias_bytes: self.outputs.iter().copied().filter(is_aliased).map(bytes).sum(),
            temp_bytes: self.arena_bytes,
            constant_bytes: constants
                .into_iter()
                .map(|id| self.constants.get(id).map_or(0, Literal::memory_bytes))
                .sum(),
        }
    }
}

impl Plan {
    /// Parameters, by leaf, whose memory a run of the plan writes to and that no output is the next value of. Before another run they must
    /// be filled again.
    pub fn used_up(&self) -> Vec<u32> {
        let mut written = BTreeSet::new();
        let mut left: Vec<&Step> = self.steps.iter().collect();
        while let Some(step) = left.pop() {
            let writes = step.work.accesses(self).writes;
            written.extend(writes.iter().filter_map(|&buffer| parameter_of(&self.buffers[buffer])));
            left.extend(step.work.inside());
        }
        written.retain(|&leaf| !self.aliases.iter().any(|&(_, parameter)| parameter == leaf as usize));
        written.into_iter().collect()
    }
}

fn parameter_of(buffer: &super::PlanBuffer) -> Option<u32> {
    match buffer.place {
        Place::Parameter(leaf) => Some(leaf),
        Place::Constant(_) | Place::Output(_) | Place::Arena | Place::DeviceIds => None,
    }
}

fn constant_of(buffer: &super::PlanBuffer) -> Option<super::ConstantId> {
    match buffer.place {
        Place::Constant(id) => Some(id),
        Place::Parameter(_) | Place::Output(_) | Place::Arena | Place::DeviceIds => None,
    }
}
