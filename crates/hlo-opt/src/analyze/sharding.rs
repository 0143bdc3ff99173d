//! `hlo-opt analyze sharding`: how every value is cut over the devices, in words.

use super::json_line;
use crate::arguments::{ReportFormat, ShardingArgs};
use crate::complete::{Takes, read_completed};
use crate::console::Console;
use crate::shardings::{Placement, Said, Shardings};
use crate::{Failure, exit};
use hlo_analysis::code::code_computations;
use hlo_ir::infer::ShapeText;
use hlo_ir::{CompId, Module};
use serde::Serialize;
use std::fmt::Write;

/// Prints the facts.
///
/// # Errors
/// An invalid input.
pub(super) fn run(args: &ShardingArgs, console: &mut Console<'_>) -> Result<u8, Failure> {
    let (_, loaded) = read_completed(&args.file, args.counts, Takes::Any, console)?;
    let module = &loaded.module;
    let shardings = Shardings::of(module);
    let comps: Vec<(CompId, Vec<LeafFact<'_>>)> =
        code_computations(module).into_iter().map(|comp| (comp, leaves_of(module, comp, &shardings))).collect();
    let mut out = String::new();
    match args.format {
        ReportFormat::Json => {
            for leaf in comps.iter().flat_map(|(_, leaves)| leaves) {
                json_line(leaf, &mut out);
            }
        }
        ReportFormat::Text if comps.iter().all(|(_, leaves)| leaves.iter().all(|leaf| leaf.sharding.is_none())) => {
            let n: usize = comps.iter().map(|(_, leaves)| leaves.len()).sum();
            let _ = writeln!(out, "{}: none of {n} values has a sharding.", module.name);
        }
        ReportFormat::Text => {
            summary(module, &shardings, &comps, &mut out);
            comps.iter().for_each(|(comp, leaves)| table(module.comp_name(*comp), leaves, &mut out));
        }
    }
    console.print(out.as_bytes()).map(|()| exit::OK)
}

/// What is said of one leaf of one instruction's value.
#[derive(Serialize)]
struct LeafFact<'m> {
    computation: &'m str,
    instruction: &'m str,
    /// Tuple index; empty for an array.
    index: Vec<i64>,
    shape: String,
    /// As the module has it; `None` where nothing is said.
    sharding: Option<String>,
    words: Option<String>,
    dims: Vec<DimFact>,
    replicated: Vec<String>,
    manual: Vec<String>,
    unreduced: Vec<String>,
    #[serde(skip)]
    kind: Kind,
}

#[derive(Serialize)]
struct DimFact {
    size: i64,
    n_tiles: i64,
    tile_size: i64,
    axes: Vec<String>,
    is_open: bool,
}

/// How a summary counts a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unsaid,
    Whole,
    Cut,
    Manual,
    Partial,
    Other,
}

fn leaves_of<'m>(module: &'m Module, comp: CompId, shardings: &Shardings<'_>) -> Vec<LeafFact<'m>> {
    let mut out = Vec::new();
    for &inst in &module.comp(comp).insts {
        let mut leaf_idx = 0;
        module.shape(inst).for_each_leaf(&mut |index, shape| {
            let mut fact = LeafFact {
                computation: module.comp_name(comp),
                instruction: module.inst_name(inst),
                index: index.to_vec(),
                shape: ShapeText(shape).to_string(),
                sharding: None,
                words: None,
                dims: Vec::new(),
                replicated: Vec::new(),
                manual: Vec::new(),
                unreduced: Vec::new(),
                kind: Kind::Unsaid,
            };
            if let (Some(sharding), Some(array)) = (shardings.leaf(inst, leaf_idx), shape.as_array()) {
                let said = shardings.read(&sharding, array);
                fact.sharding = Some(sharding.to_string());
                fact.words = Some(said.words());
                fact.kind = Kind::Other;
                if let Said::Placed(placement) = said {
                    fact.place(placement, &array.dims);
                }
            }
            out.push(fact);
            leaf_idx += 1;
        });
    }
    out
}

impl LeafFact<'_> {
    fn place(&mut self, placement: Placement, dims: &[i64]) {
        self.kind = match () {
            () if !placement.manual.is_empty() => Kind::Manual,
            () if !placement.unreduced.is_empty() => Kind::Partial,
            () if placement.is_cut() => Kind::Cut,
            () => Kind::Whole,
        };
        let cuts = placement.dims.into_iter().zip(dims);
        self.dims = cuts
            .map(|(cut, &size)| DimFact {
                size,
                n_tiles: cut.n_tiles,
                tile_size: cut.tile_size,
                axes: cut.axes,
                is_open: cut.is_open,
            })
            .collect();
        self.replicated = placement.replicated;
        self.manual = placement.manual;
        self.unreduced = placement.unreduced;
    }
}

/// How many values are cut, whole, manual and without a word; the meshes.
fn summary(module: &Module, shardings: &Shardings<'_>, comps: &[(CompId, Vec<LeafFact<'_>>)], out: &mut String) {
    let count = |kind: Kind| comps.iter().flat_map(|(_, leaves)| leaves).filter(|leaf| leaf.kind == kind).count();
    let n: usize = comps.iter().map(|(_, leaves)| leaves.len()).sum();
    let words = [
        (Kind::Cut, "cut"),
        (Kind::Whole, "whole on every device"),
        (Kind::Partial, "partial"),
        (Kind::Manual, "within manual regions"),
        (Kind::Other, "otherwise annotated"),
        (Kind::Unsaid, "without a sharding"),
    ];
    let parts = words.into_iter().map(|(kind, words)| (count(kind), words)).filter(|(n, _)| *n > 0);
    let parts: Vec<String> = parts.map(|(n, words)| format!("{n} {words}")).collect();
    let _ = writeln!(out, "{}: of {n} values on {} devices {}", module.name, shardings.n_devices, parts.join(", "));
    for mesh in shardings.meshes() {
        let _ = writeln!(out, "  mesh {mesh}");
    }
    out.push('\n');
}

/// Values that have a sharding.
fn table(computation: &str, leaves: &[LeafFact<'_>], out: &mut String) {
    let name = |leaf: &LeafFact<'_>| {
        let index: String = leaf.index.iter().map(|i| format!("{{{i}}}")).collect();
        format!("%{}{index}", leaf.instruction)
    };
    let said: Vec<&LeafFact<'_>> = leaves.iter().filter(|leaf| leaf.words.is_some()).collect();
    if said.is_empty() {
        return;
    }
    let width = said.iter().map(|leaf| name(leaf).chars().count()).max().unwrap_or(0).min(60);
    let shapes = said.iter().map(|leaf| leaf.shape.chars().count()).max().unwrap_or(0).min(40);
    let _ = writeln!(out, "%{computation}");
    for leaf in said {
        let words = leaf.words.as_deref().unwrap_or_default();
        let _ = writeln!(out, "  {:width$}  {:shapes$}  {words}", name(leaf), leaf.shape);
    }
}
