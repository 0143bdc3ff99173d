//! Puts into words and numbers what was done to each gradient, and what was not.

use crate::context::ShardingContext;
use crate::machine::{Kind, Times};
use crate::problem::Problem;
use crate::rewrite::Emitted;
use crate::tables::IndexSet;
use hlo_analysis::annotations::{ParamFacts, entry_leaves, is_stack, own_sharding, spec_of};
use hlo_analysis::replication::{Difference, Differences, Replication};
use hlo_analysis::values::{InstLeaf, Origin, User, ValueId};
use hlo_ir::{CompId, InstId, Module, Opcode};
use hlo_pass::report::{Alternative, Decision};
use hlo_spmd::{CollectiveChange, KeptCopy, MergedCopies, find_scaling, is_rebuilt};
use std::fmt;

/// What was emitted, for each region; all of it is gone through once.
pub(crate) fn by_region(context: &ShardingContext<'_>, problem: &Problem, emitted: &Emitted) -> Vec<Emitted> {
    let mut parts = vec![Emitted::default(); problem.regions.len()];
    let mut add = |value: Option<ValueId>, put: &dyn Fn(&mut Emitted)| {
        if let Some(part) = value.and_then(|v| problem.region_number(v)).and_then(|n| parts.get_mut(n)) {
            put(part);
        }
    };
    for &pair in &emitted.scattered {
        add(context.values.of(pair.0), &|part| part.scattered.push(pair));
    }
    for &pair in &emitted.summed_across {
        add(context.values.of(pair.0), &|part| part.summed_across.push(pair));
    }
    for &pair in &emitted.gathered {
        add(Some(pair.0), &|part| part.gathered.push(pair));
    }
    for &pair in &emitted.combined {
        let operand = context.module.inst(pair.0).operands.first().and_then(|&o| context.values.of(o));
        add(operand, &|part| part.combined.push(pair));
    }
    parts
}

/// The decision about a region that was sharded; `emitted` is what was emitted for it. `after` is the module as it is now.
pub(crate) fn sharded(
    context: &ShardingContext<'_>,
    problem: &Problem,
    region_idx: usize,
    after: &Module,
    emitted: &Emitted,
    times: &Times,
) -> Decision {
    let (before, n) = (context.module, context.n_shards);
    let region = &problem.regions[region_idx];
    let seed = region.gradients.first().copied();
    let n_in_shards = region.runs.keys().filter(|&&v| problem.shards(v).is_some()).count();
    let reason = format!(
        "{n_in_shards} values round the update are the same on all {n} devices; each computes and holds 1/{n} of them"
    );
    let mut decision = match seed {
        Some(value) => Decision::about(before, context.values.inst(value), "sharded", reason),
        None => Decision { reason, ..Decision::default() },
    };
    decision.format = seed.and_then(|v| region.format(v)).map(|format| format.to_string());
    decision.weights = weights(context, region.runs.keys().copied());
    // Bytes are those of the tensor that the update is about, groups those that hold its shards.
    let about = |change: CollectiveChange, bytes: u64, kind: Kind| {
        let change = CollectiveChange { bytes, group_size: n as u64, ..change };
        change.taking(times.collective_ps(kind, bytes as f64) / 1e3)
    };
    let removed = |inst, bytes, kind, because| about(CollectiveChange::removed(before, inst, because), bytes, kind);
    let inserted =
        |inst, bytes, kind, because: String| about(CollectiveChange::inserted(after, inst, because), bytes, kind);
    let is_own = |v: ValueId| region.runs.contains_key(&v);
    let bytes_of = |inst: InstId| before.shape(inst).size_bytes();
    for &(old, new) in emitted.scattered.iter().filter(|(old, _)| context.values.of(*old).is_some_and(is_own)) {
        let because = "its sum is needed in shards only";
        decision.collectives.push(removed(old, bytes_of(old), Kind::AllReduce, because));
        let because = format!("sums `%{}` into shards", before.inst_name(old));
        decision.collectives.push(inserted(new, bytes_of(old), Kind::ReduceScatter, because));
    }
    for &(old, new) in emitted.summed_across.iter().filter(|(old, _)| context.values.of(*old).is_some_and(is_own)) {
        let because = format!("sums the shards of `%{}` across copies", before.inst_name(old));
        decision.collectives.push(inserted(new, bytes_of(old), Kind::Across, because));
    }
    for &(value, new) in emitted.gathered.iter().filter(|(v, _)| is_own(*v)) {
        let bytes = context.values.shape(before, value).map_or(0, |s| s.size_bytes());
        let name = before.inst_name(context.values.inst(value));
        let place = before.comp_name(after.inst(new).parent);
        let because = format!("`%{name}` is needed whole in `%{place}`");
        decision.collectives.push(inserted(new, bytes, Kind::AllGather, because));
    }
    for &(reduce, new) in &emitted.combined {
        let operand = before.inst(reduce).operands.first().and_then(|&o| context.values.of(o));
        if operand.is_some_and(is_own) {
            let because = format!("combines the partial results of `%{}`", before.inst_name(reduce));
            decision.collectives.push(inserted(new, bytes_of(reduce), Kind::Combine, because));
        }
    }
    let was = problem.predicted_ns(region_idx, &[]);
    let is = problem.predicted_ns(region_idx, &problem.in_shards);
    let is_exit = |v: &ValueId| context.values.uses[*v].iter().any(|u| matches!(u.user, User::Exit(_)));
    let n_gathered = emitted.gathered.iter().filter(|(v, _)| is_own(*v) && is_exit(v)).count();
    let is_in_loop = region.runs.keys().any(|&v| context.values.values[v].origin == Origin::Carry);
    if is > was && n_gathered > 1 && !is_in_loop {
        decision.reason += &format!(
            "; predicted to be slower, since {n_gathered} values leave the entry and are gathered each time: \
             state=auto or a loop round the step keeps state in shards, profit=auto leaves such updates as they are"
        );
    }
    if is > was {
        decision.reason += &returned_gradient(context, problem, region_idx).unwrap_or_default();
    }
    let n_slow = problem.n_bound_by_arithmetic(region_idx);
    if n_slow > 0 {
        decision.reason += &format!("; {n_slow} of its kernels take longer to compute than to read and write memory");
    }
    (decision.predicted_before_ns, decision.predicted_after_ns) = (Some(was), Some(is));
    decision.rejected = region
        .rejected
        .iter()
        .map(|(what, because)| Alternative { what: what.clone(), because: because.clone() })
        .collect();
    decision
}

/// What the framework calls the entry's parameters among these values.
fn weights(context: &ShardingContext<'_>, values: impl Iterator<Item = ValueId>) -> Vec<String> {
    let is_param = |v: &ValueId| context.values.values[*v].origin == Origin::EntryParam;
    let insts = values.filter(is_param).map(|v| context.module.inst(context.values.inst(v)));
    insts.filter_map(|inst| inst.marks.as_ref()?.op_name().map(str::to_string)).collect()
}

/// Most values that are computed whole and spoken of.
const MAX_WHOLE: usize = 5;

/// The largest values that all devices compute alike although updates are in shards, and why. `often` is how often a computation
/// runs.
pub(crate) fn computed_whole(
    context: &mut ShardingContext<'_>,
    problem: &Problem,
    often: impl Fn(CompId) -> f64,
) -> Vec<Decision> {
    let (module, values) = (context.module, context.values);
    let mut found: Vec<(f64, InstId, &str)> = Vec::new();
    for value in values.values.keys() {
        let inst = values.inst(value);
        let instruction = module.inst(inst);
        let is_computed = values.values[value].origin == Origin::Computed && instruction.opcode.is_elementwise();
        let is_from_nothing = instruction.operands.iter().all(|&operand| is_rebuilt(module, operand));
        if !is_computed || instruction.opcode == Opcode::Copy || is_from_nothing {
            continue;
        }
        if problem.shards(value).is_some() || !context.is_eligible(value) {
            continue;
        }
        let why = match problem.region_number(value).map(|number| problem.is_sharded(number)) {
            None => {
                "computed whole on every device: it meets no gradient in an op that can be cut, so it is no part of an update"
            }
            Some(false) => "computed whole on every device: the update that it is part of stays whole",
            Some(true) => {
                "computed whole on every device: it is needed whole, and so is what it is computed from; to gather it as well \
                 would cost more"
            }
        };
        found.push((module.shape(inst).size_bytes() as f64 * often(instruction.parent), inst, why));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate(MAX_WHOLE);
    found.into_iter().map(|(_, inst, why)| Decision::about(module, inst, "whole", why)).collect()
}

/// The longest list of leaves that advice spells out.
const MAX_SPEC_BYTES: usize = 200;

/// Says why values are not known to be the same on all devices of a group, and what the user can do.
pub(crate) struct Unequal<'a> {
    module: &'a Module,
    differences: Differences<'a>,
    /// Whether the user has promised something already.
    has_promise: bool,
}

impl<'a> Unequal<'a> {
    /// For a module of which this is known, with what was promised of its parameters.
    pub(crate) fn new(module: &'a Module, params: &'a ParamFacts, known: &'a Replication) -> Unequal<'a> {
        Unequal { module, differences: Differences::new(module, params, known), has_promise: !params.is_empty() }
    }

    /// The rest of a sentence. It advises a promise only where nothing contradicts it and the value is equal with it.
    pub(crate) fn why(&self, leaf: InstLeaf, groups: &[Vec<u32>]) -> String {
        let module = self.module;
        match self.differences.of(leaf, groups) {
            Difference::Unsaid(leaves) => {
                let spec = spec_of(&leaves);
                let (whose, verb) = match leaves.as_slice() {
                    _ if spec.len() > MAX_SPEC_BYTES => {
                        return "; if the parameters it is computed from are, say so with --replicated-params".into();
                    }
                    [leaf] => (entry_leaves(module)[*leaf].describe(module), "is"),
                    _ => (format!("entry leaves {spec}"), "are"),
                };
                let how = match self.has_promise {
                    true => format!("add {spec} to --replicated-params"),
                    false => format!("say so with --replicated-params {spec}"),
                };
                format!("; if {whose} {verb}, {how}")
            }
            Difference::Cut(number) => {
                let leaf = &entry_leaves(module)[number];
                let sharding = own_sharding(module, leaf).map(|s| format!(" by sharding={s}")).unwrap_or_default();
                let advice = match is_stack(module, leaf) {
                    true => {
                        "; if it is a stack of equal copies, one for each device, as jax.pmap takes it, say so of it and \
                             of all others with --replicated-params stacked:LEAVES"
                    }
                    false => "",
                };
                format!(": it depends on {}, which is cut over the devices{sharding}{advice}", leaf.describe(module))
            }
            Difference::Source(source) if source == leaf.inst => String::new(),
            Difference::Source(source) => {
                let (opcode, name) = (module.inst(source).opcode, named(module, source));
                format!(": it depends on {opcode} {name}, whose result may differ from device to device")
            }
            Difference::Unknown => String::new(),
        }
    }
}

/// Why a region stays whole. `forced` is the cheapest placement that has its update in shards.
pub(crate) fn whole(
    context: &ShardingContext<'_>,
    problem: &Problem,
    region_idx: usize,
    forced: &[bool],
    unequal: &Unequal<'_>,
) -> String {
    if problem.stateless[region_idx] {
        return stateless(context, problem, region_idx, unequal);
    }
    let before = problem.predicted_ns(region_idx, &[]);
    let after = problem.predicted_ns(region_idx, forced);
    let region = &problem.regions[region_idx];
    let is_in_loop = region.runs.keys().any(|&v| context.values.values[v].origin == Origin::Carry);
    let why = match is_in_loop {
        true => "what the collectives cost more is not won back".to_string(),
        false => {
            let is_exit = |v: &&ValueId| context.values.uses[**v].iter().any(|u| matches!(u.user, User::Exit(_)));
            let n_gathers = region.runs.keys().filter(is_exit).count();
            format!(
                "{n_gathers} values leave the entry whole and would have to be gathered each time; state=auto or a \
                 loop round the step keeps state in shards between steps"
            )
        }
    };
    let returned = returned_gradient(context, problem, region_idx).unwrap_or_default();
    format!(
        "predicted {before:.0} ns as it is and {after:.0} ns in shards: {why}; profit=always shards in any case{returned}"
    )
}

/// That a gradient leaves the entry as it is, or scaled, and no input takes it: what to do, after a semicolon.
fn returned_gradient(context: &ShardingContext<'_>, problem: &Problem, region_idx: usize) -> Option<String> {
    let module = context.module;
    let mut open: Vec<ValueId> = problem.regions.get(region_idx)?.gradients.to_vec();
    let mut seen: IndexSet<ValueId> = open.iter().copied().collect();
    while let Some(value) = open.pop() {
        for one in &context.values.uses[value] {
            let next = match one.user {
                User::Exit(output) if !problem.pairs().any(|(paired, _)| paired == output as usize) => {
                    return Some(format!(
                        "; output {output} is the gradient, and no input takes it: free gradients before the step ends, in PyTorch by \
                         `optimizer.zero_grad(set_to_none=True)`, and it need not be whole"
                    ));
                }
                User::Op { inst, operand } => {
                    let operand = module.inst(inst).operands.get(operand as usize).copied();
                    let is_scaled = operand.is_some_and(|operand| find_scaling(module, inst, operand).is_some());
                    let moves = [Opcode::Convert, Opcode::Copy, Opcode::Reshape, Opcode::Transpose, Opcode::Bitcast];
                    let is_kept = is_scaled || moves.contains(&module.inst(inst).opcode);
                    is_kept.then(|| context.values.of(inst)).flatten()
                }
                User::Becomes(next) => Some(next),
                User::Exit(_) | User::Opaque(_) => None,
            };
            open.extend(next.filter(|&next| seen.insert(next)));
        }
    }
    None
}

/// What is in the way of an update that computes nothing from weights or state in shards.
fn stateless(context: &ShardingContext<'_>, problem: &Problem, region_idx: usize, unequal: &Unequal<'_>) -> String {
    let module = context.module;
    let update = &problem.updates[region_idx];
    for &value in update {
        for taken in &context.values.uses[value] {
            let inst = match taken.user {
                User::Op { inst, .. } | User::Opaque(inst) => inst,
                User::Becomes(into) => match unequal_site(context, into) {
                    Some(site) if !update.contains(&into) => {
                        let (name, place) = (named(module, site.inst), module.inst(site.inst).parent);
                        let (place, why) = (module.comp_name(place), unequal.why(site, context.groups));
                        return format!(
                            "{name} of `%{place}` is not known to be the same on all devices of a group{why}"
                        );
                    }
                    Some(_) | None => continue,
                },
                User::Exit(_) => continue,
            };
            if context.values.of(inst).is_some_and(|v| update.contains(&v)) {
                continue;
            }
            let (name, opcode) = (named(module, inst), module.inst(inst).opcode);
            if !context.replication.is_equal_within(inst, 0, context.groups) {
                let why = unequal.why(InstLeaf::new(inst, 0), context.groups);
                return format!("{opcode} {name} is not known to be the same on all devices of a group{why}");
            }
            if module.shape(inst).as_array().is_some_and(|a| a.rank() > 0) {
                let value = named(module, context.values.inst(value));
                let is_shared = opcode.row().flow.entry().is_some()
                    && module.called(inst).iter().any(|&c| !context.values.knows(c));
                let why = match is_shared {
                    true => {
                        ", whose computation is called from too many places to copy it for each: run inline-calls first"
                    }
                    false => "",
                };
                return format!("{value} is needed whole inside the update, by {opcode} {name}{why}");
            }
        }
    }
    "it leaves the computation as the sum alone, without weights or state: an all-gather would undo what scattering saves".into()
}

/// Where a value is not known to be the same on all devices of a group.
fn unequal_site(context: &ShardingContext<'_>, value: ValueId) -> Option<InstLeaf> {
    let mut sites = context.values.values[value].sites.iter().map(|&(inst, leaf_idx)| InstLeaf::new(inst, leaf_idx));
    sites.find(|site| !context.replication.is_equal_within(site.inst, site.leaf_idx as usize, context.groups))
}

/// The name of an instruction, and what the framework calls it.
fn named(module: &Module, inst: InstId) -> String {
    let name = module.inst_name(inst);
    match module.inst(inst).marks.as_ref().and_then(|marks| marks.op_name()) {
        Some(op_name) => format!("`%{name}` ({op_name})"),
        None => format!("`%{name}`"),
    }
}

/// The decision to leave an all-reduce as it is.
pub(crate) fn left(module: &Module, all_reduce: InstId, reason: impl fmt::Display) -> Decision {
    Decision::about(module, all_reduce, "left", reason)
}

/// Says in the decisions of a report what each thing is called now that copies of computations were merged, and which copies stay.
pub(crate) fn tell_copies(module: &Module, merged: &MergedCopies, decisions: &mut Vec<Decision>) {
    decisions.extend(merged.kept().iter().map(|&KeptCopy { original, copy, site }| Decision {
        subject: format!("%{}", module.comp_name(original)),
        computation: module.comp_name(module.inst(site).parent).into(),
        action: "copied".into(),
        reason: format!(
            "it is called from several places, which do not take the same values in shards: `%{}` calls `%{}` now",
            module.inst_name(site),
            module.comp_name(copy)
        ),
        ..Decision::default()
    }));
    let mut said: IndexSet<String> = IndexSet::default();
    decisions.retain_mut(|decision| {
        let instructions = decision.collectives.iter_mut().map(|c| &mut c.instruction);
        for name in [&mut decision.computation].into_iter().chain(instructions) {
            if let Some(now) = merged.name_now(name) {
                *name = now.to_string();
            }
        }
        let texts = [&mut decision.subject, &mut decision.reason];
        for text in texts.into_iter().chain(decision.collectives.iter_mut().map(|c| &mut c.because)) {
            *text = merged.renamed(text);
        }
        // The same of several sites is said once.
        said.insert(format!("{decision:?}"))
    });
}
