//! Random shardings on the values of a module.

use crate::random_module::Rng;
use hlo_ir::axes::{AxisMesh, AxisSharding, SubAxis};
use hlo_ir::op::Flow;
use hlo_ir::sharding::{LeafSharding, Sharding};
use hlo_ir::{ArrayShape, InstId, Module};

/// Annotates some values of a module with shardings on one random mesh of so many devices: parameters and results of computations that
/// are called often, other values once in `rarity` times. Dims need not divide.
pub fn annotate(module: &mut Module, rng: &mut Rng, n_devices: usize, rarity: usize) {
    let mesh = random_mesh(rng, n_devices);
    let comps = hlo_analysis::code::code_computations(module);
    for comp in comps {
        let root = module.comp(comp).root.expand();
        for inst in module.comp(comp).insts.clone() {
            let is_edge = root == Some(inst) || module.comp(comp).params.contains(&inst);
            let is_chosen = if is_edge { !rng.one_in(3) } else { rng.one_in(rarity) };
            if is_chosen && can_be_cut(module, inst) {
                let sharding = random_sharding(module, inst, &mesh, rng);
                module.marks_mut(inst).sharding = Some(sharding);
            }
        }
    }
}

/// What stands for a value of another instruction has that one's sharding.
fn can_be_cut(module: &Module, inst: InstId) -> bool {
    match module.inst(inst).opcode.row().flow {
        Flow::Parameter | Flow::Tuple | Flow::All | Flow::Identity | Flow::Call | Flow::While | Flow::Conditional => {
            true
        }
        Flow::Constant
        | Flow::GetTupleElement
        | Flow::ReplicaId
        | Flow::PartitionId
        | Flow::Collective(_)
        | Flow::AsyncStart(_)
        | Flow::AsyncUpdate
        | Flow::AsyncDone => false,
    }
}

/// Factors of the number of devices in random order.
fn random_mesh(rng: &mut Rng, n_devices: usize) -> AxisMesh {
    let (mut left, mut sizes) = (n_devices, Vec::new());
    while left > 1 {
        let divisors: Vec<usize> = (2..=left).filter(|d| left.is_multiple_of(*d)).collect();
        let size = *rng.pick(&divisors);
        sizes.push(size as i64);
        left /= size;
    }
    AxisMesh { sizes, devices: (0..n_devices as u32).collect() }
}

fn random_sharding(module: &Module, inst: InstId, mesh: &AxisMesh, rng: &mut Rng) -> Sharding {
    let mut leaves = Vec::new();
    module.shape(inst).for_each_leaf(&mut |_, shape| {
        let rank = shape.as_array().map_or(0, ArrayShape::rank);
        leaves.push(random_leaf(rank, mesh, rng));
    });
    match module.shape(inst).as_tuple() {
        Some(_) => Sharding::Tuple(leaves),
        None => leaves.into_iter().next().map_or_else(Sharding::replicated, Sharding::Single),
    }
}

fn random_leaf(rank: usize, mesh: &AxisMesh, rng: &mut Rng) -> LeafSharding {
    let mut sharding = AxisSharding::replicated(mesh.clone(), rank);
    for axis in rng.shuffled(mesh.sizes.len()) {
        if rank > 0 && !rng.one_in(4) {
            let dim = rng.below(rank);
            sharding.dims[dim].push(SubAxis { axis, pre: 1, size: mesh.sizes[axis] });
        }
    }
    sharding.to_leaf()
}
