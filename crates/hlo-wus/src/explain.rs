//! Puts into words and numbers what was done to each gradient, and what was not.

use crate::comm_model::{CommModel, Ring};
use crate::format::Choice;
use crate::rewrite::Emitted;
use hlo_ir::{InstId, Module};
use hlo_pass::report::{Alternative, CollectiveChange, Decision};

/// Streaming passes over memory that an update op makes for each element: every operand read, the result written.
fn update_bytes(module: &Module, choice: &Choice) -> u64 {
    let computed = choice.cluster.members.keys().filter(|m| !choice.cluster.gradients.contains(m));
    let bytes = |inst: &InstId| module.shape(*inst).size_bytes();
    computed.map(|inst| bytes(inst) + module.inst(*inst).operands.iter().map(bytes).sum::<u64>()).sum()
}

/// Predicted times of an update before and after, in nanoseconds.
pub fn predict(module: &Module, choice: &Choice, model: &CommModel) -> (f64, f64) {
    let n = choice.cut.n_shards as usize;
    let cluster = &choice.cluster;
    let reduced = |ring| -> f64 {
        cluster.gradients.iter().map(|&g| model.collective_ns(ring, module.shape(g).size_bytes(), n)).sum()
    };
    let gathered: f64 =
        cluster.exits.iter().map(|&e| model.collective_ns(Ring::AllGather, module.shape(e).size_bytes(), n)).sum();
    let update = model.memory_ns(update_bytes(module, choice));
    (reduced(Ring::AllReduce) + update, reduced(Ring::ReduceScatter) + gathered + update / n as f64)
}

/// The decision to shard an update, after it was rewritten. `before` is the module as it was, `after` as it is.
pub fn sharded(before: &Module, after: &Module, choice: &Choice, emitted: &Emitted, model: &CommModel) -> Decision {
    let (n, cut) = (choice.cut.n_shards as usize, &choice.cut);
    let mut decision = described(before, choice.cluster.gradients[0], "sharded");
    let dim = choice.cluster.members[0];
    decision.reason = format!(
        "{} values of the update are the same on all {n} devices; each computes 1/{n} of them",
        choice.cluster.members.len()
    );
    decision.format = Some(match cut.padding() {
        0 => format!("dim {dim}: {} = {n} shards of {}", cut.size, cut.shard_size),
        padding => format!("dim {dim}: {} + {padding} padding = {n} shards of {}", cut.size, cut.shard_size),
    });
    let change = |change, module: &Module, inst: InstId, whole: InstId, ring: Ring, because: String| {
        let bytes = before.shape(whole).size_bytes();
        CollectiveChange {
            change,
            op: module.inst(inst).opcode.name().into(),
            instruction: module.inst_name(inst).into(),
            because,
            bytes,
            group_size: n as u64,
            predicted_ns: model.collective_ns(ring, bytes, n),
        }
    };
    for &(old, new) in &emitted.scattered {
        let because = "its sum is needed in shards only".to_string();
        decision.collectives.push(change("removed", before, old, old, Ring::AllReduce, because));
        let because = format!("sums `%{}` into shards", before.inst_name(old));
        decision.collectives.push(change("inserted", after, new, old, Ring::ReduceScatter, because));
    }
    for &(whole, new) in &emitted.gathered {
        let because = format!("`%{}` leaves the computation whole", before.inst_name(whole));
        decision.collectives.push(change("inserted", after, new, whole, Ring::AllGather, because));
    }
    let (was, is) = predict(before, choice, model);
    (decision.predicted_before_ns, decision.predicted_after_ns) = (Some(was), Some(is));
    decision.rejected = choice
        .rejected
        .iter()
        .map(|(dim, why)| Alternative { what: format!("cut dim {dim}"), because: why.clone() })
        .collect();
    decision
}

/// The decision to leave an all-reduce as it is.
pub fn left(module: &Module, all_reduce: InstId, reason: &str) -> Decision {
    let mut decision = described(module, all_reduce, "left");
    decision.reason = reason.into();
    decision
}

fn described(module: &Module, all_reduce: InstId, action: &str) -> Decision {
    let inst = module.inst(all_reduce);
    let shape = match module.shape(all_reduce) {
        hlo_ir::Shape::Array(array) => {
            let dims: Vec<String> = array.dims.iter().map(i64::to_string).collect();
            format!("{}[{}]", array.dtype, dims.join(","))
        }
        _ => "tuple".into(),
    };
    Decision {
        subject: format!("%{} {shape}", module.inst_name(all_reduce)),
        computation: module.comp_name(inst.parent).into(),
        action: action.into(),
        ..Decision::default()
    }
}
