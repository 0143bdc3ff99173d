//! All-reduces whose results a loop only adds up are done once, on the local sum, after the loop.
//!
//! `carry = carry + AR(g)` in every iteration from `init` gives `init + AR(g₁) + AR(g₂) + …`, which is `init + AR(g₁ + g₂ + …)`. So the loop
//! accumulates `g` from zero and the all-reduce of the accumulator, plus `init` if that is not zero, stands behind the loop. What stands
//! between all-reduce and sum stays in the loop: rearrangements, and scalings by a number that is the same on the devices of a group
//! in each iteration, such as a loss scale, the weight of a microbatch or a sum over the devices.
//!
//! A partitioner writes `carry = AR(select(is_first, carry, 0) + g)` where it adds into a table that all devices have, as in a
//! scatter: one device of each group hands the carry on, and the sum gives it to all. There the loop accumulates on each device, from
//! `init` on that one device and zero on the others, and the all-reduce stands behind it ([`handed_on`]).
//!
//! The devices of a group run the loop equally often, as they met in its all-reduce before, so they meet behind it too. The initial value
//! may differ between them: each adds its own, as before.
//!
//! It applies to an element of the carry that the condition does not read and that the body reads only in this sum. The other terms
//! of the sum must be all-reduces by addition over the same groups, and nothing else may use them. The loop's state must be a
//! tuple that is only read element by element, and no other loop may call the body.
//!
//! An all-reduce that is converted before it is added up is done in the accumulator's type. For integers that are converted to
//! the same or fewer bits this is exact, as both wrap. Floating-point numbers that are converted to more bits are then rounded once an
//! iteration on each device, and the sum over the devices has the accumulator's precision: another result, so it must be asked for.
//!
//! A sum that is scaled by an infinite number, or divided by zero, is infinite; parts of it that have two signs are then no number.

use super::body::{Body, widens};
use super::branches::IsEqual;
use super::handed_on::{self, HandedOn};
use cranelift_entity::EntitySet;
use hlo_analysis::code::{code_computations, pinned_by_control};
use hlo_analysis::values::{CallSites, condition_and_body, tuple_elements, tuple_index};
use hlo_ir::attrs::{Attrs, CombiningAttrs, TupleIndexAttrs};
use hlo_ir::module::UserMap;
use hlo_ir::{CompId, InstId, Module, Opcode, Scalar};
use hlo_pass::PassError;
use hlo_pass::report::{Decision, PassReport};
use hlo_spmd::{AllReduce, CollectiveChange, Rewrite, Splat, array, check_free, find_splat, is_floating};

/// A loop in a form that is looked into.
struct Loop {
    inst: InstId,
    comp: CompId,
    body: CompId,
    /// The tuple that the loop starts from.
    init: InstId,
    /// The tuple that the body returns.
    root: InstId,
    /// Reads of each element of the state in the body.
    reads: Vec<Vec<InstId>>,
    /// Whether the condition reads the element.
    decides: Vec<bool>,
}

/// An element of the state that only adds up all-reduces.
struct Accumulator {
    index: usize,
    all_reduces: Vec<AllReduce>,
    /// How the element goes into the all-reduce, if it is not added to the result.
    handed_on: Option<HandedOn>,
}

/// Takes all-reduces out of the loops that the entry reaches; how many. `is_equal` holds for the module as it is.
pub(super) fn take_out_of_loops(
    module: &mut Module,
    reassoc: bool,
    is_equal: IsEqual<'_>,
    report: &mut PassReport,
) -> Result<u64, PassError> {
    let sites = CallSites::find(module, module.post_order());
    let mut n_taken_out = 0;
    for comp in code_computations(module) {
        for inst in Rewrite::new(module, comp).live_insts(module) {
            if condition_and_body(module, inst).is_none() {
                continue;
            }
            let users = module.users();
            let Some(found) = find_loop(module, &users, inst, &sites) else { continue };
            let pinned = pinned_by_control(module, found.body);
            let body = Body { module, users: &users, pinned: &pinned, reassoc, is_equal };
            let accumulators = find_accumulators(&body, &found);
            n_taken_out += accumulators.iter().map(|a| a.all_reduces.len() as u64).sum::<u64>();
            if !accumulators.is_empty() {
                take_out(module, &users, &found, &accumulators, report)?;
            }
        }
    }
    Ok(n_taken_out)
}

fn find_loop(module: &Module, users: &UserMap, inst: InstId, sites: &CallSites) -> Option<Loop> {
    let (condition, body) = condition_and_body(module, inst)?;
    let comp = module.inst(inst).parent;
    check_free(module, inst, &pinned_by_control(module, comp)).ok()?;
    let n = module.shape(inst).as_tuple()?.len();
    let is_read_only_by_element = |value: InstId| users[value].iter().all(|&u| tuple_index(module, u).is_some());
    let is_result = module.comp(comp).root.expand() == Some(inst);
    let init = *module.inst(inst).operands.first()?;
    let root = module.comp(body).root.expand()?;
    let (&in_body, &in_condition) = (module.comp(body).params.first()?, module.comp(condition).params.first()?);
    let fits = !is_result
        && sites.of(body).len() == 1
        && [init, root].iter().all(|&t| tuple_elements(module, t).is_some())
        && users[root].is_empty()
        && [inst, in_body, in_condition].into_iter().all(is_read_only_by_element)
        && [root, in_body].iter().all(|&i| check_free(module, i, &pinned_by_control(module, body)).is_ok());
    if !fits {
        return None;
    }
    let (mut reads, mut decides) = (vec![Vec::new(); n], vec![false; n]);
    for &read in &users[in_body] {
        reads.get_mut(tuple_index(module, read)?)?.push(read);
    }
    for &read in &users[in_condition] {
        *decides.get_mut(tuple_index(module, read)?)? = true;
    }
    Some(Loop { inst, comp, body, init, root, reads, decides })
}

fn find_accumulators(body: &Body<'_>, found: &Loop) -> Vec<Accumulator> {
    let module = body.module;
    let operands = module.inst(found.root).operands.iter().enumerate();
    let accumulators = operands.filter(|(index, _)| !found.decides.get(*index).copied().unwrap_or(true));
    let mut taken: EntitySet<InstId> = EntitySet::new();
    accumulators
        .filter_map(|(index, &sum)| {
            let reads = found.reads.get(index)?;
            let accumulator = match body.find_terms(reads, sum) {
                Some(all_reduces) => Accumulator { index, all_reduces, handed_on: None },
                None => {
                    let init = *module.inst(found.init).operands.get(index)?;
                    let (all_reduce, handed_on) = handed_on::find(body, reads, sum)?;
                    // A loop that never runs gives every device its own.
                    let is_shared = (body.is_equal)(init, &all_reduce.groups);
                    is_shared.then(|| Accumulator {
                        index,
                        all_reduces: vec![all_reduce],
                        handed_on: Some(handed_on),
                    })?
                }
            };
            accumulator.all_reduces.iter().all(|a| taken.insert(a.inst)).then_some(accumulator)
        })
        .collect()
}

/// Lets the body accumulate what it reduced, and reduces the accumulators behind the loop.
fn take_out(
    module: &mut Module,
    users: &UserMap,
    found: &Loop,
    accumulators: &[Accumulator],
    report: &mut PassReport,
) -> Result<(), PassError> {
    let mut outside = Rewrite::new(module, found.comp);
    let mut inside = Rewrite::new(module, found.body);
    let mut start = module.inst(found.init).operands.clone();
    for accumulator in accumulators {
        let Some(first) = accumulator.all_reduces.first() else { continue };
        let reason = reason(module, found, first, accumulator.index);
        let mut told = Decision::about(module, first.inst, "deferred", reason);
        for all_reduce in &accumulator.all_reduces {
            told.collectives.push(CollectiveChange::removed(module, all_reduce.inst, "ran in every iteration"));
            inside.redirect(all_reduce.inst, all_reduce.operand);
        }
        if let Some(handed_on) = &accumulator.handed_on {
            inside.redirect(handed_on.choice, handed_on.masked.value);
        }
        if let Some(deferred) = reduce_after(module, users, &mut outside, found, accumulator, &mut start) {
            told.collectives.push(CollectiveChange::inserted(
                module,
                deferred,
                "reduces the local sum once, behind the loop",
            ));
        }
        report.decisions.push(told);
    }
    if start != module.inst(found.init).operands {
        let (hint, shape) = (module.inst_name(found.init).to_string(), module.shape(found.init).clone());
        let init = outside.add(module, found.init, (&hint, Opcode::Tuple), shape, &start, Attrs::Plain);
        module.inst_mut(found.inst).operands[0] = init;
    }
    inside.finish(module)?;
    outside.finish(module)?;
    Ok(())
}

/// Why an all-reduce is done behind the loop, and in which type if that is another one.
fn reason(module: &Module, found: &Loop, first: &AllReduce, index: usize) -> String {
    let dtype = |inst| array(module, inst).map(|shape| shape.dtype);
    let sum = module.inst(found.root).operands.get(index).and_then(|&sum| dtype(sum));
    let why = format!("the loop %{} only adds its results up", module.inst_name(found.inst));
    match (dtype(first.inst), sum) {
        (Some(from), Some(to)) if widens(from, to) => {
            format!("{why}; it is done in {to} instead of {from}, as reassoc=true allows")
        }
        (Some(from), Some(to)) if from != to => {
            format!("{why}; it is done in {to} instead of {from}, which wrap alike")
        }
        _ => why,
    }
}

/// The all-reduce of an accumulator behind the loop, if anybody reads it. Changes where the loop starts from.
fn reduce_after(
    module: &mut Module,
    users: &UserMap,
    outside: &mut Rewrite,
    found: &Loop,
    accumulator: &Accumulator,
    start: &mut hlo_ir::module::Operands,
) -> Option<InstId> {
    let first = accumulator.all_reduces.first()?;
    let exits = users[found.inst].iter().copied();
    let exits: Vec<InstId> = exits.filter(|&e| tuple_index(module, e) == Some(accumulator.index)).collect();
    let exit = *exits.first()?;
    let shape = module.shape(exit).clone();
    let init = *start.get(accumulator.index)?;
    let (hint, mut attrs) = (module.inst_name(first.inst).to_string(), module.inst(first.inst).attrs.clone());
    let (reduced, dtype) = (array(module, first.inst)?.dtype, array(module, exit)?.dtype);
    if let (true, Some(attrs)) = (reduced != dtype, CombiningAttrs::of_mut(&mut attrs)) {
        attrs.to_apply = Some(module.add_sum("add", dtype));
    }
    let read = TupleIndexAttrs { index: accumulator.index as i64 };
    let local_hint = format!("{hint}.local");
    let what = (local_hint.as_str(), Opcode::GetTupleElement);
    let local = outside.add(module, exit, what, shape.clone(), &[found.inst], read);
    let deferred = outside.add(module, first.inst, (&hint, Opcode::AllReduce), shape.clone(), &[local], attrs);
    let mut result = deferred;
    let from_zero = find_splat(module, init).is_some_and(Splat::is_zero);
    if let (false, Some(handed_on)) = (from_zero, &accumulator.handed_on) {
        start[accumulator.index] = handed_on.on_one_device(module, outside, init)?;
    } else if !from_zero {
        let zeros = array(module, init)?.clone();
        let zero = if is_floating(&zeros) { Scalar::Float(0.0) } else { Scalar::Int(0) };
        start[accumulator.index] = outside.splat(module, "zero", zero, &zeros);
        let hint = module.inst_name(exit).to_string();
        result = outside.add(module, exit, (&hint, Opcode::Add), shape, &[init, deferred], Attrs::Plain);
    }
    exits.iter().for_each(|&exit| outside.redirect(exit, result));
    Some(deferred)
}
