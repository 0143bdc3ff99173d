//! Where a promise contradicts the module: it makes an entry leaf the same on two devices, and the leaf's own `sharding=` gives
//! them different parts.
//!
//! After XLA's partitioner a parameter has the shape of one device's part, and its `sharding=` still says how the whole was
//! cut. So it can be held against a promise. `manual`, `unknown` and `unreduced` say nothing, and neither does a tiling with one
//! tile for all. Partitions are compared within a replica: a sharding says nothing across replicas, and
//! `parameter_replication={false}` says that nobody marked the parameter and not that it differs.

use super::{ParamFacts, ParamLeaf, entry_leaves};
use hashbrown::HashMap;
use hlo_ir::sharding::{DevicePart, LeafSharding, ShardingKind};
use hlo_ir::{InstId, Module, Shape};
use std::fmt;

/// The first entry leaf of which a promise contradicts the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// The leaf's flat number.
    pub leaf: usize,
    /// The parameter that has it.
    pub param: InstId,
    /// The leaf in words ([`ParamLeaf::describe`]).
    pub described: String,
    /// What the module says of the leaf.
    pub sharding: LeafSharding,
    /// Two devices on which it is promised to be the same, and of which they hold different parts.
    pub devices: (usize, usize),
    /// How many other leaves are contradicted.
    pub n_more: usize,
    /// The leaves that the promise says to be the same on all devices and nothing contradicts, as a spec: `0-2,5`.
    pub rest: String,
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contradiction { leaf, described, sharding, devices: (a, b), n_more, .. } = self;
        write!(
            f,
            "expected entry leaf {leaf} ({described}) to be the same on devices {a} and {b}, found \
             sharding={sharding}, by which they hold different parts"
        )?;
        match n_more {
            0 => Ok(()),
            1 => f.write_str("; 1 more leaf contradicts it"),
            n => write!(f, "; {n} more leaves contradict it"),
        }
    }
}

/// Two devices that hold different parts of an entry leaf by its `sharding=`, so that it cannot be the same on all devices.
pub fn differing_devices(module: &Module, leaf: &ParamLeaf) -> Option<(usize, usize)> {
    let everywhere = LeafSharding::new(ShardingKind::Replicated);
    find_difference(module, own_sharding(module, leaf)?, &everywhere)
}

/// Whether a leaf is a stack of parts, one for each device: `sharding=` cuts its first dim alone, and each device has one element of it.
pub fn is_stack(module: &Module, leaf: &ParamLeaf) -> bool {
    let shape = module.shapes.leaf(module.inst(leaf.param).shape, leaf.leaf_idx).and_then(Shape::as_array);
    let has_one = shape.is_some_and(|shape| shape.dims.first() == Some(&1));
    has_one && own_sharding(module, leaf).is_some_and(LeafSharding::cuts_only_first_dim)
}

/// What the module says of a leaf that holds data.
pub fn own_sharding<'m>(module: &'m Module, leaf: &ParamLeaf) -> Option<&'m LeafSharding> {
    let shape = module.shapes.leaf(module.inst(leaf.param).shape, leaf.leaf_idx)?;
    // A token has no data that could differ.
    if matches!(shape, Shape::Token) {
        return None;
    }
    module.sharding(leaf.param)?.leaf(leaf.leaf_idx)
}

/// The first leaf of which `facts` contradict the module.
pub(super) fn find_contradiction(facts: &ParamFacts, module: &Module) -> Option<Contradiction> {
    // Many leaves share few shardings.
    let mut known: HashMap<(&LeafSharding, &LeafSharding), Option<(usize, usize)>> = HashMap::new();
    let leaves = entry_leaves(module);
    let mut found: Vec<(usize, &LeafSharding, (usize, usize))> = Vec::new();
    let mut rest = Vec::new();
    for (number, leaf) in leaves.iter().enumerate() {
        let Some(promised) = facts.leaf(number) else { continue };
        let own = own_sharding(module, leaf);
        let devices =
            own.and_then(|own| *known.entry((own, promised)).or_insert_with(|| find_difference(module, own, promised)));
        match (own, devices) {
            (Some(own), Some(devices)) => found.push((number, own, devices)),
            (None, _) | (_, None) if promised.kind == ShardingKind::Replicated => rest.push(number),
            (None, _) | (_, None) => {}
        }
    }
    let &(number, sharding, devices) = found.first()?;
    Some(Contradiction {
        leaf: number,
        param: leaves[number].param,
        described: leaves[number].describe(module),
        sharding: sharding.clone(),
        devices,
        n_more: found.len() - 1,
        rest: spec_of(&rest),
    })
}

/// Two devices on which a leaf is `promised` to be the same and by its `own` sharding is not.
fn find_difference(module: &Module, own: &LeafSharding, promised: &LeafSharding) -> Option<(usize, usize)> {
    let n_partitions = module.header.num_partitions.max(1) as usize;
    let promised = promised.tile_of_device(module.n_devices())?;
    let parts = own.part_of_device(n_partitions);
    // The first device that is promised a value, and may be compared with this one.
    let mut firsts: HashMap<(u32, usize, u32), (usize, u32)> = HashMap::new();
    promised.iter().enumerate().find_map(|(device, &value)| {
        let DevicePart { scope, part } = parts[device % n_partitions]?;
        let &mut (first, of_first) = firsts.entry((value, device / n_partitions, scope)).or_insert((device, part));
        (of_first != part).then_some((first, device))
    })
}

/// Ascending leaf numbers as a spec: `0-2,5`.
pub fn spec_of(leaves: &[usize]) -> String {
    let runs = leaves.chunk_by(|&a, &b| b == a + 1);
    let texts = runs.filter_map(|run| match (run.first()?, run.last()?) {
        (first, last) if first == last => Some(first.to_string()),
        (first, last) => Some(format!("{first}-{last}")),
    });
    texts.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_have_ranges() {
        assert_eq!(spec_of(&[]), "");
        assert_eq!(spec_of(&[3]), "3");
        assert_eq!(spec_of(&[0, 1, 2, 5, 7, 8]), "0-2,5,7-8");
    }
}
