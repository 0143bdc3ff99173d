//! Asynchronous pairs of one wrapped op: `all-to-all-start(a), …` for an `async-start` of a computation that holds one
//! `all-to-all` of its parameters. Such a computation is not printed; the pair carries the op's attributes.

use crate::attrs::Attrs;
use crate::module::{CompId, InstId, Instruction, Module};
use crate::op::Opcode;
use cranelift_entity::EntitySet;

/// The ending of the sugared name of `async-start`, `async-update` and `async-done`.
pub(super) fn suffix(opcode: Opcode) -> &'static str {
    opcode.name().strip_prefix("async").unwrap_or_default()
}

/// The op that `inst`, a part of an asynchronous chain, wraps; `None` for other instructions and for computations that
/// must be printed.
pub(super) fn wrapped_op(module: &Module, inst: InstId) -> Option<InstId> {
    let Attrs::Async(_) = &module.inst(inst).attrs else { return None };
    let start = start_of_chain(module, inst)?;
    single_op(module, start)
}

/// The computations that sugar takes the place of: those that only `async-start`s call, and that hold one op.
pub(super) fn folded_computations(module: &Module) -> EntitySet<CompId> {
    let mut folded = EntitySet::new();
    let insts = || module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).map(|&i| module.inst(i));
    for inst in insts() {
        if let (Opcode::AsyncStart, Attrs::Async(attrs)) = (inst.opcode, &inst.attrs)
            && let Some(comp) = attrs.calls
            && single_op(module, inst).is_some()
        {
            folded.insert(comp);
        }
    }
    if !folded.is_empty() {
        let is_folded = |inst: &Instruction| {
            matches!(inst.attrs, Attrs::Async(_))
                && (inst.opcode != Opcode::AsyncStart || single_op(module, inst).is_some())
        };
        for inst in insts().filter(|inst| !is_folded(inst)) {
            inst.attrs.for_each_comp(&mut |comp| {
                folded.remove(comp);
            });
        }
    }
    folded
}

/// The head of a chain, which names the computation.
fn start_of_chain(module: &Module, inst: InstId) -> Option<&Instruction> {
    let mut at = inst;
    // A well-formed chain is acyclic; the bound keeps a malformed one from looping.
    for _ in 0..module.n_inst_slots() {
        let found = module.inst(at);
        let Attrs::Async(attrs) = &found.attrs else { return None };
        if found.opcode == Opcode::AsyncStart || attrs.calls.is_some() {
            return Some(found);
        }
        at = *found.operands.first()?;
    }
    None
}

/// The op that the computation of `start` applies to its parameters in their order, if that and no mark is all it holds, and if an
/// alias of the start would not read as one of the op.
fn single_op(module: &Module, start: &Instruction) -> Option<InstId> {
    let Attrs::Async(attrs) = &start.attrs else { return None };
    let comp = module.comp(attrs.calls?);
    let root_id = comp.root.expand()?;
    let root = module.inst(root_id);
    let is_plain = |id: &InstId| {
        let inst = module.inst(*id);
        inst.marks.is_none() && (*id == root_id || inst.opcode == Opcode::Parameter)
    };
    let is_single = comp.insts.len() == comp.params.len() + 1
        && root.opcode != Opcode::Parameter
        && root.operands.as_slice() == comp.params.as_slice()
        && comp.insts.iter().all(is_plain);
    let is_clear = attrs.output_to_operand_aliasing.is_empty() || !root.attrs.has_output_aliases();
    // `all-reduce-start` and the like are opcodes of their own.
    let has_own_start = || Opcode::from_name(&format!("{}-start", root.opcode.name())).is_some();
    (is_single && is_clear && !has_own_start()).then_some(root_id)
}
