//! Branches alike: ops that stand once in each of several branches, none of which needs another one.

use super::stacked_op::{can_stack, is_same_everywhere};
use crate::independent::by_rank;
use crate::rewritable::seen_layouts;
use cranelift_entity::{EntitySet, PrimaryMap, SecondaryMap, entity_impl};
use hlo_ir::attrs::{Attrs, ParameterAttrs, ReduceAttrs};
use hlo_ir::cost::Costs;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::names::FixedHash;
use hlo_ir::{CompId, InstId, Module, Opcode, ShapeId};
use indexmap::{IndexMap, IndexSet};
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Ops that are one op on stacked operands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupId(u32);
entity_impl!(GroupId, "group");

/// Branches of one computation: several sets of them, if one does not reach another.
#[derive(Clone, Debug)]
pub(super) struct Branches {
    pub comp: CompId,
    /// By group, the op of each branch.
    pub groups: PrimaryMap<GroupId, Vec<InstId>>,
    /// The group of an instruction, and its branch.
    pub of: SecondaryMap<InstId, Option<(GroupId, usize)>>,
    /// The first group of each set.
    pub sets: Vec<GroupId>,
    /// The groups, those that others need first.
    pub order: Vec<GroupId>,
    /// Values of the program as it was of which somebody sees how they lie.
    pub seen: EntitySet<InstId>,
}

impl Branches {
    /// The group of which these are the ops, in order of the branches.
    pub(super) fn group_of_all(&self, insts: &[InstId]) -> Option<GroupId> {
        let (group, _) = self.of[*insts.first()?]?;
        (self.groups[group] == insts).then_some(group)
    }

    /// The groups of a set.
    pub(super) fn groups_of_set(&self, set: usize) -> impl Iterator<Item = &Vec<InstId>> {
        let end = self.sets.get(set + 1).map_or(self.groups.len(), |group| group.as_u32() as usize);
        (self.sets[set].as_u32() as usize..end).map(|k| &self.groups[GroupId::from_u32(k as u32)])
    }

    /// The part of the computation's arithmetic that the branches have.
    pub(super) fn share(&self, module: &Module) -> f64 {
        let costs = Costs::new(module);
        let flops = |inst: InstId| costs.of(inst).flops as f64;
        let own: f64 = self.groups.values().flatten().map(|&inst| flops(inst)).sum();
        let all: f64 = module.comp(self.comp).insts.iter().map(|&inst| flops(inst)).sum();
        own / all.max(1.0)
    }

    /// Whether an op of these branches is one of those, too.
    fn meets(&self, other: &Branches) -> bool {
        self.groups.values().flatten().any(|&inst| other.of[inst].is_some())
    }

    /// These branches and those.
    fn with(&self, other: &Branches) -> Branches {
        let mut all = self.clone();
        for insts in other.groups.values() {
            let group = all.groups.push(insts.clone());
            insts.iter().enumerate().for_each(|(branch, &inst)| all.of[inst] = Some((group, branch)));
        }
        let first = self.groups.len() as u32;
        all.sets.extend(other.sets.iter().map(|group| GroupId::from_u32(group.as_u32() + first)));
        all
    }

    /// Adds a group if its ops are new, distinct, and can be stacked.
    fn add(&mut self, module: &Module, insts: Vec<InstId>) -> Option<GroupId> {
        let is_new = |k: usize| self.of[insts[k]].is_none() && !insts[..k].contains(&insts[k]);
        // The sums of a chain each take the one before.
        let takes_another = insts.iter().any(|&inst| module.inst(inst).operands.iter().any(|o| insts.contains(o)));
        if !(0..insts.len()).all(is_new) || takes_another || !can_stack(module, &insts, &self.seen) {
            return None;
        }
        let group = self.groups.next_key();
        insts.iter().enumerate().for_each(|(branch, &inst)| self.of[inst] = Some((group, branch)));
        Some(self.groups.push(insts))
    }
}

/// What ops have to agree in.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Kind {
    opcode: Opcode,
    attrs: Attrs,
    reduction: Option<Monoid>,
    frontend_attributes: Vec<(String, String)>,
    shape: ShapeId,
}

impl Kind {
    fn of(module: &Module, inst: InstId) -> Kind {
        let node = module.inst(inst);
        let (mut attrs, mut reduction) = (node.attrs.clone(), None);
        if let Some(reduce) = ReduceAttrs::of(&attrs)
            && let Some(monoid) = reduce.to_apply.and_then(|comp| find_monoid(module, comp))
        {
            // Front ends write the same reducer once for each reduction.
            reduction = Some(monoid);
            attrs = ReduceAttrs { to_apply: None, ..reduce.clone() }.into();
        }
        if node.opcode == Opcode::Parameter {
            attrs = ParameterAttrs::default().into();
        }
        let marks = node.marks.as_ref();
        let frontend_attributes = marks.map_or_else(Vec::new, |marks| marks.frontend_attributes.clone());
        Kind { opcode: node.opcode, attrs, reduction, frontend_attributes, shape: node.shape }
    }
}

/// Who takes a value as which operand; branches meet in different operands of one op, which count as one.
type Takers = SecondaryMap<InstId, Vec<(InstId, u32)>>;

fn takers(module: &Module, kinds: &Kinds) -> Takers {
    let mut takers = Takers::new();
    for &inst in kinds.keys() {
        for (k, &operand) in module.inst(inst).operands.iter().enumerate() {
            let is_alike = matches!(module.inst(inst).opcode, Opcode::Tuple | Opcode::Concatenate | Opcode::Add);
            takers[operand].push((inst, if is_alike { 0 } else { k as u32 }));
        }
    }
    takers
}

/// Numbers for ops that look alike.
type Colours = SecondaryMap<InstId, u32>;

/// By kind alone.
fn colours_of_kinds(kinds: &Kinds) -> Colours {
    let mut known: IndexMap<&Kind, u32, FixedHash> = IndexMap::default();
    let mut colours = Colours::new();
    for (&inst, kind) in kinds {
        let next = known.len() as u32;
        colours[inst] = *known.entry(kind).or_insert(next);
    }
    colours
}

/// An op's colour, and those of what takes it, with the operand that they take it as.
type Look = (u32, Vec<(u32, u32)>);

/// The colours one step further: by an op's colour, and those of what takes it.
fn refined(takers: &Takers, kinds: &Kinds, colours: &Colours) -> Colours {
    let mut known: IndexMap<Look, u32, FixedHash> = IndexMap::default();
    let mut finer = Colours::new();
    for &inst in kinds.keys() {
        let mut of_takers: Vec<(u32, u32)> = takers[inst].iter().map(|&(user, k)| (colours[user], k)).collect();
        of_takers.sort();
        let next = known.len() as u32;
        finer[inst] = *known.entry((colours[inst], of_takers)).or_insert(next);
    }
    finer
}

type Kinds = IndexMap<InstId, Kind, FixedHash>;

/// The most ops alike that are taken for branches.
const MOST_BRANCHES: usize = 256;
/// How far, in ops, what takes a product is looked at: branches that begin otherwise look alike only near their ends.
const MOST_STEPS: usize = 12;
/// The most sets of products from which branches are followed.
const MOST_SEEDS: usize = 64;

/// Sets of products that look alike within some distance of what takes them, and do not need each other.
fn find_seeds(module: &Module, comp: CompId, kinds: &Kinds, costs: &Costs<'_>) -> Vec<Vec<InstId>> {
    let takers = takers(module, kinds);
    let mut colours = colours_of_kinds(kinds);
    let mut classes: IndexSet<Vec<InstId>, FixedHash> = IndexSet::default();
    for _ in 0..MOST_STEPS {
        colours = refined(&takers, kinds, &colours);
        let mut alike: IndexMap<u32, Vec<InstId>, FixedHash> = IndexMap::default();
        for &inst in kinds.keys().filter(|&&inst| module.inst(inst).opcode == Opcode::Dot) {
            alike.entry(colours[inst]).or_default().push(inst);
        }
        classes.extend(alike.into_values().filter(|class| class.len() > 1));
    }
    let mut seeds: IndexSet<Vec<InstId>, FixedHash> = IndexSet::default();
    classes.sort_by_key(|class| Reverse(costs.of(class[0]).flops.saturating_mul(class.len() as u64)));
    for class in classes.iter().take(MOST_SEEDS) {
        seeds.extend(by_rank(module, comp, class).into_iter().filter(|seed| (2..=MOST_BRANCHES).contains(&seed.len())));
    }
    let mut seeds: Vec<Vec<InstId>> = seeds.into_iter().collect();
    seeds.sort_by_key(|seed| Reverse(costs.of(seed[0]).flops.saturating_mul(seed.len() as u64)));
    seeds.truncate(MOST_SEEDS);
    seeds
}

/// The most ways of making branches one that are handed out.
const MOST_WAYS: usize = 4;

/// Ways of making branches of a computation one, those with most arithmetic first: single sets of branches, and sets that do not meet
/// together.
pub(super) fn find_branches(module: &Module, comp: CompId) -> Vec<Branches> {
    let live = module.live(comp);
    let insts = module.comp(comp).insts.iter().filter(|&&inst| live.contains(inst));
    let kinds: Kinds = insts.map(|&inst| (inst, Kind::of(module, inst))).collect();
    let costs = Costs::new(module);
    let users = users(module, &kinds);
    let seeds = find_seeds(module, comp, &kinds, &costs);
    let seen = seen_layouts(module, comp);
    let flops =
        |found: &Branches| found.groups.values().flatten().map(|&inst| costs.of(inst).flops as f64).sum::<f64>();
    let (mut sets, mut known): (Vec<Branches>, IndexSet<Vec<Vec<InstId>>, FixedHash>) = Default::default();
    for seed in seeds {
        // Sums that one branch's value goes into behind another one's stand one behind the other.
        let grown = grow(module, comp, &users, &kinds, (&seed, Sums::Followed), &seen);
        let Some(found) = grown.or_else(|| grow(module, comp, &users, &kinds, (&seed, Sums::Left), &seen)) else {
            continue;
        };
        let mut groups: Vec<Vec<InstId>> = found.groups.values().cloned().collect();
        groups.iter_mut().for_each(|insts| insts.sort());
        groups.sort();
        if known.insert(groups) {
            sets.push(found);
        }
    }
    sets.sort_by(|a, b| flops(b).total_cmp(&flops(a)));
    let mut ways: Vec<Branches> = Vec::new();
    for first in 0..sets.len().min(MOST_WAYS) {
        let mut together = sets[first].clone();
        for other in &sets {
            if !other.meets(&together) {
                let more = together.with(other);
                together = without_circles(module, more).unwrap_or(together);
            }
        }
        let is_known = |way: &Branches| {
            ways.iter().any(|one| {
                one.groups.len() == way.groups.len()
                    && one.sets.len() == way.sets.len()
                    && !way.groups.values().flatten().any(|&inst| one.of[inst].is_none())
            })
        };
        if !is_known(&together) {
            ways.push(together);
        }
        if sets[first].sets.len() < ways.last().map_or(0, |way| way.sets.len()) {
            ways.push(sets[first].clone());
        }
    }
    ways.sort_by(|a, b| flops(b).total_cmp(&flops(a)));
    ways.truncate(MOST_WAYS);
    ways
}

type Users = SecondaryMap<InstId, Vec<(InstId, usize)>>;

/// Who takes what as which operand.
fn users(module: &Module, kinds: &Kinds) -> Users {
    let mut users = Users::new();
    for &inst in kinds.keys() {
        module.inst(inst).operands.iter().enumerate().for_each(|(k, &operand)| users[operand].push((inst, k)));
    }
    users
}

/// Whether branches go on through sums that take their values.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sums {
    Followed,
    Left,
}

/// The branches in which a seed stands, as far as they are alike in both directions.
fn grow(
    module: &Module,
    comp: CompId,
    users: &Users,
    kinds: &Kinds,
    (seed, sums): (&[InstId], Sums),
    seen: &EntitySet<InstId>,
) -> Option<Branches> {
    let mut branches = Branches {
        comp,
        groups: PrimaryMap::new(),
        of: SecondaryMap::new(),
        sets: Vec::new(),
        order: Vec::new(),
        seen: seen.clone(),
    };
    let first = branches.add(module, seed.to_vec())?;
    branches.sets.push(first);
    let mut waiting: VecDeque<GroupId> = branches.sets.iter().copied().collect();
    let are_alike = |insts: &[InstId]| insts.iter().all(|&inst| kinds.get(&inst) == kinds.get(&insts[0]));
    while let Some(group) = waiting.pop_front() {
        let insts = branches.groups[group].clone();
        let mut candidates: Vec<Vec<InstId>> = Vec::new();
        for k in 0..module.inst(insts[0]).operands.len() {
            candidates.push(insts.iter().map(|&inst| module.inst(inst).operands[k]).collect());
        }
        for &(first, k) in &users[insts[0]] {
            if sums == Sums::Left && module.inst(first).opcode == Opcode::Add {
                continue;
            }
            let is_like = |&&(user, at): &&(InstId, usize)| at == k && kinds.get(&user) == kinds.get(&first);
            let theirs: Vec<Vec<InstId>> =
                insts.iter().map(|&inst| users[inst].iter().filter(is_like).map(|&(user, _)| user).collect()).collect();
            // Where several users are alike, which belongs to which is not known.
            if theirs.iter().all(|one| one.len() == 1) {
                candidates.push(theirs.into_iter().flatten().collect());
            }
        }
        for candidate in candidates {
            if are_alike(&candidate)
                && !is_same_everywhere(module, &candidate)
                && let Some(group) = branches.add(module, candidate)
            {
                waiting.push_back(group);
            }
        }
    }
    let branches = without_circles(module, branches)?;
    (branches.groups.len() > 1).then_some(branches)
}

/// The branches, if each group can be computed at one time: with every group as one op nothing depends on itself.
fn without_circles(module: &Module, mut branches: Branches) -> Option<Branches> {
    // What nothing needs is left out.
    let live = module.live(branches.comp);
    let insts = module.comp(branches.comp).insts.iter();
    let insts: Vec<InstId> = insts.copied().filter(|&inst| live.contains(inst)).collect();
    // A node is a group, or an instruction by itself: the first instruction stands for it.
    let node = |inst: InstId| branches.of[inst].map_or(inst, |(group, _)| branches.groups[group][0]);
    let mut n_open: SecondaryMap<InstId, usize> = SecondaryMap::new();
    let mut takers: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
    for &inst in &insts {
        for needed in module.needed(inst) {
            n_open[node(inst)] += 1;
            takers[node(needed)].push(node(inst));
        }
    }
    let is_node = |inst: &&InstId| node(**inst) == **inst;
    let mut ready: VecDeque<InstId> = insts.iter().filter(is_node).copied().filter(|&inst| n_open[inst] == 0).collect();
    let n_nodes = insts.iter().filter(is_node).count();
    let (mut n_done, mut order) = (0, Vec::with_capacity(branches.groups.len()));
    while let Some(inst) = ready.pop_front() {
        n_done += 1;
        order.extend(branches.of[inst].map(|(group, _)| group));
        for taker in std::mem::take(&mut takers[inst]) {
            n_open[taker] -= 1;
            if n_open[taker] == 0 {
                ready.push_back(taker);
            }
        }
    }
    branches.order = order;
    (n_done == n_nodes).then_some(branches)
}
