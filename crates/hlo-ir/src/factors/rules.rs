//! From a row's [`FactorRule`] to the factors of an instruction.

use super::*;
use crate::module::Instruction;
use crate::op::FactorRule;

/// The attributes are not those of the rule's format; the parser and builder do not let this happen.
pub(super) const WRONG_ATTRS: NoFactors = NoFactors::Invalid("the attributes do not belong to the opcode");

/// A dim number of an attribute as an index.
pub(super) fn index(dim: i64) -> Result<usize, NoFactors> {
    usize::try_from(dim).map_err(|_| WRONG_ATTRS)
}

/// The size of the dim that an attribute names.
pub(super) fn size_at(dims: &[i64], dim: i64) -> Result<i64, NoFactors> {
    dims.get(index(dim)?).copied().ok_or(WRONG_ATTRS)
}

pub(super) fn apply(
    module: &Module,
    instruction: &Instruction,
    operands: &[&Shape],
    result: &Shape,
) -> Result<FactorSet, NoFactors> {
    let (rule, attrs) = (instruction.opcode.row().factors, &instruction.attrs);
    if let FactorRule::Structural(reason) | FactorRule::Whole(reason) = rule {
        return Err(NoFactors::OfRow(reason));
    }
    let b = FactorBuilder::new(module, operands, result)?;
    match rule {
        FactorRule::Elementwise => elementwise(b),
        FactorRule::Broadcast => shape_ops::broadcast(b, attrs),
        FactorRule::Reshape => shape_ops::reshape(b),
        FactorRule::Bitcast => shape_ops::bitcast(b),
        FactorRule::BitcastConvert => shape_ops::bitcast_convert(b),
        FactorRule::Transpose => shape_ops::transpose(b, attrs),
        FactorRule::Reverse => shape_ops::reverse(b, attrs),
        FactorRule::Slice => shape_ops::slice(b),
        FactorRule::DynamicSlice => index_ops::dynamic_slice(b),
        FactorRule::DynamicUpdateSlice => index_ops::dynamic_update_slice(b),
        FactorRule::Pad => shape_ops::pad(b, attrs),
        FactorRule::Concatenate => shape_ops::concatenate(b, attrs),
        FactorRule::Iota => shape_ops::iota(b, attrs),
        FactorRule::Reduce => shape_ops::reduce(b, attrs),
        FactorRule::ReduceWindow => window_ops::reduce_window(b, attrs),
        FactorRule::SelectAndScatter => window_ops::select_and_scatter(b, attrs),
        FactorRule::Dot => index_ops::dot(b, attrs),
        FactorRule::Convolution => window_ops::convolution(b, attrs),
        FactorRule::Sort => index_ops::sort(b, attrs),
        FactorRule::Gather => index_ops::gather(b, attrs),
        FactorRule::Scatter => index_ops::scatter(b, attrs),
        FactorRule::Cholesky => index_ops::leading_dims(b, 2, "a matrix is factored as a whole"),
        FactorRule::TriangularSolve => index_ops::triangular_solve(b, attrs),
        FactorRule::Fft => index_ops::fft(b, attrs),
        FactorRule::BatchNorm => index_ops::batch_norm(b, attrs),
        FactorRule::CustomCall => custom_calls::custom_call(b, attrs),
        FactorRule::Structural(reason) | FactorRule::Whole(reason) => Err(NoFactors::OfRow(reason)),
    }
}

/// All dims pass through; scalar operands among arrays (clamp's bounds, select's predicate) have none.
fn elementwise(mut b: FactorBuilder<'_>) -> Result<FactorSet, NoFactors> {
    let n = b.operands.len();
    for (dim, &size) in b.result_dims()?.iter().enumerate() {
        b.pass_dim(size, 0..n, dim);
    }
    Ok(b.fill(FactorRole::Whole("the result lacks the dim")))
}
