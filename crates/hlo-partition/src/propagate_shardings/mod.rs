//! Spread the user's shardings to all values of a global program, and print one on every instruction.
//!
//! Before, two parameters say how they are cut:
//! ```text
//! %x = f32[8,4] parameter(0), sharding={devices=[4,1]<=[4]}
//! %w = f32[4,16] parameter(1), sharding={replicated}
//! %y = f32[8,16] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
//! ```
//! after, all values do:
//! ```text
//! %y = f32[8,16] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[4,1]<=[4]}
//! ```
//! The sample `ir-samples/passes/propagate-shardings/dot.hlo` runs this.
//!
//! **Why.** A user annotates a few values. How all others are cut decides what the program of each device computes and
//! exchanges, so it is decided here, once, where it can be read and changed; the partitioner then only obeys.
//!
//! **What it reads.** `sharding=` on any instruction, `@Sharding`, GSPMD's `unspecified_dims`, `shard_as` and `shard_like`; Shardy's attributes, which win
//! over `sharding=`, with open dims, priorities, pinned axes and parts of axes; results, groups and barriers of Shardy's; manual
//! regions in both forms.
//!
//! **What it writes.** `sharding=` on every instruction that runs, of tuples one for each leaf. A value that has to be cut otherwise where
//! it enters a loop, a branch, a call or a region, or leaves the entry, goes through a `copy` there; so the ends of a leaf
//! agree everywhere. Calls that only speak of shardings become copies of the same name. Constants get one copy for each use,
//! and computations one for each call site that ends up different.
//!
//! **What it does not do.** It never changes a closed dim of the user's. Shardings that are no axes of one mesh, in whatever
//! order its devices stand, are refused.
//!
//! **Algorithm.** A value is a leaf with tuples and calls looked through; what a loop carries is one value, tied by edges to what
//! it comes from ([`graph`]). An op ties values by its factors ([`rules`]). Per user priority and stage of the order ([`schedule`]) a work
//! list of ties runs to a fixpoint; a step ([`step`]) grows tensors to the longest list of atoms that a factor has. Atoms are only added, so it
//! ends; near-linear in instructions × atoms. With `order=best` both orders are priced ([`price`]; by bytes, or by time on a machine), and of the cheaper one single values are
//! changed while that helps ([`mod@improve`]).
//!
//! **Requires** a verified global program. **Ensures** the same results: copies and annotations compute nothing. **Errors**: malformed
//! annotations, and shardings that do not lie on one mesh.
//!
//! **References.** Shardy's documentation of propagation (its order of priorities and stages); Xu et al. 2021, *GSPMD: General and Scalable
//! Parallelization for ML Computation Graphs*, §3.5. Shardy has factors and axes as well; we differ where the factors have more
//! roles, and in that all axes are prime, so parts of axes need no rules of their own.

pub(crate) mod annotate;
pub(crate) mod calls;
pub(crate) mod claims;
pub(crate) mod constants;
mod counted_rows;
pub(crate) mod emit;
pub(crate) mod graph;
mod improve;
mod price;
mod project;
mod regions;
mod rules;
pub(crate) mod schedule;
mod shardy_text;
pub(crate) mod step;
pub(crate) mod ties;
pub(crate) mod values;
mod why;

use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::prices::{PRICE, Price};
use crate::sharding::Atom;
use annotate::{LostClaim, Openness, annotate};
use claims::ClaimReader;
use constants::ConstantCopies;
use cranelift_entity::{PrimaryMap, SecondaryMap};
use graph::ShardingGraph;
use hlo_analysis::Preserved;
use hlo_analysis::frequency::Frequencies;
use hlo_ir::diag::Entity;
use hlo_ir::shardy::Meshes;
use hlo_ir::{InstId, Module};
use hlo_pass::options::{OptionInfo, OptionKind, Options};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, OutOfTime, Pass, PassCx, PassError, PassInfo};
use hlo_spmd::CallSiteCopies;
use improve::improve;
use price::{Pricer, TimePricer};
use project::Projector;
use regions::{find_borders, set_manual_atoms};
use schedule::{Order, Schedule, TiesOf};
use shardy_text::ShardyWriter;
use step::Stepper;
use ties::{Tie, TieId};
use values::{CutId, CutValue};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "propagate-shardings",
    help: "spread the user's shardings to all values, and print one on every instruction",
    options: OPTIONS,
    build: |options| Ok(Box::new(PropagateShardings::new(options, Price::new(options, 0))?)),
};

const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "order",
        kind: OptionKind::Word(&["best", "shardy", "gspmd"]),
        default: "best",
        help: "in which order shardings spread; best: both are tried, and the cheaper one is kept",
    },
    OptionInfo {
        name: "open-params",
        kind: OptionKind::Text,
        default: "true",
        help: "whether parameters without an annotation may be cut: true, false, or one for each leaf as [true,false,…]",
    },
    OptionInfo { name: "open-results", kind: OptionKind::Text, default: "true", help: "the same for results" },
    PRICE,
    OptionInfo {
        name: "steps",
        kind: OptionKind::Int,
        default: "10000",
        help: "order=best: how many changes of single values are tried at most",
    },
    OptionInfo {
        name: "why",
        kind: OptionKind::Text,
        default: "",
        help: "the name of an instruction: the report says which annotation reached it, through which ops",
    },
];

/// How many of the dearest conflicts the report tells.
const MOST_CONFLICTS_TOLD: usize = 16;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct PropagateShardings {
    /// `None`: the cheapest of all.
    order: Option<Order>,
    /// What decides between orders and between values.
    price: Price,
    n_steps: usize,
    open_params: Openness,
    open_results: Openness,
    why: String,
}

impl PropagateShardings {
    fn new(options: &Options, price: Price) -> Result<PropagateShardings, PartitionError> {
        let openness = |name: &'static str| {
            let text = options.text(name);
            Openness::parse(text).ok_or_else(|| {
                let text = format!("option `{name}`: expected true, false or [true,false,…], found `{text}`");
                PartitionError::about("option", Entity::Module, text)
            })
        };
        Ok(PropagateShardings {
            order: match options.text("order") {
                "shardy" => Some(Order::Shardy),
                "gspmd" => Some(Order::Gspmd),
                _ => None,
            },
            price,
            n_steps: options.int("steps").max(0) as usize,
            open_params: openness("open-params")?,
            open_results: openness("open-results")?,
            why: options.text("why").trim_start_matches('%').to_string(),
        })
    }

    /// Reads the module's values and the user's word on them.
    fn read(
        &self,
        module: &Module,
        claims: &mut ClaimReader<'_>,
    ) -> Result<(ShardingGraph, Vec<LostClaim>), PartitionError> {
        let mut graph = ShardingGraph::build(module, claims)?;
        graph.add_counted_rows(module);
        let borders = find_borders(module, &graph, claims)?;
        graph.add_borders(borders);
        set_manual_atoms(module, &mut graph)?;
        let lost = annotate(module, &mut graph, claims, &self.open_params, &self.open_results)?;
        Ok((graph, lost))
    }

    /// Spreads the annotations in the order that was asked for, or in all of them, of which the cheapest stays.
    fn propagate(
        &self,
        module: &Module,
        mesh: &ModuleMesh,
        graph: &mut ShardingGraph,
        cx: &mut PassCx<'_>,
    ) -> Result<Stepper, PartitionError> {
        let (ties_of, deadline) = (TiesOf::new(graph.values.len(), &graph.ties), cx.deadline);
        let run = |values: &mut PrimaryMap<CutId, CutValue>,
                   ties: &PrimaryMap<TieId, Tie>,
                   order: Order|
         -> Result<Stepper, OutOfTime> {
            let mut stepper = Stepper::new(mesh.sizes(), order == Order::Gspmd);
            Schedule { values, ties, ties_of: &ties_of, stepper: &mut stepper, order, deadline }.run()?;
            Ok(stepper)
        };
        if let Some(order) = self.order {
            return Ok(run(&mut graph.values, &graph.ties, order)?);
        }
        let prices = self.price.of_devices(&cx.target.machine, mesh.n_devices())?;
        let often = how_often(module, graph, cx);
        let time = TimePricer::new(module, mesh, &graph.values, &prices);
        let (unit, scale) = if time.is_some() { ("microseconds", 1e6) } else { ("bytes over a link", 1.0) };
        let mut pricer = Pricer { projector: Projector::new(mesh.sizes()), often: &often, time };
        let mut ways: Vec<(Order, f64, PrimaryMap<CutId, CutValue>, Stepper)> = Vec::new();
        for order in [Order::Shardy, Order::Gspmd] {
            let mut values = graph.values.clone();
            let stepper = run(&mut values, &graph.ties, order)?;
            ways.push((order, pricer.total(&values, &graph.ties), values, stepper));
        }
        let told: Vec<String> =
            ways.iter().map(|(order, price, ..)| format!("{} {:.0}", order.name(), price * scale)).collect();
        // The first of equals.
        ways.sort_by(|a, b| a.1.total_cmp(&b.1));
        ways.truncate(1);
        let Some((order, _, mut values, stepper)) = ways.pop() else { return Ok(Stepper::new(mesh.sizes(), false)) };
        let (n_changed, n_tried) = improve(&mut values, &graph.ties, &ties_of, &mut pricer, self.n_steps, deadline)?;
        let after = pricer.total(&values, &graph.ties) * scale;
        graph.values = values;
        cx.report.count("values-improved", n_changed as u64);
        cx.report.count("improvements-tried", n_tried as u64);
        cx.report.decisions.push(Decision {
            subject: "order".into(),
            action: order.name().into(),
            reason: format!(
                "prices in {unit}: {}; {after:.0} after {n_changed} values were changed one by one",
                told.join(", ")
            ),
            ..Decision::default()
        });
        Ok(stepper)
    }
}

/// How often each tie runs, with the time that loops repeat.
fn how_often(module: &Module, graph: &ShardingGraph, cx: &mut PassCx<'_>) -> SecondaryMap<TieId, f64> {
    let frequencies = Frequencies::compute(module, cx.analyses.frequency_options);
    let mut often = SecondaryMap::new();
    for (id, tie) in &graph.ties {
        often[id] = frequencies.of(module.inst(tie.inst).parent).max(0.0);
    }
    often
}

impl Pass for PropagateShardings {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut work = module.clone();
        let copies = match CallSiteCopies::has_shared(&work) {
            true => CallSiteCopies::split(&mut work),
            false => CallSiteCopies::default(),
        };
        let constants = ConstantCopies::split(&mut work).map_err(acyclic)?;
        let before = work.clone();
        let mesh = ModuleMesh::of(&before)?;
        let mut claims = ClaimReader::new(&before, &mesh)?;
        let (mut graph, lost) = self.read(&before, &mut claims)?;
        let n_annotated = graph.values.values().filter(|value| value.claimed_by.is_some()).count();
        let stepper = self.propagate(&before, &mesh, &mut graph, cx)?;
        let often = how_often(&before, &graph, cx);
        let conflicts =
            find_conflicts(&graph, Pricer { projector: Projector::new(mesh.sizes()), often: &often, time: None });
        for &(tie, bytes) in conflicts.iter().take(MOST_CONFLICTS_TOLD) {
            cx.report.decisions.push(explain_conflict(&before, &graph, tie, bytes));
        }
        let meshes = Meshes::of(&before.header)
            .map_err(|error| PassError::about("sharding", Entity::Module, error.to_string()))?;
        if let Some(inst) = find_named(&before, &self.why) {
            let writer = ShardyWriter { mesh: &mesh, meshes: &meshes };
            let names = |atoms: &[Atom]| writer.describe(atoms);
            cx.report.decisions.extend(why::explain((&before, &graph, &stepper.log), &names, inst));
        }
        graph.even_out_params(&before, mesh.sizes());
        graph.even_out_ends();
        let mut texts = emit::texts(&mesh);
        let emission = emit::plan_emission(&before, &graph, &mut claims, &mut texts)?;
        let (is_changed, n_copies) = emission.write(&mut work, &meshes, &mut texts).map_err(acyclic)?;
        let n_constants = constants.merge(&mut work);
        for claim in &lost {
            cx.report.decisions.push(explain_lost(&before, claim));
        }
        let n_cut = graph.values.values().filter(|value| value.used != 0).count();
        for (what, n) in [
            ("annotated", n_annotated),
            ("cut", n_cut),
            ("replicated", graph.values.values().filter(|value| value.used == 0).count()),
            ("steps", stepper.log.len()),
            ("copies", n_copies),
            ("constants-split", n_constants),
            ("conflicts", conflicts.len()),
            ("annotations-lost", lost.len()),
        ] {
            cx.report.count(what, n as u64);
        }
        if !is_changed && n_constants == 0 {
            cx.report.unchanged_because = Some("every instruction has its sharding".into());
            return Ok(Changed::No);
        }
        let merged = copies.merge(&mut work);
        for told in &mut cx.report.decisions {
            told.subject = merged.renamed(&told.subject);
            told.reason = merged.renamed(&told.reason);
            if let Some(name) = merged.name_now(&told.computation) {
                told.computation = name.to_string();
            }
        }
        *module = work;
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// The instructions where shardings meet that do not agree, with the bytes that a device receives there; the dearest first.
fn find_conflicts(graph: &ShardingGraph, mut pricer: Pricer<'_>) -> Vec<(TieId, f64)> {
    let moved = graph.ties.iter().map(|(id, tie)| (id, pricer.moved_bytes(&graph.values, tie).resharded));
    let mut conflicts: Vec<(TieId, f64)> = moved.filter(|&(_, bytes)| bytes > 0.0).collect();
    conflicts.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    conflicts
}

fn explain_conflict(module: &Module, graph: &ShardingGraph, tie: TieId, bytes: f64) -> Decision {
    let tie = &graph.ties[tie];
    let others = tie.tensors.iter().map(|tensor| &graph.values[tensor.value]);
    let names: Vec<String> = others.map(|value| format!("%{}", module.inst_name(value.inst))).collect();
    let reason = format!("{} do not agree: some {bytes:.0} bytes are received per device", names.join(", "));
    Decision::about(module, tie.inst, "conflict", reason)
}

/// The instruction of a name, in what runs.
fn find_named(module: &Module, name: &str) -> Option<InstId> {
    let mut insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    insts.find(|&inst| !name.is_empty() && module.inst_name(inst) == name)
}

fn acyclic(inst: InstId) -> PassError {
    PassError::from(hlo_spmd::DependsOnItself(inst))
}

fn explain_lost(module: &Module, lost: &LostClaim) -> Decision {
    let reason = format!("leaf {} has the sharding that %{} says", lost.leaf, module.inst_name(lost.kept));
    Decision::about(module, lost.inst, "annotation-lost", reason)
}
