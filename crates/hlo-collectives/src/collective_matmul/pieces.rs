//! A product whose result is all-reduced, along one of its dims in pieces, each with an all-reduce of its own.

use super::find::{Role, Site};
use hlo_ir::attrs::{Attrs, DimsAttrs};
use hlo_ir::{InstId, Module, Opcode};
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
        let mut piece = resized(module, rewrite, product.dot, &operands, (site.dim, end - start));
        for &conversion in &product.between {
            piece = resized(module, rewrite, conversion, &[piece], (site.dim, end - start));
        }
        piece = resized(module, rewrite, site.collective, &[piece], (site.dim, end - start));
        channels.renew(&mut module.inst_mut(piece).attrs);
        // In order, and one by one: XLA combines all-reduces that do not depend on each other.
        if let Some(&before) = pieces.last() {
            module.marks_mut(piece).control_predecessors.push(before);
        }
        pieces.push(piece);
        start = end;
    }
    let (hint, shape) = (module.inst_name(site.collective).to_string(), module.shape(site.collective).clone());
    let attrs = DimsAttrs { dimensions: std::iter::once(site.dim as i64).collect() };
    let whole = rewrite.add(module, site.collective, (&hint, Opcode::Concatenate), shape, &pieces, attrs);
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

/// What `inst` does, on other operands, with `size` elements along a dim of its result.
fn resized(
    module: &mut Module,
    rewrite: &Rewrite,
    inst: InstId,
    operands: &[InstId],
    (dim, size): (usize, i64),
) -> InstId {
    let mut shape = module.shape(inst).clone();
    if let hlo_ir::Shape::Array(array) = &mut shape {
        array.dims[dim] = size;
    }
    let hint = format!("{}.piece", module.inst_name(inst));
    let (opcode, attrs): (Opcode, Attrs) = (module.inst(inst).opcode, module.inst(inst).attrs.clone());
    rewrite.add(module, inst, (&hint, opcode), shape, operands, attrs)
}
