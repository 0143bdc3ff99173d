//! Starts and dones: each done has the start of its kind, each start one consumer.

use super::Verifier;
use crate::attrs::{AsyncAttrs, Attrs};
use crate::module::InstId;
use crate::op::{CollectiveForm, Opcode};

/// What starts, and what ends it; the op table says so of collectives.
const PAIRS: [(Opcode, Opcode); 4] = [
    (Opcode::CopyStart, Opcode::CopyDone),
    (Opcode::AsyncStart, Opcode::AsyncDone),
    (Opcode::Send, Opcode::SendDone),
    (Opcode::Recv, Opcode::RecvDone),
];

/// A called computation runs on its caller's thread, that of an async start on the thread which the start names.
pub(super) fn check_thread(cx: &mut Verifier<'_>, inst: InstId) {
    let module = cx.module;
    let node = module.inst(inst);
    let own = module.comp(node.parent).execution_thread.as_deref();
    let thread = match AsyncAttrs::of(&node.attrs).filter(|a| a.calls.is_some()) {
        Some(a) => a.async_execution_thread.as_ref().map(|t| t.0.as_str()),
        None if node.opcode.row().flow.entry().is_some() => own,
        None => return,
    };
    // The main thread has a name that may be left out.
    let name = |thread: Option<&'_ str>| thread.filter(|t| !t.is_empty()).unwrap_or("main").to_string();
    for comp in module.called(inst) {
        let callee = module.comp(comp).execution_thread.as_deref();
        if callee != thread && name(callee) != name(thread) {
            let expected = format!("`%{}` on thread {}", module.comp_name(comp), name(thread));
            cx.at_inst("async-thread", inst, expected, name(callee));
        }
    }
}

fn is_start(opcode: Opcode) -> bool {
    match opcode.row().collective.map(|rule| rule.form) {
        Some(CollectiveForm::Start(_)) => true,
        Some(CollectiveForm::Synchronous | CollectiveForm::Done(..)) => false,
        None => PAIRS.iter().any(|pair| pair.0 == opcode),
    }
}

/// The start that `done` ends; `None` if it is no done.
fn start_of(done: Opcode) -> Option<Opcode> {
    match done.row().collective.map(|rule| rule.form) {
        Some(CollectiveForm::Done(start, _)) => Some(start),
        Some(CollectiveForm::Synchronous | CollectiveForm::Start(_)) => None,
        None => PAIRS.iter().find(|pair| pair.1 == done).map(|pair| pair.0),
    }
}

/// Whether the opcode is a start, an update or a done.
pub(super) fn is_half_of_pair(opcode: Opcode) -> bool {
    opcode == Opcode::AsyncUpdate || is_start(opcode) || start_of(opcode).is_some()
}

/// Transfers may be pipelined: their halves then meet through a loop's state, and no pair can be seen.
fn is_transfer(opcode: Opcode) -> bool {
    [Opcode::Send, Opcode::SendDone, Opcode::Recv, Opcode::RecvDone].contains(&opcode)
}

pub(super) fn check(cx: &mut Verifier<'_>) {
    let users = cx.module.users();
    for &comp in cx.module.computations() {
        for &inst in &cx.module.comp(comp).insts {
            let opcode = cx.module.inst(inst).opcode;
            if !is_half_of_pair(opcode) {
                continue;
            }
            check_operand(cx, inst);
            if !is_transfer(opcode) && (opcode == Opcode::AsyncUpdate || is_start(opcode)) {
                check_users(cx, inst, &users[inst]);
            }
        }
    }
}

/// Whether `end` may take the value of `start`.
fn continues(start: Opcode, end: Opcode) -> bool {
    let is_generic = [Opcode::AsyncStart, Opcode::AsyncUpdate].contains(&start);
    start_of(end) == Some(start) || is_generic && [Opcode::AsyncUpdate, Opcode::AsyncDone].contains(&end)
}

fn check_operand(cx: &mut Verifier<'_>, inst: InstId) {
    let node = cx.module.inst(inst);
    let is_end = node.opcode == Opcode::AsyncUpdate || start_of(node.opcode).is_some();
    let Some(&operand) = node.operands.first().filter(|_| is_end) else { return };
    let start = cx.module.inst(operand);
    if !continues(start.opcode, node.opcode) {
        if !is_transfer(node.opcode) || is_half_of_pair(start.opcode) {
            cx.at_inst("async-unpaired", inst, "its own start as operand", start.opcode);
        }
        return;
    }
    if let (Attrs::Transfer(a), Attrs::Transfer(b)) = (&start.attrs, &node.attrs)
        && a != b
    {
        let text = |t: &crate::attrs::TransferAttrs| {
            let channel = t.channel_id.map_or("no channel".to_string(), |c| format!("channel {c}"));
            format!("{channel} {}", if t.is_host_transfer { "to the host" } else { "between devices" })
        };
        cx.at_inst("transfer-channel", inst, text(a), text(b));
    }
}

fn check_users(cx: &mut Verifier<'_>, inst: InstId, users: &[InstId]) {
    let opcode = cx.module.inst(inst).opcode;
    match users {
        [only] => {
            let user = cx.module.inst(*only).opcode;
            // A user that is itself an end of a pair reports the mismatch from its side.
            if !continues(opcode, user) && !is_half_of_pair(user) {
                cx.at_inst("async-unpaired", inst, "its done or update as user", user);
            }
        }
        [] => cx.at_inst("async-unpaired", inst, "its done or update as user", "none"),
        several => cx.at_inst("async-one-consumer", inst, "one consumer", several.len()),
    }
}
