//! Which dims of all values are the same dim: the classes that Mesh-TensorFlow gives names to.
//!
//! HLO has no names of dims. Ops tie the dims of their tensors by factors ([`hlo_ir::factors`]), and loops, branches and calls tie what
//! they carry. Dims that are tied and have the same size are one class. Dims of other sizes are other dims, even where an op
//! makes one of the other: a slice, a concatenation.
//!
//! A reshape that splits or merges dims makes one dim the product of others ([`Parts`]): a class is one *part*, and a dim is a list of
//! parts, major to minor. Where a name is given to a dim of several parts, its major part has it.

use super::parts::{PartId, PartList, Parts};
use crate::error::PartitionError;
use crate::mesh::ModuleMesh;
use crate::propagate_shardings::calls::SpokenCall;
use crate::propagate_shardings::claims::ClaimReader;
use crate::propagate_shardings::constants::ConstantCopies;
use crate::propagate_shardings::graph::ShardingGraph;
use crate::propagate_shardings::ties::{FactorEffect, Tie, TieId, TieRule};
use crate::propagate_shardings::values::CutId;
use cranelift_entity::SecondaryMap;
use hlo_ir::diag::Entity;
use hlo_ir::names::FixedHash;
use hlo_ir::{InstId, Module, shardy};
use hlo_spmd::CallSiteCopies;
use indexmap::IndexMap;
use smallvec::SmallVec;

/// A dim of a value, or a part of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct DimPlace {
    pub value: CutId,
    pub dim: u32,
    /// Which of the dim's parts.
    pub part: u32,
}

/// Dims that are one.
#[derive(Clone, Debug)]
pub(crate) struct DimClass {
    pub part: PartId,
    pub size: i64,
    /// Where it occurs, in the order of the module.
    pub places: Vec<DimPlace>,
    /// The ops that reduce it out.
    pub reduced_by: Vec<InstId>,
}

/// A factor of an op, by the classes of its parts.
#[derive(Clone, Debug)]
pub(crate) struct OpDim {
    pub effect: FactorEffect,
    /// A dim that has it.
    pub value: CutId,
    pub dim: u32,
    pub parts: PartList,
}

/// A global program without its annotations, each constant and each called computation once for each use; with its classes of dims.
pub(crate) struct DimProgram {
    /// The program.
    pub module: Module,
    pub graph: ShardingGraph,
    pub parts: Parts,
    /// The node of each dim.
    nodes: SecondaryMap<CutId, SmallVec<[PartId; 4]>>,
    pub constants: ConstantCopies,
    pub copies: CallSiteCopies,
    /// Instructions from here on are copies.
    n_original: usize,
}

impl DimProgram {
    /// Reads a global program.
    ///
    /// # Errors
    /// A manual region: its values are local already.
    pub(crate) fn read(original: &Module) -> Result<DimProgram, PartitionError> {
        let mut module = original.clone();
        remove_annotations(&mut module)?;
        let copies = match CallSiteCopies::has_shared(&module) {
            true => CallSiteCopies::split(&mut module),
            false => CallSiteCopies::default(),
        };
        let constants = ConstantCopies::split(&mut module)
            .map_err(|inst| PartitionError::about("acyclic", Entity::Inst(inst), "expected no circle of operands"))?;
        let mesh = ModuleMesh::of(&module)?;
        let graph = ShardingGraph::build(&module, &mut ClaimReader::new(&module, &mesh)?)?;
        let mut program = DimProgram {
            module,
            graph,
            parts: Parts::default(),
            nodes: SecondaryMap::new(),
            constants,
            copies,
            n_original: original.n_inst_slots(),
        };
        for (id, value) in &program.graph.values {
            program.nodes[id] = value.dims.iter().map(|dim| program.parts.add(dim.size)).collect();
        }
        let ties: Vec<TieId> = program.graph.ties.keys().collect();
        ties.into_iter().for_each(|tie| program.join_tie(tie));
        Ok(program)
    }

    /// The instruction for an error about the module as it came: none for a copy.
    pub(crate) fn entity(&self, inst: InstId) -> Entity {
        use cranelift_entity::EntityRef;
        if inst.index() < self.n_original { Entity::Inst(inst) } else { Entity::Module }
    }

    /// The parts of a dim.
    pub(crate) fn parts_of(&self, value: CutId, dim: usize) -> PartList {
        self.nodes[value].get(dim).map_or_else(PartList::new, |&node| self.parts.leaves(node))
    }

    /// Makes two parts one.
    pub(super) fn join(&mut self, one: PartId, other: PartId) -> bool {
        self.parts.join(one, other)
    }

    /// Joins the dims that an op or an edge ties.
    fn join_tie(&mut self, tie: TieId) {
        let tie = &self.graph.ties[tie];
        let Some(rule) = &tie.rule else {
            let Some((first, others)) = tie.tensors.split_first() else { return };
            for other in others {
                for (&a, &b) in self.nodes[first.value].iter().zip(&self.nodes[other.value]) {
                    self.parts.join(a, b);
                }
            }
            return;
        };
        let mut known: Vec<Option<PartId>> = vec![None; rule.factors.len()];
        for (tensor, of_dims) in tie.tensors.iter().zip(&rule.tensors) {
            for (&node, of_dim) in self.nodes[tensor.value].iter().zip(of_dims) {
                let sizes: SmallVec<[i64; 2]> =
                    of_dim.iter().map(|&f| rule.factors.get(usize::from(f)).map_or(0, |factor| factor.size)).collect();
                let own: PartList = match of_dim.len() {
                    0 => continue,
                    1 => [node].into_iter().collect(),
                    _ => {
                        let (product, own) = self.parts.add_product(&sizes);
                        if !self.parts.join(product, node) {
                            continue;
                        }
                        own
                    }
                };
                for (&factor, &part) in of_dim.iter().zip(&own) {
                    match known.get_mut(usize::from(factor)) {
                        Some(Some(one)) => _ = self.parts.join(*one, part),
                        Some(slot) => *slot = Some(part),
                        None => {}
                    }
                }
            }
        }
    }

    /// The dims of an op: its factors, each at the first dim that has it.
    pub(crate) fn op_dims(&self, tie: &Tie) -> Vec<OpDim> {
        let mut out = Vec::new();
        let Some(rule) = &tie.rule else {
            let Some(first) = tie.tensors.first() else { return out };
            for dim in 0..self.nodes[first.value].len() {
                let parts = self.parts_of(first.value, dim);
                out.push(OpDim { effect: FactorEffect::Pass, value: first.value, dim: dim as u32, parts });
            }
            return out;
        };
        for (number, factor) in rule.factors.iter().enumerate() {
            let Some((tensor, dim, place)) = find_factor(rule, number as u16) else { continue };
            let Some(value) = tie.tensors.get(tensor).map(|tensor| tensor.value) else { continue };
            let before: i64 = rule.tensors[tensor][dim][..place]
                .iter()
                .map(|&f| rule.factors.get(usize::from(f)).map_or(1, |factor| factor.size))
                .product();
            let is_alone = rule.tensors[tensor][dim].len() == 1;
            let parts = match is_alone {
                true => self.parts_of(value, dim),
                false => self.parts_between(&self.parts_of(value, dim), before, factor.size),
            };
            out.push(OpDim { effect: factor.effect, value, dim: dim as u32, parts });
        }
        out
    }

    /// The parts of a dim from a product of `before` on, of `size` together; none where no parts end there.
    fn parts_between(&self, parts: &[PartId], before: i64, size: i64) -> PartList {
        let (mut at, mut out, mut n) = (1i64, PartList::new(), 1i64);
        for &part in parts {
            if at >= before && n < size {
                out.push(part);
                n = n.saturating_mul(self.parts.size(part));
            }
            at = at.saturating_mul(self.parts.size(part));
        }
        if n == size { out } else { PartList::new() }
    }

    /// All classes: those of parameters first, then in the order of the module.
    pub(crate) fn classes(&self) -> Vec<DimClass> {
        let mut found: IndexMap<PartId, DimClass, FixedHash> = IndexMap::default();
        let entry = self.module.entry().map_or(&[][..], |entry| &self.module.comp(entry).params);
        let params = entry.iter().flat_map(|&param| self.graph.of_leaves(param).flatten());
        let mut order: IndexMap<CutId, (), FixedHash> = params.map(|value| (value, ())).collect();
        order.extend(self.graph.values.keys().map(|value| (value, ())));
        for &value in order.keys() {
            for dim in 0..self.nodes[value].len() {
                for (place, part) in self.parts_of(value, dim).into_iter().enumerate() {
                    let size = self.parts.size(part);
                    let class = found.entry(part).or_insert_with(|| DimClass {
                        part,
                        size,
                        places: Vec::new(),
                        reduced_by: Vec::new(),
                    });
                    class.places.push(DimPlace { value, dim: dim as u32, part: place as u32 });
                }
            }
        }
        for tie in self.graph.ties.values().filter(|tie| tie.rule.is_some()) {
            for dim in self.op_dims(tie).iter().filter(|dim| dim.effect == FactorEffect::Reduce) {
                for part in &dim.parts {
                    let class = found.get_mut(part);
                    class.into_iter().for_each(|class| class.reduced_by.push(tie.inst));
                }
            }
        }
        found.into_values().collect()
    }

    /// Where a dim stands, in words: `%x:0`, or `%t:1.0` for the first dim of leaf 1, and `/1` for the second part of a dim.
    pub(crate) fn place_text(&self, place: DimPlace) -> String {
        let value = &self.graph.values[place.value];
        let is_array = self.module.shape(value.inst).as_array().is_some();
        let leaf = if is_array { String::new() } else { format!("{}.", value.leaf) };
        let part = if place.part == 0 { String::new() } else { format!("/{}", place.part) };
        format!("%{}:{leaf}{}{part}", self.module.inst_name(value.inst), place.dim)
    }

    /// A tensor in words: name, shape, and what the framework calls it.
    pub(crate) fn tensor_text(&self, value: CutId) -> String {
        let value = &self.graph.values[value];
        let shape = self.module.shapes.leaf(self.module.inst(value.inst).shape, value.leaf as usize);
        let shape = shape.map(|shape| hlo_ir::infer::ShapeText(shape).to_string()).unwrap_or_default();
        let leaf = match self.module.shape(value.inst).as_array() {
            Some(_) => String::new(),
            None => format!(" leaf {}", value.leaf),
        };
        let op_name = self.op_name(value.inst).map_or(String::new(), |name| format!(" ({name})"));
        format!("%{}{leaf} {shape}{op_name}", self.module.inst_name(value.inst))
    }

    /// What the framework calls an instruction.
    pub(crate) fn op_name(&self, inst: InstId) -> Option<&str> {
        self.module.inst(inst).marks.as_ref()?.op_name()
    }
}

/// The first tensor and dim that have a factor, and its place among the factors of the dim.
fn find_factor(rule: &TieRule, factor: u16) -> Option<(usize, usize, usize)> {
    rule.tensors.iter().enumerate().find_map(|(tensor, dims)| {
        dims.iter()
            .enumerate()
            .find_map(|(dim, of_dim)| of_dim.iter().position(|&one| one == factor).map(|place| (tensor, dim, place)))
    })
}

/// Removes what the module says of shardings: a layout says all.
///
/// # Errors
/// A manual region.
fn remove_annotations(module: &mut Module) -> Result<(), PartitionError> {
    let insts: Vec<InstId> = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied().collect();
    for inst in insts {
        if let Some(SpokenCall::Begin | SpokenCall::End) = SpokenCall::of(module, inst) {
            let text = format!(
                "%{}: expected a global program, found a manual region; its values are cut already",
                module.inst_name(inst)
            );
            return Err(PartitionError::about("mesh-layout", Entity::Inst(inst), text));
        }
        if module.inst(inst).marks.is_some() {
            let marks = module.marks_mut(inst);
            marks.sharding = None;
            marks.frontend_attributes.retain(|(key, _)| !key.starts_with("xla.sdy."));
        }
    }
    module.header.frontend_attributes.retain(|(key, _)| key != shardy::MESHES);
    Ok(())
}
