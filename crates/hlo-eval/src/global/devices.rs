//! On how many devices a global program runs.

use crate::engine::CustomTarget;
use hlo_ir::collective::Participants;
use hlo_ir::sharding::{LeafSharding, Sharding, ShardingKind};
use hlo_ir::shardy::Meshes;
use hlo_ir::{InstId, Module, Opcode};

/// More devices than any annotation may ask for.
const MAX_DEVICES: usize = 1 << 20;

/// The first custom call that begins or ends a manual region.
pub fn find_manual_region(module: &Module) -> Option<InstId> {
    let is_boundary = |&inst: &InstId| {
        let instruction = module.inst(inst);
        instruction.opcode == Opcode::CustomCall
            && matches!(CustomTarget::of(&instruction.attrs), Some(CustomTarget::Boundary(_)))
    };
    module.computations().iter().flat_map(|&comp| &module.comp(comp).insts).copied().find(is_boundary)
}

/// The number of devices: what the header says; else the most that a mesh, a `sharding=` or the groups of a collective name. JAX's text from before
/// the partitioner has no counts in its header.
pub fn n_devices(module: &Module) -> usize {
    if module.n_devices() > 1 {
        return module.n_devices();
    }
    let of_meshes = Meshes::of(&module.header).map_or(1, |meshes| most(meshes.iter().filter_map(|m| m.n_devices())));
    let mut n = of_meshes;
    for &inst in module.computations().iter().flat_map(|&comp| &module.comp(comp).insts) {
        n = match module.sharding(inst) {
            Some(Sharding::Single(leaf)) => n.max(of_leaf(leaf)),
            Some(Sharding::Tuple(leaves)) => n.max(most(leaves.iter().map(of_leaf))),
            None => n,
        };
        if let Some(view) = module.inst(inst).attrs.collective() {
            n = n.max(match view.participants {
                Participants::Groups { groups, .. } => {
                    most(groups.expand().unwrap_or_default().into_iter().flatten().map(|id| id.saturating_add(1)))
                }
                Participants::Pairs(pairs) => most(pairs.iter().map(|&(a, b)| a.max(b).saturating_add(1))),
            });
        }
    }
    usize::try_from(n).map_or(1, |n| n.clamp(1, MAX_DEVICES))
}

fn most(numbers: impl Iterator<Item = i64>) -> i64 {
    numbers.fold(1, i64::max)
}

fn of_leaf(leaf: &LeafSharding) -> i64 {
    match &leaf.kind {
        ShardingKind::Tiled(tiling) => tiling.dims.iter().fold(1, |n: i64, &d| n.saturating_mul(d)),
        ShardingKind::Named(named) => named.mesh.n_devices().unwrap_or(1),
        ShardingKind::Replicated
        | ShardingKind::Maximal(_)
        | ShardingKind::Manual
        | ShardingKind::Unknown
        | ShardingKind::Unreduced
        | ShardingKind::MaximalMesh(_) => 1,
    }
}
