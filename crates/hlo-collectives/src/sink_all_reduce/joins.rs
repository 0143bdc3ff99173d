//! All-reduces whose results are concatenated are one, of the concatenated operands.
//!
//! `concatenate(AR(a), AR(b))` is `AR(concatenate(a, b))`, for any reduction. Scalings by one scalar that stand behind each of them stand
//! behind the one. Zeros may be concatenated with sums: they are their own sum.
//!
//! An optimizer that runs on one flat array (`optax.flatten`) gets its gradient from one sum then, and can be sharded.

use cranelift_entity::EntitySet;
use hlo_analysis::code::pinned_by_control;
use hlo_ir::module::UserMap;
use hlo_ir::monoid::Monoid;
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::PassError;
use hlo_pass::report::{Decision, PassReport};
use hlo_spmd::{
    AllReduce, CollectiveChange, Rewrite, Scaling, Splat, array, check_free, find_all_reduce, find_scaling, find_splat,
    is_floating,
};

/// One operand of a concatenation.
enum Part {
    /// A sum, and how it is scaled behind, in order.
    Sum(AllReduce, Vec<(InstId, Scaling)>),
    /// Zeros.
    Zeros(InstId),
}

/// Moves the all-reduces of one computation past concatenations; how many.
pub(super) fn join_in(module: &mut Module, comp: CompId, report: &mut PassReport) -> Result<u64, PassError> {
    let pinned = pinned_by_control(module, comp);
    let users = module.users();
    let mut rewrite = Rewrite::new(module, comp);
    let mut n_joined = 0;
    for inst in rewrite.live_insts(module) {
        let Some(parts) = find_parts(module, &users, &pinned, inst) else { continue };
        n_joined += join(module, &mut rewrite, inst, &parts, report);
    }
    if n_joined > 0 {
        rewrite.finish(module)?;
    }
    Ok(n_joined)
}

/// The operands of a concatenation of sums that are alike.
fn find_parts(module: &Module, users: &UserMap, pinned: &EntitySet<InstId>, inst: InstId) -> Option<Vec<Part>> {
    let instruction = module.inst(inst);
    if instruction.opcode != Opcode::Concatenate || check_free(module, inst, pinned).is_err() {
        return None;
    }
    let operands = instruction.operands.iter();
    let parts: Vec<Part> = operands.map(|&operand| find_part(module, users, pinned, operand)).collect::<Option<_>>()?;
    let mut sums = parts.iter().filter_map(|part| match part {
        Part::Sum(all_reduce, scalings) => Some((all_reduce, scalings)),
        Part::Zeros(_) => None,
    });
    let (first, scalings) = sums.next()?;
    let channel = |a: &AllReduce| module.inst(a.inst).attrs.collective().map(|c| c.channel_id.is_some());
    let dtype = |a: &AllReduce| array(module, a.inst).map(|s| s.dtype);
    let is_alike = |(a, s): (&AllReduce, &Vec<(InstId, Scaling)>)| {
        let same_scalings = s.len() == scalings.len()
            && s.iter().zip(scalings).all(|((_, a), (_, b))| a.opcode == b.opcode && a.splat == b.splat);
        let same_sum = a.reducer == first.reducer && a.groups == first.groups && channel(a) == channel(first);
        same_scalings && same_sum && dtype(a) == dtype(first)
    };
    let has_zeros = parts.iter().any(|part| matches!(part, Part::Zeros(_)));
    let is_neutral = first.reducer == Some(Monoid::Add) && scalings.is_empty();
    (first.reducer.is_some() && sums.all(is_alike) && (!has_zeros || is_neutral)).then_some(parts)
}

/// What an operand is, if only the concatenation uses it.
fn find_part(module: &Module, users: &UserMap, pinned: &EntitySet<InstId>, operand: InstId) -> Option<Part> {
    if find_splat(module, operand).is_some_and(Splat::is_zero) {
        return Some(Part::Zeros(operand));
    }
    let root = module.comp(module.inst(operand).parent).root.expand();
    let (mut at, mut scalings) = (operand, Vec::new());
    loop {
        if users[at].len() != 1 || root == Some(at) {
            return None;
        }
        if let Some(all_reduce) = find_all_reduce(module, at, pinned).ok()? {
            scalings.reverse();
            return Some(Part::Sum(all_reduce, scalings));
        }
        check_free(module, at, pinned).ok()?;
        if !is_floating(array(module, at)?) {
            return None;
        }
        let operands = module.inst(at).operands.iter();
        let (next, scaling) =
            operands.filter(|&&o| users[o].len() == 1).find_map(|&o| Some((o, find_scaling(module, at, o)?)))?;
        scalings.push((at, scaling));
        at = next;
    }
}

/// Emits the one sum; how many it replaces.
fn join(module: &mut Module, rewrite: &mut Rewrite, inst: InstId, parts: &[Part], report: &mut PassReport) -> u64 {
    let sums = parts.iter().filter_map(|part| match part {
        Part::Sum(all_reduce, scalings) => Some((all_reduce, scalings)),
        Part::Zeros(_) => None,
    });
    let sums: Vec<_> = sums.collect();
    let Some(&(first, scalings)) = sums.first() else { return 0 };
    let mut told = Decision::about(module, first.inst, "moved", format!("past %{}", module.inst_name(inst)));
    for (all_reduce, _) in &sums {
        told.collectives.push(CollectiveChange::removed(
            module,
            all_reduce.inst,
            "its result is concatenated with others",
        ));
    }
    let operands = parts.iter().map(|part| match part {
        Part::Sum(all_reduce, _) => all_reduce.operand,
        Part::Zeros(zeros) => *zeros,
    });
    let operands: Vec<InstId> = operands.collect();
    let (attrs, shape) = (module.inst(inst).attrs.clone(), module.shape(inst).clone());
    let hint = format!("{}.local", module.inst_name(inst));
    let local = rewrite.add(module, inst, (&hint, Opcode::Concatenate), shape.clone(), &operands, attrs);
    let (hint, attrs) = (module.inst_name(first.inst).to_string(), module.inst(first.inst).attrs.clone());
    let sum = rewrite.add(module, first.inst, (&hint, Opcode::AllReduce), shape, &[local], attrs);
    told.collectives.push(CollectiveChange::inserted(module, sum, "reduces the concatenation"));
    report.decisions.push(told);
    let mut result = sum;
    for (scaled, scaling) in scalings {
        result = rewrite.scale(module, *scaled, result, scaling);
    }
    rewrite.redirect(inst, result);
    sums.len() as u64
}
