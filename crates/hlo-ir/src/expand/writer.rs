//! Writes arrays, one operation after the other, at the end of a computation.

use crate::attrs::{
    Attrs, CompareAttrs, Comparison, DimsAttrs, IotaAttrs, PadAttrs, PadDim, ReduceAttrs, ReshapeAttrs, SliceAttrs,
    SliceDim, TupleIndexAttrs,
};
use crate::edit::Builder;
use crate::{ArrayShape, CompId, DType, Dims, InstId, Literal, Module, Opcode, Scalar, Shape};
use hashbrown::HashMap;

/// Where arrays are written, and after what they are named.
pub struct Writer<'m> {
    /// The module under change.
    pub module: &'m mut Module,
    /// The computation to which instructions are appended.
    pub comp: CompId,
    /// The name that theirs are made of.
    pub hint: String,
    /// The computations that add two elements of a type, as far as they are written.
    pub sums: &'m mut HashMap<DType, CompId>,
}

impl Writer<'_> {
    /// The dims of an array.
    pub fn dims(&self, array: InstId) -> Dims {
        self.module.shape(array).as_array().map(|array| array.dims.iter().copied().collect()).unwrap_or_default()
    }

    /// The element type of an array.
    pub fn dtype(&self, array: InstId) -> DType {
        self.module.shape(array).as_array().map_or(DType::Pred, |array| array.dtype)
    }

    /// An instruction whose result is an array, in row-major order.
    pub fn add(
        &mut self,
        opcode: Opcode,
        (dtype, dims): (DType, &[i64]),
        operands: &[InstId],
        attrs: impl Into<Attrs>,
    ) -> InstId {
        let shape = ArrayShape::new(dtype, dims.iter().copied()).with_row_major();
        let mut build = Builder::new(self.module, self.comp);
        build.add(&self.hint, opcode, Shape::Array(shape), operands.iter().copied(), attrs)
    }

    /// An elementwise operation whose result is like its last operand.
    pub fn each(&mut self, opcode: Opcode, operands: &[InstId]) -> InstId {
        let like = operands.last().map_or((DType::Pred, Dims::new()), |&last| (self.dtype(last), self.dims(last)));
        self.add(opcode, (like.0, &like.1), operands, Attrs::Plain)
    }

    /// Whether elements of `a` and `b` compare so.
    pub fn compare(&mut self, direction: Comparison, a: InstId, b: InstId) -> InstId {
        let dims = self.dims(a);
        let attrs = CompareAttrs { direction, ..CompareAttrs::default() };
        self.add(Opcode::Compare, (DType::Pred, &dims), &[a, b], attrs)
    }

    /// A comparison in which each number has its place: -NaN first, then -0 before +0, NaN last.
    pub fn compare_totally(&mut self, direction: Comparison, a: InstId, b: InstId) -> InstId {
        let dims = self.dims(a);
        let order = if self.dtype(a).is_float() { "TOTALORDER" } else { "" };
        self.add(Opcode::Compare, (DType::Pred, &dims), &[a, b], CompareAttrs { direction, order: order.into() })
    }

    /// An array in another element type: itself, if it has that type.
    pub fn convert(&mut self, array: InstId, dtype: DType) -> InstId {
        if self.dtype(array) == dtype {
            return array;
        }
        let dims = self.dims(array);
        self.add(Opcode::Convert, (dtype, &dims), &[array], Attrs::Plain)
    }

    /// A constant without dims.
    pub fn scalar(&mut self, dtype: DType, value: Scalar) -> InstId {
        let hint = self.hint.clone();
        Builder::new(self.module, self.comp).constant(&hint, Literal::scalar(dtype, value))
    }

    /// One value in every place.
    pub fn splat(&mut self, dtype: DType, dims: &[i64], value: Scalar) -> InstId {
        let scalar = self.scalar(dtype, value);
        self.broadcast(scalar, dims, &[])
    }

    /// One unsigned value in every place of an array like `like`.
    pub fn splat_like(&mut self, like: InstId, value: u64) -> InstId {
        let (dtype, dims) = (self.dtype(like), self.dims(like));
        self.splat(dtype, &dims, Scalar::Uint(value))
    }

    /// An elementwise operation on an array of unsigned integers and one value.
    pub fn with(&mut self, opcode: Opcode, array: InstId, value: u64) -> InstId {
        let value = self.splat_like(array, value);
        self.each(opcode, &[array, value])
    }

    /// An array in more dims; `to` says which of them each of its own dims is.
    pub fn broadcast(&mut self, array: InstId, dims: &[i64], to: &[usize]) -> InstId {
        let dimensions = to.iter().map(|&dim| dim as i64).collect();
        self.add(Opcode::Broadcast, (self.dtype(array), dims), &[array], DimsAttrs { dimensions })
    }

    /// The index along a dim, as an integer type.
    pub fn iota(&mut self, dtype: DType, dims: &[i64], dim: usize) -> InstId {
        let attrs = IotaAttrs { iota_dimension: dim as i64 };
        self.add(Opcode::Iota, (dtype, dims), &[], attrs)
    }

    /// The same elements in row-major order, with these dims.
    pub fn reshape(&mut self, array: InstId, dims: &[i64]) -> InstId {
        self.add(Opcode::Reshape, (self.dtype(array), dims), &[array], ReshapeAttrs::default())
    }

    /// The elements from `start` to `limit` along a dim.
    pub fn slice(&mut self, array: InstId, dim: usize, (start, limit): (i64, i64)) -> InstId {
        let mut dims = self.dims(array);
        let whole = |&size: &i64| SliceDim { start: 0, limit: size, stride: 1 };
        let mut slice: Vec<SliceDim> = dims.iter().map(whole).collect();
        slice[dim] = SliceDim { start, limit, stride: 1 };
        dims[dim] = limit - start;
        self.add(Opcode::Slice, (self.dtype(array), &dims), &[array], SliceAttrs { slice })
    }

    /// The elements along a dim from the last to the first.
    pub fn reverse(&mut self, array: InstId, dim: usize) -> InstId {
        let dims = self.dims(array);
        let attrs = DimsAttrs { dimensions: std::iter::once(dim as i64).collect() };
        self.add(Opcode::Reverse, (self.dtype(array), &dims), &[array], attrs)
    }

    /// Two arrays one after the other along a dim.
    pub fn concatenate(&mut self, [a, b]: [InstId; 2], dim: usize) -> InstId {
        let mut dims = self.dims(a);
        dims[dim] += self.dims(b)[dim];
        let attrs = DimsAttrs { dimensions: std::iter::once(dim as i64).collect() };
        self.add(Opcode::Concatenate, (self.dtype(a), &dims), &[a, b], attrs)
    }

    /// More elements of one value behind those along a dim, so that there are `size`.
    pub fn pad(&mut self, array: InstId, dim: usize, size: i64, value: Scalar) -> InstId {
        let mut dims = self.dims(array);
        let dtype = self.dtype(array);
        let mut padding = vec![PadDim::default(); dims.len()];
        padding[dim].high = size - dims[dim];
        dims[dim] = size;
        let value = self.scalar(dtype, value);
        self.add(Opcode::Pad, (dtype, &dims), &[array, value], PadAttrs { padding })
    }

    /// The sum along dims.
    pub fn sum(&mut self, array: InstId, along: &[usize]) -> InstId {
        let dtype = self.dtype(array);
        let dims = self.dims(array);
        let kept: Dims = (0..dims.len()).filter(|dim| !along.contains(dim)).map(|dim| dims[dim]).collect();
        let to_apply = Some(*self.sums.entry(dtype).or_insert_with(|| self.module.add_sum("add", dtype)));
        let zero = self.scalar(dtype, Scalar::Pred(false));
        let dimensions = along.iter().map(|&dim| dim as i64).collect();
        self.add(Opcode::Reduce, (dtype, &kept), &[array, zero], ReduceAttrs { dimensions, to_apply })
    }

    /// An operation that gives an array like each of its operands: one array, or a tuple.
    pub fn same_shapes(&mut self, opcode: Opcode, operands: &[InstId], attrs: impl Into<Attrs>) -> InstId {
        let shapes: Vec<Shape> = operands.iter().map(|&operand| self.module.shape(operand).clone()).collect();
        let shape = if let [only] = shapes.as_slice() { only.clone() } else { Shape::Tuple(shapes) };
        Builder::new(self.module, self.comp).add(&self.hint, opcode, shape, operands.iter().copied(), attrs)
    }

    /// A tuple of these arrays.
    pub fn tuple(&mut self, arrays: &[InstId]) -> InstId {
        let shapes = arrays.iter().map(|&array| self.module.shape(array).clone()).collect();
        let mut build = Builder::new(self.module, self.comp);
        build.add(&self.hint, Opcode::Tuple, Shape::Tuple(shapes), arrays.iter().copied(), Attrs::Plain)
    }

    /// An element of a tuple.
    pub fn element(&mut self, tuple: InstId, index: usize) -> Option<InstId> {
        let shape = self.module.shape(tuple).as_tuple()?.get(index)?.clone();
        let attrs = TupleIndexAttrs { index: index as i64 };
        Some(Builder::new(self.module, self.comp).add(&self.hint, Opcode::GetTupleElement, shape, [tuple], attrs))
    }

    /// An array in the layout that another one has.
    pub fn laid_out_as(&mut self, array: InstId, like: &Shape) -> InstId {
        match (like.as_array(), self.module.shape(array).as_array()) {
            (Some(to), Some(from)) if !from.is_same_order(to) => {
                let mut build = Builder::new(self.module, self.comp);
                build.add(&self.hint, Opcode::Copy, like.clone(), [array], Attrs::Plain)
            }
            _ => array,
        }
    }
}
