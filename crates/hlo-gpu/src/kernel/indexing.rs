//! `gather` and `scatter`: windows whose starts are read from an array of indices.

use hlo_ir::attrs::{Attrs, ScatterAttrs};
use hlo_ir::{ArrayShape, InstId};
use smallvec::SmallVec;

use super::emitter::{Atom, Element, Emitted, Emitter, FrameId, Index, Value};
use super::reduction::Combiner;
use crate::GpuError;

/// How index vectors name operand dims; what gather and scatter share.
struct Starts<'a> {
    indices: InstId,
    index_vector_dim: usize,
    /// Operand dim of each component.
    index_map: &'a [i64],
}

impl Starts<'_> {
    /// Component `k` of the index vector at `batch` (the dims of the indices without the vector's), as `s64`.
    fn component(&self, e: &mut Emitter<'_>, frame: FrameId, batch: &[Atom], k: usize) -> Result<Value, GpuError> {
        let rank = e.leaf_shape(self.indices, 0)?.rank();
        let mut at = Index::from_slice(batch);
        if self.index_vector_dim < rank {
            at.insert(self.index_vector_dim, Atom::Const(k as i64));
        }
        let value = e.value(frame, self.indices, 0, &at)?;
        Ok(Value { text: format!("hlo::index_value({})", value.text), depth: value.depth })
    }
}

fn contains(dims: &[i64], dim: usize) -> bool {
    dims.contains(&(dim as i64))
}

/// The dims of an array of `rank` dims that `others` do not list.
fn rest(rank: usize, others: &[&[i64]]) -> SmallVec<[usize; 4]> {
    (0..rank).filter(|&dim| !others.iter().any(|list| contains(list, dim))).collect()
}

/// Starts that leave no room for their window are clamped.
pub(super) fn gather(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Gather(attrs) = &e.module.inst(inst).attrs else {
        return Err(e.unsupported(inst, "expected the numbers of a gather"));
    };
    let (operand, indices) = (e.operand(inst, 0)?, e.operand(inst, 1)?);
    let shape = e.leaf_shape(operand, 0)?;
    let starts =
        Starts { indices, index_vector_dim: attrs.index_vector_dim as usize, index_map: &attrs.start_index_map };
    let batch: Index = rest(index.len(), &[&attrs.offset_dims]).iter().map(|&dim| index[dim]).collect();
    let mut own: Index = SmallVec::from_elem(Atom::Const(0), shape.rank());
    let window_dims = rest(shape.rank(), &[&attrs.collapsed_slice_dims, &attrs.operand_batching_dims]);
    for (&dim, &offset_dim) in window_dims.iter().zip(&attrs.offset_dims) {
        own[dim] = index[offset_dim as usize];
    }
    for (&dim, &indices_dim) in attrs.operand_batching_dims.iter().zip(&attrs.start_indices_batching_dims) {
        let among_batch = indices_dim as usize - usize::from(indices_dim > attrs.index_vector_dim);
        own[dim as usize] = batch[among_batch];
    }
    for (k, &dim) in starts.index_map.iter().enumerate() {
        let last = shape.dims[dim as usize] - attrs.slice_sizes[dim as usize];
        if last <= 0 {
            continue;
        }
        let start = starts.component(e, frame, &batch, k)?;
        let start = e.bind(format!("(idx)hlo::clamp_start({}, {last})", start.text), start.depth);
        own[dim as usize] = e.sum(own[dim as usize], start);
    }
    e.value(frame, operand, 0, &own)
}

/// The numbers of a scatter.
pub(super) struct ScatterParts<'m> {
    pub attrs: &'m ScatterAttrs,
    pub operands: Vec<InstId>,
    pub indices: InstId,
    pub updates: Vec<InstId>,
    pub shape: &'m ArrayShape,
    pub update_shape: &'m ArrayShape,
    /// Dims of the updates that go with dims of the indices.
    pub batch_dims: SmallVec<[usize; 4]>,
    /// Dims of the operand that a window has, in the order of `update_window_dims`.
    pub window_dims: SmallVec<[usize; 4]>,
}

impl<'m> ScatterParts<'m> {
    pub(super) fn new(e: &Emitter<'m>, inst: InstId) -> Result<ScatterParts<'m>, GpuError> {
        let node = e.module.inst(inst);
        let n = node.operands.len() / 2;
        let (Attrs::Scatter(attrs), true) = (&node.attrs, node.operands.len() == 2 * n + 1 && n > 0) else {
            return Err(e.unsupported(inst, "expected operands, indices and updates"));
        };
        let (shape, update_shape) = (e.operand_shape(inst, 0)?, e.operand_shape(inst, n + 1)?);
        Ok(ScatterParts {
            attrs,
            operands: node.operands[..n].to_vec(),
            indices: node.operands[n],
            updates: node.operands[n + 1..].to_vec(),
            shape,
            update_shape,
            batch_dims: rest(update_shape.rank(), &[&attrs.update_window_dims]),
            window_dims: rest(shape.rank(), &[&attrs.inserted_window_dims, &attrs.input_batching_dims]),
        })
    }

    /// Component `k` of the index vector at `batch`, as `s64`.
    pub(super) fn start(
        &self,
        e: &mut Emitter<'_>,
        frame: FrameId,
        batch: &[Atom],
        k: usize,
    ) -> Result<Value, GpuError> {
        let starts = Starts {
            indices: self.indices,
            index_vector_dim: self.attrs.index_vector_dim as usize,
            index_map: &self.attrs.scatter_dims_to_operand_dims,
        };
        starts.component(e, frame, batch, k)
    }

    /// Size of the window along an operand dim.
    fn window_size(&self, dim: usize) -> i64 {
        match self.window_dims.iter().position(|&d| d == dim) {
            Some(i) => self.update_shape.dims[self.attrs.update_window_dims[i] as usize],
            None => 1,
        }
    }

    /// Among the batch dims, the one that goes with a batching dim of the operand.
    fn batch_of(&self, i: usize) -> usize {
        let indices_dim = self.attrs.scatter_indices_batching_dims[i];
        indices_dim as usize - usize::from(indices_dim > self.attrs.index_vector_dim)
    }
}

/// Every element looks at all index vectors in order and takes the updates that fall on it. A window that leaves the operand is
/// skipped as a whole.
pub(super) fn scatter(e: &mut Emitter<'_>, Element { frame, inst, leaf, index }: Element<'_>) -> Emitted {
    let parts = ScatterParts::new(e, inst)?;
    let comp = parts.attrs.to_apply.ok_or_else(|| e.unsupported(inst, "expected a computation to combine by"))?;
    let dtypes: Vec<_> =
        parts.operands.iter().map(|&x| Ok(e.leaf_shape(x, 0)?.dtype)).collect::<Result<_, GpuError>>()?;
    let combiner = Combiner::new(e, comp, &dtypes);
    let olds = parts.operands.iter().map(|&x| e.value(frame, x, 0, index)).collect::<Result<Vec<Value>, GpuError>>()?;
    let accumulators = combiner.start(e, &olds);
    let starts = Starts {
        indices: parts.indices,
        index_vector_dim: parts.attrs.index_vector_dim as usize,
        index_map: &parts.attrs.scatter_dims_to_operand_dims,
    };
    // Along a batching dim there is one index vector for each element: no loop.
    let mut pinned: SmallVec<[Option<Atom>; 4]> = SmallVec::from_elem(None, parts.batch_dims.len());
    for (i, &dim) in parts.attrs.input_batching_dims.iter().enumerate() {
        pinned[parts.batch_of(i)] = Some(index[dim as usize]);
    }
    let open: SmallVec<[usize; 4]> = (0..pinned.len()).filter(|&i| pinned[i].is_none()).collect();
    let sizes: SmallVec<[i64; 4]> = open.iter().map(|&i| parts.update_shape.dims[parts.batch_dims[i]]).collect();
    e.count_all(&sizes, &mut |e, at| {
        let mut batch: Index = pinned.iter().map(|atom| atom.unwrap_or(Atom::Const(0))).collect();
        for (&i, &atom) in open.iter().zip(at) {
            batch[i] = atom;
        }
        let mut conditions = Vec::new();
        let mut offsets: Index = Index::from_slice(index);
        for (k, &dim) in starts.index_map.iter().enumerate() {
            let dim = dim as usize;
            let start = starts.component(e, frame, &batch, k)?;
            let size = parts.window_size(dim);
            let inside = format!("{0} >= 0 && {0} <= {1}", start.text, parts.shape.dims[dim] - size);
            let start = e.bind(format!("{inside} ? (idx){} : {}", start.text, OUTSIDE), start.depth);
            let offset = e.difference(index[dim], start);
            conditions.push(format!("{start} >= 0 && {offset} >= 0 && {offset} < {size}"));
            offsets[dim] = offset;
        }
        // A window has one element along an inserted dim, at 0 if no index vector says otherwise.
        for &dim in &parts.attrs.inserted_window_dims {
            if !contains(starts.index_map, dim as usize) && parts.shape.dims[dim as usize] > 1 {
                conditions.push(format!("{} == 0", index[dim as usize]));
            }
        }
        let mut update: Index = SmallVec::from_elem(Atom::Const(0), parts.update_shape.rank());
        for (&dim, &atom) in parts.batch_dims.iter().zip(&batch) {
            update[dim] = atom;
        }
        for (&dim, &update_dim) in parts.window_dims.iter().zip(&parts.attrs.update_window_dims) {
            update[update_dim as usize] = offsets[dim];
            // A window that is no index vector's business begins at 0 and may be shorter than the operand.
            let size = parts.window_size(dim);
            if !contains(starts.index_map, dim) && size < parts.shape.dims[dim] {
                conditions.push(format!("{} < {size}", offsets[dim]));
            }
        }
        let body = |e: &mut Emitter<'_>| {
            let values = parts
                .updates
                .iter()
                .map(|&x| e.value(frame, x, 0, &update))
                .collect::<Result<Vec<Value>, GpuError>>()?;
            combiner.combine_rounded(e, &accumulators, &values)
        };
        super::windows::guarded(e, &conditions, body)
    })?;
    combiner.finish(e, frame, inst, leaf, index, &accumulators)
}

/// A start that no window has.
const OUTSIDE: i64 = -1;
