//! Which modules are global programs.

use hlo_ir::custom_target::CustomTarget;
use hlo_ir::{InstId, Module, Opcode};

/// The first custom call that begins or ends a manual region.
pub fn find_manual_region(module: &Module) -> Option<InstId> {
    let is_boundary = |&inst: &InstId| {
        let instruction = module.inst(inst);
        instruction.opcode == Opcode::CustomCall
            && matches!(CustomTarget::of(&instruction.attrs), Some(CustomTarget::Boundary(_)))
    };
    module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied().find(is_boundary)
}
