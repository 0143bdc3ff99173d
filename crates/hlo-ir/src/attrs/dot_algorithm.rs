//! What the named algorithm of a `dot` does to its operands.

use super::DotAttrs;
use crate::dtype::DType;

impl DotAttrs {
    /// The element type to which the named algorithm rounds both operands before they are multiplied.
    ///
    /// `None` means that operands are multiplied as they are. That is right, if not the fastest, for every algorithm at least as
    /// exact as `f32`, and for the 8-bit ones, whose operands have their type already.
    ///
    /// Source: the names of <https://openxla.org/stablehlo/spec#dot_general>, `dot_LHS_RHS_ACCUMULATOR`.
    pub fn operand_rounding(&self) -> Option<DType> {
        match self.algorithm.as_str() {
            "dot_bf16_bf16_f32" | "dot_bf16_bf16_bf16" => Some(DType::BF16),
            "dot_f16_f16_f32" | "dot_f16_f16_f16" => Some(DType::F16),
            _ => None,
        }
    }

    /// Whether the algorithm changes an operand of type `dtype` before it is multiplied.
    pub fn rounds(&self, dtype: DType) -> bool {
        self.operand_rounding().is_some_and(|to| to != dtype)
    }
}
