//! Sums of which each device computes a part: over a dim that the entry's shardings cut.
//!
//! The search goes back from a value that should be equal within groups of devices. For most instructions it is enough that the operands are
//! equal within the same groups. For a sum over devices, present or missing, and for an all-gather, it is enough that corresponding members of its
//! groups are: the first member of one group and the first of another, and so on. So a sum over the rows of a mesh answers for the devices of
//! a row, and what its operand must still be is equal along the columns.

use crate::context::AuditCx;
use crate::follow::{behind, is_function};
use hashbrown::{HashMap, HashSet};
use hlo_analysis::annotations::{ParamLeaf, own_sharding};
use hlo_analysis::values::{Origin, ValueId, condition_and_body};
use hlo_ir::factors::{FactorRole, FactorSet, find_factors};
use hlo_ir::monoid::Monoid;
use hlo_ir::op::CollectiveSource;
use hlo_ir::sharding::{ShardingKind, Tiling};
use hlo_ir::{InstId, Opcode};
use indexmap::{IndexMap, IndexSet};
use std::rc::Rc;

/// Deeper chains of instructions are not looked at.
const MAX_DEPTH: usize = 2000;

/// Groups of devices. Those of one device say nothing, and are left out.
type Groups = Vec<Vec<u32>>;

/// For each dim of a value the devices that hold its parts, in the order of the parts, as a number of [`PartialSums::groups`].
type Cuts = Rc<[Option<usize>]>;

/// What is known of cut dims, found when it is asked for.
pub(super) struct PartialSums<'c> {
    cx: &'c AuditCx<'c>,
    groups: IndexSet<Groups>,
    cuts: HashMap<ValueId, Cuts>,
}

impl<'c> PartialSums<'c> {
    pub(super) fn new(cx: &'c AuditCx<'c>) -> PartialSums<'c> {
        PartialSums { cx, groups: IndexSet::new(), cuts: HashMap::new() }
    }

    /// The partial sums that alone make a value differ within the groups; none where something else does as well.
    pub(super) fn missing(&mut self, value: ValueId, groups: &[Vec<u32>]) -> Option<Vec<InstId>> {
        let start = (value, self.groups.insert_full(groups.to_vec()).0);
        let (mut found, mut open) = (IndexSet::new(), vec![start]);
        let mut seen: HashSet<(ValueId, usize)> = HashSet::from_iter([start]);
        while let Some((value, number)) = open.pop() {
            let groups = self.groups[number].clone();
            if self.is_equal(value, &groups) {
                continue;
            }
            let lines = self.summed_lines(value, &groups);
            if lines.is_some() {
                found.insert(self.cx.values.inst(value));
            }
            let still = match lines.or_else(|| self.members(value)) {
                Some(lines) => corresponding(&groups, &lines)?,
                None => groups,
            };
            let from = self.differing(value)?;
            let number = self.groups.insert_full(still).0;
            open.extend(from.into_iter().map(|next| (next, number)).filter(|&next| seen.insert(next)));
        }
        (!found.is_empty()).then(|| found.into_iter().collect())
    }

    /// Whether a value is known to be equal within the groups, everywhere where it is defined.
    fn is_equal(&self, value: ValueId, groups: &[Vec<u32>]) -> bool {
        let is_equal = |&(inst, leaf): &(InstId, u32)| self.cx.replication.is_equal_within(inst, leaf as usize, groups);
        groups.is_empty() || self.cx.values.values[value].sites.iter().all(is_equal)
    }

    /// The groups of the all-reduce or all-gather that computes a value: what all members of a group get depends on what each puts in.
    fn members(&self, value: ValueId) -> Option<Groups> {
        let is_computed = self.cx.values.values[value].origin == Origin::Computed;
        let inst = self.cx.values.inst(value);
        let rule = self.cx.module.inst(inst).opcode.row().collective.filter(|_| is_computed)?;
        let gives_all =
            matches!(rule.source, CollectiveSource::Reduction | CollectiveSource::Members) && !rule.scatters;
        let groups = self.cx.module.device_groups(inst).ok().filter(|_| gives_all && !self.is_kept(value))?;
        Some(groups.groups)
    }

    /// Whether a collective hands a value on that it does not exchange.
    fn is_kept(&self, value: ValueId) -> bool {
        let inst = self.cx.values.inst(value);
        let rule = self.cx.module.inst(inst).opcode.row().collective;
        rule.zip(self.operand_place(value)).is_some_and(|(rule, place)| place >= self.cx.module.n_exchanged(inst, rule))
    }

    /// What goes into the collective that computes a value: one of several arrays.
    fn operand_of(&self, value: ValueId) -> Option<ValueId> {
        let inst = self.cx.values.inst(value);
        self.cx.values.of(*self.cx.module.inst(inst).operands.get(self.operand_place(value)?)?)
    }

    /// Which operand of the collective that computes a value goes into it.
    fn operand_place(&self, value: ValueId) -> Option<usize> {
        let (inst, leaf_idx) = self.cx.values.values[value].sites[0];
        let rule = self.cx.module.inst(inst).opcode.row().collective?;
        let n_before = if rule.has_operands_in_result() { self.cx.module.inst(inst).operands.len() } else { 0 };
        (leaf_idx as usize).checked_sub(n_before)
    }

    /// What may make a value differ between devices; none where it may differ by itself.
    fn differing(&self, value: ValueId) -> Option<Vec<ValueId>> {
        const IDS: [Opcode; 2] = [Opcode::PartitionId, Opcode::ReplicaId];
        let (cx, inst) = (self.cx, self.cx.values.inst(value));
        let mut from = behind(cx, value);
        match cx.values.values[value].origin {
            Origin::EntryParam => return None,
            Origin::Computed if self.members(value).is_some() || self.is_kept(value) => {
                return Some(vec![self.operand_of(value)?]);
            }
            Origin::Computed => {
                if !is_function(cx, inst) || IDS.contains(&cx.module.inst(inst).opcode) {
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

    /// The devices that hold the parts of what an instruction adds up, if some of them are in one of the groups.
    fn summed_lines(&mut self, value: ValueId, groups: &[Vec<u32>]) -> Option<Groups> {
        if self.cx.values.values[value].origin != Origin::Computed {
            return None;
        }
        let inst = self.cx.values.inst(value);
        let factors = find_factors(self.cx.module, inst).ok()?;
        let operands: Vec<InstId> = self.cx.module.inst(inst).operands.to_vec();
        for (&operand, dims) in operands.iter().zip(&factors.operands) {
            let Some(cuts) = self.cx.values.of(operand).map(|value| self.cuts(value, 0)) else { continue };
            for (uses, cut) in dims.iter().zip(cuts.iter()) {
                let is_summed = uses.iter().any(|one| one.role == FactorRole::Reduce(Monoid::Add));
                let lines = cut.filter(|_| is_summed).map(|number| self.groups[number].clone());
                if let Some(lines) = lines.filter(|lines| meet(lines, groups)) {
                    return Some(lines);
                }
            }
        }
        None
    }

    /// The dims of a value of which devices hold different parts.
    fn cuts(&mut self, value: ValueId, depth: usize) -> Cuts {
        if let Some(known) = self.cuts.get(&value) {
            return known.clone();
        }
        let rank = self.cx.values.shape(self.cx.module, value).map_or(0, |shape| shape.rank());
        let mut cuts: Vec<Option<usize>> = vec![None; rank];
        // A loop's value is asked for again from inside of the loop.
        self.cuts.insert(value, cuts.clone().into());
        let (inst, leaf_idx) = self.cx.values.values[value].sites[0];
        if depth <= MAX_DEPTH {
            match self.cx.values.values[value].origin {
                Origin::EntryParam => self.cut_by_sharding(inst, leaf_idx as usize, &mut cuts),
                Origin::Param | Origin::CallResult | Origin::Carry => {
                    for source in self.cx.values.sources[value].clone() {
                        let of_source = self.cuts(source, depth + 1);
                        cuts.iter_mut().zip(of_source.iter()).for_each(|(cut, more)| *cut = cut.or(*more));
                    }
                }
                Origin::Computed => self.cut_by_operands(inst, depth, &mut cuts),
            }
        }
        let cuts: Cuts = cuts.into();
        self.cuts.insert(value, cuts.clone());
        cuts
    }

    fn cut_by_sharding(&mut self, param: InstId, leaf_idx: usize, cuts: &mut [Option<usize>]) {
        let module = self.cx.module;
        let Some(sharding) = own_sharding(module, &ParamLeaf { param, leaf_idx }) else { return };
        let ShardingKind::Tiled(tiling) = &sharding.kind else { return };
        let n_partitions = module.header.num_partitions.max(1) as u32;
        let n_replicas = module.header.replica_count.max(1) as u32;
        for (dim, cut) in cuts.iter_mut().enumerate().take(tiling.data_rank()) {
            let lines = lines_along(tiling, dim);
            let of_replica = |replica: u32| {
                let flat = move |device: &u32| replica.saturating_mul(n_partitions).saturating_add(*device);
                lines.iter().map(move |line| line.iter().map(flat).collect())
            };
            let all: Groups = (0..n_replicas).flat_map(of_replica).collect();
            *cut = (!all.is_empty()).then(|| self.groups.insert_full(all).0);
        }
    }

    fn cut_by_operands(&mut self, inst: InstId, depth: usize, cuts: &mut [Option<usize>]) {
        let Ok(factors) = find_factors(self.cx.module, inst) else { return };
        let [result] = factors.results.as_slice() else { return };
        let operands: Vec<InstId> = self.cx.module.inst(inst).operands.to_vec();
        for (&operand, dims) in operands.iter().zip(&factors.operands) {
            let Some(of_operand) = self.cx.values.of(operand).map(|value| self.cuts(value, depth + 1)) else {
                continue;
            };
            for (uses, cut) in dims.iter().zip(of_operand.iter()).filter(|(_, cut)| cut.is_some()) {
                for one in uses.iter().filter(|one| one.role == FactorRole::Pass) {
                    let to = FactorSet::find_use(result, one.factor).and_then(|(dim, ..)| cuts.get_mut(dim));
                    to.into_iter().for_each(|to| *to = to.or(*cut));
                }
            }
        }
    }
}

/// The devices that hold the parts along a dim, for each place in the other dims; none where the dim is not cut.
fn lines_along(tiling: &Tiling, dim: usize) -> Groups {
    let n_tiles = usize::try_from(tiling.dims[dim]).unwrap_or(1);
    let devices = tiling.device_list().filter(|_| n_tiles > 1).unwrap_or_default();
    let stride =
        tiling.dims[dim + 1..].iter().fold(1, |n: usize, &d| n.saturating_mul(usize::try_from(d).unwrap_or(1)));
    let mut lines: IndexMap<usize, Vec<u32>> = IndexMap::new();
    for (place, device) in devices.into_iter().enumerate() {
        let tile = place / stride.max(1) % n_tiles;
        lines.entry(place - tile * stride).or_default().extend(u32::try_from(device).ok());
    }
    lines.into_values().collect()
}

/// Whether two devices of a line are in one group.
fn meet(lines: &[Vec<u32>], groups: &[Vec<u32>]) -> bool {
    let n_in = |line: &Vec<u32>, group: &Vec<u32>| line.iter().filter(|device| group.contains(device)).count();
    lines.iter().any(|line| groups.iter().any(|group| n_in(line, group) > 1))
}

/// The devices whose values must be equal for the sums over `lines` to be equal within `groups`; none where lines differ in length.
fn corresponding(groups: &[Vec<u32>], lines: &[Vec<u32>]) -> Option<Groups> {
    let mut line_of: HashMap<u32, usize> = HashMap::new();
    for (number, line) in lines.iter().enumerate() {
        line_of.extend(line.iter().map(|&device| (device, number)));
    }
    let mut found = Groups::new();
    for group in groups {
        let numbers: Option<IndexSet<usize>> = group.iter().map(|device| line_of.get(device).copied()).collect();
        let met: Vec<&Vec<u32>> = numbers?.into_iter().map(|number| &lines[number]).collect();
        let n_members = met.first().map_or(0, |line| line.len());
        if met.iter().any(|line| line.len() != n_members) {
            return None;
        }
        found.extend((0..n_members).map(|k| met.iter().map(|line| line[k]).collect::<Vec<u32>>()));
    }
    found.retain(|group| group.len() > 1);
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_over_rows_leaves_columns() {
        let all = vec![vec![0, 1, 2, 3]];
        let rows = vec![vec![0, 1], vec![2, 3]];
        assert_eq!(corresponding(&all, &rows), Some(vec![vec![0, 2], vec![1, 3]]));
        assert_eq!(corresponding(&all, &all), Some(vec![]));
        assert_eq!(corresponding(&all, &[vec![0, 1], vec![2]]), None);
        assert!(meet(&rows, &all) && !meet(&rows, &[vec![0, 2], vec![1, 3]]));
    }
}
