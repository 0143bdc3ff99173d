//! Orders of a computation's instructions.

use cranelift_entity::SecondaryMap;
use hlo_ir::op::{Begun, Flow};
use hlo_ir::{CompId, InstId, Module};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// When an instruction is wanted; those wanted first come first where operands allow.
type Wanted = SecondaryMap<InstId, u64>;

/// By the times at which tasks are predicted to begin. What is no task comes when the first task that needs it does.
pub(super) fn by_start(module: &Module, comp: CompId, starts_s: &SecondaryMap<InstId, Option<f64>>) -> Vec<InstId> {
    let insts = &module.comp(comp).insts;
    let mut wanted: Wanted = SecondaryMap::with_default(u64::MAX);
    for &inst in insts.iter().rev() {
        // Picoseconds order exactly.
        let own = start_of(module, inst, starts_s).map(|start_s| ((start_s * 1e12) as u64).saturating_add(1));
        let first = own.unwrap_or(wanted[inst]);
        wanted[inst] = if module.inst(inst).opcode.row().flow == Flow::Parameter { 0 } else { first };
        for needed in module.needed(inst) {
            wanted[needed] = wanted[needed].min(first);
        }
    }
    ordered(module, comp, &wanted)
}

/// When an instruction's task begins; of what an `async-start` begins the first one.
fn start_of(module: &Module, inst: InstId, starts_s: &SecondaryMap<InstId, Option<f64>>) -> Option<f64> {
    if module.inst(inst).opcode.row().flow != Flow::AsyncStart(Begun::Call) {
        return starts_s[inst];
    }
    let begun = module.called(inst).into_iter().flat_map(|comp| module.comp(comp).insts.iter());
    begun.filter_map(|&inst| starts_s[inst]).min_by(f64::total_cmp)
}

/// As the text has it, but collectives begin as soon as their operands are there.
pub(super) fn collectives_early(module: &Module, comp: CompId) -> Vec<InstId> {
    let insts = &module.comp(comp).insts;
    let mut wanted: Wanted = SecondaryMap::new();
    for (at, &inst) in insts.iter().enumerate() {
        let is_start = matches!(module.inst(inst).opcode.row().flow, Flow::Collective(_) | Flow::AsyncStart(_));
        let last = module.needed(inst).map(|needed| wanted[needed]).max().unwrap_or(0);
        wanted[inst] = if is_start { last } else { 1 + at as u64 };
    }
    ordered(module, comp, &wanted)
}

/// Of the instructions whose operands are out, the one wanted first comes next; of several the first in the text. Effects stay in the order of the
/// text.
fn ordered(module: &Module, comp: CompId, wanted: &Wanted) -> Vec<InstId> {
    let insts = &module.comp(comp).insts;
    let mut users: SecondaryMap<InstId, Vec<usize>> = SecondaryMap::new();
    let mut n_open = vec![0usize; insts.len()];
    for (at, &inst) in insts.iter().enumerate() {
        for needed in module.needed(inst) {
            users[needed].push(at);
            n_open[at] += 1;
        }
    }
    let mut position: SecondaryMap<InstId, usize> = SecondaryMap::new();
    insts.iter().enumerate().for_each(|(at, &inst)| position[inst] = at);
    for pair in module.ordered_among_each_other(comp).windows(2) {
        users[pair[0]].push(position[pair[1]]);
        n_open[position[pair[1]]] += 1;
    }
    let mut ready: BinaryHeap<Reverse<(u64, usize)>> =
        (0..insts.len()).filter(|&at| n_open[at] == 0).map(|at| Reverse((wanted[insts[at]], at))).collect();
    let mut out = Vec::with_capacity(insts.len());
    while let Some(Reverse((_, at))) = ready.pop() {
        out.push(insts[at]);
        for &user in &users[insts[at]] {
            n_open[user] -= 1;
            if n_open[user] == 0 {
                ready.push(Reverse((wanted[insts[user]], user)));
            }
        }
    }
    out
}
