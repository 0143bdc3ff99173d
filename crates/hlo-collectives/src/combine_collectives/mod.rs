//! Do several small collectives as one larger one.
//!
//! Before, two gradients are reduced, each with the latency of a collective:
//! ```text
//! %a = f32[64] all-reduce(%local.a), replica_groups={{0,1,2,3}}, to_apply=%add
//! %b = f32[32,8] all-reduce(%local.b), replica_groups={{0,1,2,3}}, to_apply=%add
//! ```
//! after, with `mode=variadic`:
//! ```text
//! %both = (f32[64], f32[32,8]) all-reduce(%local.a, %local.b), replica_groups={{0,1,2,3}}, to_apply=%add
//! %a = f32[64] get-tuple-element(%both), index=0
//! %b = f32[32,8] get-tuple-element(%both), index=1
//! ```
//! and with `mode=packed`:
//! ```text
//! %flat.b = f32[256] reshape(%local.b)
//! %all = f32[320] concatenate(%local.a, %flat.b), dimensions={0}
//! %sum = f32[320] all-reduce(%all), replica_groups={{0,1,2,3}}, to_apply=%add
//! %a = f32[64] slice(%sum), slice={[0:64]}
//! ```
//! The samples `ir-samples/passes/combine-collectives/variadic.hlo` and `packed.hlo` run this.
//!
//! **Why.** A collective of few bytes is all latency: a ring of 8 devices takes 14 steps whatever it carries, and a bias costs as much
//! as a megabyte of weights.
//!
//! **What it does not do.** It combines nothing across computations, nothing in control dependencies, nothing asynchronous, and nothing of which one part depends
//! on another. In mode `packed` collectives whose operand is a concatenation count as packed already. The packed form copies
//! all operands once before and once behind; the variadic form copies nothing, but StableHLO has no variadic
//! reduce-scatter.
//!
//! **Algorithm.** [`plan`]: same kind, groups, reduction, element type, and (variadic) dim; operands that are ready early are
//! combined first, up to a threshold, so that the first collective can start while later operands are still computed. [`packed`] and
//! [`variadic`] emit. Repeated until nothing combines, as leftovers of two buckets may fit into one. Linear in the instructions,
//! times the number of buckets that never fill.
//!
//! **Requires** nothing. **Ensures** the same results bit for bit where the order of a reduction over devices does not depend on
//! the place of an element in the array; ring reductions rotate that order. **Errors**: none.
//!
//! **References.** Xu et al. 2020, *Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training*, §5.2 (batched
//! collectives). We keep dependency order where they batch all of one kind.

pub(crate) mod packed;
pub(crate) mod plan;
pub(crate) mod variadic;

use hlo_analysis::Preserved;
use hlo_analysis::code::code_computations;
use hlo_cluster::XlaCombiner;
use hlo_ir::attrs::Attrs;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange, Rewrite};
use plan::{Bucket, Limits, XlaRules, plan};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "combine-collectives",
    help: "do several small collectives as one, up to a number of bytes",
    options: OPTIONS,
    build: |options| Ok(Box::new(CombineCollectives::new(options))),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "mode",
        kind: OptionKind::Word(&["variadic", "packed"]),
        default: "variadic",
        help: "one collective of many arrays, or of one array that holds them all",
    },
    OptionInfo {
        name: "threshold-bytes",
        kind: OptionKind::Int,
        default: "16MiB",
        help: "most bytes of one combined collective: whole tensors, per device",
    },
    OptionInfo {
        name: "ops",
        kind: OptionKind::Word(&["all-reduce", "reduce-scatter", "all-gather", "all"]),
        default: "all",
        help: "which collectives to combine",
    },
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct CombineCollectives {
    is_packed: bool,
    limits: Limits,
}

impl CombineCollectives {
    fn new(options: &Options) -> CombineCollectives {
        let is_packed = options.text("mode") == "packed";
        let all = [Opcode::AllReduce, Opcode::ReduceScatter, Opcode::AllGather];
        let word = options.text("ops");
        let ops = all.into_iter().filter(|op| word == "all" || op.name() == word).collect();
        let threshold_bytes = options.int("threshold-bytes").max(0) as u64;
        CombineCollectives { is_packed, limits: Limits { threshold_bytes, ops, is_packed, as_xla: None } }
    }

    /// Combines what can be in one computation; how many collectives went and how many came.
    fn combine_in(&self, module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<(u64, u64), PassError> {
        let (mut n_removed, mut n_inserted) = (0, 0);
        loop {
            let (buckets, left) = plan(module, comp, &self.limits);
            if buckets.is_empty() {
                let told = left.into_iter().map(|(inst, reason)| Decision::about(module, inst, "left", reason));
                report.decisions.extend(told);
                return Ok((n_removed, n_inserted));
            }
            let mut rewrite = Rewrite::new(module, comp);
            let mut channels = ChannelIds::free_in(module);
            for bucket in &buckets {
                let mut told = describe(module, bucket);
                let combined = match self.is_packed {
                    true => packed::emit(module, &mut rewrite, bucket, &mut channels),
                    false => Some(variadic::emit(module, &mut rewrite, bucket, &mut channels)),
                };
                let inserted = |inst| CollectiveChange::inserted(module, inst, "does the work of all of them");
                told.collectives.extend(combined.map(inserted));
                report.decisions.push(told);
                n_removed += bucket.members.len() as u64;
                n_inserted += 1;
            }
            rewrite.finish(module)?;
        }
    }
}

/// The module as XLA's own combiner leaves it; `None` if it combines nothing there. A scheduled module has been through XLA.
///
/// This is the honest baseline of a module that XLA compiles: what XLA combines anyway is nobody's gain. XLA's combiner for GPUs also
/// combines gathers and scatters of different dims, which this one leaves apart.
pub fn combine_as_xla(module: &Module, combiner: &XlaCombiner) -> Option<Module> {
    if module.header.is_scheduled {
        return None;
    }
    let ops = [
        (Opcode::AllGather, combiner.all_gather_bytes),
        (Opcode::AllReduce, combiner.all_reduce_bytes),
        (Opcode::ReduceScatter, combiner.reduce_scatter_bytes),
    ];
    let mut combined: Option<Module> = None;
    for (op, threshold_bytes) in ops.into_iter().filter(|&(_, bytes)| bytes > 0) {
        let as_xla = Some(XlaRules { most_members: combiner.most_members });
        let limits = Limits { threshold_bytes, ops: vec![op], is_packed: false, as_xla };
        let pass = CombineCollectives { is_packed: false, limits };
        for comp in code_computations(module) {
            if plan(combined.as_ref().unwrap_or(module), comp, &pass.limits).0.is_empty() {
                continue;
            }
            let target = combined.get_or_insert_with(|| module.clone());
            // The report is nobody's: XLA says nothing either.
            pass.combine_in(target, comp, &mut PassReport::new(INFO.name)).ok()?;
        }
    }
    combined
}

impl Pass for CombineCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (mut n_removed, mut n_inserted) = (0, 0);
        for comp in code_computations(module) {
            let (removed, inserted) = self.combine_in(module, comp, cx.report)?;
            n_removed += removed;
            n_inserted += inserted;
        }
        cx.report.count("collectives-combined", n_removed);
        cx.report.count("combined-collectives", n_inserted);
        if n_inserted == 0 {
            let why = "no two collectives of one kind, place, groups and element type fit into one";
            cx.report.unchanged_because = Some(why.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// The decision to combine a bucket, without the new collective.
fn describe(module: &Module, bucket: &Bucket) -> Decision {
    let [first, rest @ ..] = bucket.members.as_slice() else { return Decision::default() };
    let reason = format!("{} bytes of one kind, groups and element type, ready one after the other", bucket.bytes);
    let mut told = Decision::about(module, *first, "combined", reason);
    told.subject = format!("{} and {} more", told.subject, rest.len());
    told.bytes = bucket.bytes;
    told.collectives =
        bucket.members.iter().map(|&inst| CollectiveChange::removed(module, inst, "part of a larger one")).collect();
    told
}

/// The attributes of `inst`, a collective, on a channel of its own if it is on one.
fn attrs_on_own_channel(module: &Module, inst: InstId, channels: &mut ChannelIds) -> Attrs {
    let mut attrs = module.inst(inst).attrs.clone();
    channels.renew(&mut attrs);
    attrs
}
