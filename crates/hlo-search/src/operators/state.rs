//! Where the axes of a mesh have a tensor.

use smallvec::SmallVec;
use std::fmt;

/// What one axis does to a tensor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AxisState {
    /// The devices along the axis have consecutive parts of this dim.
    Cut(usize),
    /// All devices along the axis have the same values: R.
    Replicated,
    /// The true value is the sum of what the devices along the axis have: P.
    Partial,
}

impl fmt::Display for AxisState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(dim) => write!(f, "{dim}"),
            Self::Replicated => f.write_str("R"),
            Self::Partial => f.write_str("P"),
        }
    }
}

/// One [`AxisState`] for each axis of an ordered mesh. Of axes that cut the same dim the first is the outermost; the last parts may be
/// padded, so that all devices have equal shapes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TensorState(pub SmallVec<[AxisState; 4]>);

impl TensorState {
    /// A tensor that every device has whole.
    pub fn replicated(n_axes: usize) -> Self {
        Self(SmallVec::from_elem(AxisState::Replicated, n_axes))
    }

    /// The shape of a device's part of a tensor of shape `dims`: each cut dim divided by the sizes of its axes, rounded up.
    pub fn local_dims(&self, dims: &[u64], mesh: &[u64]) -> SmallVec<[u64; 6]> {
        let divided = |(dim, &len): (usize, &u64)| len.div_ceil(self.n_parts(dim, mesh));
        dims.iter().enumerate().map(divided).collect()
    }

    /// Into how many parts the axes cut a dim.
    pub fn n_parts(&self, dim: usize, mesh: &[u64]) -> u64 {
        self.0.iter().zip(mesh).filter(|(state, _)| **state == AxisState::Cut(dim)).map(|(_, n)| n).product()
    }
}

impl fmt::Display for TensorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (at, state) in self.0.iter().enumerate() {
            write!(f, "{}{state}", if at == 0 { "" } else { " " })?;
        }
        f.write_str("]")
    }
}
