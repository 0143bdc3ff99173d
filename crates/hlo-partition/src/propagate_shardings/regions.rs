//! Manual regions: where they begin and end, and along which atoms the values in them are local.

use super::calls::{SpokenCall, front_end};
use super::claims::{Claim, ClaimReader};
use super::graph::{Border, ShardingGraph, THROUGH};
use super::values::{AtomSet, CutId, bit};
use crate::error::PartitionError;
use crate::sharding::AtomList;
use cranelift_entity::{EntityRef, SecondaryMap};
use hlo_analysis::values::hands_on;
use hlo_ir::diag::Entity;
use hlo_ir::shardy::{self, attribute};
use hlo_ir::{InstId, Module, Opcode};
use std::sync::Arc;

/// The ends of all manual regions, value by value.
pub(super) fn find_borders(
    module: &Module,
    graph: &ShardingGraph,
    claims: &mut ClaimReader<'_>,
) -> Result<Vec<Border>, PartitionError> {
    let mut borders = Vec::new();
    for &comp in &graph.leaves.comps {
        for &inst in module.comp(comp).insts.iter().filter(|&&inst| graph.leaves.is_live(inst)) {
            let is_begin = match SpokenCall::of(module, inst) {
                Some(SpokenCall::Begin) => true,
                Some(SpokenCall::End) => false,
                Some(SpokenCall::Annotation | SpokenCall::Result | SpokenCall::Barrier | SpokenCall::Group) | None => {
                    continue;
                }
            };
            let key = if is_begin { shardy::IN_SHARDINGS } else { shardy::OUT_SHARDINGS };
            match attribute(front_end(module, inst), key) {
                Some(text) => of_attributes(module, graph, claims, (inst, is_begin), text, &mut borders)?,
                None => of_annotations(module, graph, claims, (inst, is_begin), &mut borders)?,
            }
        }
    }
    Ok(borders)
}

/// The values at both sides, by place.
fn sides(module: &Module, graph: &ShardingGraph, inst: InstId, is_begin: bool) -> Vec<(u32, CutId, CutId)> {
    let operands = module.inst(inst).operands.iter().map(|&operand| graph.of_leaf(operand, 0));
    let pairs = (0u32..).zip(operands.zip(graph.of_leaves(inst)));
    let known = pairs.filter_map(|(place, (operand, result))| Some((place, operand?, result?)));
    known
        .map(|(place, operand, result)| if is_begin { (place, operand, result) } else { (place, result, operand) })
        .collect()
}

fn prefix_of(claim: &Claim, manual: AtomSet) -> Arc<[AtomList]> {
    let is_manual = |atom: &crate::sharding::Atom| manual & bit(*atom) != 0;
    claim.dims.iter().map(|dim| dim.atoms.iter().copied().filter(is_manual).collect()).collect()
}

/// Shardy's form: attributes say how all values are cut, and which axes are manual.
fn of_attributes(
    module: &Module,
    graph: &ShardingGraph,
    claims: &mut ClaimReader<'_>,
    (inst, is_begin): (InstId, bool),
    text: &str,
    out: &mut Vec<Border>,
) -> Result<(), PartitionError> {
    let Some(axes) = attribute(front_end(module, inst), shardy::MANUAL_AXES) else {
        let text = format!("expected `{}` beside the shardings of a manual region, found none", shardy::MANUAL_AXES);
        return Err(PartitionError::about("manual-region", Entity::Inst(inst), text));
    };
    let manual = claims.manual_axes(inst, axes, text)?;
    let all = claims.texts(inst, text)?;
    for (place, whole, local) in sides(module, graph, inst, is_begin) {
        let Some(claim) = all.get(place as usize).cloned() else { continue };
        let prefix = prefix_of(&claim, manual);
        out.push(Border { inst, place, is_begin, whole, local, manual, prefix, claim: Some(claim) });
    }
    Ok(())
}

/// GSPMD's form: annotations at both sides of the call say it.
fn of_annotations(
    module: &Module,
    graph: &ShardingGraph,
    claims: &mut ClaimReader<'_>,
    (inst, is_begin): (InstId, bool),
    out: &mut Vec<Border>,
) -> Result<(), PartitionError> {
    for (place, whole, local) in sides(module, graph, inst, is_begin) {
        let Some(&operand) = module.inst(inst).operands.get(place as usize) else { continue };
        let (of_operand, of_result) = (claims.claim(operand, 0)?, claims.claim(inst, place)?);
        let (of_whole, of_local) = if is_begin { (of_operand, of_result) } else { (of_result, of_operand) };
        let manual = of_local.as_ref().map_or(0, |claim| claim.manual);
        let rank = graph.values[whole].dims.len();
        let prefix = match &of_whole {
            Some(claim) => prefix_of(claim, manual),
            None => vec![AtomList::new(); rank].into(),
        };
        out.push(Border { inst, place, is_begin, whole, local, manual, prefix, claim: None });
    }
    Ok(())
}

/// Sets the manual atoms of all values: those of one region are tied by instructions that are no borders.
///
/// # Errors
/// A value is in two regions.
pub(super) fn set_manual_atoms(module: &Module, graph: &mut ShardingGraph) -> Result<(), PartitionError> {
    if graph.borders.is_empty() {
        return Ok(());
    }
    let mut regions = Regions { above: (0..graph.values.len() as u32).collect() };
    for inst in tying_insts(module, graph) {
        regions.join_all(values_of(module, graph, inst).filter(|&value| !is_constant(module, graph, value)));
    }
    for (id, sources) in graph.leaves.values.keys().map(|id| (id, &graph.leaves.sources[id])) {
        let joined = sources.iter().chain([&id]).filter_map(|&id| graph.value_of(id));
        // The zero from which loops count may be the same within a region and outside.
        regions.join_all(joined.filter(|&value| !is_constant(module, graph, value)));
    }
    let mut manual: SecondaryMap<CutId, AtomSet> = SecondaryMap::new();
    // Regions may stand in one another: each round goes one deeper.
    loop {
        let mut is_done = true;
        for border in &graph.borders {
            let (whole, local) = (regions.root(border.whole), regions.root(border.local));
            let set = border.manual | manual[whole];
            if whole == local && border.manual != 0 {
                let text = "expected values of a manual region apart from those around it, found an instruction that takes both";
                return Err(PartitionError::about("manual-region", Entity::Inst(border.inst), text));
            }
            if manual[local] | set != manual[local] {
                manual[local] |= set;
                is_done = false;
            }
        }
        if is_done {
            break;
        }
    }
    let mut set_of: SecondaryMap<CutId, AtomSet> = SecondaryMap::new();
    graph.values.keys().for_each(|id| set_of[id] = manual[regions.root(id)]);
    // A constant belongs to the region where it is used.
    for inst in tying_insts(module, graph) {
        let region = values_of(module, graph, inst).find(|&value| !is_constant(module, graph, value));
        let set = region.map_or(0, |value| set_of[value]);
        let constants = values_of(module, graph, inst).filter(|&value| is_constant(module, graph, value));
        constants.for_each(|value| set_of[value] |= set);
    }
    for (id, value) in &mut graph.values {
        value.manual = set_of[id];
        value.taken |= set_of[id];
    }
    Ok(())
}

/// The instructions that take and give values of one region.
fn tying_insts(module: &Module, graph: &ShardingGraph) -> Vec<InstId> {
    let insts = graph.leaves.comps.iter().flat_map(|&comp| &module.comp(comp).insts).copied();
    let is_border = |inst: InstId| match SpokenCall::of(module, inst) {
        Some(SpokenCall::Begin | SpokenCall::End) => true,
        Some(SpokenCall::Annotation | SpokenCall::Result | SpokenCall::Barrier | SpokenCall::Group) | None => false,
    };
    let is_tying = |&inst: &InstId| graph.leaves.is_live(inst) && !hands_on(module, inst, THROUGH) && !is_border(inst);
    insts.filter(is_tying).collect()
}

fn values_of<'a>(module: &'a Module, graph: &'a ShardingGraph, inst: InstId) -> impl Iterator<Item = CutId> + 'a {
    let operands = module.inst(inst).operands.iter().flat_map(|&operand| graph.of_leaves(operand));
    operands.chain(graph.of_leaves(inst)).flatten()
}

fn is_constant(module: &Module, graph: &ShardingGraph, value: CutId) -> bool {
    module.inst(graph.values[value].inst).opcode == Opcode::Constant
}

/// Which values belong together: a forest over them.
struct Regions {
    above: Vec<u32>,
}

impl Regions {
    fn root(&mut self, value: CutId) -> CutId {
        let mut at = value.index();
        while let Some(&above) = self.above.get(at)
            && above as usize != at
        {
            // Halve the path.
            let next = self.above.get(above as usize).copied().unwrap_or(above);
            self.above[at] = next;
            at = next as usize;
        }
        CutId::new(at)
    }

    fn join_all(&mut self, values: impl Iterator<Item = CutId>) {
        let mut first = None;
        for value in values {
            let root = self.root(value);
            match first {
                None => first = Some(root),
                Some(first) if first != root => self.above[root.index()] = first.index() as u32,
                Some(_) => {}
            }
        }
    }
}
