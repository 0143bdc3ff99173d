//! Blocks that devices send to one another, written into the target tile.

use super::pieces::{BlockWrite, PiecePlan};
use super::tile_builder::TileBuilder;
use crate::error::SpmdError;
use hlo_ir::attrs::{Attrs, CompareAttrs, Comparison, DimsAttrs, IotaAttrs};
use hlo_ir::edit::Builder;
use hlo_ir::{ArrayShape, DType, Dims, InstId, Literal, Opcode, Scalar};

/// Writes all blocks into a tile of zeros.
///
/// Source and target tile are padded, so that every block fits wherever it begins; where a device has no use for a block or a part
/// of it, what it had stays.
pub(super) fn lower(lowering: &mut TileBuilder<'_>, plan: &PiecePlan, value: InstId) -> Result<InstId, SpmdError> {
    let Some(source) = crate::collective::array(lowering.module, value).map(|array| array.dims.clone()) else {
        return Err(SpmdError::not_an_array(lowering.module, value));
    };
    let fitting = |tile: &Dims, starts: fn(&BlockWrite) -> &Vec<Dims>| -> Dims {
        let end = |dim: usize| {
            let ends = plan.writes.iter().flat_map(|w| starts(w).iter().map(move |at| at[dim] + w.block[dim]));
            ends.max().unwrap_or(0).max(tile[dim])
        };
        (0..tile.len()).map(end).collect()
    };
    let source = fitting(&source, |write| &write.taken_at);
    let tile = fitting(&plan.tile, |write| &write.written_at);
    let value = lowering.padded(value, &source);
    let zero = lowering.at.zero(lowering.module, lowering.dtype);
    let shape = lowering.array(&tile);
    let mut result = match tile.is_empty() {
        true => zero,
        false => Builder::new(lowering.module, lowering.comp).broadcast_scalar("target", zero, shape.clone()),
    };
    for write in &plan.writes {
        let mut block = lowering.block(value, &write.taken_at, &write.block)?;
        if let Some(pairs) = &write.pairs {
            block = lowering.permuted(block, pairs);
        }
        let is_for_all = write.valid.iter().all(|valid| *valid == write.block);
        if !is_for_all {
            let old = lowering.block(result, &write.written_at, &write.block)?;
            block = selected(lowering, write, block, old)?;
        }
        if write.block == tile {
            result = block;
            continue;
        }
        let mut operands = vec![result, block];
        for dim in 0..tile.len() {
            let starts: Vec<i64> = write.written_at.iter().map(|at| at[dim]).collect();
            operands.push(lowering.looked_up(&starts)?);
        }
        let update = ("written", Opcode::DynamicUpdateSlice);
        result = lowering.at.add(lowering.module, update.0, update.1, shape.clone(), &operands, Attrs::Plain);
    }
    Ok(lowering.trimmed(result, &plan.tile))
}

/// `new` where the block is meant for the device, else `old`.
fn selected(lowering: &mut TileBuilder<'_>, write: &BlockWrite, new: InstId, old: InstId) -> Result<InstId, SpmdError> {
    let is_all_or_nothing =
        write.valid.iter().all(|valid| *valid == write.block || valid.iter().all(|&size| size == 0));
    let shape = lowering.array(&write.block);
    let pred = ArrayShape { dtype: DType::Pred, ..shape.clone() };
    let mut mask = None;
    let n_dims = if is_all_or_nothing { 1 } else { write.block.len() };
    for dim in 0..n_dims {
        let sizes: Vec<i64> = write.valid.iter().map(|valid| valid.get(dim).copied().unwrap_or(1)).collect();
        let size = lowering.looked_up(&sizes)?;
        let s32 = ArrayShape { dtype: DType::S32, ..shape.clone() };
        let size = Builder::new(lowering.module, lowering.comp).broadcast_scalar("valid", size, s32.clone());
        let index = match is_all_or_nothing {
            true => {
                let zero = Literal::scalar(DType::S32, Scalar::Int(0));
                let zero = Builder::new(lowering.module, lowering.comp).constant("nothing", zero);
                lowering.at.add(lowering.module, "nothing", Opcode::Broadcast, s32, &[zero], DimsAttrs::default())
            }
            false => {
                let iota = IotaAttrs { iota_dimension: dim as i64 };
                lowering.at.add(lowering.module, "index", Opcode::Iota, s32, &[], iota)
            }
        };
        let attrs = CompareAttrs { direction: Comparison::Lt, ..CompareAttrs::default() };
        let is_valid =
            lowering.at.add(lowering.module, "is_valid", Opcode::Compare, pred.clone(), &[index, size], attrs);
        mask = Some(match mask {
            None => is_valid,
            Some(mask) => {
                lowering.at.add(lowering.module, "is_valid", Opcode::And, pred.clone(), &[mask, is_valid], Attrs::Plain)
            }
        });
    }
    let Some(mask) = mask else { return Ok(new) };
    Ok(lowering.at.add(lowering.module, "kept", Opcode::Select, shape, &[mask, new, old], Attrs::Plain))
}
