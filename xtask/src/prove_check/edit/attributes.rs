//! Changes of attributes: who takes part, which dims, from where on.

use hlo_ir::attrs::{
    CombiningAttrs, CompareAttrs, Comparison, DimsAttrs, DotAttrs, FieldMut, GatherAttrs, GatheringAttrs, IotaAttrs,
    PadAttrs, PermutingAttrs, ReduceAttrs, ScatterAttrs, SliceAttrs, TupleIndexAttrs,
};
use hlo_ir::groups::ReplicaGroups;
use hlo_ir::{InstId, Module, Opcode};
use hlo_tests::random_module::Rng;

use super::opcode;

/// Changes the list of groups of a collective.
fn with_groups(module: &mut Module, inst: InstId, change: &mut dyn FnMut(&mut Vec<Vec<i64>>) -> bool) -> bool {
    let mut is_changed = false;
    module.inst_mut(inst).attrs.for_each_field_mut(&mut |field| {
        if let FieldMut::Groups(groups) = field
            && let Some(mut list) = groups.expand()
        {
            is_changed = change(&mut list);
            *groups = ReplicaGroups::List(list);
        }
    });
    is_changed
}

pub(super) fn exchange_members(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    with_groups(module, inst, &mut |groups| {
        let (a, b) = (rng.below(groups.len()), rng.below(groups.len()));
        if a == b || groups[a].is_empty() || groups[b].is_empty() {
            return false;
        }
        let (i, j) = (rng.below(groups[a].len()), rng.below(groups[b].len()));
        let (x, y) = (groups[a][i], groups[b][j]);
        (groups[a][i], groups[b][j]) = (y, x);
        true
    })
}

pub(super) fn halve_groups(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    with_groups(module, inst, &mut |groups| {
        if groups.iter().any(|group| group.len() < 2 || group.len() % 2 == 1) || groups.is_empty() {
            return false;
        }
        *groups = groups.iter().flat_map(|group| group.chunks(group.len() / 2).map(<[i64]>::to_vec)).collect();
        true
    })
}

pub(super) fn merge_groups(module: &mut Module, inst: InstId, _: &mut Rng) -> bool {
    with_groups(module, inst, &mut |groups| {
        if groups.len() < 2 || groups.len() % 2 == 1 {
            return false;
        }
        *groups = groups.chunks(2).map(<[Vec<i64>]>::concat).collect();
        true
    })
}

pub(super) fn reorder_group(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    with_groups(module, inst, &mut |groups| {
        let k = rng.below(groups.len());
        let Some(group) = groups.get_mut(k).filter(|group| group.len() > 1) else { return false };
        let (i, j) = (rng.below(group.len()), rng.below(group.len()));
        group.swap(i, j);
        i != j
    })
}

pub(super) fn turn_pairs(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(attrs) = PermutingAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let pairs = &mut attrs.source_target_pairs;
    match rng.below(3) {
        0 => pairs.iter_mut().for_each(|(source, target)| std::mem::swap(source, target)),
        1 if pairs.len() > 1 => {
            let first = pairs[0].1;
            pairs[0].1 = pairs[1].1;
            pairs[1].1 = first;
        }
        _ => drop(pairs.pop()),
    }
    true
}

pub(super) fn other_collective_dim(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let rank = module.shape(inst).as_array().map_or(0, |array| array.dims.len());
    let attrs = &mut module.inst_mut(inst).attrs;
    let gathered = GatheringAttrs::of(attrs).is_some();
    let dims = match gathered {
        true => GatheringAttrs::of_mut(attrs).map(|a| &mut a.dimensions),
        false => CombiningAttrs::of_mut(attrs).map(|a| &mut a.dimensions),
    };
    let Some(dim) = dims.and_then(|dims| dims.first_mut()).filter(|_| rank > 1) else { return false };
    let old = *dim;
    *dim = rng.below(rank) as i64;
    *dim != old
}

pub(super) fn move_slice(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(attrs) = SliceAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let k = rng.below(attrs.slice.len());
    let Some(dim) = attrs.slice.get_mut(k) else { return false };
    let by = if dim.start > 0 && rng.one_in(2) { -1 } else { 1 };
    dim.start += by;
    dim.limit += by;
    true
}

pub(super) fn move_padding(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(attrs) = PadAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let k = rng.below(attrs.padding.len());
    let Some(dim) = attrs.padding.get_mut(k) else { return false };
    let by = if rng.one_in(2) { -1 } else { 1 };
    dim.low += by;
    dim.high -= by;
    true
}

pub(super) fn other_comparison(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let Some(attrs) = CompareAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let old = attrs.direction;
    let all = [Comparison::Eq, Comparison::Ne, Comparison::Ge, Comparison::Gt, Comparison::Le, Comparison::Lt];
    attrs.direction = *rng.pick(&all);
    attrs.direction != old
}

pub(super) fn other_iota_dim(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let rank = module.shape(inst).as_array().map_or(0, |array| array.dims.len());
    let Some(attrs) = IotaAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let old = attrs.iota_dimension;
    attrs.iota_dimension = rng.below(rank) as i64;
    attrs.iota_dimension != old
}

/// Two dims of a list exchanged, or one replaced.
pub(super) fn exchange_dims(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let rank = module.shape(inst).as_array().map_or(0, |array| array.dims.len());
    let Some(attrs) = DimsAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let dims = &mut attrs.dimensions;
    if dims.is_empty() || rank < 2 {
        return false;
    }
    if dims.len() == 1 {
        let old = dims[0];
        dims[0] = rng.below(rank) as i64;
        return dims[0] != old;
    }
    let (a, b) = (rng.below(dims.len()), rng.below(dims.len()));
    dims.swap(a, b);
    a != b
}

pub(super) fn other_reduced_dim(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let operand = module.inst(inst).operands.first().copied();
    let rank = operand.and_then(|o| module.shape(o).as_array()).map_or(0, |array| array.dims.len());
    let Some(attrs) = ReduceAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let k = rng.below(attrs.dimensions.len());
    let new = rng.below(rank) as i64;
    if attrs.dimensions.is_empty() || attrs.dimensions.contains(&new) {
        return false;
    }
    attrs.dimensions[k] = new;
    attrs.dimensions.sort_unstable();
    true
}

pub(super) fn other_contracted_dim(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let is_left = rng.one_in(2);
    let operand = module.inst(inst).operands.get(usize::from(!is_left)).copied();
    let rank = operand.and_then(|o| module.shape(o).as_array()).map_or(0, |array| array.dims.len());
    let Some(attrs) = DotAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let dims = if is_left { &mut attrs.lhs_contracting_dims } else { &mut attrs.rhs_contracting_dims };
    let k = rng.below(dims.len());
    let Some(dim) = dims.get_mut(k).filter(|_| rank > 0) else { return false };
    let old = *dim;
    *dim = rng.below(rank) as i64;
    *dim != old
}

/// Another element of the same shape.
pub(super) fn other_element(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    if opcode(module, inst) != Opcode::GetTupleElement {
        return false;
    }
    let operand = module.inst(inst).operands[0];
    let n = module.shape(operand).as_tuple().map_or(0, |elements| elements.len());
    let new = rng.below(n) as i64;
    let Some(attrs) = TupleIndexAttrs::of_mut(&mut module.inst_mut(inst).attrs) else { return false };
    let old = attrs.index;
    attrs.index = new;
    new != old
}

pub(super) fn other_gathered_dim(module: &mut Module, inst: InstId, rng: &mut Rng) -> bool {
    let attrs = &mut module.inst_mut(inst).attrs;
    let dims = match ScatterAttrs::of(attrs).is_some() {
        true => ScatterAttrs::of_mut(attrs).map(|a| &mut a.scatter_dims_to_operand_dims),
        false => GatherAttrs::of_mut(attrs).map(|a| &mut a.start_index_map),
    };
    let Some(dims) = dims.filter(|dims| !dims.is_empty()) else { return false };
    let (a, b) = (rng.below(dims.len()), rng.below(dims.len()));
    if a == b {
        dims[a] = i64::from(dims[a] == 0);
    } else {
        dims.swap(a, b);
    }
    true
}
