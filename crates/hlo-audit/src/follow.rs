//! From a value to its only use, and back to what computes it, through fusions, calls and tuples.

use crate::context::AuditCx;
use hashbrown::HashSet;
use hlo_analysis::values::{Origin, Use, User, ValueId, Values};
use hlo_ir::op::Effects;
use hlo_ir::{InstId, Opcode};

/// Where the only use of a value leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// An instruction takes it as this operand.
    Op(InstId, usize),
    /// A loop carries it.
    Carry(ValueId),
}

/// Most instructions that a walk looks at.
pub(crate) const MAX_STEPS: usize = 4096;

/// Ops that give the elements of their first operand, in another place or shape.
const MOVES: [Opcode; 4] = [Opcode::Bitcast, Opcode::Reshape, Opcode::Transpose, Opcode::Copy];

/// Whether an instruction only moves the elements of its operand.
pub(crate) fn only_moves(cx: &AuditCx<'_>, inst: InstId) -> bool {
    MOVES.contains(&cx.module.inst(inst).opcode)
}

/// Where the only use of a value leads; none where it has several, leaves the entry or goes into something unknown.
pub(crate) fn next(values: &Values, value: ValueId) -> Option<Next> {
    match values.uses[value].as_slice() {
        [only] => next_of_use(values, only),
        _ => None,
    }
}

/// As [`next`], from one of several uses.
pub(crate) fn next_of_use(values: &Values, first: &Use) -> Option<Next> {
    let mut user = first.user;
    for _ in 0..MAX_STEPS {
        match user {
            User::Op { inst, operand } => return Some(Next::Op(inst, operand as usize)),
            User::Exit(_) | User::Opaque(_) => return None,
            User::Becomes(value) if values.values[value].origin == Origin::Carry => return Some(Next::Carry(value)),
            User::Becomes(value) => match (values.sources[value].as_slice(), values.uses[value].as_slice()) {
                ([_], [only]) => user = only.user,
                (_, _) => return None,
            },
        }
    }
    None
}

/// The value that this one is, through the borders of fusions and calls with one source.
pub(crate) fn origin(values: &Values, value: ValueId) -> ValueId {
    let mut at = value;
    for _ in 0..MAX_STEPS {
        match (values.values[at].origin, values.sources[at].as_slice()) {
            (Origin::Param | Origin::CallResult, [source]) => at = *source,
            (_, _) => break,
        }
    }
    at
}

/// The instruction that computes a value, through the borders of fusions and calls with one source.
pub(crate) fn computed_by(values: &Values, value: ValueId) -> Option<InstId> {
    let at = origin(values, value);
    (values.values[at].origin == Origin::Computed).then(|| values.inst(at))
}

/// Whether a number is computed from the number of the device.
pub(crate) fn depends_on_device_id(cx: &AuditCx<'_>, inst: InstId) -> bool {
    const IDS: [Opcode; 2] = [Opcode::PartitionId, Opcode::ReplicaId];
    let mut open: Vec<ValueId> = cx.values.of(inst).into_iter().collect();
    let mut seen: HashSet<ValueId> = open.iter().copied().collect();
    while let Some(value) = open.pop()
        && seen.len() < MAX_STEPS
    {
        let from = behind(cx, value);
        let is_id = cx.values.values[value].origin == Origin::Computed
            && IDS.contains(&cx.module.inst(cx.values.inst(value)).opcode);
        if is_id {
            return true;
        }
        open.extend(from.into_iter().filter(|&next| seen.insert(next)));
    }
    false
}

/// Whether an instruction gives equal results for equal operands and does nothing else.
pub(crate) fn is_function(cx: &AuditCx<'_>, inst: InstId) -> bool {
    match cx.module.inst(inst).opcode.row().effects {
        Effects::Pure => true,
        Effects::Random | Effects::Communicates | Effects::SideEffect | Effects::ByAttribute => false,
        Effects::OfCallees => {
            let insts = cx.module.called(inst).into_iter().flat_map(|callee| &cx.module.comp(callee).insts);
            insts.into_iter().all(|&inner| is_function(cx, inner))
        }
    }
}

/// The values that a value is computed from or comes from.
pub(crate) fn behind(cx: &AuditCx<'_>, value: ValueId) -> Vec<ValueId> {
    let values = &cx.values;
    match values.values[value].origin {
        Origin::Computed => {
            let operands = cx.module.inst(values.inst(value)).operands.iter();
            operands.flat_map(|&operand| values.leaves(operand).iter().filter_map(|leaf| leaf.expand())).collect()
        }
        Origin::EntryParam => Vec::new(),
        Origin::Param | Origin::Carry | Origin::CallResult => values.sources[value].clone(),
    }
}
