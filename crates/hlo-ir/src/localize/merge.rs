//! Attributes of an op whose consecutive dims became one dim, by a trivial reshape of its operands and of its result.

use super::CannotCut;
use crate::attrs::{Attrs, CompareAttrs, DimsAttrs, ReduceAttrs, ReducePrecisionAttrs, ReshapeAttrs};
use crate::op::FactorRule;
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
    // The side whose dims the attributes name: `map` lists all dims of its result, a broadcast the result dims of its operand's.
    let range = match rule {
        FactorRule::Elementwise | FactorRule::Broadcast => result,
        FactorRule::Transpose | FactorRule::Reduce => operand,
        FactorRule::Reshape => None,
        FactorRule::Bitcast
        | FactorRule::BitcastConvert
        | FactorRule::Reverse
        | FactorRule::Slice
        | FactorRule::DynamicSlice
        | FactorRule::DynamicUpdateSlice
        | FactorRule::Pad
        | FactorRule::Concatenate
        | FactorRule::Iota
        | FactorRule::Dot
        | FactorRule::Convolution
        | FactorRule::ReduceWindow
        | FactorRule::SelectAndScatter
        | FactorRule::Sort
        | FactorRule::Gather
        | FactorRule::Scatter
        | FactorRule::Cholesky
        | FactorRule::TriangularSolve
        | FactorRule::Fft
        | FactorRule::BatchNorm
        | FactorRule::CustomCall
        | FactorRule::Structural(_)
        | FactorRule::Whole(_) => return Err(unknown),
    };
    Ok(match attrs {
        Attrs::Plain => Attrs::Plain,
        Attrs::Compare(a) => CompareAttrs { direction: a.direction, order: a.order.clone() }.into(),
        Attrs::ReducePrecision(a) => {
            ReducePrecisionAttrs { exponent_bits: a.exponent_bits, mantissa_bits: a.mantissa_bits }.into()
        }
        Attrs::Dims(a) => DimsAttrs { dimensions: merge(&a.dimensions, range) }.into(),
        Attrs::Reduce(a) => ReduceAttrs { dimensions: merge(&a.dimensions, range), to_apply: a.to_apply }.into(),
        Attrs::Reshape(_) => ReshapeAttrs { inferred_dimension: None }.into(),
        Attrs::Constant(_)
        | Attrs::Parameter(_)
        | Attrs::TupleIndex(_)
        | Attrs::Iota(_)
        | Attrs::Slice(_)
        | Attrs::DynamicSlice(_)
        | Attrs::Pad(_)
        | Attrs::Dot(_)
        | Attrs::Conv(_)
        | Attrs::Gather(_)
        | Attrs::Scatter(_)
        | Attrs::Sort(_)
        | Attrs::ReduceWindow(_)
        | Attrs::SelectAndScatter(_)
        | Attrs::Scan(_)
        | Attrs::Call(_)
        | Attrs::Fusion(_)
        | Attrs::While(_)
        | Attrs::Conditional(_)
        | Attrs::Custom(_)
        | Attrs::Combining(_)
        | Attrs::Gathering(_)
        | Attrs::Exchanging(_)
        | Attrs::Permuting(_)
        | Attrs::Transfer(_)
        | Attrs::Infeed(_)
        | Attrs::Outfeed(_)
        | Attrs::Rng(_)
        | Attrs::RngBits(_)
        | Attrs::RngState(_)
        | Attrs::TriangularSolve(_)
        | Attrs::Cholesky(_)
        | Attrs::Fft(_)
        | Attrs::BatchNorm(_)
        | Attrs::Domain(_)
        | Attrs::Async(_)
        | Attrs::CopyStart(_)
        | Attrs::TopK(_)
        | Attrs::Metadata(_) => return Err(unknown),
    })
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
