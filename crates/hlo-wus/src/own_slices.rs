//! Optimizer state that the script updates in shards by hand, and hands on whole: each device takes its own slice of it, and the devices
//! gather the slices of the next value.
//!
//! ```text
//! %own = f32[16,32] dynamic-slice(%momentum, %start, %zero), dynamic_slice_sizes={16,32}
//! %next = f32[16,32] add(%own, %gradient)
//! %gathered = f32[64,32] all-gather(%next), replica_groups={{0,1,2,3}}, dimensions={0}
//! ```
//!
//! Such state crosses the interface in those slices. Neither the slice nor the all-gather is left.

use crate::interface::{Interface, LeafShards};
use crate::zero::Pins;
use cranelift_entity::SecondaryMap;
use hlo_analysis::annotations::entry_leaves;
use hlo_analysis::optimizer_state::LeafRole;
use hlo_ir::{InstId, Module, Opcode, Shape};
use hlo_spmd::{DimRun, OwnSlice, ShardFormat, find_own_slice};

/// Cuts what the entry takes whole, reads in slices and returns gathered, but for what the user has whole. Returns how many arrays that are.
pub(crate) fn cut_own_slices(module: &mut Module, interface: &mut Interface, pins: &mut Pins<'_>) -> usize {
    let Some((entry, root)) = module.entry().and_then(|entry| Some((entry, module.comp(entry).root.expand()?))) else {
        return 0;
    };
    if module.inst(root).opcode != Opcode::Tuple {
        return 0;
    }
    let params = entry_leaves(module);
    let mut users: SecondaryMap<InstId, Vec<InstId>> = SecondaryMap::new();
    for &inst in &module.comp(entry).insts {
        for needed in module.needed(inst) {
            users[needed].push(inst);
        }
    }
    let (was_live, n_slots) = (module.live(entry), module.n_inst_slots());
    let mut n_cut = 0;
    for (number, output) in interface.state_pairs.clone() {
        let (Some(leaf), Some(param)) = (interface.params.get(number), params.get(number)) else { continue };
        if leaf.role != Some(LeafRole::State) || leaf.cut.is_some() {
            continue;
        }
        let (Some(array), Some(&next)) = (leaf.shape.as_array(), module.inst(root).operands.get(output)) else {
            continue;
        };
        let gather = copied(module, next);
        let Some((slices, own)) = find_slices(module, gather, param.param, &users) else { continue };
        let n_shards = own.groups.first().map_or(1, Vec::len);
        let format = ShardFormat::new(array, DimRun::dim(own.dim), n_shards);
        let Some(&gathered) = module.inst(gather).operands.first() else { continue };
        let shard = format.shard_shape(array);
        let is_shard = |&inst: &InstId| {
            module.shape(inst).as_array().is_some_and(|of| {
                (of.dtype, &of.dims, of.major_to_minor()) == (shard.dtype, &shard.dims, shard.major_to_minor())
            })
        };
        if format.split.padding() != 0 || !slices.iter().chain([&gathered]).all(is_shard) {
            continue;
        }
        if pins.holds_whole(number) {
            continue;
        }
        let cut = Some(LeafShards { format, groups: own.groups.into() });
        let shard = module.shapes.intern(Shape::Array(shard));
        module.inst_mut(param.param).shape = shard;
        slices.iter().for_each(|&slice| module.replace_all_uses(slice, param.param));
        module.set_operand(root, output, gathered);
        interface.params[number].cut = cut.clone();
        interface.outputs[output].cut = cut;
        n_cut += 1;
    }
    if n_cut > 0 {
        module.remove_newly_dead(entry, &was_live, n_slots);
        interface.retuple(module, root);
    }
    n_cut
}

/// The slices that alone read a parameter, copied or not, and what each device takes with them, if `gather` puts the same parts together.
fn find_slices(
    module: &Module,
    gather: InstId,
    param: InstId,
    users: &SecondaryMap<InstId, Vec<InstId>>,
) -> Option<(Vec<InstId>, OwnSlice)> {
    let is_gather = module.inst(gather).opcode == Opcode::AllGather;
    let view = module.inst(gather).attrs.collective().filter(|_| is_gather)?;
    let [dim] = view.dimensions else { return None };
    let gathered = OwnSlice { dim: usize::try_from(*dim).ok()?, groups: module.device_groups(gather).ok()?.groups };
    let mut slices = Vec::new();
    let mut open = vec![param];
    while let Some(value) = open.pop() {
        for &reader in &users[value] {
            let opcode = module.inst(reader).opcode;
            if opcode == Opcode::Copy {
                open.push(reader);
            } else if opcode == Opcode::DynamicSlice {
                slices.push(reader);
            } else {
                return None;
            }
        }
    }
    let is_own = |&slice: &InstId| find_own_slice(module, slice, &gathered.groups).is_ok_and(|own| own == gathered);
    (!slices.is_empty() && slices.iter().all(is_own)).then_some((slices, gathered))
}

/// The value that another one is a copy of, over any number of copies.
fn copied(module: &Module, mut value: InstId) -> InstId {
    while let (Opcode::Copy, [operand]) = (module.inst(value).opcode, module.inst(value).operands.as_slice()) {
        value = *operand;
    }
    value
}
