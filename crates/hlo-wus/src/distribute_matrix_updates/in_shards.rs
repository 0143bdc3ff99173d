//! Finds matrices that each device holds in shards: gathered before an update, sliced after it.

use hlo_ir::{ArrayShape, CompId, InstId, Module, Opcode};
use hlo_spmd::{array, find_device_values};
use indexmap::IndexSet;

/// Matrices in shards, each along one of its dims.
pub(super) struct InShards {
    /// The dim along which each matrix is cut.
    pub(super) dims: Vec<usize>,
    /// This device's shard of each matrix; or, of each matrix, those that take it.
    pub(super) shards: Vec<Vec<InstId>>,
}

impl InShards {
    fn with_capacity(n: usize) -> InShards {
        InShards { dims: Vec::with_capacity(n), shards: Vec::with_capacity(n) }
    }

    /// The dims along which matrices are cut, each once.
    pub(super) fn cut_dims(&self) -> IndexSet<usize> {
        self.dims.iter().copied().collect()
    }
}

/// The shards of arrays that are all-gathers within `groups`, each along one dim.
pub(super) fn find_gathered(module: &Module, arrays: &[InstId], groups: &[Vec<u32>]) -> Option<InShards> {
    let mut found = InShards::with_capacity(arrays.len());
    for &whole in arrays {
        let instruction = module.inst(whole);
        let [shard] = instruction.operands.as_slice() else { return None };
        let is_gather = instruction.opcode == Opcode::AllGather && module.device_groups(whole).ok()?.groups == groups;
        found.dims.push(cut_dim(array(module, whole)?, array(module, *shard)?, groups).filter(|_| is_gather)?);
        found.shards.push(vec![*shard]);
    }
    Some(found)
}

/// The slices of arrays of which each device of `groups` takes its own alone: all `readers` of each array, along one dim.
pub(super) fn find_sliced(
    module: &Module,
    comp: CompId,
    arrays: &[InstId],
    readers: impl Fn(InstId) -> Vec<InstId>,
    groups: &[Vec<u32>],
) -> Option<InShards> {
    let mut found = InShards::with_capacity(arrays.len());
    for &whole in arrays {
        let slices = readers(whole);
        let sliced = |&slice: &InstId| sliced_dim(module, whole, slice, groups);
        let dim = slices.first().and_then(sliced)?;
        let is_root = module.comp(comp).root.expand() == Some(whole);
        if is_root || slices.iter().any(|slice| sliced(slice) != Some(dim)) {
            return None;
        }
        found.dims.push(dim);
        found.shards.push(slices);
    }
    Some(found)
}

/// The dim along which each device takes its own shard of `whole` by `slice`.
fn sliced_dim(module: &Module, whole: InstId, slice: InstId, groups: &[Vec<u32>]) -> Option<usize> {
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
