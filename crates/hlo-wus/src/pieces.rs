//! The instructions that shards are made of: shard ids, slices, reduce-scatters, all-gathers, masks.

use crate::format::Cut;
use crate::relation::Run;
use hlo_ir::attrs::{
    Attrs, CombiningAttrs, CompareAttrs, Comparison, DynamicSliceAttrs, GatheringAttrs, IotaAttrs, PadAttrs, PadDim,
    ReshapeAttrs, SliceAttrs, SliceDim,
};
use hlo_ir::edit::Builder;
use hlo_ir::groups::{GroupMode, ReplicaGroups};
use hlo_ir::literal::{Literal, Scalar};
use hlo_ir::shape::Layout;
use hlo_ir::{ArrayShape, CompId, DType, InstId, Module, Opcode, Shape};
use indexmap::IndexMap;
use std::rc::Rc;

/// The shape of one shard: the run merged to one dim of the shard's size.
pub fn shard_shape(whole: &ArrayShape, run: Run, cut: &Cut) -> ArrayShape {
    merged_shape(whole, run, cut.shard_size)
}

/// The shape with the run merged to one dim of `size` elements.
fn merged_shape(whole: &ArrayShape, run: Run, size: i64) -> ArrayShape {
    let mut shape = whole.clone();
    if run.len > 1 {
        shape.dims.drain(run.start + 1..run.start + run.len);
        if let Some(layout) = &whole.layout {
            let mut minor_to_major = hlo_ir::shape::Dims::new();
            for &dim in &layout.minor_to_major {
                let dim = run.merged(dim as usize) as i64;
                if !minor_to_major.contains(&dim) {
                    minor_to_major.push(dim);
                }
            }
            let tiles = layout.tiles.clone();
            shape.layout = Some(Box::new(Layout { tiles, ..Layout::new(minor_to_major) }));
        }
    }
    if let Some(dim) = shape.dims.get_mut(run.start) {
        *dim = size;
    }
    shape
}

/// Builds shards in any computation; what computations share (shard ids, start indices, zeros) is built once in each.
pub struct Pieces {
    groups: Rc<[Vec<u32>]>,
    across: Vec<Vec<u32>>,
    shard_ids: IndexMap<CompId, InstId>,
    starts: IndexMap<(CompId, i64), InstId>,
    zeros: IndexMap<(CompId, DType), InstId>,
    next_channel: i64,
}

impl Pieces {
    /// `groups` hold all devices, each group's members in the order of their shards.
    pub fn new(module: &Module, groups: Rc<[Vec<u32>]>) -> Pieces {
        let next_channel = module.first_free_channel_id();
        let (shard_ids, starts, zeros) = (IndexMap::new(), IndexMap::new(), IndexMap::new());
        Pieces { groups, across: Vec::new(), shard_ids, starts, zeros, next_channel }
    }

    /// Gradients are summed across these groups too: devices that hold the same shard of different copies.
    pub fn summed_across(mut self, across: Vec<Vec<u32>>) -> Pieces {
        self.across = across;
        self
    }

    /// `value` as this device's shard.
    ///
    /// # Errors
    /// `value` is no array, or a group names a device that is none.
    pub fn slice(&mut self, module: &mut Module, value: InstId, run: Run, cut: &Cut) -> Result<InstId, String> {
        let comp = module.inst(value).parent;
        let whole = array(module, value)?;
        let shape = shard_shape(&whole, run, cut);
        let start = self.start(module, comp, cut.shard_size)?;
        let zero = self.zero(module, comp, DType::S32);
        let padded = self.padded(module, value, run, cut)?;
        let mut operands = vec![padded];
        operands.extend((0..shape.rank()).map(|d| if d == run.start { start } else { zero }));
        let hint = format!("{}.shard", module.inst_name(value));
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: shape.dims.clone() };
        let slice = add(module, comp, &hint, Opcode::DynamicSlice, shape, &operands, attrs);
        attribute(module, slice, value);
        Ok(slice)
    }

    /// The all-reduce's operand, reduced and scattered; and the sum of the shards across copies, which is the same where there
    /// is one copy.
    ///
    /// # Errors
    /// It is no all-reduce of an array.
    pub fn reduce_scatter(
        &mut self,
        module: &mut Module,
        reduce: InstId,
        run: Run,
        cut: &Cut,
    ) -> Result<(InstId, InstId), String> {
        let comp = module.inst(reduce).parent;
        let operand = *module.inst(reduce).operands.first().ok_or("an all-reduce without operand")?;
        let operand = self.padded(module, operand, run, cut)?;
        let Attrs::Combining(old) = module.inst(reduce).attrs.clone() else {
            return Err("expected the attributes of an all-reduce".into());
        };
        let old_reducer = old.to_apply;
        let attrs =
            CombiningAttrs { dimensions: [run.start as i64].into_iter().collect(), ..self.combining(module, *old) };
        let shape = shard_shape(&array(module, reduce)?, run, cut);
        let hint = format!("reduce-scatter.{}", module.inst_name(reduce));
        let scattered = add(module, comp, &hint, Opcode::ReduceScatter, shape, &[operand], attrs);
        attribute(module, scattered, reduce);
        if self.across.is_empty() {
            return Ok((scattered, scattered));
        }
        let groups = ReplicaGroups::List(as_ids(&self.across));
        let to_apply = old_reducer.map(|reducer| module.clone_computation(reducer));
        let attrs = self.combining(module, CombiningAttrs { to_apply, ..CombiningAttrs::default() });
        let attrs = CombiningAttrs { replica_groups: groups, ..attrs };
        let shape = array(module, scattered)?;
        let hint = format!("all-reduce.{}", module.inst_name(reduce));
        let summed = add(module, comp, &hint, Opcode::AllReduce, shape, &[scattered], attrs);
        attribute(module, summed, reduce);
        Ok((scattered, summed))
    }

    /// Partial results of the group's devices combined by `to_apply`.
    ///
    /// # Errors
    /// `partial` is no array.
    pub fn all_reduce(&mut self, module: &mut Module, partial: InstId, to_apply: CompId) -> Result<InstId, String> {
        let comp = module.inst(partial).parent;
        let to_apply = Some(module.clone_computation(to_apply));
        let attrs = self.combining(module, CombiningAttrs { to_apply, ..CombiningAttrs::default() });
        let shape = array(module, partial)?;
        let hint = format!("all-reduce.{}", module.inst_name(partial));
        let whole = add(module, comp, &hint, Opcode::AllReduce, shape, &[partial], attrs);
        attribute(module, whole, partial);
        Ok(whole)
    }

    /// All shards together as an array of shape `whole`: the all-gather, and its value without padding.
    ///
    /// # Errors
    /// `shard` is no array.
    pub fn all_gather(
        &mut self,
        module: &mut Module,
        shard: InstId,
        whole: &ArrayShape,
        run: Run,
        cut: &Cut,
    ) -> Result<(InstId, InstId), String> {
        let comp = module.inst(shard).parent;
        let mode = group_mode(module);
        let attrs = GatheringAttrs {
            channel_id: self.channel(mode),
            replica_groups: self.replica_groups(),
            constrain_layout: false,
            dimensions: [run.start as i64].into_iter().collect(),
            use_global_device_ids: mode == GroupMode::Flattened,
        };
        let shape = merged_shape(whole, run, cut.padded_size());
        let base = module.inst_name(shard).trim_end_matches(".shard").to_string();
        let gather = add(module, comp, &format!("all-gather.{base}"), Opcode::AllGather, shape, &[shard], attrs);
        attribute(module, gather, shard);
        let mut result = gather;
        if cut.padding() > 0 {
            let shape = merged_shape(whole, run, cut.size);
            let slice = shape.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
            let hint = format!("{base}.unpadded");
            result = add(module, comp, &hint, Opcode::Slice, shape, &[gather], SliceAttrs { slice });
        }
        if run.len > 1 {
            let hint = format!("{base}.whole");
            result = add(module, comp, &hint, Opcode::Reshape, whole.clone(), &[result], ReshapeAttrs::default());
        }
        Ok((gather, result))
    }

    /// `shard` with its padding replaced by `fill` (a scalar): padding lies at the end of the last shards.
    ///
    /// # Errors
    /// `shard` is no array, or a group names a device that is none.
    pub fn masked(
        &mut self,
        module: &mut Module,
        shard: InstId,
        fill: InstId,
        run: Run,
        cut: &Cut,
    ) -> Result<InstId, String> {
        if cut.padding() == 0 {
            return Ok(shard);
        }
        let comp = module.inst(shard).parent;
        let shape = array(module, shard)?;
        let index = self.index(module, comp, &shape, run.start, cut)?;
        let s32 = ArrayShape { dtype: DType::S32, ..shape.clone() };
        let size = Literal::scalar(DType::S32, Scalar::Int(cut.size));
        let mut builder = Builder::new(module, comp);
        let size = builder.constant("unpadded_size", size);
        let size = builder.broadcast_scalar("unpadded_sizes", size, s32);
        let fill = builder.broadcast_scalar("padding", fill, shape.clone());
        let pred = ArrayShape { dtype: DType::Pred, ..shape.clone() };
        let attrs = CompareAttrs { direction: Comparison::Lt, ..CompareAttrs::default() };
        let is_inside = add(module, comp, "is_inside", Opcode::Compare, pred, &[index, size], attrs);
        let hint = format!("{}.masked", module.inst_name(shard));
        Ok(add(module, comp, &hint, Opcode::Select, shape, &[is_inside, shard, fill], Attrs::Plain))
    }

    /// `s32` of `shape`'s dims: where along the cut dim of the whole array each element of this device's shard stands.
    fn index(
        &mut self,
        module: &mut Module,
        comp: CompId,
        shape: &ArrayShape,
        dim: usize,
        cut: &Cut,
    ) -> Result<InstId, String> {
        let s32 = ArrayShape { dtype: DType::S32, ..shape.clone() };
        let start = self.start(module, comp, cut.shard_size)?;
        let iota = IotaAttrs { iota_dimension: dim as i64 };
        let within = add(module, comp, "index_in_shard", Opcode::Iota, s32.clone(), &[], iota);
        let start = Builder::new(module, comp).broadcast_scalar("shard_starts", start, s32.clone());
        Ok(add(module, comp, "index", Opcode::Add, s32, &[within, start], Attrs::Plain))
    }

    /// `value` with the run merged and padded at its end with zeros.
    fn padded(&mut self, module: &mut Module, value: InstId, run: Run, cut: &Cut) -> Result<InstId, String> {
        let comp = module.inst(value).parent;
        let whole = array(module, value)?;
        let base = module.inst_name(value).to_string();
        let mut result = value;
        if run.len > 1 {
            let shape = merged_shape(&whole, run, cut.size);
            let hint = format!("{base}.merged");
            result = add(module, comp, &hint, Opcode::Reshape, shape, &[result], ReshapeAttrs::default());
        }
        if cut.padding() > 0 {
            let shape = merged_shape(&whole, run, cut.padded_size());
            let zero = self.zero(module, comp, shape.dtype);
            let mut padding = vec![PadDim::default(); shape.rank()];
            padding[run.start].high = cut.padding();
            let hint = format!("{base}.padded");
            result = add(module, comp, &hint, Opcode::Pad, shape, &[result, zero], PadAttrs { padding });
        }
        Ok(result)
    }

    fn zero(&mut self, module: &mut Module, comp: CompId, dtype: DType) -> InstId {
        *self.zeros.entry((comp, dtype)).or_insert_with(|| {
            let literal = Literal::scalar(dtype, Scalar::Float(0.0));
            Builder::new(module, comp).constant("zero", literal)
        })
    }

    /// The attributes of a new combining collective over the groups.
    fn combining(&mut self, module: &Module, like: CombiningAttrs) -> CombiningAttrs {
        let mode = group_mode(module);
        CombiningAttrs {
            channel_id: self.channel(mode),
            replica_groups: self.replica_groups(),
            constrain_layout: false,
            use_global_device_ids: mode == GroupMode::Flattened,
            ..like
        }
    }

    fn replica_groups(&self) -> ReplicaGroups {
        ReplicaGroups::List(as_ids(&self.groups))
    }

    /// A channel that no other collective has, where the mode needs one.
    fn channel(&mut self, mode: GroupMode) -> Option<i64> {
        if mode == GroupMode::CrossReplica {
            return None;
        }
        let channel = self.next_channel;
        self.next_channel = channel.saturating_add(1);
        Some(channel)
    }

    /// `s32[]`: the first element of this device's shard.
    pub fn start(&mut self, module: &mut Module, comp: CompId, shard_size: i64) -> Result<InstId, String> {
        if let Some(&start) = self.starts.get(&(comp, shard_size)) {
            return Ok(start);
        }
        let id = self.shard_id(module, comp)?;
        let size = Literal::scalar(DType::S32, Scalar::Int(shard_size));
        let size = Builder::new(module, comp).constant("shard_size", size);
        let scalar = ArrayShape::new(DType::S32, []);
        let start = add(module, comp, "shard_start", Opcode::Multiply, scalar, &[id, size], Attrs::Plain);
        self.starts.insert((comp, shard_size), start);
        Ok(start)
    }

    /// `s32[]`: which shard this device holds, its position in the group.
    fn shard_id(&mut self, module: &mut Module, comp: CompId) -> Result<InstId, String> {
        if let Some(&id) = self.shard_ids.get(&comp) {
            return Ok(id);
        }
        let device = device_id(module, comp);
        let is_identity = self.groups.iter().all(|g| g.iter().enumerate().all(|(i, &d)| i == d as usize));
        let id = if is_identity { device } else { self.position_of(module, comp, device)? };
        self.shard_ids.insert(comp, id);
        Ok(id)
    }

    /// Looks the device's position in its group up.
    fn position_of(&mut self, module: &mut Module, comp: CompId, device: InstId) -> Result<InstId, String> {
        let mut positions = vec![0i32; module.n_devices()];
        for group in self.groups.iter() {
            for (position, &member) in group.iter().enumerate() {
                *positions.get_mut(member as usize).ok_or("a group member is no device")? = position as i32;
            }
        }
        let n = positions.len() as i64;
        let table = Literal::from_elems(&[n], positions).map_err(|_| "a table of positions")?;
        let table = Builder::new(module, comp).constant("shard_of_device", table);
        let one = ArrayShape::new(DType::S32, [1]).with_row_major();
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: one.dims.clone() };
        let slice = add(module, comp, "shard_of_this_device", Opcode::DynamicSlice, one, &[table, device], attrs);
        let scalar = ArrayShape::new(DType::S32, []);
        Ok(add(module, comp, "shard_id", Opcode::Reshape, scalar, &[slice], ReshapeAttrs::default()))
    }
}

fn as_ids(groups: &[Vec<u32>]) -> Vec<Vec<i64>> {
    groups.iter().map(|g| g.iter().map(|&d| i64::from(d)).collect()).collect()
}

/// Flat device ids are replica ids where there is one partition.
fn group_mode(module: &Module) -> GroupMode {
    if module.header.num_partitions > 1 { GroupMode::Flattened } else { GroupMode::CrossReplica }
}

/// `s32[]`: replica × num_partitions + partition.
fn device_id(module: &mut Module, comp: CompId) -> InstId {
    let (r, p) = (module.header.replica_count, module.header.num_partitions);
    let u32s = || ArrayShape::new(DType::U32, []);
    let id = match (r > 1, p > 1) {
        (false, _) => add(module, comp, "partition-id", Opcode::PartitionId, u32s(), &[], Attrs::Plain),
        (true, false) => add(module, comp, "replica-id", Opcode::ReplicaId, u32s(), &[], Attrs::Plain),
        (true, true) => {
            let replica = add(module, comp, "replica-id", Opcode::ReplicaId, u32s(), &[], Attrs::Plain);
            let partition = add(module, comp, "partition-id", Opcode::PartitionId, u32s(), &[], Attrs::Plain);
            let literal = Literal::scalar(DType::U32, Scalar::Uint(p as u64));
            let count = Builder::new(module, comp).constant("num_partitions", literal);
            let row = add(module, comp, "device_row", Opcode::Multiply, u32s(), &[replica, count], Attrs::Plain);
            add(module, comp, "device_id", Opcode::Add, u32s(), &[row, partition], Attrs::Plain)
        }
    };
    add(module, comp, "shard_id", Opcode::Convert, ArrayShape::new(DType::S32, []), &[id], Attrs::Plain)
}

/// Appends an instruction that computes an array.
pub fn add(
    module: &mut Module,
    comp: CompId,
    hint: &str,
    opcode: Opcode,
    shape: ArrayShape,
    operands: &[InstId],
    attrs: impl Into<Attrs>,
) -> InstId {
    Builder::new(module, comp).add(hint, opcode, Shape::Array(shape), operands.iter().copied(), attrs)
}

/// Copies the source's metadata, so that the new instruction is found where the old one was.
pub fn attribute(module: &mut Module, new: InstId, source: InstId) {
    if let Some(metadata) = module.inst(source).marks.as_ref().and_then(|m| m.metadata.clone()) {
        module.marks_mut(new).metadata = Some(metadata);
    }
}

/// The array shape of an instruction.
///
/// # Errors
/// It has none.
pub fn array(module: &Module, inst: InstId) -> Result<ArrayShape, String> {
    module.shape(inst).as_array().cloned().ok_or_else(|| format!("`%{}` is not an array", module.inst_name(inst)))
}
