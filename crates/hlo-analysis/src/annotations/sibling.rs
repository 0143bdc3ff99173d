//! What a sibling module says of the same parameters: the same program before XLA's partitioner, or at another stage of XLA.

use super::{ParamFacts, ParamFactsError, ParamLeaf, entry_leaves};
use hlo_ir::sharding::LeafSharding;
use hlo_ir::{Module, Shape};

impl ParamFacts {
    /// The shardings of a sibling module's entry parameters, leaf by leaf.
    ///
    /// # Errors
    /// The sibling has other leaves, or annotates none, or contradicts the module.
    pub fn from_sibling(sibling: &Module, module: &Module) -> Result<ParamFacts, ParamFactsError> {
        let (theirs, ours) = (entry_leaves(sibling), entry_leaves(module));
        if theirs.len() != ours.len() {
            return Err(ParamFactsError::OtherLeaves { expected: ours.len(), found: theirs.len() });
        }
        let mut leaves: Vec<Option<LeafSharding>> = Vec::with_capacity(ours.len());
        for (leaf, (their, our)) in theirs.iter().zip(&ours).enumerate() {
            let sharding = sibling.sharding(their.param).and_then(|s| s.leaf(their.leaf_idx));
            if let (Some(found), Some(expected)) = (leaf_shape(sibling, their), leaf_shape(module, our))
                && !is_whole_or_tile(found, sharding, expected)
            {
                let (expected, found) = (Box::new(expected.clone()), Box::new(found.clone()));
                return Err(ParamFactsError::OtherShape { leaf, expected, found });
            }
            leaves.push(sharding.cloned());
        }
        if leaves.iter().all(Option::is_none) {
            return Err(ParamFactsError::NoShardings);
        }
        ParamFacts { leaves }.not_contradicted(module)
    }
}

fn leaf_shape<'m>(module: &'m Module, leaf: &ParamLeaf) -> Option<&'m Shape> {
    module.shapes.leaf(module.inst(leaf.param).shape, leaf.leaf_idx)
}

/// Whether a leaf of shape `theirs` is one of shape `ours` on each device: as it is, or cut as its sharding says.
fn is_whole_or_tile(theirs: &Shape, sharding: Option<&LeafSharding>, ours: &Shape) -> bool {
    let (Some(whole), Some(own)) = (theirs.as_array(), ours.as_array()) else { return theirs == ours };
    if whole.dtype != own.dtype || whole.rank() != own.rank() {
        return false;
    }
    let tiles = sharding.and_then(LeafSharding::tiles_of_dims).filter(|tiles| tiles.len() == whole.rank());
    let is_tile = |tiles: &[i64]| {
        let cut =
            whole.dims.iter().zip(tiles).map(|(&size, &n)| size.div_euclid(n.max(1)) + i64::from(size % n.max(1) > 0));
        cut.eq(own.dims.iter().copied())
    };
    whole.dims == own.dims || tiles.is_some_and(|tiles| is_tile(&tiles))
}
