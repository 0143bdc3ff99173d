//! Sums over devices that a loop only stores, an iteration later.

use std::collections::{BTreeMap, BTreeSet};

use cranelift_entity::EntitySet;
use hlo_analysis::carried_loop::{CarriedLoop, Copies};
use hlo_analysis::code::{is_annotated, pinned_by_control};
use hlo_analysis::values::tuple_index;
use hlo_ir::attrs::{Attrs, DimsAttrs, TupleIndexAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::module::UserMap;
use hlo_ir::op::{CollectiveForm, CollectiveSource, Flow};
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_spmd::{Appender, ChannelIds};

use super::sources::{Source, Sources, is_copied};

/// Sums of a loop that can run an iteration later, with all that takes them.
pub(super) struct LateSums {
    /// The sums.
    pub sums: Vec<InstId>,
    /// They, and what follows from them, in the order of the body.
    moved: Vec<InstId>,
    /// What of the iteration they take, in the order in which the loop will carry it.
    taken: Vec<InstId>,
    /// The elements of the state into which the results are written.
    stored: BTreeSet<usize>,
    /// What reads each of these after the loop.
    results: Vec<Vec<InstId>>,
}

/// The sums of a loop that do nothing but end in arrays that the loop fills part by part.
pub(super) fn find(module: &Module, carried: &CarriedLoop, users: &UserMap, min_bytes: u64) -> Option<LateSums> {
    let body = module.comp(carried.body);
    let pinned = pinned_by_control(module, carried.body);
    let sources = Sources::find(module, carried);
    let stores = stores(module, carried, users, &sources);
    let mut is_free: EntitySet<InstId> = EntitySet::new();
    for &inst in body.insts.iter().rev() {
        let is_moved = !pinned.contains(inst)
            && may_move(module, inst)
            && !users[inst].is_empty()
            && (stores.contains_key(&inst) || users[inst].iter().all(|&user| is_free.contains(user)));
        if is_moved {
            is_free.insert(inst);
        }
    }
    let settled = find_settled(module, carried, &sources);
    let is_late =
        |inst: &InstId| is_free.contains(*inst) && is_sum(module, *inst, min_bytes) && !settled.contains(*inst);
    let sums: Vec<InstId> = body.insts.iter().copied().filter(is_late).collect();
    let mut later: EntitySet<InstId> = EntitySet::new();
    let mut moved = Vec::new();
    for &inst in &body.insts {
        let operands = &module.inst(inst).operands;
        let follows = is_free.contains(inst) && operands.iter().any(|&operand| later.contains(operand));
        if follows || is_late(&inst) {
            later.insert(inst);
            moved.push(inst);
        }
    }
    let stored: BTreeSet<usize> =
        stores.into_iter().filter(|&(store, _)| later.contains(store)).map(|(_, element)| element).collect();
    let mut taken: Vec<InstId> = Vec::new();
    let mut seen: EntitySet<InstId> = EntitySet::new();
    for &operand in moved.iter().flat_map(|&inst| &module.inst(inst).operands) {
        let is_stored_into = carried.element_read(module, operand).is_some_and(|index| stored.contains(&index));
        let is_of_iteration = !later.contains(operand) && !is_stored_into && sources.of(operand) != Source::Fixed;
        if is_of_iteration && seen.insert(operand) {
            taken.push(operand);
        }
    }
    // Of values other than scalars that the loop counts with the first iteration takes zeros.
    let has_zeros = |inst: InstId| module.shape(inst).as_array().is_some_and(|array| array.dynamic == 0);
    let has_first = |&inst: &InstId| sources.of(inst) == Source::Counted || has_zeros(inst);
    let results = stored.iter().map(|&index| results(module, users, carried, index)).collect();
    (!sums.is_empty() && taken.iter().all(has_first)).then_some(LateSums { sums, moved, taken, stored, results })
}

/// The updates of arrays of the state that are nothing but filled part by part, at places that follow from scalars that the loop counts with,
/// each with the number of its element: what an iteration writes, the next one may write in its place.
fn stores(module: &Module, carried: &CarriedLoop, users: &UserMap, sources: &Sources) -> BTreeMap<InstId, usize> {
    let [param, seen] = carried.params;
    let next = &module.inst(carried.root).operands;
    let mut reads: Vec<Vec<InstId>> = vec![Vec::new(); next.len()];
    for &read in &users[param] {
        tuple_index(module, read).and_then(|index| reads.get_mut(index)).into_iter().for_each(|list| list.push(read));
    }
    let around = pinned_by_control(module, module.inst(carried.inst).parent);
    // What reads the result goes, with what is said of it.
    let is_marked = |index: usize| {
        let results = results(module, users, carried, index);
        results.into_iter().any(|read| around.contains(read) || is_annotated(module, read))
    };
    let is_asked = |index: usize| users[seen].iter().any(|&read| tuple_index(module, read) == Some(index));
    let mut stores = BTreeMap::new();
    for (index, &store) in next.iter().enumerate() {
        let instruction = module.inst(store);
        let [read] = reads[index].as_slice() else { continue };
        let is_store = instruction.opcode == Opcode::DynamicUpdateSlice
            && instruction.operands.first() == Some(read)
            && instruction.operands.iter().filter(|&operand| operand == read).count() == 1
            && instruction.operands.iter().skip(2).all(|&place| sources.of(place) != Source::Other)
            && [(*read, store), (store, carried.root)].iter().all(|(inst, user)| users[*inst].as_slice() == [*user])
            && next.iter().filter(|&&other| other == store).count() == 1
            && !is_asked(index)
            && !is_marked(index);
        if is_store {
            stores.insert(store, index);
        }
    }
    stores
}

/// Whether an instruction may run an iteration later: it computes arrays from arrays, or exchanges them.
fn may_move(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    match instruction.opcode.row().flow {
        Flow::GetTupleElement => !is_annotated(module, inst),
        Flow::Collective(rule) => {
            rule.form == CollectiveForm::Synchronous && !is_annotated(module, inst) && !module.must_stay(inst)
        }
        Flow::Constant
        | Flow::Parameter
        | Flow::Tuple
        | Flow::Identity
        | Flow::Call
        | Flow::While
        | Flow::Conditional
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate
        | Flow::AsyncDone
        | Flow::PartitionId
        | Flow::ReplicaId
        | Flow::All => is_copied(module, inst),
    }
}

/// Whether an instruction sums at least so many bytes over devices.
fn is_sum(module: &Module, inst: InstId, min_bytes: u64) -> bool {
    let instruction = module.inst(inst);
    let is_sum = instruction
        .opcode
        .row()
        .collective
        .is_some_and(|rule| rule.source == CollectiveSource::Reduction && rule.form == CollectiveForm::Synchronous);
    is_sum && instruction.operands.iter().map(|&operand| module.shape(operand).size_bytes()).sum::<u64>() >= min_bytes
}

/// Sums of what the loop carries, and what follows from nothing but them: they run beside the whole iteration already.
fn find_settled(module: &Module, carried: &CarriedLoop, sources: &Sources) -> EntitySet<InstId> {
    let mut settled: EntitySet<InstId> = EntitySet::new();
    for &inst in &module.comp(carried.body).insts {
        let operands = &module.inst(inst).operands;
        let is_at_hand = |operand: InstId| {
            settled.contains(operand)
                || carried.element_read(module, operand).is_some()
                || sources.of(operand) == Source::Fixed
        };
        let begins = is_sum(module, inst, 0) || operands.iter().any(|&operand| settled.contains(operand));
        if begins && operands.iter().all(|&operand| is_at_hand(operand)) {
            settled.insert(inst);
        }
    }
    settled
}

/// Has the loop carry what the sums take, sums it in the next iteration, and what the last one has left after the loop.
///
/// # Errors
/// An instruction that depends on itself: a defect of the pass.
pub(super) fn pipeline(
    module: &mut Module,
    carried: &CarriedLoop,
    late: &LateSums,
    channels: &mut ChannelIds,
) -> Result<(), InstId> {
    let comp = module.inst(carried.inst).parent;
    let (was_live, n_slots_before) = ([comp, carried.body].map(|comp| module.live(comp)), module.n_inst_slots());
    let begin = first_taken(module, carried, &late.taken);
    let ends: Vec<InstId> = late.stored.iter().map(|&index| module.inst(carried.root).operands[index]).collect();
    let reads = carried.append(module, &begin);
    let read_of: BTreeMap<InstId, InstId> = late.taken.iter().copied().zip(reads.iter().copied()).collect();
    for &inst in &late.moved {
        module.map_operands(inst, |operand| read_of.get(&operand).copied().unwrap_or(operand));
    }
    module.inst_mut(carried.root).operands.extend(late.taken.iter().copied());
    // What is left of the iteration before comes first, beside all that this one does.
    let mut is_first: EntitySet<InstId> = EntitySet::new();
    late.moved.iter().chain(&reads).for_each(|&inst| {
        is_first.insert(inst);
    });
    module.comp_mut(carried.body).insts.sort_by_key(|&inst| !is_first.contains(inst));
    let ended: Vec<InstId> = (0..module.inst(carried.root).operands.len())
        .map(|index| {
            let value = module.inst(carried.root).operands[index];
            let (hint, shape) = (module.inst_name(value).to_string(), module.shape(value).clone());
            let attrs = TupleIndexAttrs { index: index as i64 };
            Builder::new(module, comp).add(&hint, Opcode::GetTupleElement, shape, [carried.inst], attrs)
        })
        .collect();
    let mut copies = Copies::new(carried, comp, &ended, ".last");
    for (&end, used) in ends.iter().zip(&late.results) {
        let last = copies.copy(module, end, |attrs| channels.renew(attrs));
        used.iter().for_each(|&result| module.replace_all_uses(result, last));
    }
    for (comp, was_live) in [comp, carried.body].into_iter().zip(&was_live) {
        module.remove_newly_dead(comp, was_live, n_slots_before);
        module.restore_order(comp)?;
    }
    Ok(())
}

/// What the first iteration takes in the place of what an iteration before would have left: scalars that the loop counts with as the first
/// iteration itself has them, so that it writes where the second one writes again; zeros for all else.
fn first_taken(module: &mut Module, carried: &CarriedLoop, taken: &[InstId]) -> Vec<InstId> {
    let comp = module.inst(carried.inst).parent;
    let state = module.inst(carried.init).operands.to_vec();
    let sources = Sources::find(module, carried);
    let mut copies = Copies::new(carried, comp, &state, ".first");
    let mut begin = Vec::with_capacity(taken.len());
    for &inst in taken {
        let shape = module.shape(inst).clone();
        begin.push(match (sources.of(inst), shape) {
            (Source::Other, Shape::Array(shape)) => {
                let appender = Appender::standing_for(comp, inst);
                let zero = appender.zero(module, shape.dtype);
                appender.add(module, "none", Opcode::Broadcast, shape, &[zero], DimsAttrs::default())
            }
            (Source::Fixed | Source::Counted | Source::Other, _) => copies.copy(module, inst, |_: &mut Attrs| ()),
        });
    }
    begin
}

/// The reads of one element of what the loop leaves.
fn results(module: &Module, users: &UserMap, carried: &CarriedLoop, index: usize) -> Vec<InstId> {
    let is_read = |read: &InstId| tuple_index(module, *read) == Some(index);
    users[carried.inst].iter().copied().filter(is_read).collect()
}
