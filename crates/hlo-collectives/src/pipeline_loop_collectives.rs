//! Gather in one iteration of a loop what the next one takes.
//!
//! Before, each layer waits for its own weight:
//! ```text
//! body {
//!   %shard = f32[1,16,32] dynamic-slice(%shards, %i, %zero, %zero), dynamic_slice_sizes={1,16,32}
//!   %layer = f32[16,32] reshape(%shard)
//!   %w = f32[64,32] all-gather(%layer), dimensions={0}
//!   %y = f32[8,32] dot(%x, %w)
//! }
//! ```
//! after, the loop carries the weight, which was gathered while the layer before ran:
//! ```text
//! body {
//!   %w = f32[64,32] get-tuple-element(%state), index=4
//!   %shard.next = f32[1,16,32] dynamic-slice(%shards, %i.next, %zero, %zero), dynamic_slice_sizes={1,16,32}
//!   %layer.next = f32[16,32] reshape(%shard.next)
//!   %w.next = f32[64,32] all-gather(%layer.next), dimensions={0}
//!   %y = f32[8,32] dot(%x, %w)
//! }
//! ```
//! and the first layer's weight is gathered before the loop. The sample `ir-samples/passes/pipeline-loop-collectives/layers.hlo` runs this.
//!
//! **Why.** Weights in shards (ZeRO-3) are gathered where a layer takes them: at its beginning, when nothing is left to do beside the gather. A
//! layer earlier the gather runs beside that layer's kernels, for the memory of one more layer.
//!
//! **What it does not do.** It moves gathers of one array that follow from what the loop hands on as it is, and from scalars that it counts with: those
//! of weights, not those of activations. It moves nothing in a loop of which the module does not say how often it runs, or that runs once.
//! The last iteration gathers once more, for a layer that does not come: slices start within their array, as HLO has it, so that the
//! last or first layer is gathered again and nobody takes it.
//!
//! Where the loop begins with something that is computed, the first gather waits for it behind an `opt-barrier`: a backward pass's is not kept
//! through the forward pass.
//!
//! **Algorithm.** For each loop: the gathers whose operands follow from such state, in one walk; each is computed before the loop from what the
//! loop begins with, and in the body from what the body hands on. Linear in the body.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit. **Errors**: none.
//!
//! References: Zhao et al., *PyTorch FSDP*, VLDB 2023, section 3.3.2 (prefetch); DeepSpeed DeepCompile, 2025 (proactive prefetching).

use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::Preserved;
use hlo_analysis::carried_loop::{CarriedLoop, Copies, is_run_by_all};
use hlo_analysis::code::{code_computations, is_annotated, pinned_by_control};
use hlo_analysis::frequency::{Basis, Frequencies};
use hlo_analysis::values::{CallSites, condition_and_body};
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::op::{CollectiveForm, CollectiveSource, Flow};
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange, is_rebuilt};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "pipeline-loop-collectives",
    help: "gather in one iteration of a loop what the next one takes: layers' weights arrive while the layer before runs",
    options: &[OptionInfo {
        name: "min-bytes",
        kind: OptionKind::Int,
        default: "0",
        help: "leave gathers whose result is smaller",
    }],
    build: |options| Ok(Box::new(PipelineLoopCollectives { min_bytes: options.int("min-bytes").unsigned_abs() })),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PipelineLoopCollectives {
    min_bytes: u64,
}

impl Pass for PipelineLoopCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut n_gathers, mut n_loops) = (0u64, 0u64);
        let mut channels = ChannelIds::free_in(module);
        let mut around = (module.users(), CallSites::find(module, module.post_order()));
        // Callees come first: a loop in a loop is changed before the one around it.
        for comp in code_computations(module) {
            for inst in module.comp(comp).insts.clone() {
                if condition_and_body(module, inst).is_none() {
                    continue;
                }
                cx.check_deadline()?;
                let frequencies = cx.analyses.frequencies(module);
                let Some(found) = self.find(module, &frequencies, &around, inst) else { continue };
                for &gather in &found.gathers {
                    cx.report.decisions.push(tell(module, &found.carried, gather));
                }
                pipeline(module, &found, &mut channels).map_err(|inst| {
                    let message = format!("`%{}` depends on itself", module.inst_name(inst));
                    PassError::about("acyclic", Entity::Inst(inst), message)
                })?;
                around = (module.users(), CallSites::find(module, module.post_order()));
                cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
                (n_gathers, n_loops) = (n_gathers + found.gathers.len() as u64, n_loops + 1);
            }
        }
        cx.report.count("gathers-pipelined", n_gathers);
        cx.report.count("loops", n_loops);
        if n_gathers == 0 {
            let why = "no loop that runs several times gathers what it could have gathered an iteration before";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

fn tell(module: &Module, carried: &CarriedLoop, gather: InstId) -> Decision {
    let name = module.inst_name(carried.inst);
    let reason =
        format!("an iteration of %{name} gathers what the next one takes, and the first one's is gathered before");
    let mut told = Decision::about(module, gather, "pipelined", reason);
    told.collectives.push(CollectiveChange::removed(module, gather, "its iteration takes it from the one before"));
    told
}

/// A loop and what it gathers.
struct Found {
    carried: CarriedLoop,
    gathers: Vec<InstId>,
}

/// What an instruction of a body is made of.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Source {
    /// Something that an iteration computes.
    #[default]
    Other,
    /// State that is handed on as it is, constants, and the device's number.
    Fixed,
    /// That, and scalars that the loop counts with.
    Counted,
}

impl PipelineLoopCollectives {
    /// The gathers of a loop that can run an iteration ahead; `around` has the users and call sites of the module.
    fn find(
        &self,
        module: &Module,
        frequencies: &Frequencies,
        (users, sites): &(UserMap, CallSites),
        inst: InstId,
    ) -> Option<Found> {
        let trips = frequencies.trip_count(inst)?;
        if trips.count < 2 || !matches!(trips.basis, Basis::Stated | Basis::Derived) {
            return None;
        }
        let carried = CarriedLoop::find(module, users, sites, inst)?;
        if !is_run_by_all(module, sites, frequencies, module.inst(inst).parent) {
            return None;
        }
        let sources = find_sources(module, &carried);
        let pinned = pinned_by_control(module, carried.body);
        let gathers = |inst: &InstId| {
            let instruction = module.inst(*inst);
            let Flow::Collective(rule) = instruction.opcode.row().flow else { return false };
            let is_gather = rule.form == CollectiveForm::Synchronous
                && instruction
                    .opcode
                    .row()
                    .collective
                    .is_some_and(|c| c.gathers && c.source == CollectiveSource::Members);
            let [operand] = instruction.operands.as_slice() else { return false };
            is_gather
                && sources[*operand] == Source::Counted
                && matches!(module.shape(*inst), Shape::Array(_))
                && module.shape(*inst).size_bytes() >= self.min_bytes
                && !pinned.contains(*inst)
                && !is_annotated(module, *inst)
                // What only the next iteration takes is ahead already.
                && users[*inst].iter().any(|&user| user != carried.root)
        };
        let gathers: Vec<InstId> = module.comp(carried.body).insts.iter().copied().filter(gathers).collect();
        (!gathers.is_empty()).then_some(Found { carried, gathers })
    }
}

/// What each instruction of a body is made of, operands first.
fn find_sources(module: &Module, carried: &CarriedLoop) -> SecondaryMap<InstId, Source> {
    let pinned = pinned_by_control(module, carried.body);
    let counters = counters(module, carried);
    let mut sources: SecondaryMap<InstId, Source> = SecondaryMap::new();
    for &inst in &module.comp(carried.body).insts {
        let instruction = module.inst(inst);
        sources[inst] = match carried.element_read(module, inst) {
            Some(index) if carried.is_handed_on(module, index) => Source::Fixed,
            Some(index) if counters.contains(&index) => Source::Counted,
            Some(_) => Source::Other,
            None if pinned.contains(inst) || !is_copied(module, inst) => Source::Other,
            None => {
                instruction.operands.iter().map(|&operand| sources[operand]).fold(Source::Fixed, |all, one| {
                    match (all, one) {
                        (Source::Other, _) | (_, Source::Other) => Source::Other,
                        (Source::Counted, _) | (_, Source::Counted) => Source::Counted,
                        (Source::Fixed, Source::Fixed) => Source::Fixed,
                    }
                })
            }
        };
    }
    sources
}

/// Whether an instruction may be computed twice, elsewhere: it exchanges nothing, calls nothing and has no effect.
fn is_copied(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let is_plain = match instruction.opcode.row().flow {
        Flow::Constant | Flow::PartitionId | Flow::ReplicaId | Flow::All => instruction.opcode.is_pure(),
        Flow::Parameter
        | Flow::Tuple
        | Flow::GetTupleElement
        | Flow::Identity
        | Flow::Call
        | Flow::While
        | Flow::Conditional
        | Flow::Collective(_)
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate
        | Flow::AsyncDone => false,
    };
    is_plain && module.called(inst).is_empty() && !is_annotated(module, inst) && !module.must_stay(inst)
}

/// The elements of the state that are scalars whose next value follows from such scalars and constants.
fn counters(module: &Module, carried: &CarriedLoop) -> Vec<usize> {
    let next = &module.inst(carried.root).operands;
    let is_scalar = |inst: InstId| module.shape(inst).as_array().is_some_and(|array| array.rank() == 0);
    let mut counters: Vec<usize> = (0..next.len()).filter(|&index| is_scalar(next[index])).collect();
    loop {
        let follows = |&index: &usize| {
            let mut work = vec![next[index]];
            let mut seen: EntitySet<InstId> = EntitySet::new();
            while let Some(inst) = work.pop() {
                let is_new = seen.insert(inst);
                let fits = match carried.element_read(module, inst) {
                    Some(read) => counters.contains(&read),
                    None => is_scalar(inst) && is_copied(module, inst),
                };
                if !fits {
                    return false;
                }
                if is_new && carried.element_read(module, inst).is_none() {
                    work.extend(module.inst(inst).operands.iter().copied());
                }
            }
            true
        };
        let left: Vec<usize> = counters.iter().copied().filter(follows).collect();
        if left.len() == counters.len() {
            return counters;
        }
        counters = left;
    }
}

/// Has the loop carry what it gathers.
///
/// # Errors
/// An instruction that depends on itself: a defect of the pass.
fn pipeline(module: &mut Module, found: &Found, channels: &mut ChannelIds) -> Result<(), InstId> {
    let CarriedLoop { inst, body, init, root, .. } = found.carried;
    let comp = module.inst(inst).parent;
    let (was_live, n_slots_before) = ([comp, body].map(|comp| module.live(comp)), module.n_inst_slots());
    let (first, next) = (module.inst(init).operands.to_vec(), module.inst(root).operands.to_vec());
    let begun = wait_for_loop(module, found, &first);
    let mut copy_all = |module: &mut Module, mut copies: Copies<'_>| -> Vec<InstId> {
        // What is handed on as it is stays the same read of the state.
        found.gathers.iter().map(|&gather| copies.copy(module, gather, |attrs| channels.renew(attrs))).collect()
    };
    let begin = copy_all(module, Copies::new(&found.carried, comp, &begun, ".first"));
    let n_slots = module.comp(body).insts.len();
    let handed_on = copy_all(module, Copies::new(&found.carried, body, &next, ".next"));
    // What the next iteration takes is gathered first, beside all that this one does.
    module.comp_mut(body).insts.rotate_left(n_slots);
    let reads = found.carried.append(module, &begin);
    for ((&gather, &read), &value) in found.gathers.iter().zip(&reads).zip(&handed_on) {
        module.replace_all_uses(gather, read);
        module.inst_mut(root).operands.push(value);
    }
    for (comp, was_live) in [comp, body].into_iter().zip(&was_live) {
        module.remove_newly_dead(comp, was_live, n_slots_before);
        module.restore_order(comp)?;
    }
    Ok(())
}

/// What the loop begins with, as the first gathers take it: where something of it is computed, what the loop hands on as it is waits for
/// that. Else the first layer of a backward pass would be gathered, or merged with other gathers, before the forward pass.
fn wait_for_loop(module: &mut Module, found: &Found, first: &[InstId]) -> Vec<InstId> {
    let carried = &found.carried;
    let comp = module.inst(carried.inst).parent;
    let is_given = |inst: InstId| {
        matches!(module.inst(inst).opcode.row().flow, Flow::Parameter | Flow::Constant) || is_rebuilt(module, inst)
    };
    let insts = &module.comp(comp).insts;
    let place = |inst: &InstId| insts.iter().position(|other| other == inst);
    let is_waited = |index: &usize| !carried.is_handed_on(module, *index) && !is_given(first[*index]);
    let computed = (0..first.len()).filter(is_waited).max_by_key(|&index| place(&first[index]));
    let read = elements_behind(module, found);
    let fixed: Vec<usize> = read.into_iter().filter(|&index| carried.is_handed_on(module, index)).collect();
    let (Some(computed), false) = (computed, fixed.is_empty()) else { return first.to_vec() };
    let operands: Vec<InstId> = fixed.iter().chain([&computed]).map(|&index| first[index]).collect();
    let shape = Shape::Tuple(operands.iter().map(|&inst| module.shape(inst).clone()).collect());
    let mut builder = Builder::new(module, comp);
    let both = builder.add("begun", Opcode::Tuple, shape.clone(), operands, Attrs::Plain);
    let barrier = builder.add("late", Opcode::OptimizationBarrier, shape, [both], Attrs::Plain);
    let mut begun = first.to_vec();
    for (place, &index) in fixed.iter().enumerate() {
        let (hint, shape) = (module.inst_name(first[index]).to_string(), module.shape(first[index]).clone());
        let attrs = TupleIndexAttrs { index: place as i64 };
        begun[index] = Builder::new(module, comp).add(&hint, Opcode::GetTupleElement, shape, [barrier], attrs);
    }
    begun
}

/// The elements of the state that the gathers follow from, in order.
fn elements_behind(module: &Module, found: &Found) -> Vec<usize> {
    let (mut seen, mut work): (EntitySet<InstId>, Vec<InstId>) = (EntitySet::new(), found.gathers.clone());
    let mut elements = Vec::new();
    while let Some(inst) = work.pop() {
        if !seen.insert(inst) {
            continue;
        }
        match found.carried.element_read(module, inst) {
            Some(index) => elements.push(index),
            None => work.extend(module.inst(inst).operands.iter().copied()),
        }
    }
    elements.sort_unstable();
    elements.dedup();
    elements
}
