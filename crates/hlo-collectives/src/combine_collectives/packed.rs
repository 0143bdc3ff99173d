//! A bucket as one collective of one array that holds all operands.
//!
//! With n devices in a group, of all operands:
//!
//! | kind | operand becomes | along | the collective gives | a result is |
//! |---|---|---|---|---|
//! | all-reduce | `[k]` | 0 | `[K]` | `[k]` of it |
//! | reduce-scatter | `[n, k]`: a row for each device | 1 | `[1, K]` | `[1, k]` of it |
//! | all-gather | `[1, k]` | 1 | `[n, K]`: a row from each device | `[n, k]` of it |
//!
//! Before it is flattened, an operand is transposed to the order in which it lies in memory, which moves nothing, but for the scattered or gathered
//! dim, which must come first: so a reduce-scatter along the physically major-most dim is free of transposes too.

use super::attrs_on_own_channel;
use super::plan::Bucket;
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs, SliceAttrs, SliceDim};
use hlo_ir::{ArrayShape, Dims, InstId, Module, Opcode, Shape};
use hlo_spmd::{Rewrite, array};

/// Rows of the packed operand, and of the packed result; none for flat ones.
type Rows = Option<(i64, i64)>;

/// Emits the collective and redirects the members' uses to slices of its result; the collective.
pub fn emit(module: &mut Module, rewrite: &mut Rewrite, bucket: &Bucket, next_channel: &mut i64) -> InstId {
    let first = bucket.members[0];
    let opcode = module.inst(first).opcode;
    let n = bucket.group_size as i64;
    let rows: Rows = [(Opcode::ReduceScatter, (n, 1)), (Opcode::AllGather, (1, n))]
        .into_iter()
        .find_map(|(op, rows)| (op == opcode).then_some(rows));
    let mut parts = Vec::with_capacity(bucket.members.len());
    for &member in &bucket.members {
        parts.push(flatten(module, rewrite, member, rows));
    }
    let sizes: Vec<i64> = parts.iter().map(|&part| row_elems(module, part)).collect();
    let total: i64 = sizes.iter().sum();
    let packed_dims = |n_rows: Option<i64>| -> Dims { n_rows.into_iter().chain([total]).collect() };
    let shape = rebuilt(module, first, &packed_dims(rows.map(|r| r.0)));
    let along = DimsAttrs { dimensions: [i64::from(rows.is_some())].into_iter().collect() };
    let packed = rewrite.add(module, first, ("packed", Opcode::Concatenate), shape, &parts, along);
    let shape = rebuilt(module, first, &packed_dims(rows.map(|r| r.1)));
    let attrs = along_rows(attrs_on_own_channel(module, first, next_channel), rows.is_some());
    let what = format!("{}.combined", opcode.name());
    let combined = rewrite.add(module, first, (&what, opcode), shape, &[packed], attrs);
    let mut start = 0;
    for (&member, &size) in bucket.members.iter().zip(&sizes) {
        let part = slice(module, rewrite, member, combined, (start, size), rows.map(|r| r.1));
        let result = unflatten(module, rewrite, member, part);
        rewrite.redirect(member, result);
        start += size;
    }
    combined
}

/// The collective's attributes with rows scattered or gathered.
fn along_rows(mut attrs: Attrs, has_rows: bool) -> Attrs {
    let dims: Dims = has_rows.then_some(0).into_iter().collect();
    match &mut attrs {
        Attrs::Combining(a) => a.dimensions = dims,
        Attrs::Gathering(a) => a.dimensions = dims,
        _ => {}
    }
    attrs
}

/// An array of these dims, row-major if `like` has a layout, of its element type.
fn rebuilt(module: &Module, like: InstId, dims: &[i64]) -> Shape {
    let Some(like) = array(module, like) else { return Shape::Tuple(Vec::new()) };
    let shape = ArrayShape::new(like.dtype, dims.iter().copied());
    // A scalar never has a layout: what it is packed into has.
    let has_layout = like.layout.is_some() || like.rank() == 0;
    Shape::Array(if has_layout { shape.with_row_major() } else { shape })
}

/// Elements of a row.
fn row_elems(module: &Module, part: InstId) -> i64 {
    array(module, part).and_then(|s| s.dims.last().copied()).unwrap_or(1)
}

/// The dims of a member in the order in which they are flattened: the scattered or gathered one, then from the outermost in memory.
fn flat_order(module: &Module, member: InstId, shape: &ArrayShape) -> Vec<usize> {
    let dims = match &module.inst(member).attrs {
        Attrs::Combining(a) => &a.dimensions,
        Attrs::Gathering(a) => &a.dimensions,
        _ => return (0..shape.rank()).collect(),
    };
    let first = dims.first().and_then(|&d| usize::try_from(d).ok());
    first.into_iter().chain(shape.major_to_minor().into_iter().filter(|&d| Some(d) != first)).collect()
}

/// Whether the array lies in the order of its indices and is flattened so.
fn is_in_order(shape: &ArrayShape, order: &[usize]) -> bool {
    order.is_sorted() && shape.major_to_minor().is_sorted()
}

/// The member's operand as `[k]`, or as rows.
fn flatten(module: &mut Module, rewrite: &Rewrite, member: InstId, rows: Rows) -> InstId {
    let mut value = module.inst(member).operands[0];
    let Some(shape) = array(module, value).cloned() else { return value };
    let order = flat_order(module, member, &shape);
    let hint = format!("{}.flat", module.inst_name(value));
    if !is_in_order(&shape, &order) {
        let dims: Dims = order.iter().map(|&d| shape.dims[d]).collect();
        let ordered = rebuilt(module, value, &dims);
        value = permute(module, rewrite, member, (&hint, value), ordered, &order);
    }
    let n_elems = shape.n_elems() as i64;
    let dims: Dims = match rows {
        Some((n_rows, _)) => [n_rows, n_elems / n_rows.max(1)].into_iter().collect(),
        None => [n_elems].into_iter().collect(),
    };
    if array(module, value).is_some_and(|s| s.dims == dims) {
        return value;
    }
    let flat = rebuilt(module, value, &dims);
    rewrite.add(module, member, (&hint, Opcode::Reshape), flat, &[value], ReshapeAttrs::default())
}

/// `size` columns from `start` on of the combined result.
fn slice(
    module: &mut Module,
    rewrite: &Rewrite,
    member: InstId,
    combined: InstId,
    (start, size): (i64, i64),
    n_rows: Option<i64>,
) -> InstId {
    let rows = n_rows.map(|limit| SliceDim { start: 0, limit, stride: 1 });
    let columns = SliceDim { start, limit: start + size, stride: 1 };
    let dims: Dims = n_rows.into_iter().chain([size]).collect();
    let shape = rebuilt(module, combined, &dims);
    let attrs = SliceAttrs { slice: rows.into_iter().chain([columns]).collect() };
    let hint = format!("{}.part", module.inst_name(member));
    rewrite.add(module, member, (&hint, Opcode::Slice), shape, &[combined], attrs)
}

/// The part in the shape and layout of the member.
fn unflatten(module: &mut Module, rewrite: &Rewrite, member: InstId, part: InstId) -> InstId {
    let Some(shape) = array(module, member).cloned() else { return part };
    let order = flat_order(module, member, &shape);
    let is_plain = is_in_order(&shape, &order);
    let hint = module.inst_name(member).to_string();
    let dims: Dims = order.iter().map(|&d| shape.dims[d]).collect();
    let ordered = if is_plain { Shape::Array(shape.clone()) } else { rebuilt(module, member, &dims) };
    let mut value = part;
    if *module.shape(part) != ordered {
        value = rewrite.add(module, member, (&hint, Opcode::Reshape), ordered, &[part], ReshapeAttrs::default());
    }
    if is_plain {
        return value;
    }
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &d)| back[d] = i);
    permute(module, rewrite, member, (&hint, value), Shape::Array(shape), &back)
}

/// `value` with its dims in this order and the given shape; a copy where only the layout is another.
fn permute(
    module: &mut Module,
    rewrite: &Rewrite,
    member: InstId,
    (hint, value): (&str, InstId),
    shape: Shape,
    order: &[usize],
) -> InstId {
    if order.iter().enumerate().all(|(i, &d)| i == d) {
        return rewrite.add(module, member, (hint, Opcode::Copy), shape, &[value], Attrs::Plain);
    }
    let attrs = DimsAttrs { dimensions: order.iter().map(|&d| d as i64).collect() };
    rewrite.add(module, member, (hint, Opcode::Transpose), shape, &[value], attrs)
}
