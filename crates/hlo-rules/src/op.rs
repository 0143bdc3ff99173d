//! The ops of terms.
//!
//! The ops are those of Unity's generator (Unger et al. 2022, §4) as HLO has them. Two have no opcode of their own: `stack` is a
//! concatenation of operands that got a dim of size one, `pick` a slice of size one whose dim is dropped. Both are one op here, because
//! isomorphic branches are stacked and picked apart as one step.

use crate::size::Size;
use smallvec::SmallVec;

/// Sizes of dims, major to minor.
pub type Dims = SmallVec<[Size; 4]>;

/// Numbers of dims.
pub type DimList = SmallVec<[u8; 4]>;

/// A function of one number of which nothing is known but its value at zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Unary {
    /// `max(x, 0)`; zero at zero.
    Relu,
    /// `1` where `x > 0`, else `0`: what relu's gradient is multiplied by; zero at zero.
    Step,
    /// `e^x`; one at zero.
    Exp,
}

impl Unary {
    /// All of them.
    pub const ALL: [Unary; 3] = [Unary::Relu, Unary::Step, Unary::Exp];

    /// Its name in rules.
    pub fn name(self) -> &'static str {
        match self {
            Unary::Relu => "relu",
            Unary::Step => "step",
            Unary::Exp => "exp",
        }
    }

    /// Its value at zero.
    pub(crate) fn at_zero(self) -> i64 {
        match self {
            Unary::Relu | Unary::Step => 0,
            Unary::Exp => 1,
        }
    }
}

/// Dims of a dot, as pairs of a dim of the left and one of the right operand.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct DotDims {
    /// In both operands and in the result.
    pub batch: SmallVec<[(u8, u8); 2]>,
    /// Summed over.
    pub contract: SmallVec<[(u8, u8); 2]>,
}

impl DotDims {
    /// The left operand's dims that only it has.
    pub(crate) fn left_free(&self, rank: usize) -> DimList {
        let taken = |d: u8| self.batch.iter().chain(&self.contract).any(|pair| pair.0 == d);
        (0..rank as u8).filter(|&d| !taken(d)).collect()
    }

    /// The right operand's dims that only it has.
    pub(crate) fn right_free(&self, rank: usize) -> DimList {
        let taken = |d: u8| self.batch.iter().chain(&self.contract).any(|pair| pair.1 == d);
        (0..rank as u8).filter(|&d| !taken(d)).collect()
    }
}

/// The window of a convolution along one spatial dim: output place `o` and kernel place `k` meet input place
/// `(stride*o + dilation*k - low) / base`, if that is whole and within the input.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Window {
    /// Step between two windows.
    pub stride: Size,
    /// Padding before.
    pub low: Size,
    /// Dilation of the input.
    pub base: Size,
    /// Dilation of the kernel.
    pub dilation: Size,
    /// Size of the output; HLO's padding after follows from it.
    pub out: Size,
    /// The kernel's places are counted from its end.
    pub is_reversed: bool,
}

/// A convolution of an input `[n, c, spatial…]` with a kernel `[f, c, spatial…]` into `[n, f, spatial…]`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Conv {
    /// One for each spatial dim.
    pub windows: SmallVec<[Window; 2]>,
    /// Input features and outputs fall into so many groups, which meet only each other; the kernel has `c / groups`.
    pub feature_groups: u8,
    /// Batches and outputs fall into so many groups; the result has `n / groups`.
    pub batch_groups: u8,
}

/// What a term is.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Op {
    /// An input of the rule, by number; its dims are stated.
    Input(u8),
    /// Sums of products: `[batch…, left free…, right free…]`.
    Dot(DotDims),
    /// A convolution.
    Conv(Box<Conv>),
    /// Element by element.
    Add,
    /// Element by element.
    Multiply,
    /// The first operand times the second, a scalar.
    Scale,
    /// A function of each element.
    Unary(Unary),
    /// The larger element.
    Max,
    /// `1` where the first operand's element is above the second's, else `0`: the mask of max's gradient.
    Above,
    /// Result dim `i` is operand dim `dims[i]`.
    Transpose(DimList),
    /// The same elements in row-major order.
    Reshape(Dims),
    /// `size` places of a dim, from `start`.
    Slice {
        /// The dim.
        dim: u8,
        /// First place.
        start: Size,
        /// Number of places.
        size: Size,
    },
    /// Operands after one another.
    Concat {
        /// The dim.
        dim: u8,
    },
    /// Operands along a new dim.
    Stack {
        /// The new dim.
        dim: u8,
    },
    /// One place of a dim, which is dropped.
    Pick {
        /// The dim.
        dim: u8,
        /// Which place.
        place: u8,
    },
    /// Zeros before and after.
    Pad {
        /// The dim.
        dim: u8,
        /// Zeros before.
        low: Size,
        /// Zeros after.
        high: Size,
    },
    /// Repeated along new dims: `(dim of the result, size)`, ascending.
    Broadcast(SmallVec<[(u8, Size); 2]>),
    /// Summed over dims, ascending.
    Reduce(DimList),
}

impl Op {
    /// Its name in rules.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Input(_) => "input",
            Op::Dot(_) => "dot",
            Op::Conv(_) => "conv",
            Op::Add => "add",
            Op::Multiply => "multiply",
            Op::Scale => "scale",
            Op::Unary(unary) => unary.name(),
            Op::Max => "max",
            Op::Above => "above",
            Op::Transpose(_) => "transpose",
            Op::Reshape(_) => "reshape",
            Op::Slice { .. } => "slice",
            Op::Concat { .. } => "concat",
            Op::Stack { .. } => "stack",
            Op::Pick { .. } => "pick",
            Op::Pad { .. } => "pad",
            Op::Broadcast(_) => "broadcast",
            Op::Reduce(_) => "reduce",
        }
    }
}

impl Op {
    /// Whether it does no arithmetic.
    pub fn is_movement(&self) -> bool {
        match self {
            Op::Input(_)
            | Op::Transpose(_)
            | Op::Reshape(_)
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Stack { .. }
            | Op::Pick { .. }
            | Op::Pad { .. }
            | Op::Broadcast(_) => true,
            Op::Dot(_)
            | Op::Conv(_)
            | Op::Add
            | Op::Multiply
            | Op::Scale
            | Op::Unary(_)
            | Op::Max
            | Op::Above
            | Op::Reduce(_) => false,
        }
    }

    /// Whether swapped operands give the same, but perhaps with dims in another order.
    pub(crate) fn is_commutative(&self) -> bool {
        match self {
            Op::Dot(_) | Op::Add | Op::Multiply | Op::Max => true,
            Op::Input(_)
            | Op::Conv(_)
            | Op::Scale
            | Op::Unary(_)
            | Op::Above
            | Op::Transpose(_)
            | Op::Reshape(_)
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Stack { .. }
            | Op::Pick { .. }
            | Op::Pad { .. }
            | Op::Broadcast(_)
            | Op::Reduce(_) => false,
        }
    }

    /// Whether proofs know nothing of it but its value at zero.
    pub(crate) fn is_function(&self) -> bool {
        match self {
            Op::Unary(_) | Op::Max | Op::Above => true,
            Op::Input(_)
            | Op::Dot(_)
            | Op::Conv(_)
            | Op::Add
            | Op::Multiply
            | Op::Scale
            | Op::Transpose(_)
            | Op::Reshape(_)
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Stack { .. }
            | Op::Pick { .. }
            | Op::Pad { .. }
            | Op::Broadcast(_)
            | Op::Reduce(_) => false,
        }
    }

    /// The op with each of its sizes rewritten.
    pub(crate) fn with_sizes(&self, size: &dyn Fn(&Size) -> Size) -> Op {
        match self {
            Op::Conv(conv) => {
                let window = |w: &Window| Window {
                    stride: size(&w.stride),
                    low: size(&w.low),
                    base: size(&w.base),
                    dilation: size(&w.dilation),
                    out: size(&w.out),
                    is_reversed: w.is_reversed,
                };
                Op::Conv(Box::new(Conv { windows: conv.windows.iter().map(window).collect(), ..(**conv).clone() }))
            }
            Op::Reshape(dims) => Op::Reshape(dims.iter().map(size).collect()),
            Op::Slice { dim, start, size: n } => Op::Slice { dim: *dim, start: size(start), size: size(n) },
            Op::Pad { dim, low, high } => Op::Pad { dim: *dim, low: size(low), high: size(high) },
            Op::Broadcast(new) => Op::Broadcast(new.iter().map(|(d, n)| (*d, size(n))).collect()),
            Op::Input(_)
            | Op::Dot(_)
            | Op::Add
            | Op::Multiply
            | Op::Scale
            | Op::Unary(_)
            | Op::Max
            | Op::Above
            | Op::Transpose(_)
            | Op::Concat { .. }
            | Op::Stack { .. }
            | Op::Pick { .. }
            | Op::Reduce(_) => self.clone(),
        }
    }

    /// The sizes in its attributes.
    pub(crate) fn sizes(&self) -> Vec<&Size> {
        match self {
            Op::Conv(conv) => {
                conv.windows.iter().flat_map(|w| [&w.stride, &w.low, &w.base, &w.dilation, &w.out]).collect()
            }
            Op::Reshape(dims) => dims.iter().collect(),
            Op::Slice { start, size, .. } => vec![start, size],
            Op::Pad { low, high, .. } => vec![low, high],
            Op::Broadcast(new) => new.iter().map(|(_, n)| n).collect(),
            Op::Input(_)
            | Op::Dot(_)
            | Op::Add
            | Op::Multiply
            | Op::Scale
            | Op::Unary(_)
            | Op::Max
            | Op::Above
            | Op::Transpose(_)
            | Op::Concat { .. }
            | Op::Stack { .. }
            | Op::Pick { .. }
            | Op::Reduce(_) => Vec::new(),
        }
    }
}

/// Why an op does not take its operands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeError {
    /// The op's name.
    pub op: &'static str,
    /// What it needs.
    pub expected: &'static str,
}

impl std::fmt::Display for TypeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: expected {}", self.op, self.expected)
    }
}

impl std::error::Error for TypeError {}
