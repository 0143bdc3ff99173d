//! What a reduction may be moved behind: `op(Reduce(x)) = Reduce(op(x))` for ops that are linear in their partial operands.

/// An op on each device, by what it does to sums.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LocalOp {
    /// −a.
    Negate,
    /// Dims in another order.
    Transpose,
    /// The same elements in another shape.
    Reshape,
    /// A part of a.
    Slice,
    /// a with zeros around it.
    PadWithZeros,
    /// a with ones around it.
    PadWithOnes,
    /// a and b, one behind the other.
    Concatenate,
    /// The sum over a dim of a.
    Sum,
    /// The product over a dim of a.
    Product,
    /// The largest of a dim of a.
    Largest,
    /// A copy of a for each place of a new dim.
    Broadcast,
    /// a times a scalar b.
    Scale,
    /// a + b.
    Add,
    /// a − b.
    Subtract,
    /// a · b, elementwise.
    Multiply,
    /// a / b, elementwise.
    Divide,
    /// The larger of a and b, elementwise.
    Maximum,
    /// The matrix product of a and b.
    Dot,
    /// The convolution of the image a with the kernel b.
    Convolution,
    /// a in a type of fewer bits.
    ConvertToNarrower,
    /// a in a type of more bits.
    ConvertToWider,
}

/// What an operand is along the axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OperandState {
    /// R.
    Replicated,
    /// P.
    Partial,
}

/// Whether a reduction may stand behind the op in the place of one before it for each partial operand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Passes {
    /// The results are the same bits: the op moves elements or changes their signs, and makes no sums.
    Bits,
    /// The results are equal for exact numbers: sums are made in another order, or scaled later.
    Exact,
    /// Every part is rounded to the narrower type instead of the sum. Only where the user allows other rounding.
    Reassociated,
    /// The results differ.
    No,
}

/// What a reduction does at an op with these operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passing {
    /// The op.
    pub op: LocalOp,
    /// Its operands.
    pub operands: &'static [OperandState],
    /// Whether the reduction passes.
    pub passes: Passes,
}

const fn row(op: LocalOp, operands: &'static [OperandState], passes: Passes) -> Passing {
    Passing { op, operands, passes }
}

/// Which ops a reduction passes. Rows without a partial operand are left out: there is nothing to reduce.
pub const PASSINGS: &[Passing] = {
    use OperandState::{Partial, Replicated};
    use Passes::{Bits, Exact, No, Reassociated};
    &[
        row(LocalOp::Negate, &[Partial], Bits),
        row(LocalOp::Transpose, &[Partial], Bits),
        row(LocalOp::Reshape, &[Partial], Bits),
        row(LocalOp::Slice, &[Partial], Bits),
        row(LocalOp::PadWithZeros, &[Partial], Bits),
        row(LocalOp::PadWithOnes, &[Partial], No),
        row(LocalOp::Concatenate, &[Partial, Partial], Bits),
        row(LocalOp::Concatenate, &[Partial, Replicated], No),
        row(LocalOp::Sum, &[Partial], Exact),
        row(LocalOp::Product, &[Partial], No),
        row(LocalOp::Largest, &[Partial], No),
        row(LocalOp::Broadcast, &[Partial], Bits),
        row(LocalOp::Scale, &[Partial, Replicated], Exact),
        row(LocalOp::Scale, &[Replicated, Partial], Exact),
        row(LocalOp::Scale, &[Partial, Partial], No),
        row(LocalOp::Add, &[Partial, Partial], Exact),
        row(LocalOp::Add, &[Partial, Replicated], No),
        row(LocalOp::Add, &[Replicated, Partial], No),
        row(LocalOp::Subtract, &[Partial, Partial], Exact),
        row(LocalOp::Subtract, &[Partial, Replicated], No),
        row(LocalOp::Multiply, &[Partial, Replicated], Exact),
        row(LocalOp::Multiply, &[Replicated, Partial], Exact),
        row(LocalOp::Multiply, &[Partial, Partial], No),
        row(LocalOp::Divide, &[Partial, Replicated], Exact),
        row(LocalOp::Divide, &[Replicated, Partial], No),
        row(LocalOp::Divide, &[Partial, Partial], No),
        row(LocalOp::Maximum, &[Partial, Replicated], No),
        row(LocalOp::Maximum, &[Partial, Partial], No),
        row(LocalOp::Dot, &[Partial, Replicated], Exact),
        row(LocalOp::Dot, &[Replicated, Partial], Exact),
        row(LocalOp::Dot, &[Partial, Partial], No),
        row(LocalOp::Convolution, &[Partial, Replicated], Exact),
        row(LocalOp::Convolution, &[Replicated, Partial], Exact),
        row(LocalOp::Convolution, &[Partial, Partial], No),
        row(LocalOp::ConvertToNarrower, &[Partial], Reassociated),
        row(LocalOp::ConvertToWider, &[Partial], Exact),
    ]
};
