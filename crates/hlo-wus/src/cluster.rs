//! Grows the update round a gradient: what can be computed on shards, what is sliced, what must be whole again.
//!
//! A *member* is computed on its shard along one dim; the op table's factors carry that dim from op to op. Members are
//! the all-reduce itself (which becomes a reduce-scatter) and what is computed forward from members by ops that are cut along
//! that factor into independent pieces. Values that members need and that are not members are *sliced*, or
//! recomputed on shards where nobody else needs them (`derived`). A member that anything else uses is an *exit*: an
//! all-gather makes it whole. Everything cut must be equal on all devices of the group.

use cranelift_entity::SecondaryMap;
use hlo_analysis::replication::Replication;
use hlo_ir::attrs::Attrs;
use hlo_ir::factors::{FactorKind, FactorSet, find_factors};
use hlo_ir::module::UserMap;
use hlo_ir::op::Flow;
use hlo_ir::{CompId, InstId, Module, Opcode};
use indexmap::{IndexMap, IndexSet};

/// What a cluster is grown from.
pub struct Soil<'a> {
    /// The module.
    pub module: &'a Module,
    /// Which values are equal on which devices.
    pub replication: &'a Replication,
    /// Who uses what.
    pub users: &'a UserMap,
    /// Place of every instruction in the text.
    pub places: &'a SecondaryMap<InstId, u32>,
    /// The groups over which the gradient is summed.
    pub groups: &'a [Vec<u32>],
    /// All-reduces that may be scattered.
    pub gradients: &'a IndexSet<InstId>,
}

/// An update to compute on shards.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The computation.
    pub comp: CompId,
    /// Gradients, in order of discovery; each is a member.
    pub gradients: Vec<InstId>,
    /// Values computed on shards, with the dim that is cut.
    pub members: IndexMap<InstId, usize>,
    /// Operands recomputed on shards, with the dim that is cut.
    pub derived: IndexMap<InstId, usize>,
    /// Replicated values of which each device takes its slice, with the dim.
    pub sliced: IndexMap<InstId, usize>,
    /// Members that something outside needs whole.
    pub exits: Vec<InstId>,
    /// All members, derived and sliced values in text order, operands before users.
    pub order: Vec<InstId>,
}

impl Cluster {
    /// The dim along which a value is cut, if the cluster has it.
    pub fn dim(&self, value: InstId) -> Option<usize> {
        self.members.get(&value).or(self.derived.get(&value)).or(self.sliced.get(&value)).copied()
    }

    /// Whether a value is computed on shards (and not only sliced).
    pub fn computes(&self, value: InstId) -> bool {
        self.members.contains_key(&value) || self.derived.contains_key(&value)
    }
}

/// Why a gradient's update cannot be sharded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stop {
    /// The instruction that is in the way, if it is one.
    pub inst: Option<InstId>,
    /// Why.
    pub reason: String,
}

/// Grows the cluster of `seed` cut along `dim`.
///
/// # Errors
/// What is in the way.
pub fn grow(soil: &Soil<'_>, comp: CompId, seed: InstId, dim: usize) -> Result<Cluster, Stop> {
    let mut cluster = Cluster {
        comp,
        gradients: vec![seed],
        members: IndexMap::from([(seed, dim)]),
        derived: IndexMap::new(),
        sliced: IndexMap::new(),
        exits: Vec::new(),
        order: Vec::new(),
    };
    let mut next = 0;
    while let Some((&member, _)) = cluster.members.get_index(next) {
        next += 1;
        for &user in &soil.users[member] {
            if !cluster.members.contains_key(&user) {
                admit(soil, &mut cluster, user);
            }
        }
    }
    let members = cluster.members.clone();
    cluster.sliced.retain(|value, _| !members.contains_key(value));
    derive(soil, &mut cluster);
    cluster.order =
        cluster.members.keys().chain(cluster.derived.keys()).chain(cluster.sliced.keys()).copied().collect();
    cluster.order.sort_unstable_by_key(|&v| soil.places[v]);
    find_exits(soil, &mut cluster)?;
    Ok(cluster)
}

/// Takes `inst` in if it can be cut along the factor that its member operands are cut along.
fn admit(soil: &Soil<'_>, cluster: &mut Cluster, inst: InstId) -> Option<()> {
    let module = soil.module;
    if !soil.replication.is_equal_within(inst, 0, soil.groups) {
        return None;
    }
    let set = shardable(module, inst)?;
    let operands = &module.inst(inst).operands;
    let mut factor = None;
    for (k, operand) in operands.iter().enumerate() {
        if let Some(&dim) = cluster.members.get(operand) {
            let own = FactorSet::sole_factor(&set.operands[k], dim)?;
            if *factor.get_or_insert(own) != own {
                return None;
            }
        }
    }
    let factor = factor?;
    if set.factors[factor].kind != FactorKind::PassThrough {
        return None;
    }
    let dim = FactorSet::dim_of(set.results.first()?, factor)?;
    if cluster.sliced.get(&inst).is_some_and(|&wanted| wanted != dim) {
        return None;
    }
    let mut wanted = Vec::new();
    for (k, &operand) in operands.iter().enumerate() {
        if cluster.members.contains_key(&operand) || !FactorSet::mentions(&set.operands[k], factor) {
            continue;
        }
        let dim = FactorSet::dim_of(&set.operands[k], factor)?;
        let is_same = cluster.sliced.get(&operand).is_none_or(|&d| d == dim);
        if !is_same || !soil.replication.is_equal_within(operand, 0, soil.groups) {
            return None;
        }
        wanted.push((operand, dim));
    }
    cluster.members.insert(inst, dim);
    for (operand, dim) in wanted {
        cluster.sliced.insert(operand, dim);
        if soil.gradients.contains(&operand) {
            cluster.members.insert(operand, dim);
            cluster.gradients.push(operand);
        }
    }
    Some(())
}

/// The factors of an op that computes one array from arrays without a word about sizes in its attributes.
fn shardable(module: &Module, inst: InstId) -> Option<FactorSet> {
    let instruction = module.inst(inst);
    let has_sizes = match &instruction.attrs {
        Attrs::Slice(_) | Attrs::DynamicSlice(_) | Attrs::Gather(_) => true,
        Attrs::Reshape(reshape) => reshape.inferred_dimension.is_some(),
        _ => false,
    };
    let is_plain = matches!(instruction.opcode.row().flow, Flow::All | Flow::Identity);
    if has_sizes || !is_plain || module.shape(inst).as_array().is_none() || module.must_stay(inst) {
        return None;
    }
    let has_control = instruction.marks.as_ref().is_some_and(|m| !m.control_predecessors.is_empty());
    if has_control {
        return None;
    }
    find_factors(module, inst).ok()
}

/// Recomputes sliced values on shards where that is free: nobody else needs them, or they cost nothing to rebuild.
fn derive(soil: &Soil<'_>, cluster: &mut Cluster) {
    let mut work: Vec<InstId> = cluster.sliced.keys().copied().collect();
    while let Some(value) = work.pop() {
        let Some(&dim) = cluster.sliced.get(&value) else { continue };
        let Some(set) = shardable(soil.module, value) else { continue };
        let Some(factor) = set.results.first().and_then(|r| FactorSet::sole_factor(r, dim)) else { continue };
        let operands = &soil.module.inst(value).operands;
        let is_rebuilt = set.operands.iter().all(|o| !FactorSet::mentions(o, factor));
        let is_private = soil.users[value].iter().all(|&user| cluster.computes(user));
        if set.factors[factor].kind != FactorKind::PassThrough || !(is_rebuilt || is_private) {
            continue;
        }
        let wanted: Option<Vec<(InstId, usize)>> = (0..operands.len())
            .filter(|&k| FactorSet::mentions(&set.operands[k], factor))
            .map(|k| {
                let dim = FactorSet::dim_of(&set.operands[k], factor)?;
                let known = cluster.sliced.get(&operands[k]).or(cluster.derived.get(&operands[k]));
                let known = known.or(cluster.members.get(&operands[k]));
                let is_same = known.is_none_or(|&d| d == dim);
                let is_equal = soil.replication.is_equal_within(operands[k], 0, soil.groups);
                (is_same && is_equal).then_some((operands[k], dim))
            })
            .collect();
        let Some(wanted) = wanted else { continue };
        cluster.sliced.shift_remove(&value);
        cluster.derived.insert(value, dim);
        for (operand, dim) in wanted {
            if !cluster.members.contains_key(&operand) && !cluster.derived.contains_key(&operand) {
                cluster.sliced.insert(operand, dim);
                work.push(operand);
            }
        }
        // A value whose other users were all derived since may be private now.
        work.extend(operands.iter().filter(|o| cluster.sliced.contains_key(*o)));
    }
}

/// Members that are needed whole; a use that is more than passing the value on stops the cluster.
fn find_exits(soil: &Soil<'_>, cluster: &mut Cluster) -> Result<(), Stop> {
    let module = soil.module;
    let root = module.comp(cluster.comp).root.expand();
    for &member in cluster.members.keys() {
        let outside = |user: &&InstId| !cluster.computes(**user);
        let mut is_exit = root == Some(member);
        for &user in soil.users[member].iter().filter(outside) {
            if !passes_on(module.inst(user).opcode) {
                return Err(stopped_by(soil, member, user));
            }
            is_exit = true;
        }
        if is_exit {
            cluster.exits.push(member);
        }
    }
    if cluster.exits.is_empty() {
        return Err(Stop { inst: None, reason: "nothing is computed from it that could run on shards".into() });
    }
    let updated = updated(module, cluster);
    match cluster.exits.iter().find(|exit| !updated.contains(*exit)) {
        Some(&exit) => Err(Stop {
            inst: Some(exit),
            reason: format!(
                "`%{}` leaves the computation whole and is the sum alone, without state: an all-gather would undo what \
                 scattering saves",
                module.inst_name(exit)
            ),
        }),
        None => Ok(()),
    }
}

/// Why `user` of `member` cannot run on shards.
fn stopped_by(soil: &Soil<'_>, member: InstId, user: InstId) -> Stop {
    let module = soil.module;
    let (name, opcode) = (module.inst_name(user), module.inst(user).opcode);
    let is_equal = soil.replication.is_equal_within(user, 0, soil.groups);
    let reason = match is_equal {
        true => format!("`%{}` is needed whole inside the update, by {opcode} `%{name}`", module.inst_name(member)),
        false => format!(
            "{opcode} `%{name}` is not known to be the same on all devices of a group; if the parameters it is computed \
             from are, say so with --replicated-params"
        ),
    };
    Stop { inst: Some(user), reason }
}

/// Values computed on shards from a sliced one, that is, from weights or optimizer state.
fn updated(module: &Module, cluster: &Cluster) -> IndexSet<InstId> {
    let mut updated: IndexSet<InstId> = cluster.sliced.keys().copied().collect();
    for &inst in &cluster.order {
        if cluster.computes(inst) && module.inst(inst).operands.iter().any(|o| updated.contains(o)) {
            updated.insert(inst);
        }
    }
    updated
}

/// Ops that hand a value on without computing from it.
fn passes_on(opcode: Opcode) -> bool {
    match opcode.row().flow {
        Flow::Tuple | Flow::Identity | Flow::Call | Flow::While | Flow::Conditional | Flow::GetTupleElement => true,
        Flow::All
        | Flow::Parameter
        | Flow::Constant
        | Flow::ReplicaId
        | Flow::PartitionId
        | Flow::AllReduce
        | Flow::ReduceScatter
        | Flow::AllGather
        | Flow::AllToAll
        | Flow::CollectiveBroadcast
        | Flow::CollectivePermute
        | Flow::AsyncStart
        | Flow::AsyncUpdate
        | Flow::AsyncDone => false,
    }
}
