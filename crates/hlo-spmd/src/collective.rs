//! What a collective does, however it is written, and what keeps a pass from changing it.

use cranelift_entity::EntitySet;
use hlo_analysis::code::is_annotated;
use hlo_ir::attrs::Attrs;
use hlo_ir::monoid::{Monoid, find_monoid};
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
) -> Result<Option<AllReduce>, &'static str> {
    let instruction = module.inst(inst);
    if instruction.opcode == Opcode::AllReduceStart {
        return Err(ASYNC);
    }
    if instruction.opcode != Opcode::AllReduce {
        return Ok(None);
    }
    check_free(module, inst, pinned)?;
    let (Some(array), [operand]) = (module.shape(inst).as_array(), instruction.operands.as_slice()) else {
        return Err("reduces a tuple: run split-tuple-all-reduce before");
    };
    if array.dynamic != 0 {
        return Err("has dynamic dims");
    }
    let groups = module.device_groups(inst).map_err(|_| "its groups have no meaning on these devices")?.groups;
    let reducer = module.called(inst).first().and_then(|&comp| find_monoid(module, comp));
    Ok(Some(AllReduce { inst, operand: *operand, reducer, groups }))
}

/// Why asynchronous collectives stay.
pub const ASYNC: &str = "is asynchronous: this pass is for modules as they are before XLA's scheduler";

/// Whether an instruction starts an all-reduce, an all-gather or a reduce-scatter that ends elsewhere.
pub fn is_async_collective(module: &Module, inst: InstId) -> bool {
    let starts = |opcode| [Opcode::AllReduceStart, Opcode::AllGatherStart].contains(&opcode);
    let wraps = |comp: &CompId| {
        let collectives = [Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather];
        module.comp(*comp).insts.iter().any(|&i| collectives.contains(&module.inst(i).opcode))
    };
    let opcode = module.inst(inst).opcode;
    starts(opcode) || (opcode == Opcode::AsyncStart && module.called(inst).iter().any(wraps))
}

/// Whether nobody asked for this instruction to stay exactly as and where it is.
///
/// # Errors
/// What keeps it.
pub fn check_free(module: &Module, inst: InstId, pinned: &EntitySet<InstId>) -> Result<(), &'static str> {
    if pinned.contains(inst) {
        return Err("takes part in a control dependency");
    }
    if is_annotated(module, inst) {
        return Err("carries a sharding or a front end's attribute");
    }
    let constrains_layout = match &module.inst(inst).attrs {
        Attrs::Combining(a) => a.constrain_layout,
        Attrs::Gathering(a) => a.constrain_layout,
        _ => false,
    };
    if constrains_layout { Err("constrains its layout") } else { Ok(()) }
}

/// The array shape of an instruction, if it is an array.
pub fn array(module: &Module, inst: InstId) -> Option<&ArrayShape> {
    module.shape(inst).as_array()
}
