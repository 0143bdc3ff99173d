//! Puts strategies into the program: a sharding on every value, and a copy where an operator takes a value in another layout.

use super::layouts::sharding_of;
use super::operators::OperatorGraph;
use super::spread::Spread;
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::claims::ClaimReader;
use crate::propagate_shardings::emit::{self, Emission};
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::schedule::{Order, Schedule, TiesOf};
use crate::propagate_shardings::step::Stepper;
use crate::propagate_shardings::values::{CutId, CutValue, bits};
use crate::sharding::ArraySharding;
use hlo_ir::names::FixedHash;
use hlo_ir::shardy::Meshes;
use hlo_ir::{ArrayShape, Dims, InstId, Module};
use hlo_pass::Deadline;
use hlo_pass::report::Decision;
use hlo_spmd::redistribution::{RedistributionRequest, plan_redistribution};
use indexmap::IndexMap;

/// Where an operator takes a value in another layout than it has.
struct Change {
    user: (InstId, u32),
    value: CutId,
    to: ArraySharding,
}

/// What was written.
pub(super) struct Written {
    pub n_copies: usize,
    pub n_cut: usize,
    pub decisions: Vec<Decision>,
    /// Sum over all redistributions, in bytes that a device receives: MindSpore's plans, ours.
    pub greedy_bytes: u64,
    pub planned_bytes: u64,
    pub n_redistributions: usize,
}

/// How many of the dearest redistributions the report tells.
const MOST_TOLD: usize = 32;

/// Writes what `spread` decided into `work`, of which `before` is a copy. Values of operators without a strategy get one by
/// propagation, in Shardy's order.
///
/// # Errors
/// The time is over; an instruction that depends on itself: a defect.
pub(super) fn write(
    (work, before): (&mut Module, &Module),
    graph: &mut ShardingGraph,
    spread: Decided,
    mesh: &ModuleMesh,
    deadline: Deadline,
) -> Result<Written, PartitionError> {
    let Decided { layouts, wanted } = spread;
    for (value, layout) in layouts {
        close(&mut graph.values[value], &layout);
    }
    let ties_of = TiesOf::new(graph.values.len(), &graph.ties);
    let mut stepper = Stepper::new(mesh.sizes(), false);
    Schedule {
        values: &mut graph.values,
        ties: &graph.ties,
        ties_of: &ties_of,
        stepper: &mut stepper,
        order: Order::Shardy,
        deadline,
    }
    .run()?;
    graph.even_out_params(before, mesh.sizes());
    let changes = wanted.into_iter().filter(|change| graph.values[change.value].sharding() != change.to);
    let mut changes: Vec<Change> = changes.collect();
    // In program order, so that names of copies do not depend on who decided first.
    changes.sort_by_key(|change| change.user);
    let mut texts = emit::texts(mesh);
    let mut claims = ClaimReader::new(before, mesh)?;
    let mut emission = emit::plan_emission(before, graph, &mut claims, &mut texts)?;
    add_changes(before, graph, &changes, &mut emission);
    let meshes = Meshes::default();
    let (_, n_copies) = emission.write(work, &meshes, &mut texts).map_err(depends_on_itself)?;
    let mut written = Written {
        n_copies,
        n_cut: graph.values.values().filter(|value| value.used != 0).count(),
        decisions: Vec::new(),
        greedy_bytes: 0,
        planned_bytes: 0,
        n_redistributions: 0,
    };
    price_changes(before, graph, mesh, &changes, &mut written);
    Ok(written)
}

/// An instruction that depends on itself.
pub(super) fn depends_on_itself(inst: InstId) -> PartitionError {
    let text = "expected no instruction to depend on itself";
    PartitionError::about("acyclic", hlo_ir::diag::Entity::Inst(inst), text)
}

/// The layouts of values, and those in which operators take them.
pub(super) struct Decided {
    layouts: Vec<(CutId, ArraySharding)>,
    wanted: Vec<Change>,
}

impl Decided {
    /// What the operators of `spread` want. Values that cost nothing, and that operators want in different layouts, are whole.
    pub(super) fn new(spread: &Spread<'_>, operators: &OperatorGraph) -> Decided {
        let (mut layouts, mut wanted): (IndexMap<CutId, ArraySharding, FixedHash>, Vec<Change>) = Default::default();
        for &id in &spread.order {
            let (operator, Some(assignment)) = (&operators.operators[id], spread.assignment(id)) else { continue };
            for port in operator.inputs.iter().chain(&operator.outputs) {
                if let Some(sharding) = spread.sharding(port.value) {
                    layouts.entry(port.value).or_insert_with(|| sharding.clone());
                }
            }
            for port in &operator.inputs {
                let to = sharding_of(port, assignment);
                if let Some(own) = layouts.get_mut(&port.value)
                    && spread.graph.values[port.value].elem_bytes == 0
                    && *own != to
                {
                    own.dims.iter_mut().for_each(|dim| dim.clear());
                }
                let users = port.users.iter();
                wanted.extend(users.map(|&user| Change { user, value: port.value, to: to.clone() }));
            }
        }
        Decided { layouts: layouts.into_iter().collect(), wanted }
    }
}

/// Fixes a value's sharding.
fn close(value: &mut CutValue, layout: &ArraySharding) {
    value.set_sharding(layout);
    value.used = bits(value.dims.iter().flat_map(|dim| &dim.atoms));
    value.dims.iter_mut().for_each(|dim| dim.is_closed = true);
}

fn add_changes(module: &Module, graph: &ShardingGraph, changes: &[Change], emission: &mut Emission) {
    for change in changes {
        let (inst, operand) = change.user;
        if let Some(&given) = module.inst(inst).operands.get(operand as usize) {
            let placed = (change.to.clone(), graph.values[change.value].manual);
            emission.add_use(change.user, given, placed);
        }
    }
}

/// What the redistributions cost, MindSpore's way and ours; each value's to one layout once.
fn price_changes(module: &Module, graph: &ShardingGraph, mesh: &ModuleMesh, changes: &[Change], written: &mut Written) {
    type Ends = (Dims, u32, ArraySharding, ArraySharding);
    let mut known: IndexMap<Ends, Option<(Option<u64>, u64)>, FixedHash> = IndexMap::default();
    let mut seen: IndexMap<(CutId, ArraySharding), (), FixedHash> = IndexMap::default();
    let mut told: Vec<(u64, Decision)> = Vec::new();
    for change in changes {
        let value = &graph.values[change.value];
        if value.elem_bytes == 0 || seen.insert((change.value, change.to.clone()), ()).is_some() {
            continue;
        }
        let shape = module.shapes.leaf(module.inst(value.inst).shape, value.leaf as usize);
        let Some(shape) = shape.and_then(|shape| shape.as_array()) else { continue };
        let from = value.sharding();
        let key = (shape.dims.clone(), shape.dtype.bits(), from.clone(), change.to.clone());
        let price = *known.entry(key).or_insert_with(|| planned(mesh, shape, &from, &change.to));
        let Some((greedy, ours)) = price else { continue };
        written.n_redistributions += 1;
        written.greedy_bytes += greedy.unwrap_or(ours);
        written.planned_bytes += ours;
        let greedy = greedy.map_or("has no plan".into(), |bytes| format!("receives {bytes} bytes"));
        let (a, b) = (mesh.leaf(&from, &[]), mesh.leaf(&change.to, &[]));
        let reason = format!(
            "%{} takes it as {b}, it is {a}: MindSpore's redistribution {greedy} per device, ours {ours}",
            module.inst_name(change.user.0)
        );
        told.push((ours, Decision::about(module, value.inst, "redistributed", reason)));
    }
    told.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    written.decisions.extend(told.into_iter().take(MOST_TOLD).map(|(_, decision)| decision));
}

/// Bytes that a device receives, by MindSpore's greedy plan and by ours.
fn planned(
    mesh: &ModuleMesh,
    shape: &ArrayShape,
    from: &ArraySharding,
    to: &ArraySharding,
) -> Option<(Option<u64>, u64)> {
    let (source, target) = (mesh.axes(from, &[]), mesh.axes(to, &[]));
    let request = RedistributionRequest {
        shape,
        source: &source,
        target: &target,
        monoid: None,
        cluster: None,
        allows_pieces: true,
    };
    let plan = plan_redistribution(&request).ok()?;
    Some((plan.greedy.mindspore.map(|price| price.bytes), plan.price.bytes))
}
