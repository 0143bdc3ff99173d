//! A bucket as one collective of one array that holds all operands.
//!
//! With n devices in a group, each operand is packed so:
//!
//! | kind | operand becomes | along | the collective gives | a result is |
//! |---|---|---|---|---|
//! | all-reduce | `[k]` | 0 | `[K]` | `[k]` of it |
//! | reduce-scatter | `[n, k]`: a row for each device | 1 | `[1, K]` | `[1, k]` of it |
//! | all-gather | `[1, k]` | 1 | `[n, K]`: a row from each device | `[n, k]` of it |
//!
//! Before an operand is flattened, it is transposed to the order in which it lies in memory. That moves no element. The dim that
//! is scattered or gathered must come first, however. A reduce-scatter needs no real transpose if that dim is the slowest in
//! memory. The result is unflattened in the operand's order, because that is the order in which its elements arrive. A result whose
//! own layout is another is copied to it.

use super::attrs_on_own_channel;
use super::plan::Bucket;
use hlo_ir::attrs::Attrs;
use hlo_ir::{InstId, Module, Opcode};
use hlo_spmd::packing::{Packing, flat_order, flatten, has_flat_layout, unflatten};
use hlo_spmd::{ChannelIds, Rewrite, array};

/// Rows of the packed operand and of the packed result.
#[derive(Clone, Copy)]
struct Rows {
    operand: i64,
    result: i64,
}

/// Emits the collective and redirects the members' uses to slices of its result; the collective. `None` if a member is no array,
/// which the plan has ruled out.
pub(crate) fn emit(
    module: &mut Module,
    rewrite: &mut Rewrite,
    bucket: &Bucket,
    channels: &mut ChannelIds,
) -> Option<InstId> {
    let first = *bucket.members.first()?;
    let opcode = module.inst(first).opcode;
    let n = bucket.group_size as i64;
    let by_row =
        [(Opcode::ReduceScatter, Rows { operand: n, result: 1 }), (Opcode::AllGather, Rows { operand: 1, result: n })];
    let rows = by_row.into_iter().find_map(|(op, rows)| (op == opcode).then_some(rows));
    let (operand_rows, result_rows) = (rows.map(|rows| rows.operand), rows.map(|rows| rows.result));
    let n_members = bucket.members.len();
    let (mut parts, mut sizes) = (Vec::with_capacity(n_members), Vec::with_capacity(n_members));
    let mut orders = Vec::with_capacity(n_members);
    for &member in &bucket.members {
        let operand = *module.inst(member).operands.first()?;
        let shape = array(module, operand)?.clone();
        let order = flat_order(&shape, moved_dim(module, member));
        let hint = format!("{}.flat", module.inst_name(operand));
        parts.push(flatten(module, rewrite.at(member), &hint, (operand, &shape), &order, operand_rows));
        sizes.push(shape.n_elems() as i64 / operand_rows.unwrap_or(1).max(1));
        orders.push(order);
    }
    let like = array(module, first)?;
    let packing = Packing::new(like.dtype, has_flat_layout(like), sizes);
    let at = rewrite.at(first);
    let packed = packing.pack(module, at, "packed", &parts, operand_rows);
    let attrs = along_rows(attrs_on_own_channel(module, first, channels), rows.is_some());
    let hint = format!("{}.combined", opcode.name());
    let combined = at.add(module, &hint, opcode, packing.shape(result_rows), &[packed], attrs);
    for (idx, (&member, order)) in bucket.members.iter().zip(&orders).enumerate() {
        let (at, shape) = (rewrite.at(member), array(module, member)?.clone());
        let hint = format!("{}.part", module.inst_name(member));
        let part = packing.unpack(module, at, &hint, combined, (idx, result_rows));
        let hint = module.inst_name(member).to_string();
        let result = unflatten(module, at, &hint, part, &shape, order);
        rewrite.redirect(member, result);
    }
    Some(combined)
}

/// The collective's attributes with rows scattered or gathered.
fn along_rows(mut attrs: Attrs, has_rows: bool) -> Attrs {
    if let Some(dims) = attrs.collective_dims_mut() {
        *dims = has_rows.then_some(0).into_iter().collect();
    }
    attrs
}

/// The dim that a collective scatters or gathers.
fn moved_dim(module: &Module, member: InstId) -> Option<usize> {
    module.inst(member).attrs.collective()?.dim()
}
