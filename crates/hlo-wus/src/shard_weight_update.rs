//! Shard the update of replicated weights over the devices that all-reduce their gradients.
//!
//! Before, every device sums the whole gradient and updates the whole weight:
//! ```text
//! %g = f32[784,512] all-reduce(%local), replica_groups={{0,1,2,3}}, to_apply=%add
//! %s = f32[784,512] multiply(%g, %rate)
//! %w1 = f32[784,512] add(%w, %s)
//! ```
//! after, it sums and updates a quarter, and all devices gather the result:
//! ```text
//! %g = f32[196,512] reduce-scatter(%local), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
//! %s = f32[196,512] multiply(%g, %rate.shard)
//! %w.shard = f32[196,512] dynamic-slice(%w, %shard_start, %zero), dynamic_slice_sizes={196,512}
//! %w1.shard = f32[196,512] add(%w.shard, %s)
//! %w1 = f32[784,512] all-gather(%w1.shard), replica_groups={{0,1,2,3}}, dimensions={0}
//! ```
//! The sample `ir-samples/passes/shard-weight-update/sgd.hlo` runs this.
//!
//! **Why.** The update reads and writes weights and optimizer state several times over and is the same on every device:
//! 1/n of it is enough. An all-reduce moves as much as a reduce-scatter and an all-gather, so the weight costs no extra traffic.
//!
//! **What it does not do.** Tuple all-reduces, updates with norms (clipping, LARS), keeping
//! optimizer state in shards between steps or iterations: such gradients are left, with the reason in the report.
//! Moments are gathered too, as the module's interface stays as it was.
//!
//! **Algorithm.** 1. [`crate::find`] array all-reduces by plain addition over all devices. 2. For each dim, [`crate::cluster`] what is
//! computed from the sum and is equal on all devices, cut by the op table's factors. 3. [`crate::format`](mod@crate::format): the dim with the
//! least weighted traffic. 4. [`crate::rewrite`]. Linear in the instructions times the rank of a gradient.
//!
//! **Requires** a partitioned or replicated module whose parameters say which are replicated (`sharding=`,
//! `parameter_replication`, or the user). **Ensures** the same results on every device up to the order of summation
//! in reduce-scatter. **Errors**: none on a verified module; what does not fit is left.
//!
//! **References.** Xu et al. 2020, *Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training*, §3.1
//! (which ops), §3.2 (where), §4.1 (formats). We take the factors from the op table where they list ops, and cut along one dim
//! with padding where they may reshape first.

use crate::cluster::Soil;
use crate::comm_model::CommModel;
use crate::explain;
use crate::find::{Gradient, find_gradients};
use crate::format::{Choice, choose};
use crate::rewrite::Rewriter;
use cranelift_entity::SecondaryMap;
use hlo_analysis::Preserved;
use hlo_ir::diag::Entity;
use hlo_ir::module::UserMap;
use hlo_ir::{CompId, InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};
use indexmap::{IndexMap, IndexSet};

/// The pass as the command line knows it.
pub static INFO: PassInfo = PassInfo {
    name: "shard-weight-update",
    help: "compute the update of replicated weights in shards: reduce-scatter, update, all-gather",
    options: OPTIONS,
    build: |options| Ok(Box::new(ShardWeightUpdate::new(options))),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "min-bytes",
        kind: OptionKind::Int,
        default: "1KiB",
        help: "leave gradients smaller than this: two collectives cost more than the update saves",
    },
    OptionInfo {
        name: "only-if-faster",
        kind: OptionKind::Bool,
        default: "false",
        help: "shard an update only if the predicted time falls",
    },
    OptionInfo {
        name: "link-gbytes-per-s",
        kind: OptionKind::Float,
        default: "50",
        help: "bandwidth of one device's link for predicted times (nominal)",
    },
    OptionInfo {
        name: "link-latency-us",
        kind: OptionKind::Float,
        default: "2",
        help: "latency of one ring step for predicted times (nominal)",
    },
    OptionInfo {
        name: "memory-gbytes-per-s",
        kind: OptionKind::Float,
        default: "1500",
        help: "memory bandwidth of one device for predicted times (nominal)",
    },
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct ShardWeightUpdate {
    min_bytes: u64,
    only_if_faster: bool,
    model: CommModel,
}

impl ShardWeightUpdate {
    fn new(options: &Options) -> ShardWeightUpdate {
        ShardWeightUpdate {
            min_bytes: options.int("min-bytes").max(0) as u64,
            only_if_faster: options.flag("only-if-faster"),
            model: CommModel {
                link_bytes_per_s: options.float("link-gbytes-per-s").max(1e-9) * 1e9,
                step_latency_ns: options.float("link-latency-us").max(0.0) * 1e3,
                memory_bytes_per_s: options.float("memory-gbytes-per-s").max(1e-9) * 1e9,
            },
        }
    }

    /// One choice for each update that can and should be sharded; the rest goes into the report.
    fn plan(&self, module: &Module, users: &UserMap, gradients: &[Gradient], cx: &mut PassCx<'_>) -> Vec<Choice> {
        let replication = cx.analyses.replication(module);
        let mut places: SecondaryMap<InstId, u32> = SecondaryMap::with_capacity(module.n_inst_slots());
        for comp in gradients.iter().map(|g| g.comp).collect::<IndexSet<_>>() {
            module.comp(comp).insts.iter().zip(0..).for_each(|(&inst, place)| places[inst] = place);
        }
        // Gradients summed over other groups are shards of another problem.
        let mut problems: IndexMap<&[Vec<u32>], IndexSet<InstId>> = IndexMap::new();
        for gradient in gradients {
            problems.entry(&gradient.groups).or_default().insert(gradient.all_reduce);
        }
        let mut choices: Vec<Choice> = Vec::new();
        let mut taken: IndexSet<InstId> = IndexSet::new();
        for gradient in gradients {
            if taken.contains(&gradient.all_reduce) {
                continue;
            }
            let groups = &gradient.groups[..];
            let same = &problems[groups];
            let soil = Soil { module, replication: &replication, users, places: &places, groups, gradients: same };
            let n_shards = groups.first().map_or(1, Vec::len);
            let outcome = choose(&soil, gradient.comp, gradient.all_reduce, n_shards);
            let choice = match outcome {
                Ok(choice) => choice,
                Err(stop) => {
                    cx.report.decisions.push(explain::left(module, gradient.all_reduce, &stop.reason));
                    continue;
                }
            };
            let (before, after) = explain::predict(module, &choice, &self.model);
            let is_shared = choice.cluster.members.keys().any(|m| taken.contains(m));
            if is_shared || (self.only_if_faster && after >= before) {
                let reason = match is_shared {
                    true => "its update is already sharded with another gradient's along another dim".into(),
                    false => format!("predicted {before:.0} ns before and {after:.0} ns after: not faster"),
                };
                cx.report.decisions.push(explain::left(module, gradient.all_reduce, &reason));
                continue;
            }
            taken.extend(choice.cluster.members.keys().copied());
            choices.push(choice);
        }
        choices
    }
}

impl Pass for ShardWeightUpdate {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (gradients, left) = find_gradients(module, self.min_bytes);
        let users = module.users();
        let choices = self.plan(module, &users, &gradients, cx);
        for left in &left {
            cx.report.decisions.push(explain::left(module, left.all_reduce, &left.reason));
        }
        cx.report.count("all-reduces-seen", (gradients.len() + left.len()) as u64);
        cx.report.count("updates-sharded", choices.len() as u64);
        if choices.is_empty() {
            cx.report.unchanged_because = Some(self.nothing_to_do(module, gradients.len(), left.len()));
            return Ok(Changed::No);
        }
        let before = module.clone();
        let by_all_reduce: IndexMap<InstId, &[Vec<u32>]> =
            gradients.iter().map(|g| (g.all_reduce, &g.groups[..])).collect();
        let mut problems: IndexMap<(CompId, &[Vec<u32>]), Vec<Choice>> = IndexMap::new();
        for choice in choices {
            let groups = by_all_reduce[&choice.cluster.gradients[0]];
            problems.entry((choice.cluster.comp, groups)).or_default().push(choice);
        }
        for ((comp, groups), choices) in problems {
            let (live, n_slots) = (module.live(comp), module.n_inst_slots());
            let mut rewriter = Rewriter::new(module, &before, &users, comp, groups);
            let mut emitted = Vec::new();
            for choice in &choices {
                let one = rewriter.emit(choice);
                emitted.push(one.map_err(|e| PassError::about(Entity::Inst(choice.cluster.gradients[0]), e))?);
            }
            for (choice, emitted) in choices.iter().zip(&emitted) {
                cx.report.decisions.push(explain::sharded(&before, module, choice, emitted, &self.model));
                cx.report.count("reduce-scatters", emitted.scattered.len() as u64);
                cx.report.count("all-gathers", emitted.gathered.len() as u64);
            }
            module.remove_newly_dead(comp, &live, n_slots);
            module
                .restore_order(comp)
                .map_err(|inst| PassError::about(Entity::Inst(inst), "the sharded update depends on itself"))?;
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

impl ShardWeightUpdate {
    /// Why the module stays as it is, and what the user can do.
    fn nothing_to_do(&self, module: &Module, n_gradients: usize, n_left: usize) -> String {
        if module.n_devices() < 2 {
            return "the module runs on one device: it has to be partitioned or replicated first (take the text after \
                    XLA's SPMD partitioner)"
                .into();
        }
        if n_gradients + n_left == 0 {
            return "the module has no all-reduce".into();
        }
        let says_nothing = module.entry().is_some_and(|entry| {
            let params = &module.comp(entry).params;
            params.iter().all(|&p| module.sharding(p).is_none())
        });
        if says_nothing && n_gradients > 0 {
            return "no update could be sharded; the entry's parameters do not say which of them are replicated: name \
                    them with --replicated-params"
                .into();
        }
        "no update could be sharded; the decisions say why".into()
    }
}
