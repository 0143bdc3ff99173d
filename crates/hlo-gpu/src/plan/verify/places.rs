//! Buffers within their places, communicators within the devices.

use crate::plan::ranges::{RangeMap, range};
use crate::plan::{BufferId, CommunicatorId, Place, Plan, PlanValueId, Step, Work};
use hlo_ir::Literal;
use std::collections::BTreeMap;

/// What kernels' and products' accesses need at least; buffers that are parts of others are as their elements are.
const ALIGNMENT_BYTES: u64 = 16;

pub(super) fn check(plan: &Plan, errors: &mut Vec<String>) {
    ids(plan, &plan.steps, errors);
    let lists = plan.parameters.iter().chain(&plan.outputs);
    if lists.into_iter().any(|&b| plan.buffers.get(b).is_none()) {
        errors.push("the plan: expected parameters and outputs that exist, found others".into());
    }
    if errors.is_empty() {
        ends(plan, errors);
        interface(plan, errors);
        communicators(plan, errors);
    }
}

/// Whether all that steps name exists.
fn ids(plan: &Plan, steps: &[Step], errors: &mut Vec<String>) {
    for step in steps {
        let accesses = step.work.accesses(plan);
        let mut missing: Vec<String> = Vec::new();
        for &b in accesses.reads.iter().chain(&accesses.writes) {
            missing.extend(plan.buffers.get(b).is_none().then(|| b.to_string()));
        }
        match &step.work {
            Work::Launch { kernel, .. } => {
                missing.extend(plan.kernels.get(*kernel).is_none().then(|| kernel.to_string()));
            }
            Work::Collective(call) => {
                let id: CommunicatorId = call.communicator;
                missing.extend(plan.communicators.get(id).is_none().then(|| id.to_string()));
            }
            Work::While { condition, body, carried, .. } => {
                missing.extend(carried.iter().filter(|&&b| plan.buffers.get(b).is_none()).map(|b| b.to_string()));
                [condition, body].into_iter().for_each(|list| ids(plan, list, errors));
            }
            Work::Conditional { branches, .. } => branches.iter().for_each(|list| ids(plan, list, errors)),
            Work::Gemm(_) | Work::Copy { .. } | Work::Fill { .. } => {}
        }
        errors.extend(missing.iter().map(|what| format!("{}: {what} does not exist", step.name)));
    }
}

fn ends(plan: &Plan, errors: &mut Vec<String>) {
    let mut base: BTreeMap<PlanValueId, (Place, u64)> = BTreeMap::new();
    for (id, buffer) in plan.buffers.iter() {
        let leaf_bytes =
            |list: &[BufferId], leaf: u32| list.get(leaf as usize).map_or(0, |&b| plan.buffers[b].shape.memory_bytes());
        let room = match buffer.place {
            Place::Parameter(leaf) => leaf_bytes(&plan.parameters, leaf),
            Place::Output(leaf) => leaf_bytes(&plan.outputs, leaf),
            Place::Arena => plan.arena_bytes,
            Place::Constant(constant) => plan.constants.get(constant).map_or(0, Literal::memory_bytes),
            Place::DeviceIds => 8,
        };
        let end = buffer.offset_bytes.saturating_add(buffer.shape.memory_bytes());
        if end > room {
            errors.push(format!("{id} ({buffer}): expected an end within {room} B, found {end}"));
        }
        let Some(begin) = buffer.offset_bytes.checked_sub(buffer.value_offset_bytes) else {
            let (at, part) = (buffer.offset_bytes, buffer.value_offset_bytes);
            errors.push(format!("{id} ({buffer}): expected an offset of at least {part} B in its value, found {at}"));
            continue;
        };
        if buffer.shape.n_elems() == 0 {
            continue;
        }
        if begin % ALIGNMENT_BYTES != 0 {
            errors
                .push(format!("{id} ({buffer}): expected a value at a multiple of {ALIGNMENT_BYTES} B, found {begin}"));
        }
        let known = *base.entry(buffer.value).or_insert((buffer.place, begin));
        if known != (buffer.place, begin) {
            let (place, at) = known;
            errors.push(format!(
                "{id} ({buffer}): expected its value at {place}+{at}, as other views of it, found another"
            ));
        }
    }
}

/// Parameters and outputs: whole, where the caller looks for them, apart from each other.
fn interface(plan: &Plan, errors: &mut Vec<String>) {
    if plan.parameter_facts.len() != plan.parameters.len() {
        let (n, found) = (plan.parameters.len(), plan.parameter_facts.len());
        errors.push(format!("the plan: expected facts of {n} parameters, found {found}"));
    }
    for (k, &id) in plan.parameters.iter().enumerate() {
        let buffer = &plan.buffers[id];
        if (buffer.place, buffer.offset_bytes) != (Place::Parameter(k as u32), 0) {
            errors.push(format!("parameter {k}: expected it at parameter {k}, found {id} ({buffer})"));
        }
    }
    let mut taken: RangeMap<usize> = RangeMap::default();
    for (k, &id) in plan.outputs.iter().enumerate() {
        let buffer = &plan.buffers[id];
        let is_whole = match buffer.place {
            Place::Output(leaf) => leaf as usize == k && buffer.offset_bytes == 0,
            Place::Parameter(leaf) => {
                let parameter = plan.parameters.get(leaf as usize).map(|&p| plan.buffers[p].shape.memory_bytes());
                buffer.offset_bytes == 0 && parameter == Some(buffer.shape.memory_bytes())
            }
            Place::Arena | Place::Constant(_) | Place::DeviceIds => false,
        };
        if !is_whole {
            errors
                .push(format!("output {k}: expected it at output {k} or in a whole parameter, found {id} ({buffer})"));
        }
        if let Some((_, _, other)) = taken.within(range(plan, id)).next() {
            errors.push(format!("output {k}: expected bytes of its own, found those of output {other}"));
        }
        taken.set(range(plan, id), k);
    }
}

fn communicators(plan: &Plan, errors: &mut Vec<String>) {
    let n_devices = plan.n_replicas.saturating_mul(plan.n_partitions);
    for (id, groups) in plan.communicators.iter() {
        let mut members: Vec<u32> = groups.iter().flatten().copied().collect();
        members.sort();
        let n = members.len();
        members.dedup();
        if members.len() != n {
            errors.push(format!("{id}: expected disjoint groups, found a device twice"));
        } else if let Some(last) = members.last().filter(|&&last| last >= n_devices) {
            errors.push(format!("{id}: expected devices below {n_devices}, found {last}"));
        } else if n != n_devices as usize {
            errors.push(format!("{id}: expected all {n_devices} devices in its groups, found {n}"));
        }
        if groups.iter().any(Vec::is_empty) {
            errors.push(format!("{id}: expected devices in each group, found an empty one"));
        }
    }
}
