//! What the values of a loop's body are made of.

use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::carried_loop::CarriedLoop;
use hlo_analysis::code::{is_annotated, pinned_by_control};
use hlo_ir::op::Flow;
use hlo_ir::{InstId, Module};

/// What an instruction of a body is made of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Source {
    /// Something that an iteration computes.
    #[default]
    Other,
    /// State that is handed on as it is, constants, and the device's number.
    Fixed,
    /// That, and scalars that the loop counts with.
    Counted,
}

/// What each instruction of a body is made of.
pub(super) struct Sources(SecondaryMap<InstId, Source>);

impl Sources {
    /// Those of a loop's body. Cost: one walk.
    pub(super) fn find(module: &Module, carried: &CarriedLoop) -> Sources {
        let pinned = pinned_by_control(module, carried.body);
        let counters = counters(module, carried);
        let mut sources: SecondaryMap<InstId, Source> = SecondaryMap::new();
        for &inst in &module.comp(carried.body).insts {
            let instruction = module.inst(inst);
            sources[inst] = match carried.element_read(module, inst) {
                Some(index) if carried.is_handed_on(module, index) => Source::Fixed,
                Some(index) if counters.contains(&index) => Source::Counted,
                Some(_) => Source::Other,
                None if pinned.contains(inst) || !is_copied(module, inst) => Source::Other,
                None => {
                    instruction.operands.iter().map(|&operand| sources[operand]).fold(Source::Fixed, |all, one| match (
                        all, one,
                    ) {
                        (Source::Other, _) | (_, Source::Other) => Source::Other,
                        (Source::Counted, _) | (_, Source::Counted) => Source::Counted,
                        (Source::Fixed, Source::Fixed) => Source::Fixed,
                    })
                }
            };
        }
        Sources(sources)
    }

    /// What one is made of.
    pub(super) fn of(&self, inst: InstId) -> Source {
        self.0[inst]
    }
}

/// Whether an instruction may be computed twice, elsewhere: it exchanges nothing, calls nothing and has no effect.
pub(super) fn is_copied(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let is_plain = match instruction.opcode.row().flow {
        Flow::Constant | Flow::PartitionId | Flow::ReplicaId | Flow::All => instruction.opcode.is_pure(),
        Flow::Parameter
        | Flow::Tuple
        | Flow::GetTupleElement
        | Flow::Identity
        | Flow::Call
        | Flow::While
        | Flow::Conditional
        | Flow::Collective(_)
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate
        | Flow::AsyncDone => false,
    };
    is_plain && module.called(inst).is_empty() && !is_annotated(module, inst) && !module.must_stay(inst)
}

/// The elements of the state that are scalars whose next value follows from such scalars and constants.
fn counters(module: &Module, carried: &CarriedLoop) -> Vec<usize> {
    let next = &module.inst(carried.root).operands;
    let is_scalar = |inst: InstId| module.shape(inst).as_array().is_some_and(|array| array.rank() == 0);
    let mut counters: Vec<usize> = (0..next.len()).filter(|&index| is_scalar(next[index])).collect();
    loop {
        let follows = |&index: &usize| {
            let mut work = vec![next[index]];
            let mut seen: EntitySet<InstId> = EntitySet::new();
            while let Some(inst) = work.pop() {
                let is_new = seen.insert(inst);
                let fits = match carried.element_read(module, inst) {
                    Some(read) => counters.contains(&read),
                    None => is_scalar(inst) && is_copied(module, inst),
                };
                if !fits {
                    return false;
                }
                if is_new && carried.element_read(module, inst).is_none() {
                    work.extend(module.inst(inst).operands.iter().copied());
                }
            }
            true
        };
        let left: Vec<usize> = counters.iter().copied().filter(follows).collect();
        if left.len() == counters.len() {
            return counters;
        }
        counters = left;
    }
}
