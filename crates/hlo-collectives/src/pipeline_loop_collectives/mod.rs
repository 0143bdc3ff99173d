//! Gather in one iteration of a loop what the next one takes, and sum over devices in one what the one before has left.
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
//! and the first layer's weight is gathered before the loop. The other way round, a layer's gradient that is summed and stored
//! ```text
//! body {
//!   %g = f32[64,32] dot(%x, %dy)
//!   %sum = f32[16,32] reduce-scatter(%g), dimensions={0}
//!   %row = f32[1,16,32] reshape(%sum)
//!   %all = f32[3,16,32] dynamic-update-slice(%grads, %row, %i, %zero, %zero)
//! }
//! ```
//! is carried, and summed and stored while the next layer runs; the last one's after the loop:
//! ```text
//! body {
//!   %g.before = f32[64,32] get-tuple-element(%state), index=5
//!   %i.before = s32[] get-tuple-element(%state), index=6
//!   %sum = f32[16,32] reduce-scatter(%g.before), dimensions={0}
//!   %row = f32[1,16,32] reshape(%sum)
//!   %all = f32[3,16,32] dynamic-update-slice(%grads, %row, %i.before, %zero, %zero)
//!   %g = f32[64,32] dot(%x, %dy)
//! }
//! ```
//! The samples `ir-samples/passes/pipeline-loop-collectives/layers.hlo` and `gradients.hlo` run this.
//!
//! **Why.** Weights in shards (ZeRO-3) are gathered where a layer takes them: at its beginning, when nothing is left to do beside the gather. A
//! layer earlier the gather runs beside that layer's kernels, for the memory of one more layer. Gradients (ZeRO-2) are summed where a layer has
//! computed them: at its end, when nothing is left to do beside the last sum. A layer later it runs beside that layer's kernels, for the
//! memory of one layer's gradients before they are summed.
//!
//! **What it does not do.** It moves gathers of one array that follow from what the loop hands on as it is, and from scalars that it counts with: those
//! of weights, not those of activations. It moves sums whose results end, through operations without effect, in arrays that the loop fills part by
//! part, at places that follow from such scalars, and that nothing in the loop reads: no sums that an iteration goes on with, and none that
//! are added up. It moves nothing in a loop of which the module does not say how often it runs, or that runs once.
//! The last iteration gathers once more, for a layer that does not come: slices start within their array, as HLO has it, so that the
//! last or first layer is gathered again and nobody takes it. The first iteration sums zeros, and stores them where the second one stores the first sum.
//!
//! **Which.** Gathers alone, unless `collectives=` says more: XLA for GPUs moves the sums of such loops itself, and takes the first iteration out of
//! the loop, so that nothing is summed in vain. Of a scan over 16 layers of width 1,024 with its moments in shards the final module for eight H100s is
//! predicted to take 1,091 us, and 1,115 with `collectives=sums` (28 November 2026, jax 0.12.0.1; no GPU ran).
//!
//! Where the loop begins with something that is computed, the first gather waits for it behind an `opt-barrier`: a backward pass's is not kept
//! through the forward pass.
//!
//! **Algorithm.** For each loop: the gathers whose operands follow from such state, in one walk; each is computed before the loop from what the
//! loop begins with, and in the body from what the body hands on. The sums with all that follows from them, in one walk from the end; what they take of
//! the iteration is carried, and they are computed once more after the loop from what it leaves. Linear in the body.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit. **Errors**: none.
//!
//! References: Zhao et al., *PyTorch FSDP*, VLDB 2023, section 3.3.2 (prefetch); DeepSpeed DeepCompile, 2025 (proactive prefetching).

mod gathers;
mod sources;
mod sums;

use hlo_analysis::Preserved;
use hlo_analysis::carried_loop::{CarriedLoop, is_run_by_all};
use hlo_analysis::code::code_computations;
use hlo_analysis::frequency::{Basis, Frequencies};
use hlo_analysis::values::{CallSites, condition_and_body};
use hlo_ir::diag::Entity;
use hlo_ir::module::UserMap;
use hlo_ir::{InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange};
use sums::LateSums;

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "pipeline-loop-collectives",
    help: "gather in one iteration of a loop what the next one takes, and sum in it what the one before has left",
    options: &[
        OptionInfo {
            name: "min-bytes",
            kind: OptionKind::Int,
            default: "0",
            help: "leave gathers whose result, and sums whose operands, are smaller",
        },
        OptionInfo {
            name: "collectives",
            kind: OptionKind::Word(&["gathers", "sums", "all"]),
            default: "gathers",
            help: "gathers of weights, sums of gradients (which XLA for GPUs moves itself), or both",
        },
    ],
    build: |options| {
        let moved = options.text("collectives");
        Ok(Box::new(PipelineLoopCollectives {
            min_bytes: options.int("min-bytes").unsigned_abs(),
            moves_gathers: moved != "sums",
            moves_sums: moved != "gathers",
        }))
    },
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PipelineLoopCollectives {
    min_bytes: u64,
    moves_gathers: bool,
    moves_sums: bool,
}

impl Pass for PipelineLoopCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut n_gathers, mut n_sums, mut n_loops) = (0u64, 0u64, 0u64);
        let mut channels = ChannelIds::free_in(module);
        let mut around = Around::of(module);
        // Callees come first: a loop in a loop is changed before the one around it.
        for comp in code_computations(module) {
            for inst in module.comp(comp).insts.clone() {
                if condition_and_body(module, inst).is_none() {
                    continue;
                }
                cx.check_deadline()?;
                let frequencies = cx.analyses.frequencies(module);
                let cyclic = |module: &Module, inst: InstId| {
                    let message = format!("`%{}` depends on itself", module.inst_name(inst));
                    PassError::about("acyclic", Entity::Inst(inst), message)
                };
                let n_before = n_gathers + n_sums;
                if let Some((carried, gathers)) = self.find_gathers(module, &frequencies, &around, inst) {
                    cx.report.decisions.extend(gathers.iter().map(|&gather| tell_gather(module, &carried, gather)));
                    gathers::pipeline(module, &carried, &gathers, &mut channels).map_err(|i| cyclic(module, i))?;
                    n_gathers += gathers.len() as u64;
                    around = Around::of(module);
                }
                if let Some((carried, late)) = self.find_sums(module, &frequencies, &around, inst) {
                    cx.report.decisions.extend(late.sums.iter().map(|&sum| tell_sum(module, &carried, sum)));
                    sums::pipeline(module, &carried, &late, &mut channels).map_err(|i| cyclic(module, i))?;
                    n_sums += late.sums.len() as u64;
                    around = Around::of(module);
                }
                if n_gathers + n_sums > n_before {
                    cx.analyses.invalidate(Preserved { frequencies: true, ..Preserved::NONE });
                    n_loops += 1;
                }
            }
        }
        cx.report.count("gathers-pipelined", n_gathers);
        cx.report.count("sums-pipelined", n_sums);
        cx.report.count("loops", n_loops);
        if n_loops == 0 {
            let why = "no loop that runs several times gathers what it could have gathered an iteration before, or sums what it could sum an iteration later";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

impl PipelineLoopCollectives {
    /// The gathers of a loop that can run an iteration ahead.
    fn find_gathers(
        &self,
        module: &Module,
        frequencies: &Frequencies,
        around: &Around,
        inst: InstId,
    ) -> Option<(CarriedLoop, Vec<InstId>)> {
        let carried = around.find_loop(module, frequencies, inst).filter(|_| self.moves_gathers)?;
        let gathers = gathers::find(module, &carried, &around.users, self.min_bytes);
        (!gathers.is_empty()).then_some((carried, gathers))
    }

    /// The sums of a loop that can run an iteration later.
    fn find_sums(
        &self,
        module: &Module,
        frequencies: &Frequencies,
        around: &Around,
        inst: InstId,
    ) -> Option<(CarriedLoop, LateSums)> {
        let carried = around.find_loop(module, frequencies, inst).filter(|_| self.moves_sums)?;
        let late = sums::find(module, &carried, &around.users, self.min_bytes)?;
        Some((carried, late))
    }
}

/// Who uses what in a module, and calls what.
struct Around {
    users: UserMap,
    sites: CallSites,
}

impl Around {
    fn of(module: &Module) -> Around {
        Around { users: module.users(), sites: CallSites::find(module, module.post_order()) }
    }

    /// A loop that runs several times, equally often on all devices, and whose state can be extended.
    fn find_loop(&self, module: &Module, frequencies: &Frequencies, inst: InstId) -> Option<CarriedLoop> {
        let trips = frequencies.trip_count(inst)?;
        if trips.count < 2 || !matches!(trips.basis, Basis::Stated | Basis::Derived) {
            return None;
        }
        let carried = CarriedLoop::find(module, &self.users, &self.sites, inst)?;
        is_run_by_all(module, &self.sites, frequencies, module.inst(inst).parent).then_some(carried)
    }
}

fn tell_gather(module: &Module, carried: &CarriedLoop, gather: InstId) -> Decision {
    let name = module.inst_name(carried.inst);
    let reason =
        format!("an iteration of %{name} gathers what the next one takes, and the first one's is gathered before");
    let mut told = Decision::about(module, gather, "pipelined", reason);
    told.collectives.push(CollectiveChange::removed(module, gather, "its iteration takes it from the one before"));
    told
}

fn tell_sum(module: &Module, carried: &CarriedLoop, sum: InstId) -> Decision {
    let name = module.inst_name(carried.inst);
    let reason =
        format!("an iteration of %{name} sums what the one before has left, and the last one's is summed after");
    Decision::about(module, sum, "pipelined", reason)
}
