//! Combines the all-reduces of partial results that do not wait for one another: many scalars, one latency (§4.1 of the
//! paper sums norms over shards; a step of LARS or LAMB has two for every weight).

use crate::pieces::{add, array, attribute};
use cranelift_entity::SecondaryMap;
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::monoid::{Monoid, find_monoid};
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode};
use indexmap::IndexMap;

/// Packs the given all-reduces of `comp`, whose instructions are in order, into one for each element type, reducer and place in
/// the chain of those that wait for one another. Returns what now computes each of them.
///
/// # Errors
/// One of them is no all-reduce of an array.
pub fn pack_all_reduces(
    module: &mut Module,
    comp: CompId,
    all_reduces: &[InstId],
) -> Result<IndexMap<InstId, InstId>, String> {
    let mut packed = IndexMap::new();
    let mut replaced: IndexMap<InstId, InstId> = IndexMap::new();
    for group in groups(module, comp, all_reduces)? {
        let [first, _, ..] = group.as_slice() else { continue };
        let dtype = array(module, *first)?.dtype;
        let mut flat = Vec::new();
        let mut sizes = Vec::new();
        for &all_reduce in &group {
            let size = array(module, all_reduce)?.n_elems() as i64;
            let partial = *module.inst(all_reduce).operands.first().ok_or("an all-reduce without operand")?;
            let shape = ArrayShape::new(dtype, [size]).with_row_major();
            flat.push(add(module, comp, "partial", Opcode::Reshape, shape, &[partial], ReshapeAttrs::default()));
            sizes.push(size);
        }
        let shape = ArrayShape::new(dtype, [sizes.iter().sum()]).with_row_major();
        let attrs = DimsAttrs { dimensions: [0].into_iter().collect() };
        let partials = add(module, comp, "partials", Opcode::Concatenate, shape.clone(), &flat, attrs);
        let attrs = module.inst(*first).attrs.clone();
        let sums = add(module, comp, "all-reduce.partials", Opcode::AllReduce, shape, &[partials], attrs);
        attribute(module, sums, *first);
        let mut start = 0;
        for (&all_reduce, &size) in group.iter().zip(&sizes) {
            let slice = SliceAttrs { slice: vec![SliceDim { start, limit: start + size, stride: 1 }] };
            let shape = ArrayShape::new(dtype, [size]).with_row_major();
            let one = add(module, comp, "sum", Opcode::Slice, shape, &[sums], slice);
            let shape = array(module, all_reduce)?;
            let one = add(module, comp, "sum", Opcode::Reshape, shape, &[one], ReshapeAttrs::default());
            replaced.insert(all_reduce, one);
            packed.insert(all_reduce, sums);
            start += size;
        }
    }
    replace_uses(module, comp, &replaced);
    Ok(packed)
}

/// Uses of each key become uses of its value, all in one go through the computation.
fn replace_uses(module: &mut Module, comp: CompId, replaced: &IndexMap<InstId, InstId>) {
    let new = |old: InstId| replaced.get(&old).copied().unwrap_or(old);
    for inst in module.comp(comp).insts.clone() {
        module.inst_mut(inst).operands.iter_mut().for_each(|operand| *operand = new(*operand));
        if let Some(marks) = &mut module.inst_mut(inst).marks {
            marks.control_predecessors.iter_mut().for_each(|before| *before = new(*before));
        }
    }
    let root = module.comp(comp).root.expand().map(new);
    module.comp_mut(comp).root = root.into();
}

/// The all-reduces that may go together.
fn groups(module: &Module, comp: CompId, all_reduces: &[InstId]) -> Result<Vec<Vec<InstId>>, String> {
    let mut is_one: SecondaryMap<InstId, bool> = SecondaryMap::new();
    all_reduces.iter().for_each(|&inst| is_one[inst] = true);
    // How many of them an instruction has waited for, its own included.
    let mut n_waited: SecondaryMap<InstId, u32> = SecondaryMap::new();
    let mut groups: IndexMap<(u32, DType, Option<Monoid>), Vec<InstId>> = IndexMap::new();
    for &inst in &module.comp(comp).insts {
        let instruction = module.inst(inst);
        let waited = instruction.operands.iter().map(|&o| n_waited[o]).max().unwrap_or(0);
        n_waited[inst] = waited + u32::from(is_one[inst]);
        if is_one[inst] {
            let Attrs::Combining(attrs) = &instruction.attrs else { return Err("expected an all-reduce".into()) };
            let reducer = attrs.to_apply.and_then(|c| find_monoid(module, c));
            groups.entry((waited, array(module, inst)?.dtype, reducer)).or_default().push(inst);
        }
    }
    Ok(groups.into_values().collect())
}
