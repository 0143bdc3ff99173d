//! Which collectives of a computation become one.
//!
//! Notation: a *bucket* is a set of collectives with one [`Key`] none of which depends on another, and of at most a threshold of bytes.
//!
//! 1. Instructions are put in order of their *depth*, the longest path from the parameters: what is shallow is ready early. The text's own
//!    order follows the results, not the time at which operands are ready.
//! 2. For each key, walk that order from the first free collective, marking what depends on the bucket. A free collective that is not
//!    marked joins; the first that does not fit closes the bucket.
//! 3. Move what is marked behind the bucket. The order is one of the combined graph again, in which the bucket is one node, so later
//!    buckets, of other keys too, see its dependencies: no circle can arise.

use crate::refusal::{CollectiveRefusal, CombineRefusal};
use cranelift_entity::{EntitySet, SecondaryMap};
use hlo_analysis::code::pinned_by_control;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{CompId, DType, InstId, Module, Opcode};
use hlo_spmd::{Obstacle, array, check_free};
use indexmap::IndexMap;

/// What may be combined.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Most bytes of one bucket.
    pub threshold_bytes: u64,
    /// Kinds of collectives.
    pub ops: Vec<Opcode>,
    /// For the packed form: one element type, any dim.
    pub is_packed: bool,
    /// XLA's own combiner in the place of ours.
    pub as_xla: Option<XlaRules>,
}

/// In what XLA's combiner differs from ours: it goes through a computation in its own order, counts the bytes of results alone, and closes
/// a bucket at the first collective that depends on it (`CombineInstructionsByKey` in XLA's `collective_combiner_utils.h`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlaRules {
    /// Most collectives of one bucket.
    pub most_members: usize,
}

/// Collectives that become one.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    /// In the order in which they are ready; two or more.
    pub members: Vec<InstId>,
    /// Devices of each group.
    pub group_size: usize,
    /// Bytes of the whole tensors.
    pub bytes: u64,
}

/// What members of a bucket agree in.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    opcode: Opcode,
    groups: Vec<Vec<u32>>,
    has_channel: bool,
    reducer: Option<Monoid>,
    dtype: Option<DType>,
    dims: Vec<i64>,
}

/// A collective that may join a bucket.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    key_idx: usize,
    bytes: u64,
}

/// A collective that stays, and why.
pub(crate) type LeftOut = (InstId, CollectiveRefusal);

/// The buckets of a computation, and the collectives that no bucket can take.
pub(crate) fn plan(module: &Module, comp: CompId, limits: &Limits) -> (Vec<Bucket>, Vec<LeftOut>) {
    let live = module.live(comp);
    let pinned = pinned_by_control(module, comp);
    let mut left = Vec::new();
    let mut keys: IndexMap<Key, ()> = IndexMap::new();
    let mut candidates: SecondaryMap<InstId, Option<Candidate>> = SecondaryMap::new();
    let order = match limits.as_xla {
        Some(XlaRules { .. }) => module.comp(comp).insts.clone(),
        None => by_depth(module, comp),
    };
    let collectives = order.iter().filter(|&&inst| limits.ops.contains(&module.inst(inst).opcode));
    for &inst in collectives.filter(|&&inst| live.contains(inst)) {
        match check(module, inst, &pinned, limits) {
            Ok((key, bytes)) => {
                let (key_idx, _) = keys.insert_full(key, ());
                candidates[inst] = Some(Candidate { key_idx, bytes });
            }
            Err(reason) => left.push((inst, reason)),
        }
    }
    let mut planner = BucketPlanner {
        module,
        limits,
        candidates,
        order,
        bucket_of: SecondaryMap::new(),
        marks: SecondaryMap::new(),
        buckets: Vec::new(),
        stamp: 0,
    };
    for (key_idx, key) in keys.keys().enumerate() {
        planner.fill(key_idx, key.groups.first().map_or(1, Vec::len));
    }
    (planner.buckets, left)
}

/// The instructions of a computation by depth, otherwise as in the text.
fn by_depth(module: &Module, comp: CompId) -> Vec<InstId> {
    let mut depths: SecondaryMap<InstId, u32> = SecondaryMap::with_capacity(module.n_inst_slots());
    let insts = &module.comp(comp).insts;
    // How many instructions are less deep, by depth.
    let mut first: Vec<usize> = vec![0];
    for &inst in insts {
        let depth = module.needed(inst).map(|p| depths[p] + 1).max().unwrap_or(0);
        depths[inst] = depth;
        first.resize(first.len().max(depth as usize + 2), 0);
        first[depth as usize + 1] += 1;
    }
    for depth in 1..first.len() {
        first[depth] += first[depth - 1];
    }
    let mut order = insts.clone();
    for &inst in insts {
        let place = &mut first[depths[inst] as usize];
        order[*place] = inst;
        *place += 1;
    }
    order
}

/// The key and the bytes of a collective.
///
/// # Errors
/// Why no bucket can take it.
fn check(
    module: &Module,
    inst: InstId,
    pinned: &EntitySet<InstId>,
    limits: &Limits,
) -> Result<(Key, u64), CollectiveRefusal> {
    check_free(module, inst, pinned)?;
    let instruction = module.inst(inst);
    let (Some(result), [operand]) = (array(module, inst), instruction.operands.as_slice()) else {
        return Err(CombineRefusal::SeveralArrays.into());
    };
    let operand_shape = array(module, *operand).ok_or(CombineRefusal::NoArray)?;
    if result.dynamic != 0 || operand_shape.dynamic != 0 {
        return Err(Obstacle::DynamicDims.into());
    }
    if limits.is_packed && module.inst(*operand).opcode == Opcode::Concatenate {
        return Err(CombineRefusal::PackedAlready.into());
    }
    let bytes = match limits.as_xla {
        Some(XlaRules { .. }) => result.size_bytes(),
        None => result.size_bytes().max(operand_shape.size_bytes()),
    };
    if bytes == 0 || bytes > limits.threshold_bytes {
        let threshold_bytes = limits.threshold_bytes;
        return Err(CombineRefusal::Bytes { bytes, threshold_bytes }.into());
    }
    let (rule, view) =
        instruction.opcode.row().collective.zip(instruction.attrs.collective()).ok_or(CollectiveRefusal::NoGroups)?;
    let (is_reducing, dims) = (rule.reduces(), view.dimensions.to_vec());
    let reducer = module.called(inst).first().and_then(|&c| find_monoid(module, c));
    if is_reducing && reducer.is_none() {
        return Err(CollectiveRefusal::UnknownReducer);
    }
    let groups = module.device_groups(inst).map_err(CollectiveRefusal::Groups)?;
    if instruction.opcode != Opcode::AllReduce && groups.uniform_size().is_none() {
        return Err(CollectiveRefusal::UnevenGroups);
    }
    let key = Key {
        opcode: instruction.opcode,
        groups: groups.groups,
        has_channel: view.channel_id.is_some(),
        reducer,
        dtype: (is_reducing || limits.is_packed).then_some(result.dtype),
        dims: if limits.is_packed { Vec::new() } else { dims },
    };
    Ok((key, bytes))
}

/// Fills buckets key by key.
struct BucketPlanner<'a> {
    module: &'a Module,
    limits: &'a Limits,
    /// Collectives that are still free.
    candidates: SecondaryMap<InstId, Option<Candidate>>,
    /// Predecessors before users; the members of a bucket stand together.
    order: Vec<InstId>,
    /// One more than the number of the bucket that holds a collective; 0 for none.
    bucket_of: SecondaryMap<InstId, usize>,
    /// The bucket-filling walk that found an instruction to depend on the bucket.
    marks: SecondaryMap<InstId, u32>,
    buckets: Vec<Bucket>,
    stamp: u32,
}

impl BucketPlanner<'_> {
    /// All buckets of a key.
    fn fill(&mut self, key_idx: usize, group_size: usize) {
        let mut at = 0;
        while at < self.order.len() {
            let first = self.order[at];
            let Some(candidate) = self.candidates[first].filter(|c| c.key_idx == key_idx) else {
                at += 1;
                continue;
            };
            self.stamp += 1;
            let mut bucket = Bucket { members: Vec::new(), group_size, bytes: 0 };
            self.join(&mut bucket, first, candidate);
            let last = self.gather(&mut bucket, key_idx, at);
            at = match bucket.members.len() {
                1 => at + 1,
                _ => self.settle(bucket, at, last),
            };
        }
    }

    fn join(&mut self, bucket: &mut Bucket, inst: InstId, candidate: Candidate) {
        bucket.members.push(inst);
        bucket.bytes += candidate.bytes;
        self.candidates[inst] = None;
        self.marks[inst] = self.stamp;
    }

    /// Walks on from `first`, adding to the bucket until one does not fit; the place of the last member.
    fn gather(&mut self, bucket: &mut Bucket, key_idx: usize, first: usize) -> usize {
        let (mut at, mut last) = (first + 1, first);
        while at < self.order.len() {
            let inst = self.order[at];
            let n_together = match self.bucket_of[inst] {
                0 => 1,
                number => self.buckets.get(number - 1).map_or(1, |b| b.members.len()),
            };
            let together = at..(at + n_together).min(self.order.len());
            let depends = |i: usize| self.module.needed(self.order[i]).any(|p| self.marks[p] == self.stamp);
            let is_of_key = self.candidates[inst].is_some_and(|c| c.key_idx == key_idx);
            if together.clone().any(depends) {
                if is_of_key && self.limits.as_xla.is_some() {
                    break;
                }
                together.clone().for_each(|i| self.marks[self.order[i]] = self.stamp);
            } else if let Some(candidate) = self.candidates[inst].filter(|c| c.key_idx == key_idx) {
                let is_full = |rules: XlaRules| bucket.members.len() >= rules.most_members;
                if bucket.bytes.saturating_add(candidate.bytes) > self.limits.threshold_bytes
                    || self.limits.as_xla.is_some_and(is_full)
                {
                    break;
                }
                self.join(bucket, inst, candidate);
                last = at;
            }
            at = together.end;
        }
        last
    }

    /// Puts the members together between what they may need and what depends on them; the place behind them.
    fn settle(&mut self, bucket: Bucket, first: usize, last: usize) -> usize {
        let number = self.buckets.len() + 1;
        bucket.members.iter().for_each(|&member| self.bucket_of[member] = number);
        let range = self.order[first..=last].to_vec();
        let others = range.into_iter().filter(|&inst| self.bucket_of[inst] != number);
        let (behind, before): (Vec<InstId>, Vec<InstId>) = others.partition(|&inst| self.marks[inst] == self.stamp);
        let after_members = first + before.len() + bucket.members.len();
        let sorted = before.into_iter().chain(bucket.members.iter().copied()).chain(behind);
        for (slot, inst) in self.order[first..=last].iter_mut().zip(sorted) {
            *slot = inst;
        }
        self.buckets.push(bucket);
        after_members
    }
}
