//! Finds an all-reduce in a loop that only adds its results up: one all-reduce behind the loop gives the same.
//!
//! Gradient accumulation over four microbatches that sums each microbatch's gradient over the devices:
//! ```text
//! body:  %sum = f32[64,32] all-reduce(%gradient), replica_groups={{0,1,2,3}}, to_apply=%add
//!        %next = f32[64,32] add(%accumulator, %sum)
//! ```
//! The sum of sums is the sum of what the devices added up by themselves, so the all-reduce need not run in every iteration.
//! The same holds where one device of each group puts what is carried into the sum, as partitioners write a scatter into a table:
//! ```text
//! body:  %base = f32[64,32] select(%is_other, %zeros, %accumulator)
//!        %local = f32[64,32] scatter(%base, %places, %rows), to_apply=%add
//!        %next = f32[64,32] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//!
//! **Cost**: all runs but one for each time that the loop runs.
//!
//! **What it does not find**: accumulators that the loop reads or scales (a moving average), reduce-scatters (deferring them takes memory
//! for whole accumulators), sums written into a stack of layers (each is needed once), arrays below 1 KiB, asynchronous calls.
//!
//! **How sure**: the sum's only use is a sum with the carried value, whose only use in the loop that is. A scaling between them is the same on all
//! devices of a group, and conversions between them only widen. Floating-point sums change by the order of additions.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::finding::{CheckInfo, Finding, Level};
use crate::follow::{MAX_STEPS, Next, next, next_of_use, only_moves};
use hlo_analysis::values::{ValueId, condition_and_body};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{InstId, Opcode};
use indexmap::IndexMap;

/// The check as the command line knows it.
pub(crate) static INFO: CheckInfo = CheckInfo {
    id: "all-reduce-in-loop",
    level: Level::Fault,
    help: "an all-reduce in a loop that only adds its results up, as gradients of microbatches",
    run,
};

fn run(cx: &AuditCx<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for collective in cx.collectives.iter().filter(|c| c.is_all_reduce() && c.reducer == Some(Monoid::Add)) {
        let mut of_loop: IndexMap<InstId, (u64, f64)> = IndexMap::new();
        for k in 0..collective.n_arrays(cx.module) {
            let bytes = cx.array_bytes(collective, k);
            let found = cx.result(collective, k).and_then(|value| accumulating_loop(cx, collective, value));
            if let (Some((inst, wider)), true) = (found, bytes >= SMALL_BYTES) {
                let (sum, widest) = of_loop.entry(inst).or_insert((0, 1.0));
                (*sum, *widest) = (sum.saturating_add(bytes), wider.max(*widest));
            }
        }
        findings.extend(of_loop.into_iter().filter_map(|(inst, of_loop)| report(cx, collective, inst, of_loop)));
    }
    findings
}

fn report(cx: &AuditCx<'_>, collective: &Collective, the_loop: InstId, (bytes, wider): (u64, f64)) -> Option<Finding> {
    let n_trips = cx.frequencies.trip_count(the_loop)?.count;
    let n_needless = collective.n_runs * (1.0 - wider / n_trips as f64);
    if n_trips <= 1 || n_needless <= 0.0 || collective.is_of_one_device() {
        return None;
    }
    Some(Finding {
        check: &INFO,
        inst: collective.inst,
        also: vec![the_loop],
        message: format!(
            "{} sums over devices in each of {n_trips} iterations of {}, which only adds the sums up",
            cx.name(collective.inst),
            cx.name(the_loop)
        ),
        cost: collective.cost(bytes, n_needless),
        remedy: cx.remedy(
            "add up per device in the loop and sum over devices once behind it",
            "inline-calls,simplify-tuples,split-tuple-all-reduce,sink-all-reduce",
        ),
    })
}

/// The loop that adds `value` to something that it carries and does nothing else with either, and how much wider the numbers are there.
fn accumulating_loop(cx: &AuditCx<'_>, collective: &Collective, value: ValueId) -> Option<(InstId, f64)> {
    let mut sums: Vec<InstId> = Vec::new();
    let (mut at, mut wider) = (value, 1.0);
    loop {
        match next(&cx.values, at)? {
            Next::Carry(carried) if at == value => return Some((hands_on(cx, collective, carried)?, wider)),
            Next::Carry(carried) => return Some((only_accumulates(cx, carried, &sums)?, wider)),
            Next::Op(inst, operand) => {
                if cx.module.inst(inst).opcode == Opcode::Add {
                    sums.push(inst);
                } else {
                    // What the loop carries may not go through this, so it is not in a sum before it.
                    sums.clear();
                    let widened = widened(cx, inst);
                    wider *= widened.unwrap_or(1.0);
                    if widened.is_none() && !only_moves(cx, inst) && !scales(cx, collective, inst, operand) {
                        return None;
                    }
                }
                at = cx.values.of(inst)?;
            }
        }
    }
}

/// How much wider a conversion of floating-point numbers makes them; none for other instructions and for narrower numbers.
fn widened(cx: &AuditCx<'_>, inst: InstId) -> Option<f64> {
    let dtype = |inst: InstId| cx.module.shape(inst).as_array().map(|array| array.dtype);
    let (from, to) = (dtype(*cx.module.inst(inst).operands.first()?)?, dtype(inst)?);
    let is_wider = from.is_float() && to.is_float() && from.bits() <= to.bits();
    let is_it = is_wider && cx.module.inst(inst).opcode == Opcode::Convert;
    is_it.then(|| f64::from(to.bits()) / f64::from(from.bits()))
}

/// Whether `inst` multiplies or divides by a scalar that is the same on all devices of a group.
pub(super) fn scales(cx: &AuditCx<'_>, collective: &Collective, inst: InstId, operand: usize) -> bool {
    let instruction = cx.module.inst(inst);
    let Some(&value) = instruction.operands.get(operand) else { return false };
    let Some(scaling) = hlo_spmd::find_scaling(cx.module, inst, value) else { return false };
    let scale = instruction.operands.get(scaling.scale_idx);
    scale.is_some_and(|&scale| cx.replication.is_equal_within(scale, 0, &collective.members.groups))
}

/// The loop, if its only use of what it carries is one of these sums.
fn only_accumulates(cx: &AuditCx<'_>, carried: ValueId, sums: &[InstId]) -> Option<InstId> {
    let (the_loop, inst) = only_op(cx, carried)?;
    sums.contains(&inst).then_some(the_loop)
}

/// The loop, if the only use of what it carries is that one device of each group adds it to what is summed.
fn hands_on(cx: &AuditCx<'_>, collective: &Collective, carried: ValueId) -> Option<InstId> {
    let (the_loop, mut inst) = only_op(cx, carried)?;
    let masked = hlo_spmd::find_masked(cx.module, inst)?;
    if !masked.is_held_once(&collective.members.groups) {
        return None;
    }
    for _ in 0..MAX_STEPS {
        let Next::Op(user, operand) = next(&cx.values, cx.values.of(inst)?)? else { return None };
        if user == collective.inst {
            return Some(the_loop);
        }
        let instruction = cx.module.inst(user);
        let adds = || {
            let reducer = cx.module.called(user).first().and_then(|&comp| find_monoid(cx.module, comp));
            operand == 0 && reducer == Some(Monoid::Add)
        };
        let is_sum = [Opcode::Add, Opcode::Copy].contains(&instruction.opcode);
        let is_scatter = instruction.opcode == Opcode::Scatter && instruction.operands.len() == 3 && adds();
        inst = (is_sum || is_scatter).then_some(user)?;
    }
    None
}

/// The loop that carries a value, and the only op in it that takes the value.
fn only_op(cx: &AuditCx<'_>, carried: ValueId) -> Option<(InstId, InstId)> {
    let the_loop = cx.values.inst(carried);
    let (condition, body) = condition_and_body(cx.module, the_loop)?;
    let mut uses = cx.values.uses[carried].iter().filter(|u| u.comp == body || u.comp == condition);
    let (only, None) = (uses.next()?, uses.next()) else { return None };
    match next_of_use(&cx.values, only)? {
        Next::Op(inst, _) => Some((the_loop, inst)),
        Next::Carry(_) => None,
    }
}
