//! What a placement problem is about, and what is asked of each of its values again and again.

use crate::tables::{IndexMap, IndexSet};
use cranelift_entity::SecondaryMap;
use hlo_analysis::replication::Replication;
use hlo_analysis::values::{Origin, ValueId, Values};
use hlo_ir::attrs::Attrs;
use hlo_ir::op::FactorRule;
use hlo_ir::shape::ShapeId;
use hlo_ir::{InstId, Module, Opcode};
use hlo_pass::Deadline;
use hlo_spmd::{DimRelation, OperandCut};
use hlo_spmd::{DimRun, is_broadcast, is_rebuilt};
use smallvec::SmallVec;

/// How the entry's parameters may be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StateCuts {
    /// Along any dims, which are merged and padded where need be.
    Any,
    /// Only along one dim that is a multiple of the number of shards.
    Even,
    /// As `Even` where that is possible; else merged, or padded by a small share, where they are large and no weights.
    Padded,
}

/// A module, its values, and the gradients that are summed over the same groups.
pub struct ShardingContext<'a> {
    /// The module.
    pub module: &'a Module,
    /// Its values.
    pub values: &'a Values,
    /// Which values are equal on which devices.
    pub replication: &'a Replication,
    /// The groups of devices that hold the gradients, over which shards lie.
    pub groups: &'a [Vec<u32>],
    /// Number of shards.
    pub n_shards: usize,
    /// Gradients: results of all-reduces over these groups, or over parts of them of which the others repeat the work.
    pub gradients: IndexSet<ValueId>,
    /// How the entry's parameters may be cut.
    pub cuts: StateCuts,
    /// When to stop.
    pub deadline: Deadline,
    /// Of each instruction that was asked for: where in `known_relations`, if anywhere.
    relations: SecondaryMap<InstId, Option<Option<u32>>>,
    /// Distinct ones: most instructions of a module are related in one of a few ways.
    known_relations: IndexSet<DimRelation>,
    /// Of elementwise ops: their relation follows from what they are, and the shapes of operands and result.
    of_shapes: IndexMap<(Opcode, SmallVec<[ShapeId; 4]>), Option<u32>>,
    eligible: SecondaryMap<ValueId, Option<bool>>,
    pub(crate) taken: SecondaryMap<ValueId, bool>,
}

impl<'a> ShardingContext<'a> {
    /// A context in which no value has a format yet, and every format is allowed.
    pub fn new(
        module: &'a Module,
        values: &'a Values,
        replication: &'a Replication,
        groups: &'a [Vec<u32>],
        gradients: IndexSet<ValueId>,
    ) -> ShardingContext<'a> {
        let n_shards = groups.first().map_or(1, Vec::len);
        let (relations, eligible, taken) = (SecondaryMap::new(), SecondaryMap::new(), SecondaryMap::new());
        ShardingContext {
            module,
            values,
            replication,
            groups,
            n_shards,
            gradients,
            cuts: StateCuts::Any,
            deadline: Deadline::default(),
            relations,
            known_relations: IndexSet::default(),
            of_shapes: IndexMap::default(),
            eligible,
            taken,
        }
    }

    /// How dims go through the instruction, if it can be computed on shards.
    pub fn relation(&mut self, inst: InstId) -> Option<&DimRelation> {
        let place = match self.relations[inst] {
            Some(place) => place,
            None => {
                let place = self.find_relation(inst);
                self.relations[inst] = Some(place);
                place
            }
        };
        self.known_relations.get_index(place? as usize)
    }

    /// Where in `known_relations` the relation of an instruction stands.
    fn find_relation(&mut self, inst: InstId) -> Option<u32> {
        let module = self.module;
        let instruction = module.inst(inst);
        let is_elementwise = instruction.opcode.row().factors == FactorRule::Elementwise;
        let is_plain = matches!(instruction.attrs, Attrs::Plain);
        let has_control = instruction.marks.as_ref().is_some_and(|marks| !marks.control_predecessors.is_empty());
        let key = (is_elementwise && is_plain && !has_control).then(|| {
            let operands = instruction.operands.iter().map(|&operand| module.inst(operand).shape);
            (instruction.opcode, std::iter::once(instruction.shape).chain(operands).collect())
        });
        if let Some(&place) = key.as_ref().and_then(|key| self.of_shapes.get(key)) {
            return place;
        }
        let found = DimRelation::find(module, inst);
        let place = found.map(|relation| self.known_relations.insert_full(relation).0 as u32);
        if let Some(key) = key {
            self.of_shapes.insert(key, place);
        }
        place
    }

    /// Whether a gradient is added up by all devices that hold it, so that it can be scattered to them.
    pub(crate) fn is_summed_by_all(&self, gradient: ValueId) -> bool {
        let groups = self.module.device_groups(self.values.inst(gradient));
        groups.is_ok_and(|groups| groups.groups.iter().any(|group| group.len() >= self.n_shards))
    }

    /// Whether a value can be rebuilt on a shard from nothing: constants, iota, a scalar's broadcast. Such values have no
    /// format.
    pub fn is_rebuilt(&self, value: ValueId) -> bool {
        let inst = self.values.inst(value);
        is_rebuilt(self.module, inst) && self.values.values[value].origin == Origin::Computed
    }

    /// Whether a value may have a format: a whole array that is the same on all devices of a group.
    pub(crate) fn is_eligible(&mut self, value: ValueId) -> bool {
        if let Some(known) = self.eligible[value] {
            return known;
        }
        let shape = self.values.shape(self.module, value);
        let is_array = shape.is_some_and(|s| s.rank() > 0 && s.dynamic == 0 && s.n_elems() > 1);
        let sites = &self.values.values[value].sites;
        let is_equal =
            || sites.iter().all(|&(inst, leaf)| self.replication.is_equal_within(inst, leaf as usize, self.groups));
        let known = is_array && is_equal() && !self.is_rebuilt(value);
        self.eligible[value] = Some(known);
        known
    }

    /// Whether a value of a region can be computed in shards.
    pub fn can_shard(&mut self, runs: &IndexMap<ValueId, DimRun>, value: ValueId) -> bool {
        if self.gradients.contains(&value) {
            return true;
        }
        match self.values.values[value].origin {
            Origin::EntryParam => return false,
            Origin::Param | Origin::Carry | Origin::CallResult => return true,
            Origin::Computed => {}
        }
        let (inst, run) = (self.values.inst(value), runs[&value]);
        let (module, values) = (self.module, self.values);
        let is_fused = values.fused.contains(module.inst(inst).parent);
        let cuts: SmallVec<[OperandCut; 4]> = match self.relation(inst) {
            // A fusion's body has no shard id to know the end by.
            Some(relation) if is_fused && relation.changes_end(run.start) => return false,
            Some(relation) => (0..module.inst(inst).operands.len()).map(|k| relation.operand_cut(k, run)).collect(),
            None => return false,
        };
        module.inst(inst).operands.iter().zip(cuts).all(|(&operand, cut)| match (cut, values.of(operand)) {
            (OperandCut::Whole, _) => true,
            (OperandCut::Run(run), Some(operand)) => match self.is_rebuilt(operand) {
                // A fusion's body has no shard id to cut a constant or to start an iota with.
                true => !is_fused || is_broadcast(module, values.inst(operand)),
                false => runs.get(&operand) == Some(&run),
            },
            (OperandCut::Run(_) | OperandCut::Impossible, _) => false,
        })
    }
}
