//! Optimizer state that the step returns as it came: the first values of weights, frozen copies, what waits for another step.
//!
//! No update says how such an array is cut, since nothing reads it. It is cut as the other state is: over the same groups, along its first dim that is
//! a multiple of the shards.

use crate::interface::{Interface, LeafShards};
use cranelift_entity::SecondaryMap;
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::optimizer_state::LeafRole;
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_spmd::{DimRun, ShardFormat};

/// Cuts what the entry returns as it came. Returns how many arrays that are.
pub(crate) fn cut_carried(module: &mut Module, interface: &mut Interface) -> usize {
    let Some(groups) = interface.params.iter().find_map(|leaf| Some(leaf.cut.as_ref()?.groups.clone())) else {
        return 0;
    };
    let Some((entry, root)) = module.entry().and_then(|entry| Some((entry, module.comp(entry).root.expand()?))) else {
        return 0;
    };
    if module.inst(root).opcode != Opcode::Tuple {
        return 0;
    }
    let (params, n_shards) = (entry_leaves(module), groups.first().map_or(1, Vec::len));
    let mut n_uses: SecondaryMap<InstId, u32> = SecondaryMap::new();
    for inst in module.comp(entry).insts.iter().flat_map(|&inst| module.needed(inst)) {
        n_uses[inst] += 1;
    }
    let mut n_cut = 0;
    for (number, output) in interface.state_pairs.clone() {
        let (Some(leaf), Some(param)) = (interface.params.get(number), params.get(number)) else { continue };
        let is_carried = module.inst(root).operands.get(output) == Some(&param.param) && leaf.cut.is_none();
        if !is_carried || leaf.role != Some(LeafRole::State) || n_uses[param.param] != 1 {
            continue;
        }
        let Some(array) = leaf.shape.as_array().cloned().filter(|array| array.dynamic == 0) else { continue };
        let Some(dim) = array.dims.iter().position(|&size| size > 0 && size % n_shards as i64 == 0) else { continue };
        let format = ShardFormat::new(&array, DimRun::dim(dim), n_shards);
        let shard = module.shapes.intern(Shape::Array(format.shard_shape(&array)));
        module.inst_mut(param.param).shape = shard;
        let cut = Some(LeafShards { format, groups: groups.clone() });
        interface.params[number].cut = cut.clone();
        interface.outputs[output].cut = cut;
        n_cut += 1;
    }
    if n_cut > 0 {
        let elements = module.inst(root).operands.iter().map(|&operand| module.shape(operand).clone()).collect();
        let shape = module.shapes.intern(Shape::Tuple(elements));
        module.inst_mut(root).shape = shape;
        interface.declare(module);
    }
    n_cut
}
