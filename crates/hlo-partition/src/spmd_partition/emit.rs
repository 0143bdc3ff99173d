//! New instructions of the computation that is being written: numbers by device, indices, masks.

use super::lowering::Lowering;
use crate::error::PartitionError;
use hlo_ir::attrs::{
    Attrs, CompareAttrs, Comparison, DimsAttrs, DynamicSliceAttrs, IotaAttrs, PadAttrs, PadDim, PermutingAttrs,
    ReshapeAttrs, SliceAttrs, SliceDim,
};
use hlo_ir::diag::Entity;
use hlo_ir::edit::Builder;
use hlo_ir::monoid::Monoid;
use hlo_ir::{ArrayShape, DType, Dims, InstId, Literal, Opcode, Scalar, Shape};
use hlo_spmd::Appender;

impl Lowering<'_> {
    /// Appends an instruction that computes an array.
    pub(super) fn add(
        &mut self,
        hint: &str,
        opcode: Opcode,
        shape: ArrayShape,
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        self.appender().add(self.module, hint, opcode, shape, operands, attrs)
    }

    /// Appends with the metadata of the instruction that is being lowered.
    fn appender(&self) -> Appender {
        match self.body.source {
            Some(source) => Appender::standing_for(self.body.comp, source),
            None => Appender::new(self.body.comp),
        }
    }

    /// The array that an instruction computes.
    pub(super) fn array(&self, inst: InstId) -> Result<ArrayShape, PartitionError> {
        let array = self.module.shape(inst).as_array().cloned();
        array.ok_or_else(|| {
            let text = format!("`%{}`: expected an array, found {}", self.module.inst_name(inst), "a tuple or a token");
            PartitionError::about("partition", Entity::Inst(inst), text)
        })
    }

    /// A scalar constant.
    pub(super) fn scalar(&mut self, hint: &str, dtype: DType, value: Scalar) -> InstId {
        Builder::new(self.module, self.body.comp).constant(hint, Literal::scalar(dtype, value))
    }

    /// A number of type `s32[]`.
    pub(super) fn number(&mut self, value: i64) -> InstId {
        match self.body.numbers.get(&value) {
            Some(&known) => known,
            None => {
                let new = self.scalar("number", DType::S32, Scalar::Int(value));
                self.body.numbers.insert(value, new);
                new
            }
        }
    }

    /// The identity of a monoid.
    pub(super) fn identity(&mut self, monoid: Monoid, dtype: DType) -> Result<InstId, PartitionError> {
        match monoid.identity(dtype) {
            Some(value) => Ok(self.scalar("identity", dtype, value)),
            None => Err(self.defect(format!("{dtype} has no identity of {monoid:?}"))),
        }
    }

    /// A scalar repeated over `dims`.
    pub(super) fn repeated(&mut self, scalar: InstId, dims: &[i64]) -> Result<InstId, PartitionError> {
        if dims.is_empty() {
            return Ok(scalar);
        }
        let shape = ArrayShape::new(self.array(scalar)?.dtype, dims.iter().copied()).with_row_major();
        Ok(self.add("broadcast", Opcode::Broadcast, shape, &[scalar], DimsAttrs::default()))
    }

    /// `s32[]`: the number of this device in a table by device id.
    pub(super) fn looked_up(&mut self, table: &[i64]) -> Result<InstId, PartitionError> {
        if let Some(&first) = table.first()
            && table.iter().all(|&n| n == first)
        {
            return Ok(self.number(first));
        }
        let at = self.appender();
        let found = self.body.tables.looked_up(self.module, at, table);
        found.map_err(|error| self.defect(format!("a table of numbers by device: {error}")))
    }

    /// An elementwise op of two arrays of one type.
    pub(super) fn binary(&mut self, opcode: Opcode, a: InstId, b: InstId) -> Result<InstId, PartitionError> {
        let shape = self.array(a)?;
        Ok(self.add(opcode.name(), opcode, shape, &[a, b], Attrs::Plain))
    }

    /// `a < b` and the like, element by element.
    pub(super) fn compare(&mut self, a: InstId, b: InstId, direction: Comparison) -> Result<InstId, PartitionError> {
        let shape = ArrayShape { dtype: DType::Pred, ..self.array(a)? };
        let attrs = CompareAttrs { direction, ..CompareAttrs::default() };
        Ok(self.add("compare", Opcode::Compare, shape, &[a, b], attrs))
    }

    /// `a` where `pred` holds, else `b`; `pred` has the dims of both, or none.
    pub(super) fn select(&mut self, pred: InstId, a: InstId, b: InstId) -> Result<InstId, PartitionError> {
        let shape = self.array(a)?;
        let pred = match self.array(pred)?.rank() == shape.rank() {
            true => pred,
            false => self.repeated(pred, &shape.dims)?,
        };
        Ok(self.add("select", Opcode::Select, shape, &[pred, a, b], Attrs::Plain))
    }

    /// `s32[n_rows]`: the number of each row.
    pub(super) fn indices(&mut self, n_rows: i64) -> InstId {
        let shape = ArrayShape::new(DType::S32, [n_rows]).with_row_major();
        self.add("iota", Opcode::Iota, shape, &[], IotaAttrs { iota_dimension: 0 })
    }

    /// `s32[n_rows]`: the number of each row, counted from `start`, a number by device.
    pub(super) fn positions(&mut self, n_rows: i64, start: &[i64]) -> Result<InstId, PartitionError> {
        let indices = self.indices(n_rows);
        if start.iter().all(|&n| n == 0) {
            return Ok(indices);
        }
        let start = self.looked_up(start)?;
        let start = self.repeated(start, &[n_rows])?;
        self.binary(Opcode::Add, indices, start)
    }

    /// What holds of each row along `dim`, repeated over the other dims: masks are computed of rows, of which there are few.
    pub(super) fn along(&mut self, rows: InstId, dims: &[i64], dim: usize) -> Result<InstId, PartitionError> {
        let shape = ArrayShape::new(self.array(rows)?.dtype, dims.iter().copied()).with_row_major();
        let dimensions = std::iter::once(dim as i64).collect();
        Ok(self.add("broadcast", Opcode::Broadcast, shape, &[rows], DimsAttrs { dimensions }))
    }

    /// A number repeated over `dims`.
    pub(super) fn numbers(&mut self, value: i64, dims: &[i64]) -> Result<InstId, PartitionError> {
        let number = self.number(value);
        self.repeated(number, dims)
    }

    /// The value in another element type.
    pub(super) fn converted(&mut self, value: InstId, dtype: DType) -> Result<InstId, PartitionError> {
        let shape = self.array(value)?;
        if shape.dtype == dtype {
            return Ok(value);
        }
        let shape = ArrayShape { dtype, ..shape };
        Ok(self.add("convert", Opcode::Convert, shape, &[value], Attrs::Plain))
    }

    /// The rows `low .. high` of a dim.
    pub(super) fn rows(
        &mut self,
        value: InstId,
        dim: usize,
        (low, high): (i64, i64),
    ) -> Result<InstId, PartitionError> {
        let mut shape = self.array(value)?.with_row_major();
        if (low, Some(high)) == (0, shape.dims.get(dim).copied()) {
            return Ok(value);
        }
        let mut slice: Vec<SliceDim> =
            shape.dims.iter().map(|&limit| SliceDim { start: 0, limit, stride: 1 }).collect();
        slice.get_mut(dim).into_iter().for_each(|at| (at.start, at.limit) = (low, high));
        shape.dims.get_mut(dim).into_iter().for_each(|size| *size = high - low);
        Ok(self.add("slice", Opcode::Slice, shape, &[value], SliceAttrs { slice }))
    }

    /// The value with rows of zeros before and after its dim.
    pub(super) fn padded(
        &mut self,
        value: InstId,
        dim: usize,
        (low, high): (i64, i64),
    ) -> Result<InstId, PartitionError> {
        let mut shape = self.array(value)?.with_row_major();
        if (low, high) == (0, 0) {
            return Ok(value);
        }
        let zero = self.scalar("zero", shape.dtype, Scalar::Pred(false));
        let mut padding = vec![PadDim::default(); shape.rank()];
        padding.get_mut(dim).into_iter().for_each(|pad| (pad.low, pad.high) = (low, high));
        shape.dims.get_mut(dim).into_iter().for_each(|size| *size += low + high);
        Ok(self.add("pad", Opcode::Pad, shape, &[value, zero], PadAttrs { padding }))
    }

    /// `size` rows of a dim from `start` on, a number of type `s32[]`.
    pub(super) fn rows_at(
        &mut self,
        value: InstId,
        dim: usize,
        start: InstId,
        size: i64,
    ) -> Result<InstId, PartitionError> {
        let mut shape = self.array(value)?.with_row_major();
        shape.dims.get_mut(dim).into_iter().for_each(|rows| *rows = size);
        let zero = self.number(0);
        let mut operands = vec![value];
        operands.extend((0..shape.rank()).map(|k| if k == dim { start } else { zero }));
        let attrs = DynamicSliceAttrs { dynamic_slice_sizes: shape.dims.clone() };
        Ok(self.add("dynamic-slice", Opcode::DynamicSlice, shape, &operands, attrs))
    }

    /// Several arrays one after the other along a dim.
    pub(super) fn joined(&mut self, values: &[InstId], dim: usize) -> Result<InstId, PartitionError> {
        let (first, rest) = values.split_first().ok_or_else(|| self.defect("nothing to join".into()))?;
        if rest.is_empty() {
            return Ok(*first);
        }
        let mut shape = self.array(*first)?.with_row_major();
        let mut size = 0;
        for &value in values {
            size += self.array(value)?.dims.get(dim).copied().unwrap_or(0);
        }
        shape.dims.get_mut(dim).into_iter().for_each(|rows| *rows = size);
        let attrs = DimsAttrs { dimensions: Dims::from_slice(&[dim as i64]) };
        Ok(self.add("concatenate", Opcode::Concatenate, shape, values, attrs))
    }

    /// Sends the value along pairs of devices; who is no target has zeros.
    pub(super) fn permuted(&mut self, value: InstId, pairs: Vec<(i64, i64)>) -> Result<InstId, PartitionError> {
        let shape = self.array(value)?.with_row_major();
        let channel_id = Some(self.channels.take());
        let attrs = PermutingAttrs { channel_id, source_target_pairs: pairs, ..PermutingAttrs::default() };
        let opcode = Opcode::CollectivePermute;
        Ok(self.add(opcode.name(), opcode, shape, &[value], attrs))
    }

    /// The value in a shape with as many elements in the same order.
    pub(super) fn reshaped(&mut self, value: InstId, dims: &[i64]) -> Result<InstId, PartitionError> {
        let shape = self.array(value)?;
        if shape.dims.as_slice() == dims {
            return Ok(value);
        }
        let shape = ArrayShape::new(shape.dtype, dims.iter().copied()).with_row_major();
        Ok(self.add("reshape", Opcode::Reshape, shape, &[value], ReshapeAttrs::default()))
    }

    /// The element of a tuple.
    pub(super) fn element(&mut self, tuple: InstId, index: usize, shape: &Shape) -> InstId {
        let attrs = hlo_ir::attrs::TupleIndexAttrs { index: index as i64 };
        let mut builder = Builder::new(self.module, self.body.comp);
        builder.add("get-tuple-element", Opcode::GetTupleElement, shape.clone(), [tuple], attrs)
    }
}
