//! Asynchronous pairs as one instruction each: the order of steps decides anyway what runs beside what.

use hlo_ir::attrs::{AsyncAttrs, Attrs, CallAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::expand::Writer;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};

/// Starts of collectives that take their operands as the whole collective does, and that collective.
const WHOLE: [(Opcode, Opcode); 2] =
    [(Opcode::AllGatherStart, Opcode::AllGather), (Opcode::AllReduceStart, Opcode::AllReduce)];

/// Writes what the end of a pair gives as the instruction that its start began; none for exchanges with the host.
pub(super) fn expand_done(w: &mut Writer<'_>, done: InstId) -> Option<InstId> {
    let start = start_of(w.module, done)?;
    let instruction = w.module.inst(start).clone();
    let shape = w.module.shape(done).clone();
    let (opcode, attrs) = if let Some(callee) = AsyncAttrs::of(&instruction.attrs).and_then(|attrs| attrs.calls) {
        run_on_main_thread(w.module, callee);
        (Opcode::Call, CallAttrs { to_apply: Some(callee), ..CallAttrs::default() }.into())
    } else if instruction.opcode == Opcode::CollectivePermuteStart {
        return permuted(w, &instruction.operands, &shape, &instruction.attrs);
    } else if instruction.opcode == Opcode::CopyStart {
        (Opcode::Copy, Attrs::Plain)
    } else {
        let (_, whole) = WHOLE.iter().find(|(start, _)| *start == instruction.opcode)?;
        (*whole, instruction.attrs)
    };
    Some(Builder::new(w.module, w.comp).add(&w.hint, opcode, shape, instruction.operands, attrs))
}

/// A collective-permute of each operand: those that are tuples have no form of one instruction.
fn permuted(w: &mut Writer<'_>, operands: &[InstId], shape: &Shape, attrs: &Attrs) -> Option<InstId> {
    if let ([operand], Some(result)) = (operands, shape.as_array()) {
        if !w.module.shape(*operand).as_array().is_some_and(|array| array.same_type(result)) {
            return None;
        }
        let mut build = Builder::new(w.module, w.comp);
        return Some(build.add(&w.hint, Opcode::CollectivePermute, shape.clone(), [*operand], attrs.clone()));
    }
    let shapes = shape.as_tuple()?.to_vec();
    // The form that writes into given arrays has more operands than results.
    if operands.len() != 1 && operands.len() != shapes.len() {
        return None;
    }
    let mut moved = Vec::new();
    for (k, shape) in shapes.iter().enumerate() {
        let operand = match operands {
            // One operand that is a tuple, or as many as there are results.
            &[tuple] => w.element(tuple, k)?,
            _ => *operands.get(k)?,
        };
        moved.push(permuted(w, &[operand], shape, attrs)?);
    }
    Some(w.tuple(&moved))
}

/// A computation that a pair has begun, and what it calls, are called in place from here on.
fn run_on_main_thread(module: &mut Module, comp: CompId) {
    if module.comp_mut(comp).execution_thread.take().is_some() {
        let callees: Vec<CompId> = module.calls_of(comp).iter().map(|&(_, callee)| callee).collect();
        callees.into_iter().for_each(|callee| run_on_main_thread(module, callee));
    }
}

/// The start of a pair, by way of its updates.
fn start_of(module: &Module, done: InstId) -> Option<InstId> {
    let mut at = done;
    loop {
        at = *module.inst(at).operands.first()?;
        let flow = module.inst(at).opcode.row().flow;
        if matches!(flow, Flow::AsyncStart(_)) {
            return Some(at);
        }
        if flow != Flow::AsyncUpdate {
            return None;
        }
    }
}
