//! An all-reduce of which only slices are used, or products with matrices that are equal on the group, is done on those.
//!
//! `slice(AR(x))` is `AR(slice(x))`, and `AR(x) · w` is `AR(x · w)` where every device of a group holds the same `w`: it is `Σ x_d · w` either
//! way. So from an all-reduce its uses are followed through all that is linear. On each path there is one place for the sum: where it is
//! fewest bytes altogether. Where nothing is saved, the all-reduce stays, except that it is taken apart into slices that are
//! used each for itself: a bucket of gradients.
//!
//! A slice of one part of a concatenation is that part.

use super::{ChainOp, find_step};
use cranelift_entity::EntitySet;
use hlo_analysis::code::pinned_by_control;
use hlo_ir::attrs::{Attrs, DimsAttrs, SliceAttrs, SliceDim};
use hlo_ir::dtype::NumberClass;
use hlo_ir::module::UserMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, DType, InstId, Module, Opcode};
use hlo_pass::PassError;
use hlo_pass::report::{Decision, PassReport};
use hlo_spmd::{AllReduce, ChannelIds, CollectiveChange, Rewrite, Scaling, array, check_free, find_all_reduce};
use indexmap::IndexMap;

/// Most instructions that are looked at behind one all-reduce.
const MAX_REACH: usize = 10_000;

/// Most instructions on the way from an all-reduce to one place.
const MAX_PATH: usize = 64;

/// Whether a value is the same on all devices of each group.
pub(super) type IsEqual<'a> = &'a dyn Fn(InstId, &[Vec<u32>]) -> bool;

/// Whether an all-reduce of the computation would be moved past a product if its other operand were equal.
pub(super) fn wants_products(module: &Module, comp: CompId) -> bool {
    let (pinned, users, passed) = (pinned_by_control(module, comp), module.users(), EntitySet::new());
    module.comp(comp).insts.iter().any(|&inst| {
        let Ok(Some(all_reduce)) = find_all_reduce(module, inst, &pinned) else { return false };
        let is_equal = |_: InstId, _: &[Vec<u32>]| true;
        let search = Search { module, users: &users, pinned: &pinned, is_equal: &is_equal, passed: &passed, n_seen: 0 };
        search.find_ends(&all_reduce).is_some_and(|ends| has(module, &ends, Opcode::Dot))
    })
}

/// Moves the all-reduces of one computation to where their results are fewest bytes; how many were moved.
pub(super) fn branch_in(
    module: &mut Module,
    comp: CompId,
    is_equal: IsEqual<'_>,
    report: &mut PassReport,
) -> Result<u64, PassError> {
    let pinned = pinned_by_control(module, comp);
    let users = module.users();
    let mut rewrite = Rewrite::new(module, comp);
    let mut channels = ChannelIds::free_in(module);
    let mut passed: EntitySet<InstId> = EntitySet::new();
    let mut n_moved = 0;
    for inst in rewrite.live_insts(module) {
        let Ok(Some(all_reduce)) = find_all_reduce(module, inst, &pinned) else { continue };
        let search = Search { module, users: &users, pinned: &pinned, is_equal, passed: &passed, n_seen: 0 };
        let Some(ends) = search.find_ends(&all_reduce) else { continue };
        passed.extend(ends.iter().flat_map(|end| end.path.iter().map(|step| step.inst)));
        tell_and_emit(module, &mut rewrite, &mut channels, &all_reduce, &ends, report);
        n_moved += 1;
    }
    if n_moved > 0 {
        rewrite.finish(module)?;
    }
    Ok(n_moved)
}

/// One instruction behind an all-reduce.
#[derive(Clone, Debug)]
struct LinearStep {
    inst: InstId,
    /// The operand that comes from the all-reduce.
    operand_idx: usize,
    /// What is done again behind the sum, instead of before it.
    scaling: Option<Scaling>,
}

/// Where a sum is to stand.
#[derive(Clone, Debug)]
struct End {
    /// The steps from the all-reduce to the value that is summed, that one included. The last is no scaling.
    path: Vec<LinearStep>,
}

/// The best places behind one value.
struct Best {
    bytes: u64,
    ends: Vec<End>,
}

/// Looks for the places of one sum.
struct Search<'a> {
    module: &'a Module,
    users: &'a UserMap,
    pinned: &'a EntitySet<InstId>,
    is_equal: IsEqual<'a>,
    /// What another sum was moved past.
    passed: &'a EntitySet<InstId>,
    n_seen: usize,
}

impl Search<'_> {
    /// Where the sum is better done; `None` if that is where it is.
    fn find_ends(mut self, all_reduce: &AllReduce) -> Option<Vec<End>> {
        let best = self.best_behind(all_reduce, all_reduce.inst, &mut Vec::new())?;
        let bytes = array(self.module, all_reduce.inst)?.size_bytes();
        let is_slice = |end: &End| end.path.iter().any(|s| self.module.inst(s.inst).opcode == Opcode::Slice);
        // A bucket of scalars is no bucket of gradients: nothing would be cut, and each part would wait for itself.
        let has_elems = |end: &End| {
            let shape = end.path.last().and_then(|step| array(self.module, step.inst));
            shape.is_some_and(|shape| shape.n_elems() > 1)
        };
        let is_bucket = best.ends.iter().all(is_slice) && best.ends.iter().any(has_elems);
        let is_better = best.bytes < bytes || (best.bytes == bytes && is_bucket);
        let is_once = self.passes_each_once(all_reduce, &best.ends);
        (is_better && !best.ends.is_empty() && is_once).then_some(best.ends)
    }

    /// Whether no product multiplies one part of the sum by another.
    fn passes_each_once(&self, all_reduce: &AllReduce, ends: &[End]) -> bool {
        let mut on_the_way: EntitySet<InstId> = EntitySet::new();
        on_the_way.insert(all_reduce.inst);
        on_the_way.extend(ends.iter().flat_map(|end| end.path.iter().map(|step| step.inst)));
        ends.iter().flat_map(|end| &end.path).all(|step| {
            let operands = self.module.inst(step.inst).operands.iter();
            operands.filter(|&&operand| on_the_way.contains(operand)).count() == 1
        })
    }

    /// The places behind the uses of `value`; `None` if one of them needs the sum itself.
    fn best_behind(&mut self, all_reduce: &AllReduce, value: InstId, path: &mut Vec<LinearStep>) -> Option<Best> {
        let module = self.module;
        let is_result = module.comp(module.inst(value).parent).root.expand() == Some(value);
        if is_result || self.users[value].is_empty() || path.len() >= MAX_PATH {
            return None;
        }
        let mut all = Best { bytes: 0, ends: Vec::new() };
        for &user in &self.users[value] {
            self.n_seen += 1;
            if self.n_seen > MAX_REACH {
                return None;
            }
            let step = self.step(all_reduce, value, user)?;
            let is_end = step.scaling.is_none();
            path.push(step);
            let here = is_end.then(|| array(module, user).map(|s| s.size_bytes())).flatten();
            let behind = self.best_behind(all_reduce, user, path);
            let end = End { path: path.clone() };
            path.pop();
            let best = match (here, behind) {
                (Some(bytes), Some(behind)) if behind.bytes < bytes => behind,
                (Some(bytes), _) => Best { bytes, ends: vec![end] },
                (None, behind) => behind?,
            };
            all.bytes = all.bytes.saturating_add(best.bytes);
            all.ends.extend(best.ends);
        }
        Some(all)
    }

    /// What `user` does to `value`, if it is linear in it.
    fn step(&self, all_reduce: &AllReduce, value: InstId, user: InstId) -> Option<LinearStep> {
        let module = self.module;
        let instruction = module.inst(user);
        if self.passed.contains(user) || check_free(module, user, self.pinned).is_err() {
            return None;
        }
        let operand_idx = instruction.operands.iter().position(|&operand| operand == value)?;
        if instruction.operands.iter().filter(|&&operand| operand == value).count() != 1 {
            return None;
        }
        let (from, to) = (array(module, value)?, array(module, user)?);
        let plain = Some(LinearStep { inst: user, operand_idx, scaling: None });
        if from.dtype != to.dtype || to.dynamic != 0 {
            return None;
        }
        if instruction.opcode == Opcode::Slice {
            return plain;
        }
        if instruction.opcode == Opcode::Dot {
            let &other = instruction.operands.get(1 - operand_idx.min(1))?;
            // Fewer bits would round each device's product where one product was rounded.
            let has_bits = from.dtype.class() != NumberClass::Pred && from.dtype.bits() >= 16;
            let is_same_type = array(module, other)?.dtype == from.dtype;
            let is_exact = has_bits && is_same_type && !rounds_operands(&instruction.attrs, from.dtype);
            let is_sum = all_reduce.reducer == Some(Monoid::Add) && is_exact;
            return plain.filter(|_| is_sum && (self.is_equal)(other, &all_reduce.groups));
        }
        match find_step(module, all_reduce, value, user)? {
            ChainOp::Rearrange | ChainOp::Sum => plain,
            ChainOp::Scale(scaling) => Some(LinearStep { inst: user, operand_idx, scaling: Some(scaling) }),
        }
    }
}

/// Whether a product names an algorithm that rounds operands of this type: each part of a sum would be rounded, and parts may
/// cancel.
fn rounds_operands(attrs: &Attrs, dtype: DType) -> bool {
    let Attrs::Dot(dot) = attrs else { return false };
    let (algorithm, name) = (dot.algorithm.as_str(), dtype.name());
    !algorithm.is_empty() && !algorithm.starts_with(&format!("dot_{name}_{name}_"))
}

/// Emits the sums at their places, and says so.
fn tell_and_emit(
    module: &mut Module,
    rewrite: &mut Rewrite,
    channels: &mut ChannelIds,
    all_reduce: &AllReduce,
    ends: &[End],
    report: &mut PassReport,
) {
    let inst = all_reduce.inst;
    let reason =
        format!("its result is used in {} by {}, which take no more bytes", parts(ends.len()), kinds(module, ends));
    let mut told = Decision::about(module, inst, "moved", reason);
    told.collectives.push(CollectiveChange::removed(module, inst, "nothing uses its result as a whole"));
    let mut locals: IndexMap<InstId, InstId> = IndexMap::new();
    for end in ends {
        let sum = emit(module, rewrite, channels, all_reduce, end, &mut locals);
        told.collectives.push(CollectiveChange::inserted(module, sum, "reduces what is made of its operand"));
    }
    report.decisions.push(told);
}

fn has(module: &Module, ends: &[End], opcode: Opcode) -> bool {
    ends.iter().flat_map(|end| &end.path).any(|step| module.inst(step.inst).opcode == opcode)
}

fn parts(n: usize) -> String {
    if n == 1 { "one part".into() } else { format!("{n} parts") }
}

/// What stands on the way, for the report.
fn kinds(module: &Module, ends: &[End]) -> &'static str {
    match (has(module, ends, Opcode::Slice), has(module, ends, Opcode::Dot)) {
        (true, true) => "slices, and products with what is equal on its devices",
        (true, false) => "slices",
        (false, true) => "products with what is equal on its devices",
        (false, false) => "sums",
    }
}

/// Emits one sum at its place; `locals` are the values before the sum that are there already, by the value behind it.
fn emit(
    module: &mut Module,
    rewrite: &mut Rewrite,
    channels: &mut ChannelIds,
    all_reduce: &AllReduce,
    end: &End,
    locals: &mut IndexMap<InstId, InstId>,
) -> InstId {
    let mut value = all_reduce.operand;
    for step in end.path.iter().filter(|step| step.scaling.is_none()) {
        value = match locals.get(&step.inst) {
            Some(&known) => known,
            None => emit_local(module, rewrite, step, value),
        };
        locals.insert(step.inst, value);
    }
    let inst = all_reduce.inst;
    let (hint, mut attrs) = (module.inst_name(inst).to_string(), module.inst(inst).attrs.clone());
    channels.renew(&mut attrs);
    let shape = module.shape(value).clone();
    let sum = rewrite.add(module, inst, (&hint, Opcode::AllReduce), shape, &[value], attrs);
    let mut result = sum;
    for step in &end.path {
        if let Some(scaling) = &step.scaling {
            result = rewrite.scale(module, step.inst, result, scaling);
        }
    }
    if let Some(last) = end.path.last() {
        rewrite.redirect(last.inst, result);
    }
    sum
}

fn emit_local(module: &mut Module, rewrite: &Rewrite, step: &LinearStep, value: InstId) -> InstId {
    if let Some(part) = part_of_concatenation(module, step.inst, value) {
        return part;
    }
    let source = module.inst(step.inst).clone();
    let mut operands = source.operands.to_vec();
    operands[step.operand_idx] = value;
    let hint = format!("{}.local", module.inst_name(step.inst));
    let shape = module.shape(step.inst).clone();
    rewrite.add(module, step.inst, (&hint, source.opcode), shape, &operands, source.attrs)
}

/// The operand of the concatenation `value` that `slice` takes as it is.
fn part_of_concatenation(module: &Module, slice: InstId, value: InstId) -> Option<InstId> {
    let (instruction, source) = (module.inst(slice), module.inst(value));
    if instruction.opcode != Opcode::Slice || source.opcode != Opcode::Concatenate {
        return None;
    }
    let dims = &SliceAttrs::of(&instruction.attrs)?.slice;
    let (result, whole) = (array(module, slice)?, array(module, value)?);
    let along = DimsAttrs::of(&source.attrs)?.dimensions.first().copied()? as usize;
    let is_whole = |(dim, range): (usize, &SliceDim)| {
        dim == along || (range.start == 0 && whole.dims.get(dim) == Some(&range.limit))
    };
    let range = dims.get(along)?;
    if !dims.iter().enumerate().all(is_whole) || dims.iter().any(|range| range.stride != 1) {
        return None;
    }
    let mut start = 0;
    for &operand in &source.operands {
        let part = array(module, operand)?;
        let size = part.dims.get(along).copied()?;
        if start == range.start && start + size == range.limit {
            return (part == result).then_some(operand);
        }
        start += size;
    }
    None
}
