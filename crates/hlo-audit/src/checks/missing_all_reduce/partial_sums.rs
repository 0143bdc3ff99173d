//! Sums of which each device computes a part: over a dim that the entry's shardings cut.

use crate::context::AuditCx;
use crate::follow::{behind, is_function};
use hashbrown::{HashMap, HashSet};
use hlo_analysis::annotations::{ParamLeaf, own_sharding};
use hlo_analysis::values::{Origin, ValueId, condition_and_body};
use hlo_ir::factors::{FactorRole, FactorSet, find_factors};
use hlo_ir::monoid::Monoid;
use hlo_ir::sharding::ShardingKind;
use hlo_ir::{InstId, Opcode};

/// Deeper chains of instructions are not looked at.
const MAX_DEPTH: usize = 2000;

/// Dims of values of which devices hold different parts, found when they are asked for.
pub(super) struct PartialSums<'c> {
    cx: &'c AuditCx<'c>,
    /// One bit for each dim.
    cut: HashMap<ValueId, u64>,
}

impl<'c> PartialSums<'c> {
    pub(super) fn new(cx: &'c AuditCx<'c>) -> PartialSums<'c> {
        PartialSums { cx, cut: HashMap::new() }
    }

    /// The partial sums that alone make a value differ within the groups, nearest first; none where something else does as well.
    pub(super) fn missing(&mut self, value: ValueId, groups: &[Vec<u32>]) -> Option<Vec<InstId>> {
        let (mut found, mut open) = (Vec::new(), vec![value]);
        let mut seen: HashSet<ValueId> = HashSet::from_iter([value]);
        while let Some(value) = open.pop() {
            if self.is_equal(value, groups) {
                continue;
            }
            if self.is_partial_sum(value) {
                found.push(self.cx.values.inst(value));
                continue;
            }
            let next = self.differing(value)?;
            open.extend(next.into_iter().filter(|&next| seen.insert(next)));
        }
        (!found.is_empty()).then_some(found)
    }

    /// Whether a value is known to be equal within the groups, everywhere where it is defined.
    fn is_equal(&self, value: ValueId, groups: &[Vec<u32>]) -> bool {
        let sites = self.cx.values.values[value].sites.iter();
        let is_equal = |&(inst, leaf): &(InstId, u32)| self.cx.replication.is_equal_within(inst, leaf as usize, groups);
        sites.clone().next().is_some() && sites.into_iter().all(is_equal)
    }

    /// What may make a value differ between devices; none where it may differ by itself.
    fn differing(&self, value: ValueId) -> Option<Vec<ValueId>> {
        let (cx, inst) = (self.cx, self.cx.values.inst(value));
        let mut from = behind(cx, value);
        match cx.values.values[value].origin {
            Origin::EntryParam => return None,
            Origin::Computed => {
                let row = cx.module.inst(inst).opcode.row();
                let is_sum = row.collective.is_some_and(|rule| rule.reduces() && !rule.scatters);
                const IDS: [Opcode; 2] = [Opcode::PartitionId, Opcode::ReplicaId];
                if !(is_function(cx, inst) || is_sum) || IDS.contains(&cx.module.inst(inst).opcode) {
                    return None;
                }
            }
            Origin::Carry => {
                let (condition, _) = condition_and_body(cx.module, inst)?;
                from.push(cx.values.of(cx.module.comp(condition).root.expand()?)?);
            }
            Origin::CallResult if cx.module.inst(inst).opcode == Opcode::Conditional => {
                from.push(cx.values.of(*cx.module.inst(inst).operands.first()?)?);
            }
            Origin::Param | Origin::CallResult => {}
        }
        Some(from)
    }

    /// Whether an instruction adds up over a dim that is cut.
    fn is_partial_sum(&mut self, value: ValueId) -> bool {
        if self.cx.values.values[value].origin != Origin::Computed {
            return false;
        }
        let inst = self.cx.values.inst(value);
        let Ok(factors) = find_factors(self.cx.module, inst) else { return false };
        let operands: Vec<InstId> = self.cx.module.inst(inst).operands.to_vec();
        operands.iter().zip(&factors.operands).any(|(&operand, dims)| {
            let cut = self.cx.values.of(operand).map_or(0, |value| self.cut_dims(value, 0));
            let is_summed = |dim: usize| dims[dim].iter().any(|one| one.role == FactorRole::Reduce(Monoid::Add));
            (0..dims.len().min(64)).any(|dim| cut & (1 << dim) != 0 && is_summed(dim))
        })
    }

    /// The dims of a value of which devices hold different parts.
    fn cut_dims(&mut self, value: ValueId, depth: usize) -> u64 {
        if let Some(&known) = self.cut.get(&value) {
            return known;
        }
        // A loop's value is asked for again from inside of the loop.
        self.cut.insert(value, 0);
        let (inst, leaf_idx) = self.cx.values.values[value].sites[0];
        let cut = match self.cx.values.values[value].origin {
            _ if depth > MAX_DEPTH => 0,
            Origin::EntryParam => self.cut_by_sharding(inst, leaf_idx as usize),
            Origin::Param | Origin::CallResult | Origin::Carry => {
                let sources = self.cx.values.sources[value].clone();
                sources.into_iter().fold(0, |cut, source| cut | self.cut_dims(source, depth + 1))
            }
            Origin::Computed => self.cut_by_operands(inst, depth),
        };
        self.cut.insert(value, cut);
        cut
    }

    fn cut_by_sharding(&self, param: InstId, leaf_idx: usize) -> u64 {
        let Some(sharding) = own_sharding(self.cx.module, &ParamLeaf { param, leaf_idx }) else { return 0 };
        let is_cut: Vec<bool> = match &sharding.kind {
            ShardingKind::Tiled(tiling) => {
                tiling.dims.iter().take(tiling.data_rank()).map(|&n_tiles| n_tiles > 1).collect()
            }
            ShardingKind::Named(named) => named.dims.iter().map(|dim| !dim.axes.is_empty()).collect(),
            ShardingKind::Replicated
            | ShardingKind::Maximal(_)
            | ShardingKind::Manual
            | ShardingKind::Unknown
            | ShardingKind::Unreduced
            | ShardingKind::MaximalMesh(_) => Vec::new(),
        };
        is_cut.iter().take(64).enumerate().filter(|(_, is_cut)| **is_cut).fold(0, |cut, (dim, _)| cut | (1 << dim))
    }

    fn cut_by_operands(&mut self, inst: InstId, depth: usize) -> u64 {
        let Ok(factors) = find_factors(self.cx.module, inst) else { return 0 };
        let [result] = factors.results.as_slice() else { return 0 };
        let operands: Vec<InstId> = self.cx.module.inst(inst).operands.to_vec();
        let mut cut = 0;
        for (&operand, dims) in operands.iter().zip(&factors.operands) {
            let of_operand = self.cx.values.of(operand).map_or(0, |value| self.cut_dims(value, depth + 1));
            let cut_dims = (0..dims.len().min(64)).filter(|dim| of_operand & (1 << dim) != 0);
            for one in cut_dims.flat_map(|dim| &dims[dim]).filter(|one| one.role == FactorRole::Pass) {
                if let Some((dim, ..)) = FactorSet::find_use(result, one.factor)
                    && dim < 64
                {
                    cut |= 1 << dim;
                }
            }
        }
        cut
    }
}
