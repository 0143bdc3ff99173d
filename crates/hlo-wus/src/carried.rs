//! Optimizer state that the step returns as it came: the first values of weights, frozen copies, what waits for another step.
//!
//! No update says how such an array is cut, since nothing reads it. It is cut as the other state is: over the same groups, along its
//! first dim that is a multiple of the shards. Where there is none, the dim or the merge of dims that needs least padding is padded, as
//! far as moments may be.

use crate::context::StateCuts;
use crate::format::candidates;
use crate::interface::{Interface, LeafShards};
use crate::region::is_padded_little;
use crate::zero::Pins;
use cranelift_entity::SecondaryMap;
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::optimizer_state::LeafRole;
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_spmd::{DimRun, ShardFormat};

/// Cuts what the entry returns as it came, but for what the user has whole. Returns how many arrays that are.
pub(crate) fn cut_carried(
    module: &mut Module,
    interface: &mut Interface,
    (cuts, pins): (StateCuts, &mut Pins<'_>),
) -> usize {
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
        let Some(format) = choose_format(&array, n_shards, cuts) else { continue };
        if pins.holds_whole(number) {
            continue;
        }
        let shard = module.shapes.intern(Shape::Array(format.shard_shape(&array)));
        module.inst_mut(param.param).shape = shard;
        let cut = Some(LeafShards { format, groups: groups.clone() });
        interface.params[number].cut = cut.clone();
        interface.outputs[output].cut = cut;
        n_cut += 1;
    }
    if n_cut > 0 {
        interface.retuple(module, root);
    }
    n_cut
}

/// The format of an array that nothing reads, if its cuts allow one.
fn choose_format(array: &ArrayShape, n_shards: usize, cuts: StateCuts) -> Option<ShardFormat> {
    let format = |run: DimRun| ShardFormat::new(array, run, n_shards);
    let is_even = |&dim: &usize| array.dims[dim] > 0 && array.dims[dim] % n_shards as i64 == 0;
    if let Some(dim) = (0..array.rank()).find(is_even) {
        return Some(format(DimRun::dim(dim)));
    }
    if cuts == StateCuts::Even {
        return None;
    }
    let mut padded: Vec<ShardFormat> = candidates(array).into_iter().map(format).collect();
    padded.retain(|format| is_padded_little(array, format));
    padded.sort_by(|a, b| a.split.waste().total_cmp(&b.split.waste()));
    padded.first().copied()
}
