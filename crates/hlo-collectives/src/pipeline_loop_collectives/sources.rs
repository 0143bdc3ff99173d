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
    // The elements that the next value of each follows from; none where it follows from something else too.
    let followed = |index: usize| {
        let (mut work, mut seen) = (vec![next[index]], EntitySet::new());
        let mut elements = Vec::new();
        while let Some(inst) = work.pop() {
            if !seen.insert(inst) {
                continue;
            }
            match carried.element_read(module, inst) {
                Some(read) => elements.push(read),
                None if is_scalar(inst) && is_copied(module, inst) => work.extend(module.inst(inst).operands.iter()),
                None => return None,
            }
        }
        Some(elements)
    };
    let of: Vec<Option<Vec<usize>>> =
        (0..next.len()).map(|index| followed(index).filter(|_| is_scalar(next[index]))).collect();
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); next.len()];
    for (index, elements) in of.iter().enumerate() {
        for &element in elements.iter().flatten() {
            followers[element].push(index);
        }
    }
    // What follows from none is none.
    let mut is_counter: Vec<bool> = of.iter().map(Option::is_some).collect();
    let mut work: Vec<usize> = (0..next.len()).filter(|&index| !is_counter[index]).collect();
    while let Some(index) = work.pop() {
        for &follower in &followers[index] {
            if std::mem::replace(&mut is_counter[follower], false) {
                work.push(follower);
            }
        }
    }
    (0..next.len()).filter(|&index| is_counter[index]).collect()
}
