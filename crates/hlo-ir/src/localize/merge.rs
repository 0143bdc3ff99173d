//! Attributes of an op whose consecutive dims became one dim, by a trivial reshape of its operands and of its result.

use super::CannotCut;
use crate::attrs::{Attrs, CompareAttrs, DimsAttrs, ReduceAttrs, ReducePrecisionAttrs, ReshapeAttrs};
use crate::op::{FactorRule, NamedDims};
use crate::shape::Dims;
use std::ops::Range;

/// The attributes of an op once `operand` dims of its first operand, and `result` dims of its result, are one dim each.
/// The op passes or reduces the merged dims; `None`: no dims are merged on that side.
///
/// # Errors
/// The op's attributes name dims in a way that is not known here.
pub fn merged_attrs(
    rule: FactorRule,
    attrs: &Attrs,
    operand: Option<Range<usize>>,
    result: Option<Range<usize>>,
) -> Result<Attrs, CannotCut> {
    let unknown = CannotCut::NoLocalAttributes(attrs.format());
    let range = match rule.merged_dims().ok_or(unknown)? {
        NamedDims::OfOperand => operand,
        NamedDims::OfResult => result,
        NamedDims::Nowhere => None,
    };
    if *attrs == Attrs::Plain {
        return Ok(Attrs::Plain);
    }
    if let Some(CompareAttrs { direction, order }) = CompareAttrs::of(attrs) {
        return Ok(CompareAttrs { direction: *direction, order: order.clone() }.into());
    }
    if let Some(&ReducePrecisionAttrs { exponent_bits, mantissa_bits }) = ReducePrecisionAttrs::of(attrs) {
        return Ok(ReducePrecisionAttrs { exponent_bits, mantissa_bits }.into());
    }
    if let Some(DimsAttrs { dimensions }) = DimsAttrs::of(attrs) {
        return Ok(DimsAttrs { dimensions: merge(dimensions, range) }.into());
    }
    if let Some(ReduceAttrs { dimensions, to_apply }) = ReduceAttrs::of(attrs) {
        return Ok(ReduceAttrs { dimensions: merge(dimensions, range), to_apply: *to_apply }.into());
    }
    if let Some(ReshapeAttrs { inferred_dimension: _ }) = ReshapeAttrs::of(attrs) {
        return Ok(ReshapeAttrs { inferred_dimension: None }.into());
    }
    Err(unknown)
}

/// Dim numbers after a range of dims became one dim: those of the range become its first, later ones move up.
fn merge(dims: &[i64], range: Option<Range<usize>>) -> Dims {
    let mut out = Dims::new();
    for &dim in dims {
        let dim = range.as_ref().map_or(dim, |range| {
            let (start, end) = (range.start as i64, range.end as i64);
            if dim < start { dim } else { start.max(dim - (end - start - 1)) }
        });
        if !out.contains(&dim) {
            out.push(dim);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_after_a_range_move_up() {
        assert_eq!(merge(&[0, 1, 2, 3], Some(1..3)).as_slice(), [0, 1, 2]);
        assert_eq!(merge(&[2, 1, 0], Some(0..2)).as_slice(), [1, 0]);
        assert_eq!(merge(&[1, 0], None).as_slice(), [1, 0]);
    }

    #[test]
    fn a_rule_that_is_not_known_is_refused() {
        let reversed = Attrs::from(DimsAttrs { dimensions: Dims::from_slice(&[1]) });
        let found = merged_attrs(FactorRule::Reverse, &reversed, None, None);
        assert_eq!(found, Err(CannotCut::NoLocalAttributes(reversed.format())));
        let turned = merged_attrs(FactorRule::Transpose, &reversed, None, None);
        assert_eq!(turned, Ok(reversed));
    }
}
