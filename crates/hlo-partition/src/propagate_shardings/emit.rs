//! Writes the shardings into the module: `sharding=` on every instruction, copies where a value must become cut otherwise, and
//! no words of front ends but those at the borders of manual regions.

use super::calls::{SpokenCall, front_end};
use super::claims::ClaimReader;
use super::graph::ShardingGraph;
use super::shardy_text::ShardyWriter;
use super::values::{AtomSet, CutId, atoms_of};
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::sharding::{ArraySharding, AtomList};
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::code::code_computations;
use hlo_ir::attrs::{Attrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::names::FixedHash;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::shardy::{self, Meshes};
use hlo_ir::{CompId, InstId, Module, Opcode, Shape};
use indexmap::IndexMap;

/// The sharding of a leaf, with the manual atoms beside it.
pub(crate) type PlacedSharding = (ArraySharding, AtomSet);

/// All that is to be written.
pub(crate) struct Emission {
    shardings: Vec<(InstId, Sharding)>,
    /// For some operands and roots, the shardings that their leaves must have there.
    entrances: Vec<Wanted>,
    /// The shardings at the borders of regions, by instruction and place, the whole value's.
    borders: IndexMap<InstId, Vec<Option<ArraySharding>>, FixedHash>,
}

struct Wanted {
    user: Option<(InstId, u32)>,
    given: InstId,
    /// By leaf; `None` where it is as it comes.
    leaves: Vec<Option<PlacedSharding>>,
}

/// Texts of shardings, each built once.
pub(crate) struct Texts<'a> {
    mesh: &'a ModuleMesh,
    known: IndexMap<PlacedSharding, LeafSharding, FixedHash>,
}

impl Texts<'_> {
    fn of(&mut self, placed: &PlacedSharding) -> LeafSharding {
        if let Some(known) = self.known.get(placed) {
            return known.clone();
        }
        let leaf = self.mesh.leaf(&placed.0, &atoms_of(placed.1));
        self.known.insert(placed.clone(), leaf.clone());
        leaf
    }
}

pub(crate) fn texts(mesh: &ModuleMesh) -> Texts<'_> {
    Texts { mesh, known: IndexMap::default() }
}

fn placed(graph: &ShardingGraph, value: CutId) -> PlacedSharding {
    let value = &graph.values[value];
    (value.sharding(), value.manual)
}

/// Collects what is to be written.
///
/// # Errors
/// An annotation of dead code is malformed.
pub(crate) fn plan_emission(
    module: &Module,
    graph: &ShardingGraph,
    claims: &mut ClaimReader<'_>,
    texts: &mut Texts<'_>,
) -> Result<Emission, PartitionError> {
    let mut shardings = Vec::new();
    for comp in code_computations(module) {
        let insts = &module.comp(comp).insts;
        let manual = match module.entry() == Some(comp) {
            true => 0,
            false => {
                insts.iter().flat_map(|&i| graph.of_leaves(i)).flatten().next().map_or(0, |v| graph.values[v].manual)
            }
        };
        for &inst in insts {
            shardings.push((inst, sharding_of(module, graph, claims, texts, (inst, manual))?));
        }
    }
    let (entrances, borders) = (wanted(module, graph), borders(graph));
    Ok(Emission { shardings, entrances, borders })
}

/// The sharding of an instruction, leaf by leaf; of dead code what the user says.
fn sharding_of(
    module: &Module,
    graph: &ShardingGraph,
    claims: &mut ClaimReader<'_>,
    texts: &mut Texts<'_>,
    (inst, manual): (InstId, AtomSet),
) -> Result<Sharding, PartitionError> {
    let mut ranks: Vec<Option<usize>> = Vec::new();
    module.shape(inst).for_each_leaf(&mut |_, shape| ranks.push(shape.as_array().map(|array| array.rank())));
    let mut leaves = Vec::with_capacity(ranks.len());
    for (leaf, rank) in ranks.into_iter().enumerate() {
        let text = match (graph.of_leaf(inst, leaf), rank) {
            (Some(value), _) => texts.of(&placed(graph, value)),
            (None, Some(rank)) => {
                let mut sharding = ArraySharding::replicated(rank);
                let mut manual = manual;
                if let Some(claim) = claims.claim(inst, leaf as u32)? {
                    sharding.dims = claim.dims.iter().map(|dim| dim.atoms.clone()).collect();
                    manual |= claim.manual;
                }
                texts.of(&(sharding, manual))
            }
            (None, None) => LeafSharding::new(ShardingKind::Replicated),
        };
        leaves.push(text);
    }
    Ok(match module.shape(inst) {
        Shape::Tuple(_) if leaves.is_empty() => Sharding::Tuple(vec![LeafSharding::new(ShardingKind::Replicated)]),
        Shape::Tuple(_) => Sharding::Tuple(leaves),
        Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => {
            leaves.pop().map_or_else(Sharding::replicated, Sharding::Single)
        }
    })
}

/// Where a value must have another sharding than its own.
fn wanted(module: &Module, graph: &ShardingGraph) -> Vec<Wanted> {
    let mut out = Vec::new();
    for entrance in graph.entrances(module) {
        let own: Vec<Option<CutId>> = graph.of_leaves(entrance.given).collect();
        let pairs = own.iter().zip(&entrance.wanted);
        let leaves: Vec<Option<PlacedSharding>> = pairs
            .map(|(own, to)| {
                let (own, to) = ((*own)?, (*to)?);
                (own != to && placed(graph, own) != placed(graph, to)).then(|| placed(graph, to))
            })
            .collect();
        out.push(Wanted { user: entrance.user, given: entrance.given, leaves });
    }
    for border in &graph.borders {
        let (own, sharding, manual) = match border.is_begin {
            true => (border.whole, joined(graph, border.local, &border.prefix), graph.values[border.whole].manual),
            false => (border.local, stripped(graph, border.whole, &border.prefix), graph.values[border.local].manual),
        };
        let is_other = placed(graph, own) != (sharding.clone(), manual);
        let Some(&given) = module.inst(border.inst).operands.get(border.place as usize) else { continue };
        let leaves = vec![is_other.then_some((sharding, manual))];
        out.push(Wanted { user: Some((border.inst, border.place)), given, leaves });
    }
    if let Some(given) = module.entry().and_then(|entry| module.comp(entry).root.expand()) {
        let mut leaves = vec![None; graph.leaves.leaves(given).len()];
        for exit in &graph.exits {
            let is_other = placed(graph, exit.value) != placed(graph, exit.wanted);
            if let Some(slot) = leaves.get_mut(exit.leaf as usize).filter(|_| is_other) {
                *slot = Some(placed(graph, exit.wanted));
            }
        }
        out.push(Wanted { user: None, given, leaves });
    }
    out.retain(|wanted| wanted.leaves.iter().any(|leaf| leaf.is_some()));
    out
}

/// The sharding of the whole value from that of the local one.
fn joined(graph: &ShardingGraph, local: CutId, prefix: &[AtomList]) -> ArraySharding {
    let mut sharding = graph.values[local].sharding();
    for (dim, before) in sharding.dims.iter_mut().zip(prefix) {
        dim.insert_from_slice(0, before);
    }
    sharding
}

/// The sharding of the local value from that of the whole one.
fn stripped(graph: &ShardingGraph, whole: CutId, prefix: &[AtomList]) -> ArraySharding {
    let mut sharding = graph.values[whole].sharding();
    for (dim, before) in sharding.dims.iter_mut().zip(prefix) {
        dim.drain(..before.len().min(dim.len()));
    }
    sharding
}

fn borders(graph: &ShardingGraph) -> IndexMap<InstId, Vec<Option<ArraySharding>>, FixedHash> {
    let mut out: IndexMap<InstId, Vec<Option<ArraySharding>>, FixedHash> = IndexMap::default();
    for border in graph.borders.iter().filter(|border| border.claim.is_some()) {
        let whole = match border.is_begin {
            true => joined(graph, border.local, &border.prefix),
            false => graph.values[border.whole].sharding(),
        };
        let all = out.entry(border.inst).or_default();
        all.resize((border.place as usize + 1).max(all.len()), None);
        all[border.place as usize] = Some(whole);
    }
    out
}

impl Emission {
    /// Has one operand of an instruction be cut as `placed` says, whatever its value is.
    pub(crate) fn add_use(&mut self, user: (InstId, u32), given: InstId, placed: PlacedSharding) {
        self.entrances.push(Wanted { user: Some(user), given, leaves: vec![Some(placed)] });
    }

    /// Writes everything. Returns whether the module is different, and how many copies were added.
    ///
    /// # Errors
    /// An instruction that depends on itself: a defect of this pass.
    pub(crate) fn write(
        self,
        module: &mut Module,
        meshes: &Meshes,
        texts: &mut Texts<'_>,
    ) -> Result<(bool, usize), InstId> {
        let mut writer = Writer {
            users: module.users(),
            n_slots: module.n_inst_slots(),
            was_live: SecondaryMap::new(),
            edited: EntitySet::new(),
            texts,
            is_changed: false,
            n_copies: 0,
        };
        writer.remove_words_in_reducers(module);
        let mut spoken = Vec::new();
        for (inst, sharding) in self.shardings {
            if module.sharding(inst) != Some(&sharding) {
                module.marks_mut(inst).sharding = Some(sharding);
                writer.is_changed = true;
            }
            spoken.extend(SpokenCall::of(module, inst).map(|call| (inst, call)));
            writer.remove_words(module, inst);
        }
        let mesh = writer.texts.mesh;
        for (inst, shardings) in &self.borders {
            writer.is_changed |= ShardyWriter { mesh, meshes }.close(module, *inst, shardings);
        }
        for wanted in self.entrances {
            writer.reshard(module, wanted);
        }
        for (inst, call) in spoken {
            writer.replace_call(module, inst, call);
        }
        writer.finish(module)
    }
}

struct Writer<'a, 't> {
    users: UserMap,
    n_slots: usize,
    was_live: SecondaryMap<CompId, Option<EntitySet<InstId>>>,
    edited: EntitySet<CompId>,
    texts: &'a mut Texts<'t>,
    is_changed: bool,
    n_copies: usize,
}

impl Writer<'_, '_> {
    /// Annotations inside reducers and comparators say nothing: scalars have no dims.
    fn remove_words_in_reducers(&mut self, module: &mut Module) {
        let mut is_code: EntitySet<CompId> = EntitySet::new();
        is_code.extend(code_computations(module));
        for comp in module.computations().to_vec().into_iter().filter(|&comp| !is_code.contains(comp)) {
            for inst in module.comp(comp).insts.clone() {
                let is_identity = SpokenCall::of(module, inst).is_some_and(SpokenCall::is_identity);
                if let Some(&operand) = module.inst(inst).operands.first().filter(|_| is_identity) {
                    module.replace_all_uses(inst, operand);
                    module.comp_mut(comp).insts.retain(|&other| other != inst);
                    self.is_changed = true;
                }
            }
        }
    }

    /// Removes what the user said of an instruction, which `sharding=` says now.
    fn remove_words(&mut self, module: &mut Module, inst: InstId) {
        let is_said = front_end(module, inst).iter().any(|(key, _)| key == shardy::SHARDING);
        if is_said {
            module.marks_mut(inst).frontend_attributes.retain(|(key, _)| key != shardy::SHARDING);
            self.is_changed = true;
        }
        let config = module.inst(inst).marks.as_ref().and_then(|marks| marks.backend_config.as_ref());
        if config.is_some_and(|config| config.starts_with("unspecified_dims=[")) {
            module.marks_mut(inst).backend_config = None;
            self.is_changed = true;
        }
    }

    /// Calls that give their operand become copies of the same name; those that give nothing go.
    fn replace_call(&mut self, module: &mut Module, inst: InstId, call: SpokenCall) {
        if call.is_identity() {
            let instruction = module.inst_mut(inst);
            instruction.opcode = Opcode::Copy;
            instruction.attrs = Attrs::Plain;
            self.is_changed = true;
        } else if call == SpokenCall::Group {
            let comp = module.inst(inst).parent;
            module.comp_mut(comp).insts.retain(|&other| other != inst);
            self.is_changed = true;
        }
    }

    /// Has one use take its value in other shardings.
    fn reshard(&mut self, module: &mut Module, wanted: Wanted) {
        let comp = module.inst(wanted.given).parent;
        if self.was_live[comp].is_none() {
            self.was_live[comp] = Some(module.live(comp));
        }
        self.edited.insert(comp);
        self.is_changed = true;
        let mut next = 0;
        let new = self.resharded(module, wanted.given, &wanted.leaves, &mut next);
        match wanted.user {
            Some((user, operand)) => module.set_operand(user, operand as usize, new),
            None => module.comp_mut(comp).root = Some(new).into(),
        }
    }

    /// The value with copies of the leaves that are wanted otherwise, from leaf `next` on: a tuple that nobody else takes is changed.
    fn resharded(
        &mut self,
        module: &mut Module,
        value: InstId,
        wanted: &[Option<PlacedSharding>],
        next: &mut usize,
    ) -> InstId {
        let (comp, hint, shape) =
            (module.inst(value).parent, module.inst_name(value).to_string(), module.shape(value).clone());
        let Shape::Tuple(elements) = &shape else {
            let leaf = wanted.get(*next).cloned().flatten();
            *next += 1;
            let Some(leaf) = leaf else { return value };
            let copy = Builder::new(module, comp).add(&hint, Opcode::Copy, shape, [value], Attrs::Plain);
            let metadata = module.inst(value).marks.as_ref().and_then(|marks| marks.metadata.clone());
            let marks = module.marks_mut(copy);
            marks.metadata = metadata;
            marks.sharding = Some(Sharding::Single(self.texts.of(&leaf)));
            self.n_copies += 1;
            return copy;
        };
        let first = *next;
        let is_tuple = module.inst(value).opcode == Opcode::Tuple;
        let mut parts = Vec::with_capacity(elements.len());
        for (k, element) in elements.iter().enumerate() {
            let n_leaves = element.n_leaves();
            if wanted.iter().skip(*next).take(n_leaves).all(|leaf| leaf.is_none()) {
                *next += n_leaves;
                parts.push(None);
                continue;
            }
            let part = match is_tuple {
                true => module.inst(value).operands[k],
                false => self.element(module, value, k, element, *next - first),
            };
            parts.push(Some(self.resharded(module, part, wanted, next)));
        }
        let sharding = self.tuple_sharding(module, value, &wanted[first.min(wanted.len())..]);
        let is_own = is_tuple && self.users[value].len() <= 1 && module.comp(comp).root.expand() != Some(value)
            || is_tuple && self.users[value].is_empty();
        if is_own {
            for (k, part) in parts.into_iter().enumerate() {
                if let Some(part) = part {
                    module.set_operand(value, k, part);
                }
            }
            module.marks_mut(value).sharding = sharding;
            return value;
        }
        let mut operands = Vec::with_capacity(parts.len());
        let mut leaf = 0;
        for (k, part) in parts.into_iter().enumerate() {
            let own = || if is_tuple { module.inst(value).operands.get(k).copied() } else { None };
            let part = part.or_else(own);
            operands.push(match part {
                Some(part) => part,
                None => self.element(module, value, k, &elements[k], leaf),
            });
            leaf += elements[k].n_leaves();
        }
        let tuple = Builder::new(module, comp).add(&hint, Opcode::Tuple, shape.clone(), operands, Attrs::Plain);
        module.marks_mut(tuple).sharding = sharding;
        tuple
    }

    /// An element of a tuple, with its part of the tuple's sharding.
    fn element(&mut self, module: &mut Module, tuple: InstId, index: usize, shape: &Shape, first: usize) -> InstId {
        let (comp, hint) = (module.inst(tuple).parent, module.inst_name(tuple).to_string());
        let leaves = (first..first + shape.n_leaves()).filter_map(|leaf| module.sharding(tuple)?.leaf(leaf).cloned());
        let mut leaves: Vec<LeafSharding> = leaves.collect();
        let sharding = match shape {
            Shape::Tuple(_) => Some(Sharding::Tuple(leaves)),
            Shape::Array(_) | Shape::Token | Shape::Opaque | Shape::Buffer(_) => leaves.pop().map(Sharding::Single),
        };
        let attrs = TupleIndexAttrs { index: index as i64 };
        let read = Builder::new(module, comp).add(&hint, Opcode::GetTupleElement, shape.clone(), [tuple], attrs);
        module.marks_mut(read).sharding = sharding;
        read
    }

    /// A tuple's sharding with some leaves as wanted.
    fn tuple_sharding(
        &mut self,
        module: &Module,
        tuple: InstId,
        wanted: &[Option<PlacedSharding>],
    ) -> Option<Sharding> {
        let mut sharding = module.sharding(tuple)?.clone();
        if let Sharding::Tuple(leaves) = &mut sharding {
            for (leaf, wanted) in leaves.iter_mut().zip(wanted) {
                if let Some(wanted) = wanted {
                    *leaf = self.texts.of(wanted);
                }
            }
        }
        Some(sharding)
    }

    fn finish(self, module: &mut Module) -> Result<(bool, usize), InstId> {
        for comp in self.edited.keys() {
            if let Some(was_live) = &self.was_live[comp] {
                module.remove_newly_dead(comp, was_live, self.n_slots);
            }
            module.restore_order(comp)?;
        }
        Ok((self.is_changed, self.n_copies))
    }
}
