//! Regions: a few ops that may be computed in several ways, by rules that are proved ([`hlo_rules`]).
//!
//! [`find`] says which ops make a region, [`ways`] asks the e-graph of rules for other ways to compute it, and [`union`] writes all ways
//! beside each other, for a search that takes one of each region together with the placement of all ops.

mod find;
mod rules;
mod union;
mod ways;

pub use rules::Regions;
pub(crate) use union::{RegionId, UnionMarks, WayOf};
pub use ways::RewrittenRegion;

use cranelift_entity::SecondaryMap;
use cranelift_entity::packed_option::PackedOption;
use hlo_ir::{InstId, Module};
use hlo_mesh::Machine;
use hlo_rules::bridge::write_alternative;
use union::write_union;
use ways::{RegionWays, find_ways};

/// A program with all ways of its regions.
pub(crate) struct JointProgram {
    /// All ways beside each other.
    pub module: Module,
    pub marks: UnionMarks,
    /// By number of the region.
    regions: Vec<RegionWays>,
}

/// The program with all ways of its regions; `None` if every region has one way.
pub(crate) fn joint_program(module: &Module, machine: &Machine, rules: Regions) -> Option<JointProgram> {
    let mut regions = find_ways(module, machine, rules);
    let (union, is_in) = write_union(module, &regions);
    let mut is_in = is_in.into_iter();
    regions.retain(|_| is_in.next() == Some(true));
    (!regions.is_empty()).then_some(JointProgram { module: union.module, marks: union.marks, regions })
}

impl JointProgram {
    /// The program with each region in its chosen way, by number of the region; `None` if ways that were chosen need each other.
    pub(crate) fn chosen(&self, module: &Module, ways: &[u32]) -> Option<(Module, Vec<RewrittenRegion>)> {
        let (mut changed, mut told) = (module.clone(), Vec::new());
        // What stands for the results of regions that were written.
        let mut new: SecondaryMap<InstId, PackedOption<InstId>> = SecondaryMap::new();
        for (ways, &chosen) in self.regions.iter().zip(ways) {
            let Some(way) = (chosen as usize).checked_sub(1).and_then(|k| ways.ways.get(k)) else { continue };
            told.push(ways.tell(module, way));
            let mut region = ways.region.clone();
            region.inputs.iter_mut().for_each(|input| *input = new[*input].expand().unwrap_or(*input));
            let values = write_alternative(&mut changed, &region, &ways.terms, &way.roots).ok()?;
            ways.region.outputs.iter().zip(values).for_each(|((old, _), value)| new[*old] = Some(value).into());
        }
        Some((changed, told))
    }
}
