//! What a collective does, however it is written, and what keeps a pass from changing it.

use crate::obstacle::Obstacle;
use cranelift_entity::EntitySet;
use hlo_analysis::code::is_annotated;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::op::{CollectiveForm, CollectiveRule};
use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};

/// An all-reduce of one array.
#[derive(Clone, Debug)]
pub struct AllReduce {
    /// The instruction.
    pub inst: InstId,
    /// What each device puts in.
    pub operand: InstId,
    /// Its reduction, if it is a well-known one.
    pub reducer: Option<Monoid>,
    /// Its groups of flat device ids.
    pub groups: Vec<Vec<u32>>,
}

/// The all-reduce of one array that `inst` is; `None` for any other instruction.
///
/// # Errors
/// Why this all-reduce is to be left as it is.
pub fn find_all_reduce(
    module: &Module,
    inst: InstId,
    pinned: &EntitySet<InstId>,
) -> Result<Option<AllReduce>, Obstacle> {
    let instruction = module.inst(inst);
    if instruction.opcode == Opcode::AllReduceStart {
        return Err(Obstacle::Asynchronous);
    }
    if instruction.opcode != Opcode::AllReduce {
        return Ok(None);
    }
    check_free(module, inst, pinned)?;
    let (Some(array), [operand]) = (module.shape(inst).as_array(), instruction.operands.as_slice()) else {
        return Err(Obstacle::ReducesTuple);
    };
    if array.dynamic != 0 {
        return Err(Obstacle::DynamicDims);
    }
    let groups = module.device_groups(inst).map_err(|_| Obstacle::MeaninglessGroups)?.groups;
    let reducer = module.called(inst).first().and_then(|&comp| find_monoid(module, comp));
    Ok(Some(AllReduce { inst, operand: *operand, reducer, groups }))
}

/// Whether an instruction starts an all-reduce, an all-gather or a reduce-scatter that ends elsewhere.
pub fn is_async_collective(module: &Module, inst: InstId) -> bool {
    let wraps = |comp: &CompId| {
        let collective =
            |&i: &InstId| find_collective(module, i).is_some_and(|r| r.form == CollectiveForm::Synchronous);
        module.comp(*comp).insts.iter().any(collective)
    };
    let starts = find_collective(module, inst).is_some_and(|r| matches!(r.form, CollectiveForm::Start(_)));
    starts || (module.inst(inst).opcode == Opcode::AsyncStart && module.called(inst).iter().any(wraps))
}

/// What `inst` does, in any form, if it is an all-reduce, a reduce-scatter or an all-gather.
fn find_collective(module: &Module, inst: InstId) -> Option<CollectiveRule> {
    let rule = module.inst(inst).opcode.row().collective?;
    let is_one = rule.reduces() || (rule.gathers && !rule.scatters);
    is_one.then_some(rule)
}

/// Whether nobody asked for this instruction to stay exactly as and where it is.
///
/// # Errors
/// What keeps it.
pub fn check_free(module: &Module, inst: InstId, pinned: &EntitySet<InstId>) -> Result<(), Obstacle> {
    if pinned.contains(inst) {
        return Err(Obstacle::ControlDependency);
    }
    if is_annotated(module, inst) {
        return Err(Obstacle::Annotated);
    }
    if constrains_layout(module, inst) { Err(Obstacle::ConstrainsLayout) } else { Ok(()) }
}

/// Whether a collective that reduces or gathers fixes the layouts of its operands.
fn constrains_layout(module: &Module, inst: InstId) -> bool {
    find_collective(module, inst).is_some() && module.inst(inst).attrs.collective().is_some_and(|c| c.constrain_layout)
}

/// The array shape of an instruction, if it is an array.
pub fn array(module: &Module, inst: InstId) -> Option<&ArrayShape> {
    module.shape(inst).as_array()
}
