//! On how many devices a module runs, as its text tells.

use crate::collective::Participants;
use crate::module::Module;
use crate::sharding::{LeafSharding, Sharding};
use crate::shardy::Meshes;

/// More devices than any annotation may ask for.
const MAX_DEVICES: usize = 1 << 20;

/// The number of devices: what the header says; else the most that a mesh, a `sharding=` or the groups of a collective name. JAX's
/// text from before the partitioner has no counts in its header.
pub fn find_n_devices(module: &Module) -> usize {
    if module.n_devices() > 1 {
        return module.n_devices();
    }
    let of_meshes = Meshes::of(&module.header).map_or(1, |meshes| most(meshes.iter().filter_map(|m| m.n_devices())));
    let mut n = of_meshes;
    let of_leaf = |leaf: &LeafSharding| leaf.n_listed_devices().map_or(1, |n| n as i64);
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
