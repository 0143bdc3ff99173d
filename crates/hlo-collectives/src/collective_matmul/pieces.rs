//! A product whose result is all-reduced, along one of its dims in pieces, each with an all-reduce of its own. What reshapes the result is
//! done after the sum.

use super::find::{Role, Site};
use hlo_ir::attrs::{Attrs, DimsAttrs, ReshapeAttrs};
use hlo_ir::{ArrayShape, InstId, Module, Opcode, Shape};
use hlo_spmd::{ChannelIds, Rewrite, array};

/// Takes a product and its all-reduce apart; the new all-reduces.
pub(super) fn emit(
    module: &mut Module,
    rewrite: &mut Rewrite,
    site: &Site,
    n: usize,
    channels: &mut ChannelIds,
) -> Vec<InstId> {
    let Some(product) = site.products.first() else { return Vec::new() };
    let (mut pieces, mut start) = (Vec::new(), 0);
    for i in 1..=n as i64 {
        let end = site.cut_size * i / n as i64;
        let mut operands = module.inst(product.dot).operands.clone();
        operands[product.side] = sliced(module, rewrite, operands[product.side], product.dim, (start, end));
        if let Role::Batch { other, .. } = product.role {
            operands[1 - product.side] = sliced(module, rewrite, operands[1 - product.side], other, (start, end));
        }
        let Some(mut shape) = array(module, product.dot).cloned() else { return pieces };
        shape.dims[site.dim] = end - start;
        let mut piece = like(module, rewrite, product.dot, &operands, shape.clone());
        for between in &product.between {
            if module.inst(between.inst).opcode == Opcode::Reshape {
                continue;
            }
            shape.dtype = array(module, between.inst).map_or(shape.dtype, |array| array.dtype);
            piece = like(module, rewrite, between.inst, &[piece], shape.clone());
        }
        piece = like(module, rewrite, site.collective, &[piece], shape);
        channels.renew(&mut module.inst_mut(piece).attrs);
        // In order, and one by one: XLA combines all-reduces that do not depend on each other.
        if let Some(&before) = pieces.last() {
            module.marks_mut(piece).control_predecessors.push(before);
        }
        pieces.push(piece);
        start = end;
    }
    let (Some(product), Some(sum)) = (array(module, product.dot).cloned(), array(module, site.collective).cloned())
    else {
        return pieces;
    };
    let (hint, at) = (module.inst_name(site.collective).to_string(), rewrite.at(site.collective));
    let attrs = DimsAttrs { dimensions: std::iter::once(site.dim as i64).collect() };
    let joined = ArrayShape { dtype: sum.dtype, ..product };
    let is_reshaped = joined.dims != sum.dims;
    let mut whole = at.add(module, &hint, Opcode::Concatenate, joined, &pieces, attrs);
    if is_reshaped {
        whole = at.add(module, &hint, Opcode::Reshape, sum, &[whole], ReshapeAttrs::default());
    } else {
        whole = rewrite.with_shape_of(module, whole, site.collective);
    }
    rewrite.redirect(site.collective, whole);
    pieces
}

/// The elements from `start` to `end` along a dim.
fn sliced(module: &mut Module, rewrite: &Rewrite, value: InstId, dim: usize, (start, end): (i64, i64)) -> InstId {
    let Some(mut shape) = array(module, value).cloned() else { return value };
    shape.dims[dim] = end - start;
    let hint = format!("{}.piece", module.inst_name(value));
    rewrite.at(value).slice(module, &hint, value, shape, (dim, start))
}

/// What `inst` does, on other operands, for a result of this shape.
fn like(module: &mut Module, rewrite: &Rewrite, inst: InstId, operands: &[InstId], shape: ArrayShape) -> InstId {
    let hint = format!("{}.piece", module.inst_name(inst));
    let (opcode, attrs): (Opcode, Attrs) = (module.inst(inst).opcode, module.inst(inst).attrs.clone());
    rewrite.add(module, inst, (&hint, opcode), Shape::Array(shape), operands, attrs)
}
