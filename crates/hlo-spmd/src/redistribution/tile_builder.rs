//! Instructions on tiles: other dims, parts, permutes, numbers by device.

use crate::append::Appender;
use crate::device_ids::DeviceTables;
use crate::error::SpmdError;
use crate::group_attrs::ChannelIds;
use hlo_ir::attrs::{
    Attrs, DimsAttrs, DynamicSliceAttrs, PadAttrs, PadDim, ParameterAttrs, PermutingAttrs, ReshapeAttrs, SliceAttrs,
    SliceDim,
};
use hlo_ir::edit::Builder;
use hlo_ir::monoid::Monoid;
use hlo_ir::{ArrayShape, CompId, DType, Dims, InstId, Module, Opcode, Shape};

/// One computation to which a plan is appended.
pub(super) struct TileBuilder<'m> {
    pub comp: CompId,
    pub at: Appender,
    pub module: &'m mut Module,
    pub channels: &'m mut ChannelIds,
    pub dtype: DType,
    /// Number of dims of the array.
    pub rank: usize,
    pub monoid: Monoid,
    pub tables: DeviceTables,
}

impl TileBuilder<'_> {
    pub(super) fn array(&self, dims: &[i64]) -> ArrayShape {
        ArrayShape::new(self.dtype, dims.iter().copied()).with_row_major()
    }

    pub(super) fn dims(&self, value: InstId) -> Dims {
        crate::collective::array(self.module, value).map(|array| array.dims.clone()).unwrap_or_default()
    }

    /// The value with these dims, its elements in the same order.
    pub(super) fn shaped(&mut self, value: InstId, dims: &[i64]) -> InstId {
        if self.dims(value).as_slice() == dims {
            return value;
        }
        let shape = self.array(dims);
        self.at.add(self.module, "reshape", Opcode::Reshape, shape, &[value], ReshapeAttrs::default())
    }

    pub(super) fn transposed(&mut self, value: InstId, perm: &[usize]) -> InstId {
        if perm.is_sorted() {
            return value;
        }
        let dims = self.dims(value);
        let shape = self.array(&perm.iter().map(|&k| dims[k]).collect::<Dims>());
        let attrs = DimsAttrs { dimensions: perm.iter().map(|&k| k as i64).collect() };
        self.at.add(self.module, "transpose", Opcode::Transpose, shape, &[value], attrs)
    }

    pub(super) fn padded(&mut self, value: InstId, dims: &[i64]) -> InstId {
        let before = self.dims(value);
        let before = if before.len() == dims.len() { before } else { Dims::from_slice(dims) };
        if before.as_slice() == dims {
            return value;
        }
        let zero = self.at.zero(self.module, self.dtype);
        let pad = |(&after, &before): (&i64, &i64)| PadDim { high: after - before, ..PadDim::default() };
        let attrs = PadAttrs { padding: dims.iter().zip(&before).map(pad).collect() };
        let shape = self.array(dims);
        self.at.add(self.module, "padded", Opcode::Pad, shape, &[value, zero], attrs)
    }

    /// The first elements along each dim.
    pub(super) fn trimmed(&mut self, value: InstId, dims: &[i64]) -> InstId {
        if self.dims(value).as_slice() == dims {
            return value;
        }
        let slice = dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        let shape = self.array(dims);
        self.at.add(self.module, "unpadded", Opcode::Slice, shape, &[value], SliceAttrs { slice })
    }

    /// `s32[]`: the number of this device in a table by device id.
    pub(super) fn looked_up(&mut self, table: &[i64]) -> Result<InstId, SpmdError> {
        self.tables.looked_up(self.module, self.at, table)
    }

    /// The part of `value` of these dims that begins where `starts` say, by device.
    pub(super) fn block(&mut self, value: InstId, starts: &[Dims], dims: &[i64]) -> Result<InstId, SpmdError> {
        if self.dims(value).as_slice() == dims {
            return Ok(value);
        }
        let mut operands = vec![value];
        for k in 0..dims.len() {
            operands.push(self.looked_up(&starts.iter().map(|start| start[k]).collect::<Vec<_>>())?);
        }
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: Dims::from_slice(dims) };
        let shape = self.array(dims);
        Ok(self.at.add(self.module, "part", Opcode::DynamicSlice, shape, &operands, attrs))
    }

    pub(super) fn permuted(&mut self, value: InstId, pairs: &[(u32, u32)]) -> InstId {
        let source_target_pairs = pairs.iter().map(|&(a, b)| (i64::from(a), i64::from(b))).collect();
        let shape = self.array(&self.dims(value));
        let channel_id = Some(self.channels.take());
        let attrs = PermutingAttrs { channel_id, source_target_pairs, ..PermutingAttrs::default() };
        self.at.add(self.module, "collective-permute", Opcode::CollectivePermute, shape, &[value], attrs)
    }

    /// A computation of its own for each collective that reduces.
    pub(super) fn reducer(&mut self) -> CompId {
        let name = self.module.names.fresh("reduction");
        let comp = self.module.add_computation(name);
        let scalar = Shape::array(self.dtype, []);
        let mut builder = Builder::new(self.module, comp);
        let operands = [0, 1].map(|number| {
            let attrs = ParameterAttrs { number, ..ParameterAttrs::default() };
            builder.add("operand", Opcode::Parameter, scalar.clone(), [], attrs)
        });
        let root = builder.add("reduced", self.monoid.opcode(), scalar, operands, Attrs::Plain);
        self.module.comp_mut(comp).root = Some(root).into();
        comp
    }
}
