//! Shape rules of collectives.

use super::shape_text::DimsText;
use super::*;
use crate::groups::{GroupMode, ReplicaGroups};

/// Devices in each group of a collective; `None` if the groups are malformed, differ in size, or the mode is invalid.
pub fn group_size(module: &Module, attrs: &Attrs) -> Option<i64> {
    let (groups, mode) = groups_of(attrs)?;
    let (r, p) = (module.header.replica_count.max(1), module.header.num_partitions.max(1));
    let n_listed = match groups {
        ReplicaGroups::List(lists) => match lists.first() {
            None => mode.n_ids(r, p),
            Some(first) if lists.iter().all(|g| g.len() == first.len()) => first.len() as i64,
            Some(_) => return None,
        },
        ReplicaGroups::Iota(tile) => tile.dims.last().copied()?,
        ReplicaGroups::Mesh(mesh) => mesh.expand()?.first()?.len() as i64,
    };
    let n = match mode {
        GroupMode::CrossReplicaAndPartition => n_listed.checked_mul(p)?,
        GroupMode::CrossReplica | GroupMode::CrossPartition | GroupMode::Flattened => n_listed,
    };
    (n > 0).then_some(n)
}

/// The groups and their mode; `None` for ops without groups and for a mode that has no meaning.
fn groups_of(attrs: &Attrs) -> Option<(&ReplicaGroups, GroupMode)> {
    let (groups, channel, global) = match attrs {
        Attrs::Combining(a) => (&a.replica_groups, a.channel_id, Some(a.use_global_device_ids)),
        Attrs::Gathering(a) => (&a.replica_groups, a.channel_id, Some(a.use_global_device_ids)),
        Attrs::Exchanging(a) => (&a.replica_groups, a.channel_id, None),
        _ => return None,
    };
    Some((groups, GroupMode::of(channel.is_some(), global).ok()?))
}

fn known_group_size(cx: &Infer<'_>) -> Checked<i64> {
    match group_size(cx.module, cx.op.attrs) {
        Some(n) => Ok(n),
        None => fail("collective.groups", "groups of one size", "none or several sizes"),
    }
}

/// All operands are arrays; the result has their types.
fn same_as_operands(cx: &Infer<'_>) -> Checked<Inferred> {
    for i in 0..cx.n_operands() {
        cx.array(i)?;
    }
    if cx.n_operands() == 1 {
        return Ok(Inferred::Operand(0));
    }
    tuple_of_operands(cx)
}

fn tuple_of_operands(cx: &Infer<'_>) -> Checked<Inferred> {
    structure::tuple(cx)
}

pub(super) fn all_reduce(cx: &Infer<'_>) -> Checked<Inferred> {
    same_as_operands(cx)
}

pub(super) fn collective_broadcast(cx: &Infer<'_>) -> Checked<Inferred> {
    same_as_operands(cx)
}

/// Every operand with the size of one dim changed by `resize`.
fn resized(cx: &Infer<'_>, dims: &[i64], resize: &dyn Fn(i64) -> Checked<i64>) -> Checked<Vec<Shape>> {
    let [dim] = dims else { return fail("collective.dimension", "one dim", DimsText(dims)) };
    let mut shapes = Vec::with_capacity(cx.n_operands());
    for i in 0..cx.n_operands() {
        let from = cx.array(i)?;
        let at = dim_index("collective.dimension", *dim, from.rank())?;
        let mut dims = from.dims.clone();
        if dims[at] != UNBOUNDED_DIM {
            dims[at] = resize(dims[at])?;
        }
        shapes.push(Shape::Array(ArrayShape { dtype: from.dtype, dims, dynamic: from.dynamic, layout: None }));
    }
    Ok(shapes)
}

pub(super) fn reduce_scatter(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Combining(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let n = known_group_size(cx)?;
    let divide = |size: i64| match size % n {
        0 => Ok(size / n),
        _ => fail("reduce-scatter.divides", format_args!("a size that {n} shards divide"), size),
    };
    Ok(array_or_tuple(resized(cx, &attrs.dimensions, &divide)?))
}

fn gathered(cx: &Infer<'_>) -> Checked<Vec<Shape>> {
    let Attrs::Gathering(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let n = known_group_size(cx)?;
    resized(cx, &attrs.dimensions, &|size| Ok(size.saturating_mul(n)))
}

pub(super) fn all_gather(cx: &Infer<'_>) -> Checked<Inferred> {
    Ok(array_or_tuple(gathered(cx)?))
}

/// `(operand, result)`, or `((operands…), (results…))` for several.
fn start_pair(cx: &Infer<'_>, mut results: Vec<Shape>) -> Inferred {
    let mut inputs: Vec<Shape> = cx.op.operands.iter().map(|s| (*s).clone()).collect();
    Inferred::Shape(Shape::Tuple(match (inputs.len(), inputs.pop(), results.pop()) {
        (1, Some(input), Some(result)) => vec![input, result],
        (_, input, result) => {
            inputs.extend(input);
            results.extend(result);
            vec![Shape::Tuple(inputs), Shape::Tuple(results)]
        }
    }))
}

pub(super) fn all_gather_start(cx: &Infer<'_>) -> Checked<Inferred> {
    let results = gathered(cx)?;
    Ok(start_pair(cx, results))
}

/// With `dimensions` one array is cut and joined along that dim; without, operand `i` goes to member `i`.
pub(super) fn all_to_all(cx: &Infer<'_>) -> Checked<Inferred> {
    let Attrs::Exchanging(attrs) = cx.op.attrs else { return cx.wrong_format() };
    let first = cx.array(0)?;
    if !attrs.dimensions.is_empty() {
        let [dim] = attrs.dimensions.as_slice() else {
            return fail("collective.dimension", "one dim", DimsText(&attrs.dimensions));
        };
        let size = first.dims[dim_index("collective.dimension", *dim, first.rank())?];
        let n = known_group_size(cx)?;
        if size != UNBOUNDED_DIM && size % n != 0 {
            return fail("all-to-all.divides", format_args!("a size that {n} members divide"), size);
        }
        if cx.n_operands() != 1 {
            return fail("all-to-all.n-operands", "1 operand with dimensions", cx.n_operands());
        }
        return Ok(Inferred::Operand(0));
    }
    for i in 1..cx.n_operands() {
        if !agrees(cx.operand(0)?, cx.operand(i)?) {
            return fail("all-to-all.equal-operands", ShapeText(cx.operand(0)?), ShapeText(cx.operand(i)?));
        }
    }
    tuple_of_operands(cx)
}

/// `(input, output, input offsets, send sizes, output offsets, receive sizes) → output`.
pub(super) fn ragged_all_to_all(cx: &Infer<'_>) -> Checked<Inferred> {
    let (input, output) = (cx.array(0)?, cx.array(1)?);
    let rest = |a: &ArrayShape| a.dims.get(1..).map(Dims::from_slice);
    if input.dtype != output.dtype || rest(input).is_none() || rest(input) != rest(output) {
        let expected = format!("an output like {} but for dim 0", ShapeText(cx.operand(0)?));
        return fail("ragged-all-to-all.output", expected, ShapeText(cx.operand(1)?));
    }
    for i in 2..cx.n_operands() {
        let sizes = cx.array(i)?;
        if !sizes.dtype.is_integer() || sizes.dims != cx.array(2)?.dims {
            return fail(
                "ragged-all-to-all.sizes",
                "integer offsets and sizes of equal dims",
                ShapeText(cx.operand(i)?),
            );
        }
    }
    Ok(Inferred::Operand(1))
}

/// The in-place form names slices to move from operand 0 into operand 1.
fn is_in_place(cx: &Infer<'_>) -> bool {
    matches!(cx.op.attrs, Attrs::Permuting(attrs) if !attrs.slice_sizes.0.is_empty())
}

fn check_in_place(cx: &Infer<'_>) -> Checked<()> {
    if cx.n_operands() == 4 {
        return Ok(());
    }
    fail("collective-permute.in-place", "4 operands with slice_sizes", cx.n_operands())
}

pub(super) fn collective_permute(cx: &Infer<'_>) -> Checked<Inferred> {
    if is_in_place(cx) {
        check_in_place(cx)?;
        cx.operand(1)?;
        return Ok(Inferred::Operand(1));
    }
    same_as_operands(cx)
}

/// `(operand, result)` and any number of context scalars.
pub(super) fn collective_permute_start(cx: &Infer<'_>) -> Checked<Inferred> {
    if is_in_place(cx) {
        check_in_place(cx)?;
        return cx.stated().map(|_| Inferred::Stated);
    }
    let results = cx.op.operands.iter().map(|s| (*s).clone()).collect();
    let pair = start_pair(cx, results);
    let (Inferred::Shape(Shape::Tuple(expected)), Some(Shape::Tuple(stated))) = (&pair, cx.op.stated) else {
        return Ok(pair);
    };
    let is_right = stated.len() >= 2
        && expected.iter().zip(stated).all(|(a, b)| agrees(a, b))
        && stated[2..].iter().all(|s| s.as_array().is_some_and(|a| a.rank() == 0 && a.dtype.is_integer()));
    if is_right { Ok(Inferred::Stated) } else { Ok(pair) }
}
