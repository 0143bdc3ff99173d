//! Write a scatter of one element a row into an array that is made for it as a comparison and a select.
//!
//! Before, the gradient of a cross-entropy loss (`take_along_axis` in JAX):
//! ```text
//! %zeros = f32[8,1024] broadcast(%zero), dimensions={}
//! ROOT %g = f32[8,1024] scatter(%zeros, s32[8,1] %labels, f32[8] %u), update_window_dims={}, inserted_window_dims={1},
//!   scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, index_vector_dim=1, to_apply=%add
//! ```
//! after:
//! ```text
//! %zeros = f32[8,1024] broadcast(%zero), dimensions={}
//! %at = s32[8,1024] iota(), iota_dimension=1
//! %label = s32[8,1024] broadcast(s32[8] %flat), dimensions={0}
//! %hit = pred[8,1024] compare(%at, %label), direction=EQ
//! %update = f32[8,1024] broadcast(%u), dimensions={0}
//! %new = f32[8,1024] add(%zeros, %update)
//! ROOT %g = f32[8,1024] select(%hit, %new, %zeros)
//! ```
//! The sample `ir-samples/passes/scatter-to-select/cross_entropy.hlo` runs this.
//!
//! **Why.** The array is filled, then a few of its elements are written, then all are read: three passes over logits, which are the largest
//! array of a language model. A select is elementwise, so the kernel that adds it to the gradient of the softmax computes it on the way.
//! Where the scatter adds to that gradient, as optax's loss has it, the kernel that computes the gradient does.
//!
//! **What it does not do.** Scatters into arrays that are there already (a cache: the scatter writes only what changes): the array has to be one
//! number, or elementwise and read by the scatter alone. Scatters of which two updates may meet at an element (the gradient of an embedding), of windows that are not whole rows, of several arrays, with a
//! reducer of more than one op, and those that carry a sharding.
//!
//! **Algorithm.** Each dim of the indices is a dim of the array (a batching dim, or one along which a component of the vectors counts
//! 0, 1, 2 …, as XLA for GPUs and older JAX write it), has one element, or holds the index vectors. An element is written if in all other
//! dims that vectors name it stands where they say; an index out of bounds names none. Linear in the module.
//!
//! **Requires** nothing. **Ensures** the same results, bit for bit. **Errors**: none on a verified module.

use hlo_analysis::Preserved;
use hlo_analysis::code::{code_computations, is_annotated, pinned_by_control};
use hlo_ir::attrs::{Attrs, CompareAttrs, DimsAttrs, IotaAttrs, ReshapeAttrs, ScatterAttrs, SliceAttrs, SliceDim};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::monoid::find_monoid;
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, InstMap, Layout, Module, NumberClass, Opcode, Shape};
use hlo_pass::report::Decision;
use hlo_pass::{Changed, Pass, PassCx, PassError, PassInfo};

/// The pass as the command line knows it.
pub(crate) static INFO: PassInfo = PassInfo {
    name: "scatter-to-select",
    help: "write a scatter of one element a row into an array that is made for it as a comparison and a select",
    options: &[],
    build: |_| Ok(Box::new(ScatterToSelect)),
};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScatterToSelect;

impl Pass for ScatterToSelect {
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut n_written = 0;
        for comp in code_computations(module) {
            let pinned = pinned_by_control(module, comp);
            let is_scatter = |inst: &InstId| module.inst(*inst).opcode == Opcode::Scatter;
            let scatters: Vec<InstId> = module.comp(comp).insts.iter().copied().filter(is_scatter).collect();
            if scatters.is_empty() {
                continue;
            }
            let mut n_users: InstMap<u32> = InstMap::of(module, comp);
            for &inst in &module.comp(comp).insts {
                module.inst(inst).operands.iter().for_each(|&operand| n_users[operand] += 1);
            }
            module.comp(comp).root.expand().into_iter().for_each(|root| n_users[root] += 1);
            let (was_live, n_slots, n_before) = (module.live(comp), module.n_inst_slots(), n_written);
            for inst in scatters {
                let found = match pinned.contains(inst) || is_annotated(module, inst) {
                    true => Err(Obstacle::Marked),
                    false => RowScatter::of(module, inst, &n_users),
                };
                let (action, reason) = match &found {
                    Ok(_) => {
                        ("written as a select", "each update has elements of its own, and the array is made for it")
                    }
                    Err(obstacle) => ("left", obstacle.reason()),
                };
                let bytes = module.shape(inst).as_array().map_or(0, ArrayShape::size_bytes);
                cx.report.decisions.push(Decision { bytes, ..Decision::about(module, inst, action, reason) });
                if let Ok(scatter) = found {
                    let select = scatter.write(module, comp, inst);
                    module.replace_all_uses(inst, select);
                    n_written += 1;
                }
            }
            if n_written > n_before {
                let cycle = |inst| PassError::about("acyclic", Entity::Inst(inst), "expected no cycle, found one");
                module.restore_order(comp).map_err(cycle)?;
                module.remove_newly_dead(comp, &was_live, n_slots);
            }
        }
        cx.report.count("scatters", n_written);
        if n_written == 0 {
            let reason = "no scatter writes one element a row into an array that is made for it";
            cx.report.unchanged_because = Some(reason.into());
            return Ok(Changed::No);
        }
        Ok(Changed::Yes(Preserved::NONE))
    }
}

/// Why a scatter stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Obstacle {
    Marked,
    Several,
    Dynamic,
    Packed,
    IsThere,
    Meet,
    Windows,
    LongDim,
    Reducer,
}

impl Obstacle {
    fn reason(self) -> &'static str {
        match self {
            Obstacle::Marked => "it carries a sharding, a front end's attributes or control dependencies",
            Obstacle::Several => "it writes several arrays",
            Obstacle::Dynamic => "a dim of it is dynamic",
            Obstacle::Packed => "a layout of it packs elements, or has tiles or a memory of its own",
            Obstacle::IsThere => "the array that it writes to is there already, or read by others",
            Obstacle::Meet => "two updates may be of the same element",
            Obstacle::Windows => "it writes windows that are neither single elements nor whole dims",
            Obstacle::LongDim => "the type of the indices does not count as far as the dim that they name",
            Obstacle::Reducer => "its reducer is not a single op, or a product of complex numbers",
        }
    }
}

/// How an update and the old element give the new one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Combine {
    /// The new element is the update.
    Set,
    Op(Opcode),
}

/// A scatter of which no two updates are of the same element.
#[derive(Debug)]
struct RowScatter {
    array: InstId,
    indices: Indices,
    updates: InstId,
    /// The components of index vectors that say where in a dim of the result an element is, and the dim.
    named: Vec<(usize, usize)>,
    /// For each dim of the indices, the dim of the result that it is; none for dims of one element, and for that of the vectors.
    dims_of_indices: Vec<Option<usize>>,
    /// The same of the updates, with the dims of the indices that they have apart.
    dims_of_updates: Vec<Option<usize>>,
    combine: Combine,
}

impl RowScatter {
    fn of(module: &Module, inst: InstId, n_users: &InstMap<u32>) -> Result<RowScatter, Obstacle> {
        let node = module.inst(inst);
        let (Attrs::Scatter(attrs), &[array, indices, updates]) = (&node.attrs, node.operands.as_slice()) else {
            return Err(Obstacle::Several);
        };
        let shape_of = |inst: InstId| {
            let shape = module.shape(inst).as_array().filter(|array| array.dynamic == 0).ok_or(Obstacle::Dynamic)?;
            let is_plain = shape.layout.as_ref().is_none_or(|layout| layout.is_only_an_order());
            is_plain.then_some(shape).ok_or(Obstacle::Packed)
        };
        let (result, of_indices, of_updates) = (shape_of(inst)?, shape_of(indices)?, shape_of(updates)?);
        // An iota in such a type begins anew too.
        let counts_to = last_index(of_indices.dtype);
        if attrs.scatter_dims_to_operand_dims.iter().any(|&dim| result.dims[dim as usize] - 1 > counts_to) {
            return Err(Obstacle::LongDim);
        }
        let node = module.inst(array);
        let is_for_it = node.opcode.is_elementwise() && node.opcode.is_pure() && n_users[array] == 1;
        if !is_for_it && !holds_one_number(module, array) {
            return Err(Obstacle::IsThere);
        }
        let indices = Indices::of(module, indices, attrs).ok_or(Obstacle::Dynamic)?;
        let named = attrs.scatter_dims_to_operand_dims.iter().map(|&dim| dim as usize).enumerate();
        let mut scatter = RowScatter {
            array,
            updates,
            named: named.collect(),
            dims_of_indices: vec![None; indices.dims.len()],
            dims_of_updates: Vec::new(),
            indices,
            combine: combine(module, attrs).ok_or(Obstacle::Reducer)?,
        };
        scatter.match_batch_dims(module, attrs, result)?;
        scatter.match_update_dims(attrs, result, of_updates)?;
        Ok(scatter)
    }

    /// Dims of the indices: each is a dim of the array, as the attributes or the numbers along it say, or has one element.
    fn match_batch_dims(&mut self, module: &Module, attrs: &ScatterAttrs, result: &ArrayShape) -> Result<(), Obstacle> {
        for (dim, &size) in self.indices.dims.iter().enumerate().filter(|(dim, _)| Some(*dim) != self.indices.vectors) {
            let mut pairs = attrs.scatter_indices_batching_dims.iter().zip(&attrs.input_batching_dims);
            let partner = pairs.find(|(own, _)| **own == dim as i64).map(|(_, array)| *array as usize);
            if partner.is_some() || size == 1 {
                self.dims_of_indices[dim] = partner;
                continue;
            }
            let counts = |&(component, named): &(usize, usize)| {
                result.dims[named] == size && self.indices.counts_along(module, component, dim)
            };
            let found = self.named.iter().position(counts).ok_or(Obstacle::Meet)?;
            self.dims_of_indices[dim] = Some(self.named.remove(found).1);
        }
        Ok(())
    }

    /// Dims of the updates: those of the indices, and those of windows, which are whole or have one element where the index says.
    fn match_update_dims(
        &mut self,
        attrs: &ScatterAttrs,
        result: &ArrayShape,
        updates: &ArrayShape,
    ) -> Result<(), Obstacle> {
        let dropped = [attrs.inserted_window_dims.as_slice(), attrs.input_batching_dims.as_slice()].concat();
        let mut window_dims = others(result.rank(), &dropped);
        let vectors = self.indices.vectors;
        let mut batch_dims =
            self.dims_of_indices.iter().enumerate().filter(|(dim, _)| Some(*dim) != vectors).map(|(_, &to)| to);
        let is_named = |dim: usize| attrs.scatter_dims_to_operand_dims.contains(&(dim as i64));
        for (place, &size) in updates.dims.iter().enumerate() {
            if !attrs.update_window_dims.contains(&(place as i64)) {
                // The dim of the updates that the indices have as several is the only one that is no window's.
                let n_dims = if self.indices.is_split { self.dims_of_indices.len() } else { 1 };
                self.dims_of_updates.extend(batch_dims.by_ref().take(n_dims));
                continue;
            }
            let dim = window_dims.next().ok_or(Obstacle::Windows)?;
            let (is_one, is_whole) = (is_named(dim) && size == 1, !is_named(dim) && size == result.dims[dim]);
            if !is_one && !is_whole {
                return Err(Obstacle::Windows);
            }
            self.dims_of_updates.push(is_whole.then_some(dim));
        }
        let is_known = |&dim: &i64| is_named(dim as usize) || result.dims[dim as usize] == 1;
        attrs.inserted_window_dims.iter().all(is_known).then_some(()).ok_or(Obstacle::Windows)
    }

    /// Writes the select; gives it.
    fn write(&self, module: &mut Module, comp: CompId, inst: InstId) -> InstId {
        let (name, marks) = (module.inst_name(inst).to_string(), module.inst(inst).marks.clone());
        let Some(result) = module.shape(inst).as_array().cloned() else { return inst };
        let mut writer = Writer { build: Builder::new(module, comp), result, name };
        let mut is_hit = None;
        for &(component, dim) in &self.named {
            let named = writer.component(self, component, dim);
            is_hit = Some(match is_hit {
                Some(before) => writer.whole("hit", Opcode::And, DType::Pred, [before, named], Attrs::Plain),
                None => named,
            });
        }
        let updates = writer.spread("update", self.updates, &self.dims_of_updates);
        let dtype = writer.result.dtype;
        let new = match self.combine {
            Combine::Set => updates,
            Combine::Op(opcode) => writer.whole("new", opcode, dtype, [self.array, updates], Attrs::Plain),
        };
        // Without a dim that an index names, every element is written.
        let Some(is_hit) = is_hit else { return new };
        let shape = Shape::Array(writer.result.clone());
        let select = writer.build.add(&writer.name, Opcode::Select, shape, [is_hit, new, self.array], Attrs::Plain);
        module.inst_mut(select).marks = marks;
        select
    }
}

/// Writes arrays of the dims of the result.
struct Writer<'m> {
    build: Builder<'m>,
    result: ArrayShape,
    name: String,
}

impl Writer<'_> {
    /// An op with the dims and the layout of the result.
    fn whole(
        &mut self,
        what: &str,
        opcode: Opcode,
        dtype: DType,
        operands: impl IntoIterator<Item = InstId>,
        attrs: impl Into<Attrs>,
    ) -> InstId {
        let mut shape = self.result.clone();
        if dtype != shape.dtype {
            // Elements of another type are not packed as the result's may be.
            let order = shape.minor_to_major();
            shape.layout = shape.layout.map(|_| Box::new(Layout::new(order)));
            shape.dtype = dtype;
        }
        self.build.add(&format!("{}.{what}", self.name), opcode, Shape::Array(shape), operands, attrs)
    }

    /// An op with dims of its own, in row-major layout where the result has a layout.
    fn part(&mut self, what: &str, opcode: Opcode, shape: ArrayShape, operand: InstId, attrs: Attrs) -> InstId {
        let shape = if self.result.layout.is_some() { shape.with_row_major() } else { shape };
        self.build.add(&format!("{}.{what}", self.name), opcode, Shape::Array(shape), [operand], attrs)
    }

    /// Whether an element stands in `dim` where component `component` of its index vector says.
    fn component(&mut self, scatter: &RowScatter, component: usize, dim: usize) -> InstId {
        let indices = &scatter.indices;
        let (mut index, component) = indices.piece(self.build.module(), component);
        let Some(whole) = self.build.module().shape(index).as_array().cloned() else { return index };
        if let Some(vectors) = indices.vectors.filter(|&dim| whole.dims[dim] != 1) {
            let whole_dim = |&limit: &i64| SliceDim { start: 0, limit, stride: 1 };
            let mut slice: Vec<SliceDim> = whole.dims.iter().map(whole_dim).collect();
            slice[vectors] = SliceDim { start: component as i64, limit: component as i64 + 1, stride: 1 };
            let mut shape = ArrayShape::new(whole.dtype, whole.dims.iter().copied());
            shape.dims[vectors] = 1;
            let attrs = SliceAttrs { slice: slice.into_iter().collect() }.into();
            index = self.part("component", Opcode::Slice, shape, index, attrs);
        }
        let named = self.spread("index", index, &scatter.dims_of_indices);
        let at = self.whole("at", Opcode::Iota, whole.dtype, [], IotaAttrs { iota_dimension: dim as i64 });
        self.whole("hit", Opcode::Compare, DType::Pred, [at, named], CompareAttrs::default())
    }

    /// An array repeated over the dims of the result that it has not. `dims` says which dims of the result its elements are in order of;
    /// where there is none it has one element.
    fn spread(&mut self, what: &str, array: InstId, dims: &[Option<usize>]) -> InstId {
        let Some(own) = self.build.module().shape(array).as_array().cloned() else { return array };
        let mut places: Vec<i64> = dims.iter().flatten().map(|&dim| dim as i64).collect();
        let mut value = array;
        let kept: Dims = places.iter().map(|&dim| self.result.dims[dim as usize]).collect();
        if kept != own.dims {
            let shape = ArrayShape::new(own.dtype, kept);
            value = self.part(what, Opcode::Reshape, shape, value, ReshapeAttrs::default().into());
        }
        if !places.is_sorted() {
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_by_key(|&k| places[k]);
            places.sort();
            let shape = ArrayShape::new(own.dtype, places.iter().map(|&dim| self.result.dims[dim as usize]));
            let attrs = DimsAttrs { dimensions: order.into_iter().map(|k| k as i64).collect() };
            value = self.part(what, Opcode::Transpose, shape, value, attrs.into());
        }
        let attrs = DimsAttrs { dimensions: places.into_iter().collect() };
        self.whole(what, Opcode::Broadcast, own.dtype, [value], attrs)
    }
}

/// The index vectors of a scatter.
#[derive(Debug)]
struct Indices {
    /// The array that holds them.
    array: InstId,
    dims: Dims,
    /// The dim that holds the vectors; none if they are scalars.
    vectors: Option<usize>,
    /// Whether the scatter takes all other dims as one.
    is_split: bool,
}

impl Indices {
    /// None if it is no array.
    fn of(module: &Module, array: InstId, attrs: &ScatterAttrs) -> Option<Indices> {
        let shape = module.shape(array).as_array()?;
        let vectors = usize::try_from(attrs.index_vector_dim).ok().filter(|&dim| dim < shape.rank());
        let dims = shape.dims.clone();
        let whole = Indices { array, dims, vectors, is_split: false };
        let split = whole.split(module).filter(|_| attrs.scatter_indices_batching_dims.is_empty());
        Some(split.unwrap_or(whole))
    }

    /// The vectors before XLA made all other dims one; none if it did not.
    fn split(&self, module: &Module) -> Option<Indices> {
        let &from = renamed_operand(module, self.array)?;
        let shape = module.shape(from).as_array()?;
        let (&n_components, last) = (shape.dims.last()?, shape.rank() - 1);
        let is_split = self.dims.len() == 2 && self.vectors == Some(1) && self.dims[1] == n_components;
        is_split.then(|| Indices { array: from, dims: shape.dims.clone(), vectors: Some(last), is_split })
    }

    /// The array that holds a component of the vectors, and which of its components that is.
    fn piece(&self, module: &Module, component: usize) -> (InstId, usize) {
        let node = module.inst(self.array);
        let is_along = |attrs: &DimsAttrs| attrs.dimensions.first().copied() == self.vectors.map(|dim| dim as i64);
        let mut component = component;
        if let Some(vectors) = self
            .vectors
            .filter(|_| node.opcode == Opcode::Concatenate && DimsAttrs::of(&node.attrs).is_some_and(is_along))
        {
            for &piece in &node.operands {
                let n = module.shape(piece).as_array().map_or(0, |shape| shape.dims[vectors] as usize);
                if component < n {
                    return (piece, component);
                }
                component -= n;
            }
        }
        (self.array, component)
    }

    /// Whether a component of the vectors is the position in `dim`: 0, 1, 2 …
    fn counts_along(&self, module: &Module, component: usize, dim: usize) -> bool {
        counts_along(module, self.piece(module, component).0, dim)
    }
}

/// What an instruction gives other dims to, with the elements in the same order.
fn renamed_operand(module: &Module, inst: InstId) -> Option<&InstId> {
    let node = module.inst(inst);
    let operand = node.operands.first()?;
    let is_plain =
        |inst: InstId| module.shape(inst).as_array().is_some_and(|shape| shape.dynamic == 0 && shape.is_row_major());
    let same_type = || {
        let dtype = |inst: InstId| module.shape(inst).as_array().map(|shape| shape.dtype);
        dtype(inst) == dtype(*operand)
    };
    let is_bitcast = || node.opcode == Opcode::Bitcast && is_plain(inst) && is_plain(*operand) && same_type();
    (node.opcode == Opcode::Reshape || is_bitcast()).then_some(operand)
}

/// Whether each element of an array is its position in `dim`.
fn counts_along(module: &Module, mut inst: InstId, mut dim: usize) -> bool {
    loop {
        let node = module.inst(inst);
        if let Some(iota) = IotaAttrs::of(&node.attrs) {
            return iota.iota_dimension == dim as i64;
        }
        let Some(&operand) = node.operands.first() else { return false };
        let (Some(to), Some(from)) = (module.shape(inst).as_array(), module.shape(operand).as_array()) else {
            return false;
        };
        if renamed_operand(module, inst).is_some() {
            // Dims of one element come and go; all others stay in order.
            let long = |shape: &ArrayShape| (0..shape.rank()).filter(|&dim| shape.dims[dim] != 1).collect::<Vec<_>>();
            let (new, old) = (long(to), long(from));
            let sizes =
                |shape: &ArrayShape, dims: &[usize]| dims.iter().map(|&dim| shape.dims[dim]).collect::<Vec<_>>();
            let place = new.iter().position(|&long| long == dim).filter(|_| sizes(to, &new) == sizes(from, &old));
            let Some(place) = place else { return false };
            dim = old[place];
        } else if node.opcode == Opcode::Broadcast {
            let place =
                DimsAttrs::of(&node.attrs).and_then(|attrs| attrs.dimensions.iter().position(|&to| to == dim as i64));
            let Some(place) = place else { return false };
            dim = place;
        } else if node.opcode != Opcode::Copy {
            return false;
        }
        inst = operand;
    }
}

/// The dims of `rank` that are not among `taken`, in order.
fn others(rank: usize, taken: &[i64]) -> impl Iterator<Item = usize> {
    (0..rank).filter(|&dim| !taken.contains(&(dim as i64)))
}

/// Whether all elements of an array are one number, as its instruction says.
fn holds_one_number(module: &Module, array: InstId) -> bool {
    let node = module.inst(array);
    let is_scalar = |&inst: &InstId| module.shape(inst).as_array().is_some_and(|shape| shape.n_elems() == 1);
    node.opcode == Opcode::Broadcast && node.operands.first().is_some_and(is_scalar)
}

/// What a scatter's reducer does; none if it is more than one op, or one whose operands may not change places.
fn combine(module: &Module, attrs: &ScatterAttrs) -> Option<Combine> {
    let reducer = attrs.to_apply?;
    let &[_, update] = module.comp(reducer).params.as_slice() else { return None };
    let mut root = module.comp(reducer).root.expand()?;
    while module.inst(root).opcode == Opcode::Copy {
        root = *module.inst(root).operands.first()?;
    }
    if root == update {
        return Some(Combine::Set);
    }
    let opcode = find_monoid(module, reducer)?.opcode();
    // Whose factor comes first counts in the last bit of a complex product.
    let is_complex = module.shape(update).as_array().is_some_and(|array| array.dtype.class() == NumberClass::Complex);
    (!is_complex || opcode != Opcode::Multiply).then_some(Combine::Op(opcode))
}

/// The largest index that an integer type holds.
fn last_index(dtype: DType) -> i64 {
    let bits = dtype.bits();
    match dtype.class() {
        NumberClass::Signed => i64::MAX >> 64u32.saturating_sub(bits),
        NumberClass::Unsigned => i64::try_from(u64::MAX >> 64u32.saturating_sub(bits)).unwrap_or(i64::MAX),
        NumberClass::Pred | NumberClass::Float | NumberClass::Complex => 0,
    }
}
