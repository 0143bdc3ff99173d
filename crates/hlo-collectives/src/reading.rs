//! What a collective does and which scalar an array repeats, whatever the spelling.

use cranelift_entity::EntitySet;
use hlo_analysis::code::is_annotated;
use hlo_analysis::reducers::{Reducer, find_reducer};
use hlo_ir::attrs::Attrs;
use hlo_ir::dtype::NumberClass;
use hlo_ir::{ArrayShape, CompId, ConstantValue, InstId, Module, Opcode, Scalar};

/// An all-reduce of one array.
#[derive(Clone, Debug)]
pub struct AllReduce {
    /// The instruction.
    pub inst: InstId,
    /// What each device puts in.
    pub operand: InstId,
    /// Its reduction, if it is a well-known one.
    pub reducer: Option<Reducer>,
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
    let reducer = module.called(inst).first().and_then(|&comp| find_reducer(module, comp));
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

/// Whether the elements are real or complex floating-point numbers: division distributes over addition but for rounding.
pub fn is_floating(array: &ArrayShape) -> bool {
    matches!(array.dtype.class(), NumberClass::Float | NumberClass::Complex)
}

/// The scalar that all elements of an array equal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Splat {
    /// A constant.
    Value(Scalar),
    /// An instruction of shape `[]` that is no constant.
    Scalar(InstId),
}

impl Splat {
    /// Whether all elements are the constant zero.
    pub fn is_zero(self) -> bool {
        match self {
            Splat::Value(Scalar::Int(v)) => v == 0,
            Splat::Value(Scalar::Uint(v)) => v == 0,
            Splat::Value(Scalar::Float(v)) => v == 0.0,
            Splat::Value(Scalar::Complex(re, im)) => re == 0.0 && im == 0.0,
            Splat::Value(Scalar::Pred(_)) | Splat::Scalar(_) => false,
        }
    }
}

/// The scalar that `inst` repeats, read through broadcasts, reshapes and copies.
pub fn find_splat(module: &Module, inst: InstId) -> Option<Splat> {
    let mut at = inst;
    loop {
        let instruction = module.inst(at);
        if let Attrs::Constant(value) = &instruction.attrs
            && let ConstantValue::Array(literal) = &**value
        {
            return (literal.n_elems() > 0 && literal.is_splat()).then(|| literal.get(0).map(Splat::Value)).flatten();
        }
        let repeats = [Opcode::Broadcast, Opcode::Reshape, Opcode::Copy].contains(&instruction.opcode);
        match instruction.operands.first() {
            Some(&operand) if repeats => at = operand,
            Some(_) | None => break,
        }
    }
    (array(module, at)?.rank() == 0).then_some(Splat::Scalar(at))
}

/// `x * s` or `x / s` with a repeated scalar `s`: the mean behind a sum.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scaling {
    /// `multiply` or `divide`.
    pub opcode: Opcode,
    /// The operand that repeats the scalar: 1, or for a product also 0.
    pub scale_idx: usize,
    /// What is repeated.
    pub splat: Splat,
}

/// How `inst` scales `value`, which is one of its operands. Integer quotients are left out: they do not distribute over sums.
pub fn find_scaling(module: &Module, inst: InstId, value: InstId) -> Option<Scaling> {
    let instruction = module.inst(inst);
    let opcode = instruction.opcode;
    let [lhs, rhs] = instruction.operands.as_slice() else { return None };
    let scales = opcode == Opcode::Multiply || (opcode == Opcode::Divide && is_floating(array(module, inst)?));
    if !scales || lhs == rhs {
        return None;
    }
    let (scale_idx, scale) = match value {
        v if v == *lhs => (1, *rhs),
        v if v == *rhs && opcode == Opcode::Multiply => (0, *lhs),
        _ => return None,
    };
    Some(Scaling { opcode, scale_idx, splat: find_splat(module, scale)? })
}
