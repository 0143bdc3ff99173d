//! Which annotation reached a value, and through which ops.

use super::graph::ShardingGraph;
use super::step::Growth;
use super::values::CutId;
use crate::sharding::Atom;
use hlo_ir::{InstId, Module};
use hlo_pass::report::Decision;
use indexmap::IndexMap;

/// The steps by which the leaves of an instruction got their shardings, from the value itself back to annotations.
pub(super) fn explain(
    (module, graph, log): (&Module, &ShardingGraph, &[Growth]),
    names: &dyn Fn(&[Atom]) -> String,
    inst: InstId,
) -> Vec<Decision> {
    let mut steps: IndexMap<CutId, Vec<(usize, Growth)>> = IndexMap::new();
    for (at, &growth) in log.iter().enumerate() {
        steps.entry(growth.value).or_default().push((at, growth));
    }
    let mut out = Vec::new();
    // Each value with the number of steps that had happened when it was read.
    let mut open: Vec<(CutId, usize)> = graph.of_leaves(inst).flatten().map(|value| (value, log.len())).collect();
    let mut seen: IndexMap<(CutId, usize), ()> = IndexMap::new();
    while let Some((value, before)) = open.pop() {
        let own = steps.get(&value).map_or(&[][..], |steps| steps);
        let reached = own.iter().filter(|(at, _)| *at < before).count();
        if seen.insert((value, reached), ()).is_some() {
            continue;
        }
        if let Some(by) = graph.values[value].claimed_by {
            let reason = format!("%{} says how it is cut", module.inst_name(by));
            out.push(Decision::about(module, graph.values[value].inst, "annotated", reason));
        }
        for &(at, growth) in own.iter().take(reached) {
            let through = module.inst_name(graph.ties[growth.tie].inst);
            let from = module.inst_name(graph.values[growth.from].inst);
            let atoms = graph.values[value].dims.get(growth.dim as usize).map_or(&[][..], |dim| &dim.atoms);
            let axes = names(atoms.get(growth.n_before as usize..).unwrap_or_default());
            let reason = format!("dim {} gets {axes} from %{from} through %{through}", growth.dim);
            out.push(Decision::about(module, graph.values[value].inst, "cut", reason));
            open.push((growth.from, at));
        }
    }
    out
}
