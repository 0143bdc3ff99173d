//! One operator along one axis.

use super::state::{AxisState, TensorState};
use std::fmt;

/// A parallel operator.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Operator {
    /// Each device keeps its part of a dim.
    Partition(usize),
    /// Each device gets all parts of a dim.
    Combine(usize),
    /// Each device gets the one value there is.
    Replicate,
    /// Each device gets the sum of all values.
    Reduce,
    /// The tensor goes through what follows in `n_pieces` pieces of a dim, one after the other.
    Pipeline {
        /// The dim that is cut in time.
        dim: usize,
        /// Into how many pieces.
        n_pieces: u64,
    },
    /// The pieces of a pipeline are one tensor again.
    Batch {
        /// The dim that was cut in time.
        dim: usize,
        /// Into how many pieces.
        n_pieces: u64,
    },
}

impl Operator {
    /// The operator that does to cotangents in the backward pass what this one does to values.
    pub fn adjoint(self) -> Self {
        match self {
            Self::Partition(dim) => Self::Combine(dim),
            Self::Combine(dim) => Self::Partition(dim),
            Self::Replicate => Self::Reduce,
            Self::Reduce => Self::Replicate,
            Self::Pipeline { dim, n_pieces } => Self::Batch { dim, n_pieces },
            Self::Batch { dim, n_pieces } => Self::Pipeline { dim, n_pieces },
        }
    }

    /// The dim that it works along, if it has one.
    pub fn dim(self) -> Option<usize> {
        match self {
            Self::Partition(dim) | Self::Combine(dim) | Self::Pipeline { dim, .. } | Self::Batch { dim, .. } => {
                Some(dim)
            }
            Self::Replicate | Self::Reduce => None,
        }
    }
}

impl fmt::Display for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Partition(dim) => write!(f, "Partition({dim})"),
            Self::Combine(dim) => write!(f, "Combine({dim})"),
            Self::Replicate => f.write_str("Replicate"),
            Self::Reduce => f.write_str("Reduce"),
            Self::Pipeline { dim, n_pieces } => write!(f, "Pipeline({dim}, {n_pieces})"),
            Self::Batch { dim, n_pieces } => write!(f, "Batch({dim}, {n_pieces})"),
        }
    }
}

/// An operator along an axis of the mesh.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AxisOperator {
    /// The axis, by its number in the mesh.
    pub axis: usize,
    /// What happens along it.
    pub operator: Operator,
}

/// Why an operator does not apply to a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OperatorError {
    /// The tensor has another state along the axis.
    State {
        /// The operator.
        operator: AxisOperator,
        /// The state it takes.
        expected: AxisState,
        /// The state there is.
        found: AxisState,
    },
    /// The mesh has no such axis.
    NoAxis {
        /// The operator.
        operator: AxisOperator,
        /// How many axes the mesh has.
        n_axes: usize,
    },
    /// The tensor has no such dim.
    NoDim {
        /// The operator.
        operator: AxisOperator,
        /// How many dims the tensor has.
        n_dims: usize,
    },
    /// The dim cannot be divided evenly into pieces in time.
    Pieces {
        /// The operator.
        operator: AxisOperator,
        /// The length of the dim.
        length: u64,
    },
    /// An axis further inwards cuts the same dim, so that the parts along this axis are not consecutive; or outer axes cut the dim
    /// unevenly, so that a device's part lies across the borders of the parts there are.
    NotNested {
        /// The operator.
        operator: AxisOperator,
        /// The state of the tensor.
        state: TensorState,
    },
}

impl fmt::Display for OperatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AxisOperator { axis, operator } = match self {
            Self::State { operator, .. }
            | Self::NoAxis { operator, .. }
            | Self::NoDim { operator, .. }
            | Self::Pieces { operator, .. }
            | Self::NotNested { operator, .. } => operator,
        };
        write!(f, "{operator} along axis {axis}: ")?;
        match self {
            Self::State { expected, found, .. } => write!(f, "expected state {expected}, found {found}"),
            Self::NoAxis { n_axes, .. } => write!(f, "expected an axis below {n_axes}"),
            Self::NoDim { n_dims, .. } => write!(f, "expected a dim below {n_dims}"),
            Self::Pieces { length, .. } => write!(f, "expected pieces that divide the dim, found length {length}"),
            Self::NotNested { state, .. } => {
                write!(f, "expected the innermost cut of the dim, and even cuts around it, found state {state}")
            }
        }
    }
}

impl std::error::Error for OperatorError {}

impl AxisOperator {
    /// Makes the state and the shape of a tensor of shape `dims` those behind it; `state` and `mesh` have the same axes. Only `Pipeline` and `Batch` change the shape: what follows has
    /// one piece.
    ///
    /// # Errors
    /// The tensor has another state, or the parts along the axis are not consecutive. Nothing is changed then.
    pub fn rewrite_state(self, dims: &mut [u64], state: &mut TensorState, mesh: &[u64]) -> Result<(), OperatorError> {
        let n_axes = mesh.len().min(state.0.len());
        if self.axis >= n_axes {
            return Err(OperatorError::NoAxis { operator: self, n_axes });
        }
        let found = state.0[self.axis];
        if self.operator.dim().is_some_and(|dim| dim >= dims.len()) {
            return Err(OperatorError::NoDim { operator: self, n_dims: dims.len() });
        }
        let expect = |expected: AxisState| {
            let error = OperatorError::State { operator: self, expected, found };
            if found == expected { Ok(()) } else { Err(error) }
        };
        match self.operator {
            Operator::Partition(dim) => {
                expect(AxisState::Replicated)?;
                self.check_nested(dim, dims, state, mesh)?;
                state.0[self.axis] = AxisState::Cut(dim);
            }
            Operator::Combine(dim) => {
                expect(AxisState::Cut(dim))?;
                self.check_nested(dim, dims, state, mesh)?;
                state.0[self.axis] = AxisState::Replicated;
            }
            Operator::Replicate => expect(AxisState::Replicated)?,
            Operator::Reduce => {
                expect(AxisState::Partial)?;
                state.0[self.axis] = AxisState::Replicated;
            }
            Operator::Pipeline { dim, n_pieces } => {
                let n_parts = state.n_parts(dim, mesh);
                if n_pieces == 0 || !dims[dim].is_multiple_of(n_parts * n_pieces) {
                    return Err(OperatorError::Pieces { operator: self, length: dims[dim] });
                }
                dims[dim] /= n_pieces;
            }
            Operator::Batch { dim, n_pieces } => dims[dim] *= n_pieces,
        }
        Ok(())
    }

    /// No axis further inwards cuts the dim, and the cut along this axis keeps every part within one part of the axes around it.
    fn check_nested(self, dim: usize, dims: &[u64], state: &TensorState, mesh: &[u64]) -> Result<(), OperatorError> {
        let cuts = |axis: &usize| state.0[*axis] == AxisState::Cut(dim);
        let is_innermost = !(self.axis + 1..state.0.len()).any(|axis| cuts(&axis));
        let n_around: u64 = (0..self.axis).filter(cuts).map(|axis| mesh[axis]).product();
        let (around, within) = (dims[dim].div_ceil(n_around), dims[dim].div_ceil(n_around * mesh[self.axis]));
        if is_innermost && (n_around == 1 || within * mesh[self.axis] == around) {
            Ok(())
        } else {
            Err(OperatorError::NotNested { operator: self, state: state.clone() })
        }
    }
}
