//! `hlo-opt analyze replication`: which values are the same on which devices.

use super::json_line;
use crate::arguments::{AcrossChoice, ReplicationArgs, ReportFormat};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::params::Said;
use crate::{Failure, exit};
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::replication::{Across, Replication};
use hlo_ir::{CompId, Module};
use serde::Serialize;
use std::fmt::Write;

/// Prints the facts.
///
/// # Errors
/// Wrong usage or an invalid input.
pub(super) fn run(args: &ReplicationArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let said = Said::read(args.replicated_params.as_deref(), console)?;
    let (source, loaded) = read_completed(&args.file, args.counts, Takes::PerDevice, console)?;
    let params = said.of(&source, source.whole(), &loaded, console)?;
    let module = loaded.module;
    let across = chosen_axis(args, &module)?;
    let facts = Replication::compute(&module, &params);
    let mut out = String::new();
    if args.format == ReportFormat::Text {
        summary(&module, &facts, across, &mut out);
    }
    for &comp in module.computations() {
        let leaves = leaves_of(&module, comp, &facts, across);
        match args.format {
            ReportFormat::Json => leaves.iter().for_each(|leaf| json_line(leaf, &mut out)),
            ReportFormat::Text => table(module.comp_name(comp), &leaves, &mut out),
        }
    }
    console.print(out.as_bytes()).map(|()| exit::OK)
}

/// The axis asked for, or the one that has more than one device.
fn chosen_axis(args: &ReplicationArgs, module: &Module) -> Result<Across, Failure> {
    match (args.across, module.header.replica_count > 1, module.header.num_partitions > 1) {
        (Some(AcrossChoice::Replicas), ..) | (None, true, false) => Ok(Across::Replicas),
        (Some(AcrossChoice::Partitions), ..) | (None, false, _) => Ok(Across::Partitions),
        (None, true, true) => Err(Failure::Usage(format!(
            "expected --across replicas or --across partitions for a module with {} replicas of {} partitions",
            module.header.replica_count, module.header.num_partitions
        ))),
    }
}

/// What is known of one leaf of one instruction's value.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
struct LeafFact<'m> {
    computation: &'m str,
    instruction: &'m str,
    /// Tuple index; empty for an array.
    index: Vec<i64>,
    /// The same on all devices of the axis.
    replicated: bool,
    /// Devices with equal values; `None` where all or no two are known to be equal.
    groups: Option<Vec<Vec<u32>>>,
}

/// The facts of a computation; none for reducers and for what the entry does not reach.
fn leaves_of<'m>(module: &'m Module, comp: CompId, facts: &Replication, across: Across) -> Vec<LeafFact<'m>> {
    let mut out = Vec::new();
    for &inst in &module.comp(comp).insts {
        let mut leaf_idx = 0;
        module.shape(inst).for_each_leaf(&mut |index, _| {
            if facts.classes(inst, leaf_idx).is_some() {
                out.push(LeafFact {
                    computation: module.comp_name(comp),
                    instruction: module.inst_name(inst),
                    index: index.to_vec(),
                    replicated: facts.is_replicated(inst, leaf_idx, across),
                    groups: facts.partial_groups(inst, leaf_idx, across),
                });
            }
            leaf_idx += 1;
        });
    }
    out
}

/// How much of the entry's parameters and of all values is the same on all devices, and which parameters are.
fn summary(module: &Module, facts: &Replication, across: Across, out: &mut String) {
    let (n_devices, what) = match across {
        Across::Replicas => (module.header.replica_count, "replicas"),
        Across::Partitions => (module.header.num_partitions, "partitions"),
        Across::Devices => (module.n_devices() as i64, "devices"),
    };
    let comps = module.computations().iter();
    let all: Vec<LeafFact<'_>> = comps.flat_map(|&comp| leaves_of(module, comp, facts, across)).collect();
    let n_replicated = all.iter().filter(|leaf| leaf.replicated).count();
    let n_partial = all.iter().filter(|leaf| !leaf.replicated && leaf.groups.is_some()).count();
    let _ = writeln!(
        out,
        "{}: of {} values {n_replicated} are the same on all {} {what}, {n_partial} within groups of them",
        module.name,
        all.len(),
        n_devices.max(1)
    );
    let (mut same, mut other) = (Vec::new(), Vec::new());
    for (number, leaf) in entry_leaves(module).into_iter().enumerate() {
        let name = module.inst(leaf.param).marks.as_ref().and_then(|marks| marks.op_name());
        let name = name.map_or_else(|| format!("%{}", module.inst_name(leaf.param)), str::to_string);
        let list = if facts.is_replicated(leaf.param, leaf.leaf_idx, across) { &mut same } else { &mut other };
        list.push((number, name));
    }
    for (what, list) in [("the same", same), ("not known to be", other)] {
        let names = list.iter().take(MAX_NAMED).map(|(number, name)| format!("{number} {name}"));
        let mut names = names.collect::<Vec<_>>().join(", ");
        if list.len() > MAX_NAMED {
            names += &format!(" and {} more", list.len() - MAX_NAMED);
        }
        if !list.is_empty() {
            let _ = writeln!(out, "  parameters {what}: {names}");
        }
    }
    out.push('\n');
}

/// Parameters that a summary names.
const MAX_NAMED: usize = 12;

fn table(computation: &str, leaves: &[LeafFact<'_>], out: &mut String) {
    if leaves.is_empty() {
        return;
    }
    let name = |leaf: &LeafFact<'_>| {
        let index: String = leaf.index.iter().map(|i| format!("{{{i}}}")).collect();
        format!("%{}{index}", leaf.instruction)
    };
    let width = leaves.iter().map(|leaf| name(leaf).chars().count()).max().unwrap_or(0).min(60);
    let _ = writeln!(out, "%{computation}");
    for leaf in leaves {
        let fact = match (&leaf.groups, leaf.replicated) {
            (_, true) => "replicated".to_string(),
            (None, false) => "unique".to_string(),
            (Some(groups), false) => {
                let lists = groups.iter().map(|group| {
                    let devices: Vec<String> = group.iter().map(u32::to_string).collect();
                    format!("{{{}}}", devices.join(","))
                });
                format!("equal within {}", lists.collect::<Vec<_>>().join(" "))
            }
        };
        let _ = writeln!(out, "  {:width$}  {fact}", name(leaf));
    }
}
