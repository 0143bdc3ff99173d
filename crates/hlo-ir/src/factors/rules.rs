//! From a row's [`FactorRule`] to the factors of an instruction.

use super::*;
use crate::attrs::Attrs;
use crate::op::{FactorRule, Opcode};

/// The attributes are not those of the rule's format; the parser and builder do not let this happen.
pub(super) fn wrong_attrs() -> NoFactors {
    NoFactors("the attributes do not belong to the opcode".into())
}

pub(super) fn apply(
    opcode: Opcode,
    operands: &[&Shape],
    result: &Shape,
    attrs: &Attrs,
) -> Result<FactorSet, NoFactors> {
    let rule = opcode.row().factors;
    if let FactorRule::Structural(reason) | FactorRule::Whole(reason) = rule {
        return Err(NoFactors(reason.into()));
    }
    let b = FactorBuilder::new(operands, result)?;
    match rule {
        FactorRule::Elementwise => elementwise(b),
        FactorRule::Broadcast => shape_ops::broadcast(b, attrs),
        FactorRule::Reshape => shape_ops::reshape(b),
        FactorRule::Bitcast => shape_ops::bitcast(b),
        FactorRule::BitcastConvert => shape_ops::bitcast_convert(b),
        FactorRule::Transpose => shape_ops::transpose(b, attrs),
        FactorRule::Reverse => shape_ops::reverse(b, attrs),
        FactorRule::Slice | FactorRule::DynamicSlice => shape_ops::same_size_dims(b, &[0]),
        FactorRule::DynamicUpdateSlice => shape_ops::same_size_dims(b, &[0, 1]),
        FactorRule::Pad => shape_ops::pad(b, attrs),
        FactorRule::Concatenate => shape_ops::concatenate(b, attrs),
        FactorRule::Iota => shape_ops::iota(b, attrs),
        FactorRule::Reduce => shape_ops::reduce(b, attrs),
        FactorRule::ReduceWindow => shape_ops::reduce_window(b, attrs),
        FactorRule::SelectAndScatter => shape_ops::select_and_scatter(b, attrs),
        FactorRule::Dot => index_ops::dot(b, attrs),
        FactorRule::Convolution => index_ops::convolution(b, attrs),
        FactorRule::Sort => index_ops::sort(b, attrs),
        FactorRule::Gather => index_ops::gather(b, attrs),
        FactorRule::Scatter => index_ops::scatter(b, attrs),
        FactorRule::Cholesky => index_ops::leading_dims(b, 2),
        FactorRule::TriangularSolve => index_ops::triangular_solve(b, attrs),
        FactorRule::Fft => index_ops::fft(b, attrs),
        FactorRule::BatchNorm => index_ops::batch_norm(b, attrs),
        FactorRule::Structural(reason) | FactorRule::Whole(reason) => Err(NoFactors(reason.into())),
    }
}

/// All dims pass through; scalar operands among arrays (clamp's bounds, select's predicate) have none.
fn elementwise(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let dims = b.result_dims()?.to_vec();
    for (dim, &size) in dims.iter().enumerate() {
        let factor = b.add(size, FactorKind::PassThrough);
        b.result(0, dim, factor);
        for operand in 0..b.operands.len() {
            b.operand(operand, dim, factor);
        }
    }
    Ok(b.fill(FactorKind::NeedsWhole))
}
