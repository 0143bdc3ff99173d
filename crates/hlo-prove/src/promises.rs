//! Promises that a module makes. A scatter or gather with `unique_indices=true` or `indices_are_sorted=true` has no defined result if its
//! indices break the promise. A loop with a `known_trip_count` runs that often, whatever its condition says.
//!
//! The rules do not ask for these promises. A module may drop one. If it makes a new one, nothing is proved.

use hlo_ir::attrs::{Attrs, CompareAttrs, Comparison, GatherAttrs, ScatterAttrs, TupleIndexAttrs, WhileAttrs};
use hlo_ir::cost::known_trip_count;
use hlo_ir::literal::{ConstantValue, Scalar};
use hlo_ir::{InstId, Module, Opcode};
use std::collections::HashSet;

/// A promise of an instruction: its opcode, the rank of its result, the dims that indices count in, and the promise.
type Promise = (Opcode, usize, Vec<i64>, &'static str);

fn promises(module: &Module) -> Vec<(InstId, Promise)> {
    let mut found = Vec::new();
    for comp in module.post_order() {
        for &inst in &module.comp(comp).insts {
            let instruction = module.inst(inst);
            let said = match (GatherAttrs::of(&instruction.attrs), ScatterAttrs::of(&instruction.attrs)) {
                (Some(of), _) => (&of.start_index_map, of.indices_are_sorted, false),
                (None, Some(of)) => (&of.scatter_dims_to_operand_dims, of.indices_are_sorted, of.unique_indices),
                (None, None) => continue,
            };
            let (dims, is_sorted, is_unique) = said;
            let rank = module.shape(inst).as_array().map_or(0, |array| array.rank());
            let of_each = [(is_sorted, "indices_are_sorted=true"), (is_unique, "unique_indices=true")];
            let made = of_each.into_iter().filter(|(is_made, _)| *is_made);
            found.extend(made.map(|(_, what)| (inst, (instruction.opcode, rank, dims.to_vec(), what))));
        }
    }
    found
}

/// The loops that say how often they run.
fn trip_counts(module: &Module) -> impl Iterator<Item = (InstId, u64)> {
    let insts = module.computations().iter().flat_map(|&comp| &module.comp(comp).insts);
    let loops = insts.filter(|&&inst| module.inst(inst).opcode == Opcode::While);
    loops.filter_map(|&inst| Some((inst, known_trip_count(module, inst)?)))
}

/// An integer that an instruction is.
fn integer(module: &Module, inst: InstId) -> Option<i64> {
    let Attrs::Constant(value) = &module.inst(inst).attrs else { return None };
    let ConstantValue::Array(literal) = &**value else { return None };
    match literal.get(0).filter(|_| literal.n_elems() == 1)? {
        Scalar::Int(value) => Some(value),
        Scalar::Uint(value) => i64::try_from(value).ok(),
        Scalar::Pred(_) | Scalar::Float(_) | Scalar::Complex(..) => None,
    }
}

/// The element of its computation's parameter that an instruction is.
fn element(module: &Module, inst: InstId) -> Option<usize> {
    let of = TupleIndexAttrs::of(&module.inst(inst).attrs)?;
    let from = *module.inst(inst).operands.first()?;
    (module.inst(from).opcode == Opcode::Parameter).then(|| usize::try_from(of.index).ok()).flatten()
}

/// How often a loop runs that counts up by one to a constant.
fn counted(module: &Module, inst: InstId) -> Option<u64> {
    let of = WhileAttrs::of(&module.inst(inst).attrs)?;
    let root_of = |comp: Option<hlo_ir::CompId>| module.comp(comp?).root.expand();
    let test = root_of(of.condition)?;
    let is_less = CompareAttrs::of(&module.inst(test).attrs)?.direction == Comparison::Lt;
    let [counter, end] = *module.inst(test).operands.first_chunk::<2>()?;
    let (counter, end) = (element(module, counter).filter(|_| is_less)?, integer(module, end)?);
    let start = *module.inst(inst).operands.first().filter(|&&start| module.inst(start).opcode == Opcode::Tuple)?;
    let start = integer(module, *module.inst(start).operands.get(counter)?)?;
    let next = *module.inst(root_of(of.body)?).operands.get(counter)?;
    let [from, step] = *module.inst(next).operands.first_chunk::<2>()?;
    let is_step = module.inst(next).opcode == Opcode::Add
        && element(module, from) == Some(counter)
        && integer(module, step) == Some(1);
    u64::try_from(end.checked_sub(start)?).ok().filter(|_| is_step)
}

/// Whether a condition that stands in a fusion names the number.
fn names(module: &Module, inst: InstId, n: u64) -> bool {
    let of = WhileAttrs::of(&module.inst(inst).attrs).and_then(|of| of.condition);
    let Some(condition) = of else { return false };
    let root = module.comp(condition).root.expand();
    let is_fused = root.is_some_and(|root| module.inst(root).opcode == Opcode::Fusion);
    let called = root.into_iter().flat_map(|root| module.called(root));
    let mut insts = called.chain([condition]).flat_map(|comp| module.comp(comp).insts.clone());
    is_fused && insts.any(|inst| integer(module, inst).is_some_and(|value| u64::try_from(value) == Ok(n)))
}

/// The first promise of a later module that no such instruction of the first one makes, in words.
pub(crate) fn gained(modules: &[&Module]) -> Option<String> {
    let (before, after) = modules.split_first()?;
    let counts: HashSet<u64> = trip_counts(before).map(|(_, n)| n).collect();
    for module in after {
        let is_new = |(inst, n): &(InstId, u64)| {
            !counts.contains(n) && counted(module, *inst) != Some(*n) && !names(module, *inst, *n)
        };
        if let Some((inst, n)) = trip_counts(module).find(is_new) {
            let name = module.inst_name(inst);
            return Some(format!("while %{name} promises a known_trip_count of {n}, which its condition does not say"));
        }
    }
    let known: HashSet<Promise> = promises(before).into_iter().map(|(_, promise)| promise).collect();
    after.iter().find_map(|module| {
        let (inst, (opcode, .., what)) = promises(module).into_iter().find(|(_, promise)| !known.contains(promise))?;
        Some(format!(
            "{opcode} %{} promises {what}, which no {opcode} of the first module does",
            module.inst_name(inst)
        ))
    })
}
