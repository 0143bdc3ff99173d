//! Finds matrices that each device holds in shards: gathered before an update, sliced after it.
//!
//! A dim that the devices do not divide is padded with zeros: the gather is cut off behind the matrix, and the matrix padded
//! before it is sliced.

use crate::tables::IndexMap;
use hlo_ir::attrs::Attrs;
use hlo_ir::module::UserMap;
use hlo_ir::{ArrayShape, Dims, InstId, Module, Opcode};
use hlo_spmd::{array, find_device_values, find_splat};

/// Matrices in shards, each along one of its dims.
pub(super) struct InShards {
    /// The dim along which each matrix is cut.
    pub(super) dims: Vec<usize>,
    /// This device's shard of each matrix; or, of each matrix, those that take it.
    pub(super) shards: Vec<Vec<InstId>>,
    /// The dims along which matrices are cut, each with the dims of a shard.
    pub(super) cuts: IndexMap<usize, Dims>,
}

impl InShards {
    fn with_capacity(n: usize) -> InShards {
        InShards { dims: Vec::with_capacity(n), shards: Vec::with_capacity(n), cuts: IndexMap::default() }
    }

    /// Adds a matrix; `None` where another one's shards along the same dim have another shape.
    fn push(&mut self, dim: usize, shard: &ArrayShape, shards: Vec<InstId>) -> Option<()> {
        if *self.cuts.entry(dim).or_insert_with(|| shard.dims.clone()) != shard.dims {
            return None;
        }
        self.dims.push(dim);
        self.shards.push(shards);
        Some(())
    }
}

/// The shards of arrays that are all-gathers within `groups`, each along one dim.
pub(super) fn find_gathered(module: &Module, arrays: &[InstId], groups: &[Vec<u32>]) -> Option<InShards> {
    let mut found = InShards::with_capacity(arrays.len());
    for &whole in arrays {
        let gather = if is_beginning(module, whole) { *module.inst(whole).operands.first()? } else { whole };
        let instruction = module.inst(gather);
        let [shard] = instruction.operands.as_slice() else { return None };
        if instruction.opcode != Opcode::AllGather || module.device_groups(gather).ok()?.groups != groups {
            return None;
        }
        let (padded, of_shard) = (array(module, gather)?, array(module, *shard)?);
        let dim = cut_dim(padded, of_shard, groups).filter(|&dim| is_same_beside(array(module, whole), padded, dim))?;
        found.push(dim, of_shard, vec![*shard])?;
    }
    Some(found)
}

/// The slices of arrays of which each device of `groups` takes its own alone: all that reads each array, `is_member` aside, along
/// one dim.
pub(super) fn find_sliced(
    module: &Module,
    arrays: &[InstId],
    (users, is_member): (&UserMap, impl Fn(InstId) -> bool),
    groups: &[Vec<u32>],
) -> Option<InShards> {
    let mut found = InShards::with_capacity(arrays.len());
    let is_root = |inst: InstId| module.comp(module.inst(inst).parent).root.expand() == Some(inst);
    for &whole in arrays {
        let mut slices: Vec<(InstId, InstId)> = Vec::new();
        for &reader in users[whole].iter().filter(|&&user| !is_member(user)) {
            match is_padded_with_zeros(module, reader) {
                true if is_root(reader) => return None,
                true => slices.extend(users[reader].iter().map(|&slice| (reader, slice))),
                false => slices.push((whole, reader)),
            }
        }
        let sliced = |&(padded, slice): &(InstId, InstId)| {
            let dim = sliced_dim(module, (padded, slice), groups)?;
            is_same_beside(array(module, whole), array(module, padded)?, dim).then_some(dim)
        };
        let first = slices.first()?;
        let (dim, shard) = (sliced(first)?, array(module, first.1)?);
        let is_like = |slice: &(InstId, InstId)| sliced(slice) == Some(dim) && array(module, slice.1) == Some(shard);
        if is_root(whole) || !slices.iter().all(is_like) {
            return None;
        }
        found.push(dim, shard, slices.iter().map(|slice| slice.1).collect())?;
    }
    Some(found)
}

/// Whether `inst` takes the first elements along all dims of its operand.
fn is_beginning(module: &Module, inst: InstId) -> bool {
    let Attrs::Slice(attrs) = &module.inst(inst).attrs else { return false };
    attrs.slice.iter().all(|dim| dim.start == 0 && dim.stride == 1)
}

/// Whether `inst` puts zeros behind the end of its operand.
fn is_padded_with_zeros(module: &Module, inst: InstId) -> bool {
    let instruction = module.inst(inst);
    let Attrs::Pad(attrs) = &instruction.attrs else { return false };
    let is_behind = attrs.padding.iter().all(|dim| dim.low == 0 && dim.interior == 0 && dim.high >= 0);
    let fill = instruction.operands.get(1).and_then(|&fill| find_splat(module, fill));
    is_behind && fill.is_some_and(|fill| fill.is_zero())
}

/// Whether two arrays differ in `dim` alone.
fn is_same_beside(whole: Option<&ArrayShape>, padded: &ArrayShape, dim: usize) -> bool {
    let is_same = |whole: &ArrayShape| (0..padded.rank()).all(|d| d == dim || whole.dims[d] == padded.dims[d]);
    whole.is_some_and(|whole| whole.rank() == padded.rank() && is_same(whole))
}

/// The dim along which each device takes its own shard of `whole` by `slice`.
fn sliced_dim(module: &Module, (whole, slice): (InstId, InstId), groups: &[Vec<u32>]) -> Option<usize> {
    let instruction = module.inst(slice);
    let is_of_whole = instruction.operands.iter().position(|&operand| operand == whole) == Some(0);
    if instruction.opcode != Opcode::DynamicSlice || !is_of_whole {
        return None;
    }
    let shard = array(module, slice)?;
    let dim = cut_dim(array(module, whole)?, shard, groups)?;
    let starts = find_device_values(module, *instruction.operands.get(dim + 1)?)?;
    let is_own = |(place, &device): (i64, &u32)| starts.get(device as usize) == Some(&(place * shard.dims[dim]));
    groups.iter().all(|group| (0..).zip(group).all(is_own)).then_some(dim)
}

/// The one dim of `whole` of which `shard` has an even part.
fn cut_dim(whole: &ArrayShape, shard: &ArrayShape, groups: &[Vec<u32>]) -> Option<usize> {
    let n = groups.first()?.len() as i64;
    let mut cut = (0..whole.rank().min(shard.rank())).filter(|&dim| whole.dims[dim] != shard.dims[dim]);
    let dim = cut.next().filter(|_| whole.rank() == shard.rank())?;
    (cut.next().is_none() && shard.dims[dim] * n == whole.dims[dim]).then_some(dim)
}
