//! Gather an array a second time where keeping it from its first uses to its later ones takes more memory than there is.
//!
//! Before, `%w` lies in memory from the forward pass to the backward pass:
//! ```text
//! %w = f32[64,32] all-gather(%shard), dimensions={0}
//! %y = f32[8,32] dot(%x, %w)
//! …
//! %dx = f32[8,64] dot(%dy, %w)
//! ```
//! after, it does not:
//! ```text
//! %w = f32[64,32] all-gather(%shard), dimensions={0}
//! %y = f32[8,32] dot(%x, %w)
//! …
//! %both = (f32[16,32], f32[8,32]) tuple(%shard, %dy)
//! %late = (f32[16,32], f32[8,32]) opt-barrier(%both)
//! %again = f32[16,32] get-tuple-element(%late), index=0
//! %w.again = f32[64,32] all-gather(%again), dimensions={0}
//! %dx = f32[8,64] dot(%dy, %w.again)
//! ```
//! The sample `ir-samples/passes/rematerialize-all-gather/worked.hlo` runs this.
//!
//! **Why.** Weights that lie in shards between steps (ZeRO-3) are whole only while a layer works with them; the gradient of the layer's
//! input wants them again. What is gathered once stays in between, and all layers' weights together are the whole model.
//!
//! **What it does not do.** Without a limit it does nothing: a gather more is never faster. Gathers in loops stay: there each iteration has
//! its own. Results in which a gather's value leaves the entry stay. The peak is that of the module's own order, as our GPU backend runs it.
//! A compiler that orders anew may gather early all the same: XLA's for CPUs keeps the second gathers but drops barriers before it
//! schedules, and took no less for a GPT of 24 layers (73.5 MB with and without). XLA's for GPUs was not measured.
//!
//! **Algorithm.** While the peak is above the limit: of the arrays that live there, that a gather makes or one-operand ops of one, and that
//! are used after it, the largest is made anew for the uses after the peak. The barrier lets the second gather wait for another
//! operand of the first of these uses, so that nobody merges the two or moves it ahead. Each round measures the memory anew
//! ([`hlo_analysis::memory`]); there are at most as many rounds as gathers.
//!
//! **Requires** nothing. **Ensures** the same results, bit for bit, and a peak that is no higher. **Errors**: a peak
//! that stays above the limit.
//!
//! References: Chen et al., *Training Deep Nets with Sublinear Memory Cost*, 2016 (what is dropped and computed again); Rajbhandari et
//! al., *ZeRO*, SC 2020, section 5.3 (parameters gathered for the forward and for the backward pass); DeepSpeed DeepCompile, 2025
//! (selective unsharding).

use cranelift_entity::EntitySet;
use hlo_analysis::Preserved;
use hlo_analysis::code::pinned_by_control;
use hlo_analysis::memory::{MemoryReport, peak_memory};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::module::UserMap;
use hlo_ir::op::{CollectiveSource, Flow};
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange, Rewrite, is_rebuilt};
use indexmap::IndexMap;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "rematerialize-all-gather",
    help: "gather weights a second time instead of keeping them for the backward pass, until a memory limit is kept",
    options: &[],
    build: |_| Ok(Box::new(RematerializeAllGather)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RematerializeAllGather;

impl Pass for RematerializeAllGather {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (Some(entry), Some(limit)) = (module.entry(), cx.target.memory_limit) else {
            cx.report.unchanged_because = Some("there is no memory limit (--memory-limit)".into());
            return Ok(Changed::No);
        };
        let mut channels = ChannelIds::free_in(module);
        let (mut n_again, mut before) = (0u64, peak_memory(module));
        let whole_bytes = before.sizes.peak_bytes;
        // A round that does not lower the peak is undone, and what it gathered is left.
        let mut is_left: EntitySet<InstId> = EntitySet::new();
        while before.sizes.peak_bytes > limit && !cx.deadline.is_over() {
            let Some(found) = find_kept(module, entry, &before, &is_left) else { break };
            let undone = module.clone();
            let told = gather_again(module, entry, &found, &mut channels)?;
            let after = peak_memory(module);
            if is_lower(&after, &before, &found) {
                cx.report.decisions.push(Decision { bytes: found.bytes, ..told });
                (n_again, before) = (n_again + 1, after);
            } else {
                *module = undone;
                is_left.insert(found.value);
            }
        }
        let least_bytes = before.sizes.peak_bytes;
        if least_bytes > limit {
            cx.check_deadline()?;
            let why = format!("{whole_bytes} before, and no other gather lives at the peak that is used later");
            return Err(PassError::above_limit(limit, least_bytes, why + "; give a larger --memory-limit"));
        }
        cx.report.count("gathered-again", n_again);
        if n_again == 0 {
            cx.report.unchanged_because = Some(format!("{least_bytes} bytes at the peak are within the limit"));
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Whether a round gains: the peak is lower, or as high at another moment where the value does not lie.
fn is_lower(after: &MemoryReport, before: &MemoryReport, found: &Kept) -> bool {
    after.sizes.peak_bytes < before.sizes.peak_bytes
        || after.sizes.peak_bytes == before.sizes.peak_bytes
            && after.live_at_peak.iter().all(|buffer| buffer.inst != found.value)
}

/// An array that lives at the peak and is used behind it.
struct Kept {
    /// The gather.
    gather: InstId,
    /// One-operand ops behind the gather, in order; the last one gives the array. Empty: the gather does.
    chain: Vec<InstId>,
    /// What gives the array.
    value: InstId,
    bytes: u64,
    /// The uses behind the peak, in order.
    late: Vec<InstId>,
    /// What the second gather waits for: another operand of the first late use.
    waits_for: InstId,
}

/// The largest array that lives at the peak and can be gathered again for the uses behind it.
fn find_kept(module: &Module, entry: CompId, at_peak: &MemoryReport, is_left: &EntitySet<InstId>) -> Option<Kept> {
    let insts = &module.comp(entry).insts;
    let position: IndexMap<InstId, usize> = insts.iter().enumerate().map(|(at, &inst)| (inst, at)).collect();
    let peak = *position.get(at_peak.peak_at.first()?)?;
    let (users, pinned) = (module.users(), pinned_by_control(module, entry));
    at_peak.live_at_peak.iter().find_map(|buffer| {
        let value = buffer.inst;
        if is_left.contains(value) || !position.contains_key(&value) {
            return None;
        }
        let (gather, chain) = chain_to_gather(module, value, &pinned)?;
        let late = late_uses(&users, value, module, &position, peak)?;
        let waits_for = find_waited(module, value, &late, &position)?;
        Some(Kept { gather, chain, value, bytes: buffer.bytes, late, waits_for })
    })
}

/// The gather that an array comes from, by one-operand ops that only move or convert elements.
fn chain_to_gather(module: &Module, value: InstId, pinned: &EntitySet<InstId>) -> Option<(InstId, Vec<InstId>)> {
    let (mut at, mut chain) = (value, Vec::new());
    loop {
        if pinned.contains(at) {
            return None;
        }
        let inst = module.inst(at);
        let row = inst.opcode.row();
        let is_gather = row.collective.is_some_and(|rule| rule.gathers && rule.source == CollectiveSource::Members);
        if is_gather {
            let is_array = inst.operands.len() == 1 && matches!(module.shape(at), Shape::Array(_));
            chain.reverse();
            return is_array.then_some((at, chain));
        }
        let &[operand] = inst.operands.as_slice() else { return None };
        if !row.factors.row().is_one_to_one {
            return None;
        }
        chain.push(at);
        at = operand;
    }
}

/// The uses behind the peak, in order; `None` where there are none, or the array leaves the entry.
fn late_uses(
    users: &UserMap,
    value: InstId,
    module: &Module,
    position: &IndexMap<InstId, usize>,
    peak: usize,
) -> Option<Vec<InstId>> {
    let entry = module.inst(value).parent;
    let root = module.comp(entry).root.expand();
    let mut late: Vec<InstId> = Vec::new();
    for &user in users[value].iter() {
        if Some(user) == root || Some(value) == root {
            return None;
        }
        if *position.get(&user)? > peak {
            late.push(user);
        }
    }
    late.sort_by_key(|user| position[user]);
    late.dedup();
    (!late.is_empty()).then_some(late)
}

/// Another operand of the first late use, the one that is there last. What costs nothing to have early is no reason to wait.
fn find_waited(module: &Module, value: InstId, late: &[InstId], position: &IndexMap<InstId, usize>) -> Option<InstId> {
    let operands = module.inst(*late.first()?).operands.iter().copied();
    let is_computed = |&operand: &InstId| {
        let is_given = matches!(module.inst(operand).opcode.row().flow, Flow::Parameter | Flow::Constant);
        operand != value && !is_given && !is_rebuilt(module, operand)
    };
    operands.filter(is_computed).max_by_key(|operand| position.get(operand).copied())
}

/// Makes the array anew for its late uses.
fn gather_again(
    module: &mut Module,
    entry: CompId,
    kept: &Kept,
    channels: &mut ChannelIds,
) -> Result<Decision, PassError> {
    let rewrite = Rewrite::new(module, entry);
    let shard = module.inst(kept.gather).operands[0];
    let pair = Shape::Tuple([shard, kept.waits_for].iter().map(|&inst| module.shape(inst).clone()).collect());
    let add = |module: &mut Module, name: &str, opcode, shape: Shape, operands: &[InstId], attrs: Attrs| {
        rewrite.add(module, kept.gather, (name, opcode), shape, operands, attrs)
    };
    let both = add(module, "both", Opcode::Tuple, pair.clone(), &[shard, kept.waits_for], Attrs::Plain);
    let barrier = add(module, "late", Opcode::OptimizationBarrier, pair, &[both], Attrs::Plain);
    let first = Attrs::TupleIndex(Box::new(TupleIndexAttrs { index: 0 }));
    let shape = module.shape(shard).clone();
    let part = add(module, "again", Opcode::GetTupleElement, shape, &[barrier], first);
    let mut copy_of = |module: &mut Module, old: InstId, operand: InstId| {
        let inst = module.inst(old);
        let (opcode, mut attrs) = (inst.opcode, inst.attrs.clone());
        let (hint, shape) = (format!("{}.again", module.inst_name(old)), module.shape(old).clone());
        channels.renew(&mut attrs);
        rewrite.add(module, old, (&hint, opcode), shape, &[operand], attrs)
    };
    let again = copy_of(module, kept.gather, part);
    let value = kept.chain.iter().fold(again, |operand, &old| copy_of(module, old, operand));
    for &user in &kept.late {
        module.map_operands(user, |operand| if operand == kept.value { value } else { operand });
    }
    let mut told = Decision::about(module, kept.gather, "gathered again", "kept, it takes memory at the peak");
    told.collectives.push(CollectiveChange::inserted(module, again, "gives the array for its later uses"));
    rewrite.finish(module)?;
    Ok(told)
}
