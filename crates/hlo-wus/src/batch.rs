//! Combines the all-reduces of partial results that do not wait for one another: many scalars, one latency (§4.1 of the
//! paper sums norms over shards; a step of LARS or LAMB has two for every weight).

use crate::error::WusError;
use crate::tables::IndexMap;
use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::Attrs;
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode};
use hlo_spmd::packing::{Packing, flat_order, flatten, has_flat_layout, unflatten};
use hlo_spmd::{Appender, SpmdError};

/// Packs the given all-reduces of `comp`, whose instructions are in order, into one for each element type, reducer and place in
/// the chain of those that wait for one another. Returns what now computes each of them.
///
/// # Errors
/// One of them is no all-reduce of an array.
pub(crate) fn pack_all_reduces(
    module: &mut Module,
    comp: CompId,
    all_reduces: &[InstId],
) -> Result<IndexMap<InstId, InstId>, WusError> {
    let mut packed = IndexMap::default();
    let mut replaced: IndexMap<InstId, InstId> = IndexMap::default();
    let at = Appender::new(comp);
    for group in groups(module, comp, all_reduces)? {
        let [first, _, ..] = group.as_slice() else { continue };
        let like = array(module, *first)?;
        let (mut flat, mut sizes) = (Vec::new(), Vec::new());
        for &all_reduce in &group {
            let partial = *module.inst(all_reduce).operands.first().ok_or(SpmdError::NoOperand)?;
            let shape = array(module, partial)?;
            flat.push(flatten(module, at, "partial", (partial, &shape), &flat_order(&shape, None), None));
            sizes.push(shape.n_elems() as i64);
        }
        let packing = Packing::new(like.dtype, has_flat_layout(&like), sizes);
        let partials = packing.pack(module, at, "partials", &flat, None);
        let attrs = module.inst(*first).attrs.clone();
        let (standing, shape) = (Appender::standing_for(comp, *first), packing.shape(None));
        let sums = standing.add(module, "all-reduce.partials", Opcode::AllReduce, shape, &[partials], attrs);
        for (idx, &all_reduce) in group.iter().enumerate() {
            let one = packing.unpack(module, at, "sum", sums, (idx, None));
            let shape = array(module, all_reduce)?;
            let one = unflatten(module, at, "sum", one, &shape, &flat_order(&shape, None));
            replaced.insert(all_reduce, one);
            packed.insert(all_reduce, sums);
        }
    }
    replace_uses(module, comp, &replaced);
    Ok(packed)
}

/// Uses of each key become uses of its value, all in one go through the computation.
fn replace_uses(module: &mut Module, comp: CompId, replaced: &IndexMap<InstId, InstId>) {
    if replaced.is_empty() {
        return;
    }
    let new = |old: InstId| replaced.get(&old).copied().unwrap_or(old);
    for inst in module.comp(comp).insts.clone() {
        module.map_operands(inst, new);
        module.map_control_predecessors(inst, new);
    }
    let root = module.comp(comp).root.expand().map(new);
    module.comp_mut(comp).root = root.into();
}

/// The all-reduces that may go together.
fn groups(module: &Module, comp: CompId, all_reduces: &[InstId]) -> Result<Vec<Vec<InstId>>, WusError> {
    let mut is_one: SecondaryMap<InstId, bool> = SecondaryMap::new();
    all_reduces.iter().for_each(|&inst| is_one[inst] = true);
    // How many of them an instruction has waited for, its own included.
    let mut n_waited: SecondaryMap<InstId, u32> = SecondaryMap::new();
    let mut groups: IndexMap<(u32, DType, Option<Monoid>), Vec<InstId>> = IndexMap::default();
    for &inst in &module.comp(comp).insts {
        let instruction = module.inst(inst);
        let waited = instruction.operands.iter().map(|&o| n_waited[o]).max().unwrap_or(0);
        n_waited[inst] = waited + u32::from(is_one[inst]);
        if is_one[inst] {
            let Attrs::Combining(attrs) = &instruction.attrs else { return Err(WusError::NotAnAllReduce) };
            let reducer = attrs.to_apply.and_then(|c| find_monoid(module, c));
            groups.entry((waited, array(module, inst)?.dtype, reducer)).or_default().push(inst);
        }
    }
    Ok(groups.into_values().collect())
}

fn array(module: &Module, inst: InstId) -> Result<ArrayShape, SpmdError> {
    module.shape(inst).as_array().cloned().ok_or_else(|| SpmdError::not_an_array(module, inst))
}
