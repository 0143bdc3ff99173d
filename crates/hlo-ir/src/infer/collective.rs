//! Shape rules of collectives.

use super::shape_text::DimsText;
use super::*;
use crate::collective::{CollectiveView, n_exchanged};
use crate::groups::{GroupMode, ReplicaGroups};
use crate::op::{CollectiveForm, CollectiveRule, CollectiveSource, StartResult};

/// Devices in each group of a collective; `None` if the groups are malformed, differ in size, or the mode is invalid.
pub fn group_size(module: &Module, attrs: &Attrs) -> Option<i64> {
    let (groups, mode) = attrs.collective()?.groups()?.ok()?;
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

/// A collective that waits, or the start of one.
pub(super) fn collective(cx: &Infer<'_>, rule: CollectiveRule) -> Checked<Inferred> {
    let Some(view) = cx.op.attrs.collective() else { return cx.wrong_format() };
    let result = match rule.form {
        CollectiveForm::Synchronous | CollectiveForm::Done(..) => StartResult::Outcome,
        CollectiveForm::Start(result) => result,
    };
    if view.is_in_place {
        return in_place(cx, result);
    }
    match result {
        StartResult::Outcome => outcome(cx, rule, &view),
        StartResult::OperandsAndOutcome => start_pair(cx, rule, &view),
        StartResult::OperandsOutcomeAndContext => start_with_context(cx, rule, &view),
    }
}

/// The result of the form that waits.
fn outcome(cx: &Infer<'_>, rule: CollectiveRule, view: &CollectiveView<'_>) -> Checked<Inferred> {
    match rule.source {
        CollectiveSource::Pair if is_start_of_several(cx, rule) => tuple_of_operands(cx),
        CollectiveSource::Root | CollectiveSource::Pair => same_as_operands(cx),
        CollectiveSource::Rows => rows_exchanged(cx),
        CollectiveSource::Members if rule.exchanges_parts() => parts_exchanged(cx, rule, view),
        CollectiveSource::Reduction | CollectiveSource::Members if rule.has_dim() => cut_or_joined(cx, rule, view),
        CollectiveSource::Reduction | CollectiveSource::Members => same_as_operands(cx),
    }
}

/// Whether an op begins to send several operands to one device: then each may be a tuple, as in XLA. A single operand must be
/// an array, and so must each operand of the form that waits.
fn is_start_of_several(cx: &Infer<'_>, rule: CollectiveRule) -> bool {
    cx.n_operands() > 1 && matches!(rule.form, CollectiveForm::Start(_))
}

/// Every operand with the size of one dim divided or multiplied by the number of members.
fn cut_or_joined(cx: &Infer<'_>, rule: CollectiveRule, view: &CollectiveView<'_>) -> Checked<Inferred> {
    let n = match stated_factor(cx, rule, view) {
        Some(n) => n,
        None => known_group_size(cx)?,
    };
    let resize = |size: i64| match (rule.scatters, size % n) {
        (false, _) => Ok(size.saturating_mul(n)),
        (true, 0) => Ok(size / n),
        (true, _) => fail("reduce-scatter.divides", format_args!("a size that {n} shards divide"), size),
    };
    let [dim] = view.dimensions else { return fail("collective.dimension", "one dim", DimsText(view.dimensions)) };
    let n_exchanged = n_exchanged(rule, cx.op.operands);
    let mut shapes = Vec::with_capacity(cx.n_operands());
    for i in 0..cx.n_operands() {
        let from = cx.array(i)?;
        let mut dims = from.dims.clone();
        if i < n_exchanged {
            let at = dim_index("collective.dimension", *dim, from.rank())?;
            if dims[at] != UNBOUNDED_DIM {
                dims[at] = resize(dims[at])?;
            }
        }
        shapes.push(Shape::Array(ArrayShape { dtype: from.dtype, dims, dynamic: from.dynamic, layout: None }));
    }
    Ok(array_or_tuple(shapes))
}

/// The factor between operand and stated result where groups are left out and the header counts one device in their mode: then
/// nobody knows how many members there are, and XLA takes any number.
fn stated_factor(cx: &Infer<'_>, rule: CollectiveRule, view: &CollectiveView<'_>) -> Option<i64> {
    let (groups, _) = view.groups()?.ok()?;
    let [dim] = view.dimensions else { return None };
    if !groups.is_empty() || group_size(cx.module, cx.op.attrs) != Some(1) {
        return None;
    }
    let size = |shape: &Shape| shape.as_array()?.dims.get(usize::try_from(*dim).ok()?).copied();
    let stated = match cx.op.stated? {
        Shape::Tuple(parts) => parts.first()?,
        array => array,
    };
    let (from, to) = (size(cx.op.operands.first()?)?, size(stated)?);
    let (small, large) = if rule.scatters { (to, from) } else { (from, to) };
    (small > 0 && large % small == 0).then(|| large / small).filter(|&n| n > 0)
}

/// With `dimensions` one array is cut and joined along that dim; without, operand `i` goes to member `i`.
fn parts_exchanged(cx: &Infer<'_>, rule: CollectiveRule, view: &CollectiveView<'_>) -> Checked<Inferred> {
    let first = cx.array(0)?;
    let n_exchanged = n_exchanged(rule, cx.op.operands);
    if !view.dimensions.is_empty() {
        let [dim] = view.dimensions else {
            return fail("collective.dimension", "one dim", DimsText(view.dimensions));
        };
        let size = first.dims[dim_index("collective.dimension", *dim, first.rank())?];
        let n = known_group_size(cx)?;
        if size != UNBOUNDED_DIM && size % n != 0 {
            return fail("all-to-all.divides", format_args!("a size that {n} members divide"), size);
        }
        if n_exchanged != 1 {
            return fail("all-to-all.n-operands", "1 operand with dimensions", n_exchanged);
        }
        return if cx.n_operands() == 1 { Ok(Inferred::Operand(0)) } else { tuple_of_operands(cx) };
    }
    for i in 1..n_exchanged {
        if !agrees(cx.operand(0)?, cx.operand(i)?) {
            return fail("all-to-all.equal-operands", ShapeText(cx.operand(0)?), ShapeText(cx.operand(i)?));
        }
    }
    tuple_of_operands(cx)
}

/// `(input, output, input offsets, send sizes, output offsets, receive sizes) → output`.
fn rows_exchanged(cx: &Infer<'_>) -> Checked<Inferred> {
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

/// The form that moves named slices from operand 0 into operand 1.
fn in_place(cx: &Infer<'_>, result: StartResult) -> Checked<Inferred> {
    if cx.n_operands() != 4 {
        return fail("collective-permute.in-place", "4 operands with slice_sizes", cx.n_operands());
    }
    match result {
        StartResult::Outcome => Ok(Inferred::Operand(1)),
        StartResult::OperandsAndOutcome | StartResult::OperandsOutcomeAndContext => {
            cx.stated().map(|_| Inferred::Stated)
        }
    }
}

/// `(operand, outcome)`, or `((operands…), (outcomes…))` for several.
fn start_pair(cx: &Infer<'_>, rule: CollectiveRule, view: &CollectiveView<'_>) -> Checked<Inferred> {
    // The stated shape is the pair's: its second part is the outcome's.
    let stated = cx.op.stated.and_then(Shape::as_tuple).and_then(|pair| pair.get(1));
    let op = OpView { stated, ..*cx.op };
    let outcome = match outcome(&Infer { module: cx.module, op: &op }, rule, view)? {
        Inferred::Shape(shape) => shape,
        Inferred::Operand(i) => cx.operand(i)?.clone(),
        Inferred::Stated => return Ok(Inferred::Stated),
    };
    let operands = match cx.op.operands {
        [only] => (*only).clone(),
        several => Shape::Tuple(several.iter().map(|s| (*s).clone()).collect()),
    };
    Ok(Inferred::Shape(Shape::Tuple(vec![operands, outcome])))
}

/// `(operand, outcome)` and any number of contexts, of any shape.
fn start_with_context(cx: &Infer<'_>, rule: CollectiveRule, view: &CollectiveView<'_>) -> Checked<Inferred> {
    let pair = start_pair(cx, rule, view)?;
    let (Inferred::Shape(Shape::Tuple(expected)), Some(Shape::Tuple(stated))) = (&pair, cx.op.stated) else {
        return Ok(pair);
    };
    let is_right = stated.len() >= 2 && expected.iter().zip(stated).all(|(a, b)| agrees(a, b));
    if is_right { Ok(Inferred::Stated) } else { Ok(pair) }
}
