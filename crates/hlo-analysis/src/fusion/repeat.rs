//! Cheap values that are needed late: compute them again there, instead of keeping them in memory until then.
//!
//! What a training step's backward pass reads of its forward pass is often a function of something else that it reads too:
//! ```text
//! x  = add(dot, bias)          read by the backward pass
//! x3 = multiply(x, multiply(x, x))
//! t  = tanh(x + 0.044715 x3)   read by the backward pass: some operations on x
//! ```
//! Fusions of later stages may read a value of a stage. It is computed again for them if that takes elementwise operations alone, no more
//! of them than are cheaper than to write and read it ([`FLOPS_PER_BYTE`]), on values that are kept for as long anyway or that together
//! are smaller, or as large and written in any case, where fewer bytes are moved: a product is kept rather than its sum with a bias.
//! The copies have the stage at which they are read ([`Edges::earliest`]).
//!
//! AOTAutograd's partitioner chooses what PyTorch keeps for a backward pass likewise, by a minimum cut
//! (<https://pytorch.org/functorch/stable/notebooks/aot_autograd_optimizations.html>). Here each value has a cut of its own, one after
//! the other, as values are needed until different stages.

use super::edges::Edges;
use super::groups::StagedEdges;
use super::role::Role;
use super::stages::{Stages, find_stages};
use crate::min_cut::{Network, UNCUTTABLE, Vertex};
use crate::values::tuple_elements;
use hashbrown::{HashMap, HashSet};
use hlo_ir::edit::Builder;
use hlo_ir::op::{CostRule, FactorRule};
use hlo_ir::{CompId, InstId, InstMap, Module, Opcode};
use std::convert::Infallible;

/// Operations for each byte of a value that are cheaper than to write the byte and to read it once. GPUs have done 17 (V100) to 20 (H100)
/// operations on f32 in the time of one access to a byte.
const FLOPS_PER_BYTE: u64 = 16;
/// Values that are looked at for one value.
const MAX_OPERATIONS: usize = 48;

/// Repeats cheap values for their late users; gives how many values no longer have any, and what was found out about the module.
pub(super) fn repeat_cheap_values(module: &mut Module, comp: CompId) -> Result<(usize, StagedEdges), InstId> {
    let mut edges = Edges::of(module, comp);
    let (mut stages, fusable_users) = find_stages(module, comp, &edges);
    // The last stage at which each value is read.
    let mut late: InstMap<u32> = InstMap::of(module, comp);
    for &inst in &edges.order {
        late[inst] = edges.users[inst].iter().map(|&user| stages[user]).max().unwrap_or(0);
    }
    if let Some(root) = edges.root {
        late[root] = u32::MAX;
        // What the root hands on is kept to the end.
        let elements = tuple_elements(module, root).unwrap_or_default();
        elements.iter().for_each(|&element| late[element] = u32::MAX);
    }
    let mut n_repeated = 0;
    let mut copies: Vec<(InstId, u32)> = Vec::new();
    let mut again: Vec<(InstId, InstId)> = Vec::new();
    for &inst in &edges.order {
        if edges.roles[inst] != Role::Fusable || late[inst] == u32::MAX || late[inst] <= stages[inst] {
            continue;
        }
        let Some(far) = far_users(&edges, &fusable_users[inst], &stages, inst) else { continue };
        let mut wanted: Vec<u32> = far.iter().map(|&user| stages[user]).collect();
        wanted.sort();
        wanted.dedup();
        // It is written once, and read at each of these stages.
        let n_stages = wanted.len() as u64;
        let finder = Finder { module, edges: &edges, stages: &stages, late: &late };
        let cone = finder.cone(inst, Weights::WITH_WRITES).filter(|cone| finder.moves_less(inst, cone, &wanted));
        let Some(cone) = cone.or_else(|| finder.cone(inst, Weights::MEMORY)) else { continue };
        let n_bytes = module.shape(inst).memory_bytes().saturating_mul(n_stages + 1) / 2;
        if cone.n_flops.saturating_mul(n_stages) > FLOPS_PER_BYTE.saturating_mul(n_bytes) {
            continue;
        }
        for stage in wanted {
            let near: Vec<InstId> = far.iter().copied().filter(|&user| stages[user] == stage).collect();
            let made = repeat(module, comp, &cone, &near);
            again.extend(made.iter().copied().zip(cone.operations.iter().copied()));
            copies.extend(made.into_iter().map(|copy| (copy, stage)));
        }
        for &source in &cone.sources {
            late[source] = late[source].max(late[inst]);
        }
        late[inst] = stages[inst];
        n_repeated += 1;
    }
    if n_repeated > 0 {
        module.restore_order(comp)?;
        edges = Edges::of(module, comp);
        copies.into_iter().for_each(|(copy, stage)| edges.earliest[copy] = stage);
        stages = find_stages(module, comp, &edges).0;
    }
    Ok((n_repeated, StagedEdges { edges, stages, again }))
}

/// The users of later stages; `None` if one of them cannot compute the value itself. `is_fusable` is for each user.
fn far_users(edges: &Edges, is_fusable: &[bool], stages: &Stages, inst: InstId) -> Option<Vec<InstId>> {
    let users = edges.users[inst].iter().copied().zip(is_fusable);
    let far: Vec<(InstId, &bool)> = users.filter(|(user, _)| stages[*user] > stages[inst]).collect();
    let can_all = far.iter().all(|&(user, &is_fusable)| is_fusable && edges.roles[user] == Role::Fusable);
    (!far.is_empty() && can_all).then(|| far.into_iter().map(|(user, _)| user).collect())
}

/// How a value is computed from values that are kept.
struct Cone {
    /// The operations, operands first, the value last.
    operations: Vec<InstId>,
    /// What they read.
    sources: Vec<InstId>,
    n_flops: u64,
}

/// A value on the way to another, and what it is to [`find_cone`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It is kept long enough anyway.
    Kept,
    /// Nothing but to keep it gives it later.
    Source,
    /// An operation gives it anew, of so many operations.
    Operation(u64),
}

/// What a byte counts that is kept for a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Weights {
    /// Of what is written in any case, as a product is.
    kept: u128,
    /// Of what is written for this alone: a fusion that keeps a value for later stages writes it.
    written: u128,
}

impl Weights {
    const MEMORY: Weights = Weights { kept: 1, written: 1 };
    /// What is kept grows by no more than a 32nd for what is not written.
    const WITH_WRITES: Weights = Weights { kept: 32, written: 33 };
}

/// Finds how values are computed again.
struct Finder<'a> {
    module: &'a Module,
    edges: &'a Edges,
    stages: &'a Stages,
    /// At which stage each value is last read.
    late: &'a InstMap<u32>,
}

impl Finder<'_> {
    fn bytes(&self, inst: InstId) -> u64 {
        self.module.shape(inst).memory_bytes()
    }

    /// Whether a value is there when its stage is over, whoever needs it.
    fn is_written(&self, inst: InstId) -> bool {
        self.edges.roles[inst] != Role::Fusable || self.late[inst] > self.stages[inst]
    }

    /// Whether these stages, which compute a value again, and what is written for that move fewer bytes than to write the value and to read
    /// it at each. What something reads at a stage anyway counts nothing there.
    fn moves_less(&self, inst: InstId, cone: &Cone, wanted: &[u32]) -> bool {
        let is_read =
            |source: InstId, stage: u32| self.edges.users[source].iter().any(|&user| self.stages[user] == stage);
        let n_reads = |source: InstId| wanted.iter().filter(|&&stage| !is_read(source, stage)).count() as u64;
        let n_moves = |&source: &InstId| n_reads(source) + u64::from(!self.is_written(source));
        let again = cone.sources.iter().map(|source| self.bytes(*source).saturating_mul(n_moves(source)));
        let kept = self.bytes(inst).saturating_mul(wanted.len() as u64 + 1);
        again.fold(0, u64::saturating_add) < kept
    }

    /// How `inst` is computed from values that are kept anyway until it is last read, or that weigh less than it together. Of all ways
    /// the one of the least weight, and of these the shortest: a minimum cut through the values that lead to it.
    fn cone(&self, inst: InstId, weights: Weights) -> Option<Cone> {
        let Finder { module, edges, late, .. } = *self;
        let own = module.shape(inst).as_array()?;
        let until = late[inst];
        let way_of = |at: InstId| {
            let row = module.inst(at).opcode.row();
            let n_flops = if let CostRule::PerElement(flops) = row.cost {
                Some(u64::from(flops))
            } else {
                matches!(row.cost, CostRule::Moves).then_some(0)
            };
            let has_own_dims = module.shape(at).as_array().is_some_and(|array| array.dims == own.dims);
            let is_elementwise = row.factors == FactorRule::Elementwise && edges.roles[at] == Role::Fusable;
            let is_spread = row.factors == FactorRule::Broadcast && at != inst;
            match n_flops.filter(|_| has_own_dims && (is_elementwise || is_spread)) {
                _ if at != inst && late[at] >= until => Way::Kept,
                Some(n_flops) => Way::Operation(n_flops),
                None => Way::Source,
            }
        };
        let operands =
            |at: InstId| module.inst(at).operands.iter().copied().filter(|&o| !is_constant(module, edges, o));
        // The values that lead to `inst`, each with the vertices before and after the arc of its bytes.
        let mut network = Network::new();
        let mut vertices: HashMap<InstId, (Vertex, Vertex)> = HashMap::new();
        vertices.insert(inst, (network.add_vertex(), Network::SINK));
        let mut work = vec![inst];
        while let Some(at) = work.pop() {
            let (before, after) = vertices[&at];
            match way_of(at) {
                Way::Kept => continue,
                Way::Operation(_) if vertices.len() < MAX_OPERATIONS => {
                    for operand in operands(at) {
                        let (_, given) = *vertices.entry(operand).or_insert_with(|| {
                            work.push(operand);
                            (network.add_vertex(), network.add_vertex())
                        });
                        network.add_arc(given, before, UNCUTTABLE);
                    }
                }
                Way::Operation(_) | Way::Source => network.add_arc(Network::SOURCE, before, UNCUTTABLE),
            }
            let weight = if at != inst && self.is_written(at) { weights.kept } else { weights.written };
            network.add_arc(before, after, u128::from(self.bytes(at)) * weight);
        }
        let Ok(cut) = network.cut(&[], || Ok::<(), Infallible>(()));
        let mut cone = Cone { operations: Vec::new(), sources: Vec::new(), n_flops: 0 };
        let mut seen: HashSet<InstId> = HashSet::new();
        // Each instruction, and whether its operands are there.
        let mut work = vec![(inst, false)];
        while let Some((at, is_complete)) = work.pop() {
            if is_complete {
                cone.operations.push(at);
                continue;
            }
            if !seen.insert(at) {
                continue;
            }
            match way_of(at) {
                Way::Operation(n_flops) if cut.is_on_sink_side(vertices[&at].0) => {
                    cone.n_flops += n_flops * own.n_elems();
                    work.push((at, true));
                    work.extend(operands(at).map(|operand| (operand, false)));
                }
                // Its own bytes are the fewest.
                _ if at == inst => return None,
                _ => cone.sources.push(at),
            }
        }
        Some(cone)
    }
}

/// Whether a value is a constant, or one in other dims.
fn is_constant(module: &Module, edges: &Edges, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    instruction.opcode == Opcode::Constant
        || edges.roles[inst] == Role::Repeatable
            && !instruction.operands.is_empty()
            && instruction.operands.iter().all(|&operand| is_constant(module, edges, operand))
}

/// Writes the operations of a cone once more, for these users of its value. Gives the copies, in the order of the operations.
fn repeat(module: &mut Module, comp: CompId, cone: &Cone, users: &[InstId]) -> Vec<InstId> {
    let mut copy_of: HashMap<InstId, InstId> = HashMap::new();
    let mut copies = Vec::new();
    for &inst in &cone.operations {
        let mut operands = module.inst(inst).operands.to_vec();
        operands.iter_mut().for_each(|operand| *operand = copy_of.get(operand).copied().unwrap_or(*operand));
        let instruction = module.inst(inst);
        let (opcode, attrs) = (instruction.opcode, instruction.attrs.clone());
        let (shape, hint) = (module.shape(inst).clone(), format!("{}.again", module.inst_name(inst)));
        let copy = Builder::new(module, comp).add(&hint, opcode, shape, operands, attrs);
        copy_of.insert(inst, copy);
        copies.push(copy);
    }
    if let Some((&inst, &copy)) = cone.operations.last().zip(copies.last()) {
        for &user in users {
            module.inst_mut(user).operands.iter_mut().filter(|o| **o == inst).for_each(|o| *o = copy);
        }
    }
    copies
}
