//! Operations that move elements: each computes where an element of its result comes from.

use hlo_ir::attrs::{Attrs, DimsAttrs};
use hlo_ir::{ArrayShape, DType, InstId, Module, Opcode};
use smallvec::SmallVec;

use super::dtype::CType;
use super::elementwise::reinterpreted;
use super::emitter::{Atom, Element, Emitted, Emitter, FrameId, Index, Value};
use crate::GpuError;

fn misfit(e: &Emitter<'_>, inst: InstId) -> GpuError {
    e.unsupported(inst, "expected attributes that fit the operation's shapes")
}

/// The dims that a `Dims` format lists.
fn listed_dims(e: &Emitter<'_>, inst: InstId) -> Result<SmallVec<[usize; 4]>, GpuError> {
    let attrs = DimsAttrs::of(&e.module.inst(inst).attrs).ok_or_else(|| misfit(e, inst))?;
    Ok(attrs.dimensions.iter().map(|&dim| dim as usize).collect())
}

/// The operand's element at the same index.
pub(super) fn same_index(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, index)
}

pub(super) fn broadcast(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let dims = listed_dims(e, inst)?;
    let own: Option<Index> = dims.iter().map(|&dim| index.get(dim).copied()).collect();
    let own = own.ok_or_else(|| misfit(e, inst))?;
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, &own)
}

pub(super) fn transpose(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let dims = listed_dims(e, inst)?;
    let mut own: Index = SmallVec::from_elem(Atom::Const(0), index.len());
    for (&dim, &atom) in dims.iter().zip(index) {
        *own.get_mut(dim).ok_or_else(|| misfit(e, inst))? = atom;
    }
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, &own)
}

pub(super) fn reverse(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let shape = e.leaf_shape(inst, 0)?;
    let mut own = Index::from_slice(index);
    for dim in listed_dims(e, inst)? {
        own[dim] = e.affine(own[dim], -1, shape.dims[dim] - 1);
    }
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, &own)
}

pub(super) fn slice(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Slice(attrs) = &e.module.inst(inst).attrs else { return Err(misfit(e, inst)) };
    let own: Index =
        index.iter().zip(&attrs.slice).map(|(&atom, range)| e.affine(atom, range.stride.max(1), range.start)).collect();
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, &own)
}

/// The index of the element of an array of `to` dims that has the same row-major position as `index` in `from` dims.
///
/// Runs of dims with equal products are mapped by themselves, so that dims that stay need no arithmetic.
fn reshaped(e: &mut Emitter<'_>, index: &[Atom], from: &[i64], to: &[i64]) -> Index {
    let row_major = |rank: usize| -> SmallVec<[usize; 4]> { (0..rank).rev().collect() };
    if let Some(linear) = e.known_position(index, from, &row_major(from.len())) {
        return e.index_at(linear, to, &row_major(to.len()));
    }
    let mut own: Index = SmallVec::from_elem(Atom::Const(0), to.len());
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (first_i, first_j) = (i, j);
        let (mut m, mut n) = (from.get(i).copied().unwrap_or(1), to.get(j).copied().unwrap_or(1));
        (i, j) = ((i + 1).min(from.len()), (j + 1).min(to.len()));
        while m != n {
            if m < n && i < from.len() {
                m = m.saturating_mul(from[i]);
                i += 1;
            } else if j < to.len() {
                n = n.saturating_mul(to[j]);
                j += 1;
            } else {
                break;
            }
        }
        if let (&[atom], &[size], &[other]) = (&index[first_i..i], &from[first_i..i], &to[first_j..j])
            && size == other
        {
            own[first_j] = atom;
            continue;
        }
        let linear = e.position(&index[first_i..i], &from[first_i..i], &row_major(i - first_i));
        let part = e.index_at(linear, &to[first_j..j], &row_major(j - first_j));
        own[first_j..j].copy_from_slice(&part);
    }
    own
}

pub(super) fn reshape(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let (to, from) = (e.operand_shape(inst, 0)?, e.leaf_shape(inst, 0)?);
    let own = reshaped(e, index, &from.dims, &to.dims);
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, &own)
}

/// Sizes in memory order, the slowest first, and which dim each is.
fn in_memory(shape: &ArrayShape) -> (SmallVec<[usize; 4]>, SmallVec<[i64; 4]>) {
    let order: SmallVec<[usize; 4]> = shape.physical_order().into_iter().rev().collect();
    let sizes = order.iter().map(|&dim| shape.dims[dim]).collect();
    (order, sizes)
}

/// The element at the same place in memory.
pub(super) fn bitcast(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let (to, from) = (e.operand_shape(inst, 0)?, e.leaf_shape(inst, 0)?);
    if to.dtype.bits() != from.dtype.bits() || to.n_elems() != from.n_elems() {
        return Err(e.unsupported(inst, "expected a bitcast between elements of one width"));
    }
    let ((from_order, from_sizes), (to_order, to_sizes)) = (in_memory(from), in_memory(to));
    let physical: Index = from_order.iter().map(|&dim| index[dim]).collect();
    let found = reshaped(e, &physical, &from_sizes, &to_sizes);
    let mut own: Index = SmallVec::from_elem(Atom::Const(0), to.rank());
    for (&dim, &atom) in to_order.iter().zip(&found) {
        own[dim] = atom;
    }
    let operand = e.operand(inst, 0)?;
    let (old, new) = (CType::of(to.dtype), CType::of(from.dtype));
    let value = e.value(frame, operand, 0, &own)?;
    Ok(reinterpreted(e, old, new, value))
}

/// A scalar operand as a start that leaves room for `size` elements among `n`.
fn clamped_start(
    e: &mut Emitter<'_>,
    frame: FrameId,
    inst: InstId,
    operand: usize,
    last: i64,
) -> Result<Atom, GpuError> {
    let start = e.operand(inst, operand)?;
    if e.leaf_shape(start, 0)?.rank() != 0 {
        return Err(e.unsupported(inst, "expected scalar start indices"));
    }
    if last <= 0 {
        return Ok(Atom::Const(0));
    }
    let value = e.value(frame, start, 0, &[])?;
    Ok(e.bind(format!("(idx)hlo::clamp_start(hlo::index_value({}), {last})", value.text), value.depth))
}

pub(super) fn dynamic_slice(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let (whole, part) = (e.operand_shape(inst, 0)?, e.leaf_shape(inst, 0)?);
    let mut own = Index::new();
    for (dim, &atom) in index.iter().enumerate() {
        let start = clamped_start(e, frame, inst, 1 + dim, whole.dims[dim] - part.dims[dim])?;
        own.push(e.sum(atom, start));
    }
    let operand = e.operand(inst, 0)?;
    e.value(frame, operand, 0, &own)
}

pub(super) fn dynamic_update_slice(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let (whole, part) = (e.leaf_shape(inst, 0)?, e.operand_shape(inst, 1)?);
    let (mut own, mut conditions) = (Index::new(), Vec::new());
    for (dim, &atom) in index.iter().enumerate() {
        let (n, size) = (whole.dims[dim], part.dims[dim]);
        let start = clamped_start(e, frame, inst, 2 + dim, n - size)?;
        let at = e.difference(atom, start);
        if size != n {
            conditions.push(format!("{at} >= 0 && {at} < {size}"));
        }
        own.push(at);
    }
    let (old, new) = (e.operand(inst, 0)?, e.operand(inst, 1)?);
    either(e, inst, &conditions, |e| e.value(frame, new, 0, &own), |e| e.value(frame, old, 0, index))
}

/// One of two values, each computed only where it is needed.
fn either(
    e: &mut Emitter<'_>,
    inst: InstId,
    conditions: &[String],
    yes: impl FnOnce(&mut Emitter<'_>) -> Emitted,
    no: impl FnOnce(&mut Emitter<'_>) -> Emitted,
) -> Emitted {
    if conditions.is_empty() {
        return yes(e);
    }
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let condition = e.constant("bool", &conditions.join(" && "));
    let result = e.variable(ctype.held, &format!("{}()", ctype.held));
    e.branch(&condition.text, |e| {
        let value = yes(e)?;
        e.line(format!("{} = {};", result.text, value.text));
        Ok(())
    })?;
    // Not `else`: index arithmetic of the second value may be written between the two.
    e.branch(&format!("!{}", condition.text), |e| {
        let value = no(e)?;
        e.line(format!("{} = {};", result.text, value.text));
        Ok(())
    })?;
    Ok(result)
}

pub(super) fn pad(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Pad(attrs) = &e.module.inst(inst).attrs else { return Err(misfit(e, inst)) };
    let inner = e.operand_shape(inst, 0)?;
    let (mut own, mut conditions) = (Index::new(), Vec::new());
    for ((&atom, padding), &n) in index.iter().zip(&attrs.padding).zip(&inner.dims) {
        let mut at = e.affine(atom, 1, -padding.low);
        if padding.low > 0 {
            conditions.push(format!("{at} >= 0"));
        }
        if padding.interior > 0 {
            let (quotient, rest) = e.divide(at, padding.interior + 1);
            conditions.push(format!("{rest} == 0"));
            at = quotient;
        }
        if padding.high > 0 || padding.interior > 0 {
            conditions.push(format!("{at} < {n}"));
        }
        own.push(at);
    }
    let (operand, filler) = (e.operand(inst, 0)?, e.operand(inst, 1)?);
    either(e, inst, &conditions, |e| e.value(frame, operand, 0, &own), |e| e.value(frame, filler, 0, &[]))
}

pub(super) fn concatenate(e: &mut Emitter<'_>, Element { frame, inst, index, .. }: Element<'_>) -> Emitted {
    let dim = listed_dims(e, inst)?.first().copied().ok_or_else(|| misfit(e, inst))?;
    let &atom = index.get(dim).ok_or_else(|| misfit(e, inst))?;
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let mut parts = Vec::new();
    let mut end = 0;
    for operand in 0..e.module.inst(inst).operands.len() {
        let size = e.operand_shape(inst, operand)?.dims[dim];
        if size > 0 {
            parts.push((operand, end, end + size));
        }
        end += size;
    }
    let result = e.variable(ctype.held, &format!("{}()", ctype.held));
    for (i, &(operand, start, end)) in parts.iter().enumerate() {
        let condition = match (i == 0, i + 1 == parts.len()) {
            (true, true) => "true".to_string(),
            (true, false) => format!("{atom} < {end}"),
            (false, true) => format!("{atom} >= {start}"),
            (false, false) => format!("{atom} >= {start} && {atom} < {end}"),
        };
        let mut own = Index::from_slice(index);
        own[dim] = e.affine(atom, 1, -start);
        let operand = e.operand(inst, operand)?;
        e.branch(&condition, |e| {
            let value = e.value(frame, operand, 0, &own)?;
            e.line(format!("{} = {};", result.text, value.text));
            Ok(())
        })?;
    }
    Ok(result)
}

pub(super) fn iota(e: &mut Emitter<'_>, Element { inst, index, .. }: Element<'_>) -> Emitted {
    let Attrs::Iota(attrs) = &e.module.inst(inst).attrs else { return Err(misfit(e, inst)) };
    let atom = index.get(attrs.iota_dimension as usize).ok_or_else(|| misfit(e, inst))?;
    let ctype = CType::of(e.leaf_shape(inst, 0)?.dtype);
    let text = ctype.converted(CType::of(DType::S64), &atom.to_string());
    Ok(e.constant(ctype.held, &text))
}

pub(super) fn get_dimension_size(e: &mut Emitter<'_>, Element { inst, .. }: Element<'_>) -> Emitted {
    let dim = listed_dims(e, inst)?.first().copied().ok_or_else(|| misfit(e, inst))?;
    let shape = e.operand_shape(inst, 0)?;
    match shape.dims.get(dim) {
        Some(&n) if !shape.is_dynamic(dim) => Ok(Value::literal(format!("(hlo::s32){n}"))),
        Some(_) => Err(e.unsupported(inst, "expected a static dim")),
        None => Err(misfit(e, inst)),
    }
}

/// Whether an instruction gives its operand's elements in another order in which neighbours along the last dim, the fastest, stay neighbours: a
/// reversal or a transpose of other dims, or a reshape, whose runs go as far as both last dims are whole numbers of them.
pub(crate) fn keeps_runs(module: &Module, inst: InstId) -> bool {
    let node = module.inst(inst);
    let is_row_major = |inst: InstId| module.shape(inst).as_array().is_some_and(ArrayShape::is_row_major);
    let &[operand] = node.operands.as_slice() else { return false };
    let last = module.shape(inst).as_array().map_or(-1, |shape| shape.rank() as i64 - 1);
    let keeps = if let Some(DimsAttrs { dimensions }) = DimsAttrs::of(&node.attrs) {
        (node.opcode == Opcode::Reverse && !dimensions.contains(&last))
            || (node.opcode == Opcode::Transpose && dimensions.last() == Some(&last))
    } else {
        node.opcode == Opcode::Reshape
    };
    keeps && is_row_major(inst) && is_row_major(operand)
}
