//! Reduce over the levels of a cluster one after the other where that is faster than all at once.
//!
//! Before, on two nodes of four devices (`cluster=[(node,2),(gpu,4)]`):
//! ```text
//! %sum = f32[256,128] all-reduce(%a), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
//! ```
//! after:
//! ```text
//! %reduce-scatter.sum = f32[64,128] reduce-scatter(%a), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}, to_apply=%add
//! %all-reduce.sum = f32[64,128] all-reduce(%reduce-scatter.sum), replica_groups={{0,4},{1,5},{2,6},{3,7}}, to_apply=%add
//! %all-gather.sum = f32[256,128] all-gather(%all-reduce.sum), replica_groups={{0,1,2,3},{4,5,6,7}}, dimensions={0}
//! ```
//! The sample `ir-samples/passes/decompose-collectives/two-levels.hlo` runs this.
//!
//! **Why.** A ring over all devices sends nearly twice the whole array through the slow links between nodes. Scattered within the
//! nodes first, each device has a part of the array to send.
//!
//! **What it does not do.** It takes all-reduces of one array only (`split-tuple-all-reduce` makes such), with a reduction of one
//! associative op; reduce-scatters and all-gathers stay as they are. Groups of different sizes, and groups that are no
//! digits of the levels ([`fit`]), stay. Collectives in control dependencies and asynchronous ones stay. Predicted times are of the
//! links alone: what local pads, slices and reorders cost is not in them, which is what `min-gain` is for.
//!
//! **Algorithm.** [`fit`] finds the groups in the cluster; the planner of `hlo-cluster` gives the fastest program of steps that HLO
//! can say, and for each smaller number of steps the fastest; `chunk_order` turns it into collectives over arrays, with
//! groups in the order in which the chunks lie; [`cut`] chooses the scattered dim, and [`emit`](mod@emit) writes. For each all-reduce linear in
//! the devices, and once for the cluster a graph of programs.
//!
//! **Requires** device `d` of the module to be device `d` of the cluster. **Ensures** the same results up to the order in which a
//! reduction adds. Collectives across replicas stay so; others name flat ids on channels of their own. **Errors**: none.
//!
//! **References.** Xie et al. 2022, *Synthesizing Optimal Parallelism Placement and Reduction Strategies on Hierarchical Systems for
//! Deep Learning*, §3. We keep track of the order of chunks, which their rules leave out, and leave one all-reduce where latency
//! says so.

pub mod cut;
pub mod emit;
pub mod fit;

use crate::explain::{decision, inserted, removed};
use crate::reading::{AllReduce, array, find_all_reduce};
use crate::rewrite::Rewrite;
use cut::{Cut, n_parts};
use fit::{Fit, REDUCED, find_fit};
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_cluster::reduction::chunk_order::{ArrayStep, to_arrays};
use hlo_cluster::reduction::plan::Request;
use hlo_cluster::reduction::{Planner, Rules, Step, Vocabulary};
use hlo_cluster::{Algo, Cluster, Collective};
use hlo_ir::diag::Entity;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{CollectiveChange, PassReport};
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub static INFO: PassInfo = PassInfo {
    name: "decompose-collectives",
    help: "reduce over the levels of a cluster one after the other where that is faster",
    options: OPTIONS,
    build: |options| Ok(Box::new(DecomposeCollectives::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "cluster",
        kind: OptionKind::Text,
        default: "",
        help: "how the devices are wired: [(node,2),(gpu,8)] or a shipped name; must be given",
    },
    OptionInfo {
        name: "algo",
        kind: OptionKind::Word(&["auto", "ring", "tree"]),
        default: "auto",
        help: "how a collective moves its bytes, for predicted times",
    },
    OptionInfo {
        name: "min-gain",
        kind: OptionKind::Float,
        default: "0.05",
        help: "least share of the predicted time that a program must save",
    },
];

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct DecomposeCollectives {
    cluster: Cluster,
    algo: Algo,
    min_gain: f64,
}

/// A program that is worth it.
struct Chosen {
    fit: Fit,
    program: Vec<Step>,
    steps: Vec<ArrayStep>,
    before_s: f64,
    /// With padding: at most this.
    after_s: f64,
}

impl DecomposeCollectives {
    fn new(options: &Options) -> Result<DecomposeCollectives, String> {
        let text = options.text("cluster");
        if text.is_empty() {
            return Err("expected `cluster=` with a hierarchy such as [(node,2),(gpu,8)] or a shipped name".into());
        }
        let cluster = Cluster::from_arg(text).map_err(|e| e.to_string())?;
        // Says what it needs of a cluster before any module is read.
        Planner::with_vocabulary(&cluster, Rules::Pinned, Vocabulary::Hlo).map_err(|e| e.to_string())?;
        let algo = match options.text("algo") {
            "ring" => Algo::Ring,
            "tree" => Algo::Tree,
            _ => Algo::Auto,
        };
        Ok(DecomposeCollectives { cluster, algo, min_gain: options.float("min-gain") })
    }

    /// The best program for an all-reduce.
    ///
    /// # Errors
    /// Why it stays one all-reduce.
    fn choose(&self, planner: &mut Planner<'_>, module: &Module, all_reduce: &AllReduce) -> Result<Chosen, String> {
        all_reduce.reducer.ok_or("its reduction is not one associative op")?;
        let shape = array(module, all_reduce.inst).filter(|s| s.n_elems() > 0).ok_or("has no elements")?;
        let fit = find_fit(planner.levels(), &all_reduce.groups)?;
        let (bytes, algo) = (shape.size_bytes() as f64, self.algo);
        let request = Request { reduce: vec![REDUCED], bytes, algo, lowering: None, max_size: None };
        let plan = planner.plan(fit.matrix.clone(), &request).map_err(|e| e.to_string())?;
        let before_s = plan.all_reduce_s;
        // From the fastest to the shortest: a program that arrays cannot say gives way to the next.
        let said = |(seconds, program): (f64, Vec<Step>)| {
            to_arrays(&fit.factors, &program).ok().map(|a| (seconds, program, a))
        };
        let (seconds, program, steps) = plan.front.into_iter().rev().find_map(said).ok_or("no program can be said")?;
        if let [Step { collective: Collective::AllReduce, .. }] = program.as_slice() {
            return Err(format!("one all-reduce takes {:.0} ns, no program takes less", before_s * 1e9));
        }
        let n_chunks = fit.factors.iter().product();
        let padded = Cut::new(shape, n_parts(n_chunks, &steps)).padded;
        let after_s = seconds * padded.n_elems() as f64 / shape.n_elems() as f64;
        if after_s > before_s * (1.0 - self.min_gain) {
            let (before, after, share) = (before_s * 1e9, after_s * 1e9, self.min_gain);
            return Err(format!(
                "one all-reduce takes {before:.0} ns, the best program {after:.0}: saves less than {share}"
            ));
        }
        Ok(Chosen { fit, program, steps, before_s, after_s })
    }

    /// Decomposes what is worth it in one computation; how many all-reduces went.
    fn decompose_in(
        &self,
        planner: &mut Planner<'_>,
        module: &mut Module,
        comp: CompId,
        next_channel: &mut i64,
        report: &mut PassReport,
    ) -> Result<u64, PassError> {
        let pinned = pinned_by_control(module, comp);
        let mut rewrite = Rewrite::new(module, comp);
        let mut n_decomposed = 0;
        for inst in rewrite.live_insts(module) {
            let found = find_all_reduce(module, inst, &pinned).map_err(String::from);
            let chosen = match found {
                Ok(None) => continue,
                Ok(Some(found)) => self.choose(planner, module, &found).map(|chosen| (found, chosen)),
                Err(reason) => Err(reason),
            };
            let (found, chosen) = match chosen {
                Ok(both) => both,
                Err(reason) => {
                    report.decisions.push(decision(module, inst, "left", reason));
                    continue;
                }
            };
            let program: Vec<String> = chosen.program.iter().map(Step::to_string).collect();
            let mut told = decision(module, inst, "decomposed", "a program over the levels of the cluster is faster");
            told.format = Some(program.join(" "));
            told.predicted_before_ns = Some(chosen.before_s * 1e9);
            told.predicted_after_ns = Some(chosen.after_s * 1e9);
            told.collectives.push(self.timed(module, inst, removed(module, inst, "reduces over all levels at once")));
            let program = (&chosen.fit, chosen.steps.as_slice());
            for new in emit::emit(module, &mut rewrite, (comp, &found), program, next_channel) {
                told.collectives.push(self.timed(module, new, inserted(module, new, "a step of the program")));
            }
            report.decisions.push(told);
            n_decomposed += 1;
        }
        if n_decomposed > 0 {
            rewrite.finish(module)?;
        }
        Ok(n_decomposed)
    }

    /// The change with its predicted time.
    fn timed(&self, module: &Module, inst: InstId, change: CollectiveChange) -> CollectiveChange {
        let opcode = module.inst(inst).opcode;
        let kinds = [(Opcode::ReduceScatter, Collective::ReduceScatter), (Opcode::AllGather, Collective::AllGather)];
        let kind = kinds.iter().find(|(op, _)| *op == opcode).map_or(Collective::AllReduce, |(_, kind)| *kind);
        let groups = module.device_groups(inst).map(|g| g.groups).unwrap_or_default();
        let seconds = self.cluster.collective_s(kind, change.bytes as f64, &groups, self.algo);
        CollectiveChange { predicted_ns: seconds * 1e9, ..change }
    }
}

impl Pass for DecomposeCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let (n_devices, name) = (module.n_devices(), self.cluster.name());
        if self.cluster.n_devices() as usize != n_devices {
            let n = self.cluster.n_devices();
            let why = format!("the module runs on {n_devices} devices, the cluster `{name}` has {n}");
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        let mut planner = Planner::with_vocabulary(&self.cluster, Rules::Pinned, Vocabulary::Hlo)
            .map_err(|e| PassError::about(Entity::Module, e.to_string()))?;
        let mut next_channel = module.max_channel_id().saturating_add(1);
        let mut n_decomposed = 0;
        for comp in code_computations(module) {
            n_decomposed += self.decompose_in(&mut planner, module, comp, &mut next_channel, cx.report)?;
        }
        cx.report.count("all-reduces-decomposed", n_decomposed);
        if n_decomposed == 0 {
            cx.report.unchanged_because = Some("no all-reduce is faster as several collectives".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}
