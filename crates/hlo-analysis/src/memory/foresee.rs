//! The module as a backend will have it when it gives values their memory: fused.
//!
//! What elementwise operations compute within one kernel is never in memory, and cheap values that a backward pass reads are
//! computed again rather than kept. Without this a transformer's step would seem to need up to half as much again as XLA takes for it.

use super::{MemoryPoint, MemoryReport};
use crate::code::code_computations;
use crate::fusion::{FusionLimits, build_fusions, find_groups_of, prepare_and_stage};
use cranelift_entity::EntityRef;
use hashbrown::HashMap;
use hlo_ir::{InstId, Module, Opcode};

/// A fused copy of a module.
pub(super) struct Foreseen {
    pub(super) module: Module,
    /// The instructions with smaller numbers are the source's.
    n_slots_before: usize,
    /// For the leaves of each fusion the values that they are.
    outputs: HashMap<InstId, Vec<InstId>>,
    /// For each value that is computed again the value that it is a copy of.
    copy_of: HashMap<InstId, InstId>,
}

impl Foreseen {
    /// The fused copy of a module that is not scheduled and has no fusions; `None` for others, whose backend has decided.
    pub(super) fn of(source: &Module) -> Option<Foreseen> {
        let computations = code_computations(source);
        let mut insts = computations.iter().flat_map(|&comp| &source.comp(comp).insts);
        if source.header.is_scheduled || insts.any(|&inst| source.inst(inst).opcode == Opcode::Fusion) {
            return None;
        }
        let mut module = source.clone();
        let (mut outputs, mut copy_of) = (HashMap::new(), HashMap::new());
        for comp in computations {
            // A computation with a cycle stays as it is; no verified module has one.
            let Ok((_, staged)) = prepare_and_stage(&mut module, comp) else { continue };
            copy_of.extend(staged.repeated().iter().copied());
            let groups = find_groups_of(&module, comp, Some(staged), FusionLimits::default());
            let Ok(fusions) = build_fusions(&mut module, comp, &groups) else { continue };
            outputs.extend(fusions.into_iter().zip(groups.into_iter().map(|group| group.outputs)));
        }
        Some(Foreseen { module, n_slots_before: source.n_inst_slots(), outputs, copy_of })
    }

    /// Names the instructions of the source in what was found out about the copy.
    pub(super) fn name_in_source(&self, report: &mut MemoryReport, points: Option<&mut Vec<MemoryPoint>>) {
        for buffer in &mut report.live_at_peak {
            (buffer.inst, buffer.leaf_idx) = self.in_source(buffer.inst, buffer.leaf_idx);
        }
        for inst in &mut report.peak_at {
            *inst = self.place_in_source(*inst);
        }
        for inst in points.into_iter().flatten().filter_map(|point| point.inst.as_mut()) {
            *inst = self.place_in_source(*inst);
        }
    }

    /// The value of the source that a leaf of the copy is, or the nearest that it is computed from.
    fn in_source(&self, inst: InstId, leaf_idx: u32) -> (InstId, u32) {
        let (mut at, mut leaf_idx) = (inst, leaf_idx);
        while at.index() >= self.n_slots_before {
            let output = self.outputs.get(&at).and_then(|outputs| outputs.get(leaf_idx as usize));
            let nearest = output.or_else(|| self.copy_of.get(&at)).or_else(|| self.module.inst(at).operands.first());
            let Some(&nearest) = nearest.filter(|&&nearest| nearest != at) else {
                return (self.module.comp(self.module.inst(at).parent).root.expand().unwrap_or(at), 0);
            };
            (at, leaf_idx) = (nearest, 0);
        }
        (at, leaf_idx)
    }

    /// Where an instruction of the copy stands in the source: a fusion runs before the first user of its results, so with the first of these.
    fn place_in_source(&self, inst: InstId) -> InstId {
        self.in_source(inst, 0).0
    }
}
