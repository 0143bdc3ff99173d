//! Several arrays side by side in one.
//!
//! An array is flattened to `[k]`, or to rows `[n, k]`, and the flat arrays are concatenated along their last dim. Flattened in the
//! order in which memory holds its elements, an array is only reshaped; in any other order it is transposed first.

use crate::append::Appender;
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs};
use hlo_ir::{ArrayShape, DType, InstId, Module, Opcode};

/// Where arrays lie in the one that holds them all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// Type of the elements.
    dtype: DType,
    /// Whether shapes have a layout, row-major then.
    has_layout: bool,
    /// Elements of each array in a row.
    sizes: Vec<i64>,
}

impl Packing {
    /// Flat arrays of `dtype` with so many elements in a row each.
    pub fn new(dtype: DType, has_layout: bool, sizes: Vec<i64>) -> Packing {
        Packing { dtype, has_layout, sizes }
    }

    /// The shape of the packed array: `[K]`, or `[n_rows, K]`.
    pub fn shape(&self, n_rows: Option<i64>) -> ArrayShape {
        flat_shape(self.dtype, self.has_layout, n_rows, self.sizes.iter().sum())
    }

    /// Concatenates `parts`, each `[k]` or `[n_rows, k]`, in the order of the sizes.
    pub fn pack(&self, module: &mut Module, at: Appender, hint: &str, parts: &[InstId], n_rows: Option<i64>) -> InstId {
        let attrs = DimsAttrs { dimensions: [i64::from(n_rows.is_some())].into_iter().collect() };
        at.add(module, hint, Opcode::Concatenate, self.shape(n_rows), parts, attrs)
    }

    /// Array `idx` of `packed`, which is `[K]` or `[n_rows, K]`: `[k]`, or `[n_rows, k]`.
    pub fn unpack(
        &self,
        module: &mut Module,
        at: Appender,
        hint: &str,
        packed: InstId,
        (idx, n_rows): (usize, Option<i64>),
    ) -> InstId {
        let start = self.sizes.iter().take(idx).sum();
        let size = self.sizes.get(idx).copied().unwrap_or(0);
        let shape = flat_shape(self.dtype, self.has_layout, n_rows, size);
        at.slice(module, hint, packed, shape, (usize::from(n_rows.is_some()), start))
    }
}

/// `[k]` or `[n_rows, k]`.
fn flat_shape(dtype: DType, has_layout: bool, n_rows: Option<i64>, n_columns: i64) -> ArrayShape {
    row_major(dtype, has_layout, n_rows.into_iter().chain([n_columns]))
}

/// An array of these dims, row-major if it has a layout.
fn row_major(dtype: DType, has_layout: bool, dims: impl IntoIterator<Item = i64>) -> ArrayShape {
    let shape = ArrayShape::new(dtype, dims);
    if has_layout { shape.with_row_major() } else { shape }
}

/// Whether what an array of this shape is flattened to has a layout. A scalar never has one, but what it becomes has.
pub fn has_flat_layout(shape: &ArrayShape) -> bool {
    shape.layout.is_some() || shape.rank() == 0
}

/// The dims of an array in the order in which it is flattened: `first`, if there is one, then from the outermost in memory to the
/// innermost.
pub fn flat_order(shape: &ArrayShape, first: Option<usize>) -> Vec<usize> {
    let physical = shape.major_to_minor();
    first.into_iter().chain(physical.into_iter().filter(|&d| Some(d) != first)).collect()
}

/// `value`, of this shape, as `[k]` or as `[n_rows, k]`, with its dims taken in `order`.
pub fn flatten(
    module: &mut Module,
    at: Appender,
    hint: &str,
    (value, shape): (InstId, &ArrayShape),
    order: &[usize],
    n_rows: Option<i64>,
) -> InstId {
    let has_layout = has_flat_layout(shape);
    let mut value = value;
    let mut dims = shape.dims.clone();
    if !is_in_order(shape, order) {
        dims = order.iter().map(|&d| shape.dims[d]).collect();
        let ordered = row_major(shape.dtype, has_layout, dims.iter().copied());
        value = permute(module, at, hint, value, ordered, order);
    }
    let n_elems = shape.n_elems() as i64;
    let n_columns = n_rows.map_or(n_elems, |n_rows| n_elems / n_rows.max(1));
    let flat = flat_shape(shape.dtype, has_layout, n_rows, n_columns);
    if dims == flat.dims {
        return value;
    }
    at.add(module, hint, Opcode::Reshape, flat, &[value], ReshapeAttrs::default())
}

/// `flat`, as [`flatten`] makes it of an array of this shape in this order, in the array's own shape and layout.
pub fn unflatten(
    module: &mut Module,
    at: Appender,
    hint: &str,
    flat: InstId,
    shape: &ArrayShape,
    order: &[usize],
) -> InstId {
    let is_plain = is_in_order(shape, order);
    let dims = order.iter().map(|&d| shape.dims[d]);
    let ordered = if is_plain { shape.clone() } else { row_major(shape.dtype, has_flat_layout(shape), dims) };
    let mut value = flat;
    if module.shape(flat).as_array() != Some(&ordered) {
        value = at.add(module, hint, Opcode::Reshape, ordered, &[flat], ReshapeAttrs::default());
    }
    if is_plain {
        return value;
    }
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &d)| back[d] = i);
    permute(module, at, hint, value, shape.clone(), &back)
}

/// Whether `order` is that of the indices, and memory holds the elements so.
fn is_in_order(shape: &ArrayShape, order: &[usize]) -> bool {
    order.is_sorted() && shape.major_to_minor().is_sorted()
}

/// `value` with its dims in this order and the given shape; a copy where only the layout is another.
fn permute(module: &mut Module, at: Appender, hint: &str, value: InstId, shape: ArrayShape, order: &[usize]) -> InstId {
    if order.is_sorted() {
        return at.add(module, hint, Opcode::Copy, shape, &[value], Attrs::Plain);
    }
    let attrs = DimsAttrs { dimensions: order.iter().map(|&d| d as i64).collect() };
    at.add(module, hint, Opcode::Transpose, shape, &[value], attrs)
}
