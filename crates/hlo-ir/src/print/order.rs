//! The orders in which XLA prints: callees before callers, operands before users.

use crate::attrs::Attrs;
use crate::module::{CompId, InstId, Module};
use cranelift_entity::{EntitySet, SecondaryMap};

/// All computations: from each one that nobody calls, in text order, what it calls in depth-first post-order, then
/// itself.
pub(super) fn computation_order(module: &Module) -> Vec<CompId> {
    let mut called = EntitySet::new();
    for &comp in module.computations() {
        for &inst in &module.comp(comp).insts {
            module.inst(inst).attrs.for_each_comp(&mut |callee| {
                called.insert(callee);
            });
        }
    }
    let mut done = EntitySet::new();
    let mut order = Vec::with_capacity(module.computations().len());
    let is_root = |comp: &CompId| !called.contains(*comp);
    // Computations that call each other in a circle have no root; they keep their place in the text at the end.
    let roots = module.computations().iter().filter(|c| is_root(c)).chain(module.computations());
    for &root in roots {
        visit_callees_first(module, root, &mut done, &mut order);
    }
    order
}

fn visit_callees_first(module: &Module, root: CompId, done: &mut EntitySet<CompId>, order: &mut Vec<CompId>) {
    if done.contains(root) {
        return;
    }
    // Each entry: a computation and how many of its instructions were looked at.
    let mut stack = vec![(root, 0usize)];
    let mut started = EntitySet::new();
    while let Some((comp, next)) = stack.last_mut() {
        let comp = *comp;
        // One that was started above itself calls itself in a circle; one that waits lower on the stack is not started.
        if *next == 0 && (done.contains(comp) || !started.insert(comp)) {
            stack.pop();
            continue;
        }
        let Some(&inst) = module.comp(comp).insts.get(*next) else {
            stack.pop();
            if done.insert(comp) {
                order.push(comp);
            }
            continue;
        };
        *next += 1;
        let mut callees = module.called(inst);
        if matches!(module.inst(inst).attrs, Attrs::While(_)) {
            // XLA holds the body first, though it prints the condition first.
            callees.reverse();
        }
        stack.extend(callees.iter().rev().filter(|&&callee| !done.contains(callee)).map(|&callee| (callee, 0)));
    }
}

/// The instructions of `comp` in depth-first post-order from those without users, in text order; a control predecessor
/// counts as an operand that comes before the others.
pub(super) fn instruction_order(module: &Module, comp: CompId, state: &mut SecondaryMap<InstId, Visit>) -> Vec<InstId> {
    let insts = &module.comp(comp).insts;
    for &inst in insts {
        for &operand in &module.inst(inst).operands {
            state[operand].is_used = true;
        }
    }
    let mut order = Vec::with_capacity(insts.len());
    let mut stack = Vec::new();
    for &start in insts.iter().filter(|&&inst| !state[inst].is_used).collect::<Vec<_>>() {
        stack.push(start);
        while let Some(&inst) = stack.last() {
            let visit = &mut state[inst];
            if visit.is_open || visit.is_done {
                stack.pop();
                if !std::mem::replace(&mut visit.is_done, true) {
                    order.push(inst);
                }
                continue;
            }
            visit.is_open = true;
            let found = module.inst(inst);
            let before = found.operands.iter().rev().chain(found.control_predecessors());
            stack.extend(before.filter(|&&before| !state[before].is_open));
        }
    }
    order
}

/// What is known of an instruction while its computation is put in order.
#[derive(Clone, Copy, Default)]
pub(super) struct Visit {
    is_used: bool,
    is_open: bool,
    is_done: bool,
}
