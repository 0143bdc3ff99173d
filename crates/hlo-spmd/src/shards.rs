//! Cutting a value into shards, joining shards, and reducing into shards.

use crate::append::Appender;
use crate::device_ids::DeviceIds;
use crate::error::SpmdError;
use crate::format::ShardFormat;
use crate::group_attrs::{ChannelIds, GroupAttrs, along};
use hlo_ir::attrs::{Attrs, CompareAttrs, Comparison, DynamicSliceAttrs, IotaAttrs, ReshapeAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, Literal, Module, Opcode, Scalar};
use indexmap::IndexMap;
use std::sync::Arc;

/// Builds shards over one set of groups, in any computation. Positions, offsets and zeros are built once in each.
#[derive(Clone, Debug)]
pub struct ShardBuilder {
    pub(crate) devices: DeviceIds,
    across: Vec<Vec<u32>>,
    zeros: IndexMap<(CompId, DType), InstId>,
    channels: ChannelIds,
}

/// Shards that an all-gather put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Joined {
    /// The all-gather.
    pub all_gather: InstId,
    /// The whole array, without padding and in its own shape.
    pub whole: InstId,
}

/// What is left of an all-reduce once its result is needed in shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scattered {
    /// The reduce-scatter within each group.
    pub reduce_scatter: InstId,
    /// The all-reduce of the shards across copies, if there are several.
    pub across: Option<InstId>,
}

impl Scattered {
    /// This device's shard of the sum.
    pub fn shard(self) -> InstId {
        self.across.unwrap_or(self.reduce_scatter)
    }
}

impl ShardBuilder {
    /// `groups` hold all devices, each group's members in the order of their shards.
    pub fn new(module: &Module, groups: Arc<[Vec<u32>]>) -> ShardBuilder {
        ShardBuilder {
            devices: DeviceIds::new(groups),
            across: Vec::new(),
            zeros: IndexMap::new(),
            channels: ChannelIds::free_in(module),
        }
    }

    /// [`ShardBuilder::reduce_scatter`] also sums across these groups: devices that hold the same shard of different copies.
    pub fn summed_across(mut self, across: Vec<Vec<u32>>) -> ShardBuilder {
        self.across = across;
        self
    }

    /// This device's shard of `value`, which all devices of a group have whole.
    ///
    /// # Errors
    /// `value` is no array, or a group names a device that is none.
    pub fn cut(&mut self, module: &mut Module, value: InstId, format: &ShardFormat) -> Result<InstId, SpmdError> {
        let comp = module.inst(value).parent;
        let shape = format.shard_shape(&array_of(module, value)?);
        let start = self.devices.offset(module, comp, format.split.shard_size)?;
        let zero = self.zero(module, comp, DType::S32);
        let padded = self.padded(module, value, format)?;
        let mut operands = vec![padded];
        operands.extend((0..shape.rank()).map(|d| if d == format.run.start { start } else { zero }));
        let hint = format!("{}.shard", module.inst_name(value));
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: shape.dims.clone() };
        Ok(Appender::standing_for(comp, value).add(module, &hint, Opcode::DynamicSlice, shape, &operands, attrs))
    }

    /// All shards of a group as an array of shape `whole`.
    pub fn join(&mut self, module: &mut Module, shard: InstId, whole: &ArrayShape, format: &ShardFormat) -> Joined {
        let comp = module.inst(shard).parent;
        let (run, split) = (format.run, format.split);
        let attrs = GroupAttrs::new(module, self.devices.groups(), &mut self.channels).gathering(run.start);
        let base = module.inst_name(shard).trim_end_matches(".shard").to_string();
        let hint = format!("all-gather.{base}");
        let shape = format.padded_shape(whole);
        let all_gather =
            Appender::standing_for(comp, shard).add(module, &hint, Opcode::AllGather, shape, &[shard], attrs);
        let (at, mut result) = (Appender::new(comp), all_gather);
        if split.padding() > 0 {
            let hint = format!("{base}.unpadded");
            result = at.slice(module, &hint, result, format.merged_shape(whole), (run.start, 0));
        }
        if run.len > 1 {
            let hint = format!("{base}.whole");
            result = at.add(module, &hint, Opcode::Reshape, whole.clone(), &[result], ReshapeAttrs::default());
        }
        Joined { all_gather, whole: result }
    }

    /// Blocks of rows exchanged within each group: block `j` of member `i` becomes block `i` of member `j`. `rows` is
    /// `[n_members × size, dims…]`, and so is the result. `None` where the module has replicas and partitions: an all-to-all
    /// cannot name such groups.
    ///
    /// # Errors
    /// `rows` is no array.
    pub fn exchange_rows(&mut self, module: &mut Module, rows: InstId) -> Result<Option<InstId>, SpmdError> {
        if module.header.replica_count > 1 && module.header.num_partitions > 1 {
            return Ok(None);
        }
        let shape = array_of(module, rows)?;
        let attrs = GroupAttrs::new(module, self.devices.groups(), &mut self.channels).exchanging(0);
        let at = Appender::standing_for(module.inst(rows).parent, rows);
        Ok(Some(at.add(module, "all-to-all", Opcode::AllToAll, shape, &[rows], attrs)))
    }

    /// The operand of the all-reduce `old`, reduced into shards.
    ///
    /// # Errors
    /// `old` is no all-reduce of one array.
    pub fn reduce_scatter(
        &mut self,
        module: &mut Module,
        old: InstId,
        format: &ShardFormat,
    ) -> Result<Scattered, SpmdError> {
        let comp = module.inst(old).parent;
        let operand = *module.inst(old).operands.first().ok_or(SpmdError::NoOperand)?;
        let operand = self.padded(module, operand, format)?;
        let Attrs::Combining(combining) = &module.inst(old).attrs else { return Err(SpmdError::NotAnAllReduce) };
        let reducer = combining.to_apply;
        let participants = GroupAttrs::new(module, self.devices.groups(), &mut self.channels);
        let attrs = participants.combining(along(format.run.start), reducer);
        let shape = format.shard_shape(&array_of(module, old)?);
        let at = Appender::standing_for(comp, old);
        let hint = format!("reduce-scatter.{}", module.inst_name(old));
        let reduce_scatter = at.add(module, &hint, Opcode::ReduceScatter, shape.clone(), &[operand], attrs);
        if self.across.is_empty() {
            return Ok(Scattered { reduce_scatter, across: None });
        }
        let reducer = reducer.map(|reducer| module.clone_computation(reducer));
        let participants = GroupAttrs::new(module, &self.across, &mut self.channels);
        let attrs = participants.combining(Dims::new(), reducer);
        let hint = format!("all-reduce.{}", module.inst_name(old));
        let across = at.add(module, &hint, Opcode::AllReduce, shape, &[reduce_scatter], attrs);
        Ok(Scattered { reduce_scatter, across: Some(across) })
    }

    /// Partial results of the group's devices, combined by a copy of `reducer`.
    ///
    /// # Errors
    /// `partial` is no array.
    pub fn all_reduce(&mut self, module: &mut Module, partial: InstId, reducer: CompId) -> Result<InstId, SpmdError> {
        let comp = module.inst(partial).parent;
        let reducer = module.clone_computation(reducer);
        let participants = GroupAttrs::new(module, self.devices.groups(), &mut self.channels);
        let attrs = participants.combining(Dims::new(), Some(reducer));
        let shape = array_of(module, partial)?;
        let hint = format!("all-reduce.{}", module.inst_name(partial));
        Ok(Appender::standing_for(comp, partial).add(module, &hint, Opcode::AllReduce, shape, &[partial], attrs))
    }

    /// `shard` with its padding, which lies at the end of the last shards, replaced by `fill` (a scalar).
    ///
    /// # Errors
    /// `shard` is no array, or a group names a device that is none.
    pub fn mask(
        &mut self,
        module: &mut Module,
        shard: InstId,
        fill: InstId,
        format: &ShardFormat,
    ) -> Result<InstId, SpmdError> {
        if format.split.padding() == 0 {
            return Ok(shard);
        }
        let comp = module.inst(shard).parent;
        let shape = array_of(module, shard)?;
        let (at, dim) = (Appender::new(comp), format.run.start);
        let s32 = ArrayShape { dtype: DType::S32, ..shape.clone() };
        let start = self.devices.offset(module, comp, format.split.shard_size)?;
        let iota = IotaAttrs { iota_dimension: dim as i64 };
        let within = at.add(module, "index_in_shard", Opcode::Iota, s32.clone(), &[], iota);
        let index = shifted(module, comp, "index", within, start, s32.clone());
        let size = Literal::scalar(DType::S32, Scalar::Int(format.split.size));
        let mut builder = Builder::new(module, comp);
        let size = builder.constant("unpadded_size", size);
        let size = builder.broadcast_scalar("unpadded_sizes", size, s32);
        let fill = builder.broadcast_scalar("padding", fill, shape.clone());
        let pred = ArrayShape { dtype: DType::Pred, ..shape.clone() };
        let attrs = CompareAttrs { direction: Comparison::Lt, ..CompareAttrs::default() };
        let is_inside = at.add(module, "is_inside", Opcode::Compare, pred, &[index, size], attrs);
        let hint = format!("{}.masked", module.inst_name(shard));
        Ok(at.add(module, &hint, Opcode::Select, shape, &[is_inside, shard, fill], Attrs::Plain))
    }

    /// `value` with the run merged and padded at its end with zeros.
    fn padded(&mut self, module: &mut Module, value: InstId, format: &ShardFormat) -> Result<InstId, SpmdError> {
        let comp = module.inst(value).parent;
        let whole = array_of(module, value)?;
        let base = module.inst_name(value).to_string();
        let (at, mut result) = (Appender::new(comp), value);
        if format.run.len > 1 {
            let (hint, shape) = (format!("{base}.merged"), format.merged_shape(&whole));
            result = at.add(module, &hint, Opcode::Reshape, shape, &[result], ReshapeAttrs::default());
        }
        let padding = format.split.padding();
        if padding > 0 {
            let zero = self.zero(module, comp, whole.dtype);
            let (hint, shape) = (format!("{base}.padded"), format.padded_shape(&whole));
            result = at.pad_end(module, &hint, [result, zero], shape, (format.run.start, padding));
        }
        Ok(result)
    }

    fn zero(&mut self, module: &mut Module, comp: CompId, dtype: DType) -> InstId {
        *self.zeros.entry((comp, dtype)).or_insert_with(|| Appender::new(comp).zero(module, dtype))
    }
}

/// `within`, the indices of a shard's elements, as indices of the whole array: `start`, a scalar, is added to each.
pub(crate) fn shifted(
    module: &mut Module,
    comp: CompId,
    hint: &str,
    within: InstId,
    start: InstId,
    s32: ArrayShape,
) -> InstId {
    let start = Builder::new(module, comp).broadcast_scalar("shard_starts", start, s32.clone());
    Appender::new(comp).add(module, hint, Opcode::Add, s32, &[within, start], Attrs::Plain)
}

/// The array shape of an instruction.
///
/// # Errors
/// It is no array.
pub(crate) fn array_of(module: &Module, inst: InstId) -> Result<ArrayShape, SpmdError> {
    module.shape(inst).as_array().cloned().ok_or_else(|| SpmdError::not_an_array(module, inst))
}
