//! Reduce over the levels of a cluster one after the other where that is faster than all at once.
//!
//! Before, on two nodes of four devices (`@machine=[(node,2),(gpu,4)]`):
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
//! A reduce-scatter is done the other way round, within the nodes first, then between them, and an all-gather backwards; where the
//! chunks then lie in another order, they are transposed before (`ir-samples/passes/decompose-collectives/scatter-and-gather.hlo`). After
//! `shard-weight-update` that is a hierarchical reduce-scatter, the update, and a hierarchical all-gather.
//!
//! **What it does not do.** Reductions other than of one associative op stay. Groups of different sizes, and groups that are no
//! digits of the levels ([`fit`]), stay; so do reduce-scatters and all-gathers whose groups would need their chunks in
//! different orders. Collectives in control dependencies and asynchronous ones stay. Of a collective of several arrays those
//! are taken out that are faster alone; the others stay together. Predicted times are of the
//! links alone: what local pads, slices and transposes cost is not in them, which is what `min-gain` is for.
//!
//! **Algorithm.** [`fit`] finds the groups in the cluster; the planner of `hlo-cluster` gives the fastest program of steps that HLO
//! can say, and for each smaller number of steps the fastest; `chunk_order` turns it into collectives over arrays, with
//! groups in the order in which the chunks lie; [`cut`] chooses the scattered dim, and [`emit`](mod@emit) writes. Programs of
//! reduce-scatters and all-gathers are all orders in which the levels can be taken (`hlo_cluster::reduction::scatter`). For each
//! collective linear in the devices, and once for the cluster a graph of programs. Where the entities of a cluster differ in size, its
//! hierarchy is one of equal blocks within them (`Cluster::regular_hierarchy`), priced on the real links.
//!
//! **Requires** device `d` of the module to be device `d` of the cluster. **Ensures** the same results up to the order in which a
//! reduction adds. Collectives across replicas stay so; others name flat ids on channels of their own. **Errors**: none.
//!
//! **References.** Xie et al. 2022, *Synthesizing Optimal Parallelism Placement and Reduction Strategies on Hierarchical Systems for
//! Deep Learning*, §3. We keep track of the order of chunks, which their rules leave out, and leave one collective where latency
//! says so.

pub mod choose;
pub mod cut;
pub mod emit;
pub mod fit;
pub mod strides;
pub mod subject;

use crate::refusal::{CollectiveRefusal, DecomposeRefusal, OptionError};
use choose::{Choice, Chosen};
use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_cluster::reduction::{Planner, Rules, Vocabulary};
use hlo_cluster::{Algo, Collective};
use hlo_ir::attrs::TupleIndexAttrs;
use hlo_ir::diag::Entity;
use hlo_ir::module::UserMap;
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::{Decision, PassReport};
use hlo_pass::{Changed, Deadline, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::{ChannelIds, CollectiveChange, Rewrite};
use subject::{Subject, find_subject};

/// The pass as the command line knows it.
pub static INFO: PassInfo = PassInfo {
    name: "decompose-collectives",
    help: "reduce over the levels of a cluster one after the other where that is faster",
    options: OPTIONS,
    build: |options| Ok(Box::new(DecomposeCollectives::new(options)?)),
};

const OPTIONS: &[OptionInfo] = &[
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
pub(crate) struct DecomposeCollectives {
    algo: Algo,
    min_gain: f64,
}

impl DecomposeCollectives {
    fn new(options: &Options) -> Result<DecomposeCollectives, OptionError> {
        let algo = match options.text("algo") {
            "ring" => Algo::Ring,
            "tree" => Algo::Tree,
            _ => Algo::Auto,
        };
        let min_gain = options.float("min-gain");
        if !(0.0..=1.0).contains(&min_gain) {
            return Err(OptionError::MinGain { found: min_gain });
        }
        Ok(DecomposeCollectives { algo, min_gain })
    }
}

/// The walk over a module.
struct Decomposer<'a> {
    choice: &'a Choice,
    planner: Planner<'a>,
    users: UserMap,
    channels: ChannelIds,
    /// All-reduces, reduce-scatters and all-gathers that went, or lost arrays.
    n_decomposed: [u64; 3],
    deadline: Deadline,
}

/// By part: the program, or why there is none.
type Choices = Vec<Result<Chosen, CollectiveRefusal>>;

impl Decomposer<'_> {
    /// Decomposes what is worth it in one computation; how many collectives changed.
    fn decompose_in(&mut self, module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<u64, PassError> {
        let pinned = pinned_by_control(module, comp);
        let mut rewrite = Rewrite::new(module, comp);
        let mut n_changed = 0;
        for inst in rewrite.live_insts(module) {
            self.deadline.check()?;
            let subject = match find_subject(module, inst, &pinned) {
                Ok(None) => continue,
                Ok(Some(subject)) => subject,
                Err(reason) => {
                    report.decisions.push(Decision::about(module, inst, "left", reason));
                    continue;
                }
            };
            let choices = self.choices(module, &subject);
            if choices.iter().all(Result::is_err) {
                let reason = choices.into_iter().find_map(Result::err).unwrap_or(DecomposeRefusal::NoParts.into());
                report.decisions.push(Decision::about(module, inst, "left", reason));
                continue;
            }
            self.replace(module, &mut rewrite, (comp, &subject), &choices, report);
            let kind = match subject.kind {
                Collective::ReduceScatter => 1,
                Collective::AllGather => 2,
                Collective::AllReduce | Collective::Reduce | Collective::Broadcast => 0,
            };
            self.n_decomposed[kind] += 1;
            n_changed += 1;
        }
        if n_changed > 0 {
            rewrite.finish(module)?;
        }
        Ok(n_changed)
    }

    fn choices(&mut self, module: &Module, subject: &Subject) -> Choices {
        let whole = |part| subject.whole(module, part).ok_or(CollectiveRefusal::NoArrays);
        let mut choices = Choices::with_capacity(subject.parts.len());
        for part in 0..subject.parts.len() {
            choices.push(whole(part).and_then(|whole| self.choice.choose(&mut self.planner, subject, &whole)));
        }
        choices
    }

    /// Writes the chosen programs; what has none stays in a collective of its own.
    fn replace(
        &mut self,
        module: &mut Module,
        rewrite: &mut Rewrite,
        (comp, subject): (CompId, &Subject),
        choices: &Choices,
        report: &mut PassReport,
    ) {
        let inst = subject.inst;
        let chosen: Vec<&Chosen> = choices.iter().flatten().collect();
        let had_config = module.inst(inst).marks.as_ref().is_some_and(|marks| marks.backend_config.is_some());
        let why = match had_config {
            true => {
                "a program over the levels of the cluster is faster; its backend_config was for one collective and is gone"
            }
            false => "a program over the levels of the cluster is faster",
        };
        let mut told = Decision::about(module, inst, "decomposed", why);
        let mut formats: Vec<&str> = chosen.iter().map(|c| c.told.as_str()).collect();
        formats.dedup();
        told.format = Some(formats.join("; "));
        told.predicted_before_ns = Some(chosen.iter().map(|c| c.before_s).sum::<f64>() * 1e9);
        told.predicted_after_ns = Some(chosen.iter().map(|c| c.after_s).sum::<f64>() * 1e9);
        told.collectives.push(self.timed(
            module,
            inst,
            CollectiveChange::removed(module, inst, "runs over all levels at once"),
        ));
        let left: Vec<usize> = (0..choices.len()).filter(|&part| choices[part].is_err()).collect();
        let mut results = vec![inst; choices.len()];
        if let Some(rest) = self.without(module, rewrite, subject, &left) {
            told.collectives.push(self.timed(
                module,
                rest[0].0,
                CollectiveChange::inserted(module, rest[0].0, "what is faster together"),
            ));
            left.iter().zip(rest).for_each(|(&part, (_, value))| results[part] = value);
        }
        for (part, choice) in choices.iter().enumerate() {
            let (Ok(chosen), Some((operand, shape))) = (choice, subject.parts.get(part)) else { continue };
            let array = (*operand, shape);
            let (result, new) = emit::emit(module, (comp, inst), array, &chosen.program, &mut self.channels);
            results[part] = result;
            for new in new {
                told.collectives.push(self.timed(
                    module,
                    new,
                    CollectiveChange::inserted(module, new, "a step of the program"),
                ));
            }
        }
        match (subject.is_tuple, results.first()) {
            (false, Some(&result)) => rewrite.redirect(inst, result),
            _ => rewrite.redirect_tuple(module, &self.users[inst], inst, &results),
        }
        report.decisions.push(told);
    }

    /// A collective of these parts only, and the value of each; none if there is no such part.
    fn without(
        &mut self,
        module: &mut Module,
        rewrite: &Rewrite,
        subject: &Subject,
        left: &[usize],
    ) -> Option<Vec<(InstId, InstId)>> {
        let source = module.inst(subject.inst).clone();
        let hint = format!("{}.rest", module.inst_name(subject.inst));
        let parts: Vec<_> = left.iter().filter_map(|&part| subject.parts.get(part)).collect();
        let operands: Vec<InstId> = parts.iter().map(|(operand, _)| *operand).collect();
        let shapes: Vec<Shape> = parts.iter().map(|(_, shape)| Shape::Array(shape.clone())).collect();
        if let [shape] = shapes.as_slice() {
            let shape = shape.clone();
            let one = rewrite.add(module, subject.inst, (&hint, source.opcode), shape, &operands, source.attrs);
            return Some(vec![(one, one)]);
        }
        if shapes.is_empty() {
            return None;
        }
        let shape = Shape::Tuple(shapes.clone());
        let rest = rewrite.add(module, subject.inst, (&hint, source.opcode), shape, &operands, source.attrs);
        let mut values = Vec::with_capacity(shapes.len());
        for (index, shape) in (0..).zip(shapes) {
            let hint = format!("{hint}.{index}");
            let attrs = TupleIndexAttrs { index };
            let read = (hint.as_str(), Opcode::GetTupleElement);
            values.push((rest, rewrite.add(module, subject.inst, read, shape, &[rest], attrs)));
        }
        Some(values)
    }

    /// The change with its predicted time.
    fn timed(&self, module: &Module, inst: InstId, change: CollectiveChange) -> CollectiveChange {
        let opcode = module.inst(inst).opcode;
        let kinds = [(Opcode::ReduceScatter, Collective::ReduceScatter), (Opcode::AllGather, Collective::AllGather)];
        let kind = kinds.iter().find(|(op, _)| *op == opcode).map_or(Collective::AllReduce, |(_, kind)| *kind);
        let groups = module.device_groups(inst).map(|g| g.groups).unwrap_or_default();
        let seconds = self.choice.cluster.collective_s(kind, change.bytes as f64, &groups, self.choice.algo);
        change.taking(seconds * 1e9)
    }
}

impl Pass for DecomposeCollectives {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let Some(cluster) = cx.target.machine.cluster() else {
            let why = "expected a machine with levels (--machine h200:2, or '[(node,2),(gpu,8)]'), found one switch";
            return Err(PassError::about("machine", Entity::Module, why));
        };
        let choice = Choice { cluster: cluster.clone(), algo: self.algo, min_gain: self.min_gain };
        let (n_devices, name) = (module.n_devices(), cluster.name());
        if cluster.n_devices() as usize != n_devices {
            let n = cluster.n_devices();
            let why = format!("the module runs on {n_devices} devices, the cluster `{name}` has {n}");
            cx.report.unchanged_because = Some(why);
            return Ok(Changed::No);
        }
        let mut decomposer = Decomposer {
            choice: &choice,
            planner: Planner::with_vocabulary(cluster, Rules::Pinned, Vocabulary::Hlo),
            users: module.users(),
            channels: ChannelIds::free_in(module),
            n_decomposed: [0; 3],
            deadline: cx.deadline,
        };
        let mut n_changed = 0;
        for comp in code_computations(module) {
            n_changed += decomposer.decompose_in(module, comp, cx.report)?;
        }
        let names = ["all-reduces-decomposed", "reduce-scatters-decomposed", "all-gathers-decomposed"];
        for (name, n) in names.into_iter().zip(decomposer.n_decomposed) {
            if n > 0 || name == names[0] {
                cx.report.count(name, n);
            }
        }
        if n_changed == 0 {
            cx.report.unchanged_because = Some("no collective is faster as several".into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}
