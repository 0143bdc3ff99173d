//! The six parallel operators, each along one axis of a mesh: what they make of a tensor's state, their adjoints, the bytes that a device
//! receives, and which equalities between them hold (Unger et al., *Unity*, OSDI 2022, section 3).
//!
//! A tensor has one [`AxisState`] for each axis: cut along a dim, replicated (R), or partial (P: the true value is the sum along the axis).
//! R and P are different states; Unity has one replica degree for both.
//!
//! | operator | state | adjoint | HLO | received bytes |
//! |---|---|---|---|---|
//! | `Partition(d)` | R → d | `Combine(d)` | dynamic-slice | 0 |
//! | `Combine(d)` | d → R | `Partition(d)` | all-gather | (n − 1) · p |
//! | `Replicate` | R → R | `Reduce` | none: a program for each device begins with R | 0 |
//! | `Reduce` | P → R | `Replicate` | all-reduce | 2 (n − 1) · ⌈p / n⌉ |
//! | `Pipeline(d, m)` | none; size ÷ m | `Batch(d, m)` | a loop over m pieces | 0 |
//! | `Batch(d, m)` | none; size × m | `Pipeline(d, m)` | its end | 0 |
//!
//! Here n is the size of the axis and p a device's bytes before. Two operators next to each other may be one collective: see
//! [`movements`]. The [`IDENTITIES`] and what a reduction passes ([`PASSINGS`]) are tables; tests run every row on simulated devices.

mod identities;
mod movement;
mod operator;
mod passing;
mod state;

pub use identities::{IDENTITIES, Identity, Side, Space};
pub use movement::{Move, Movement, movements};
pub use operator::{AxisOperator, Operator, OperatorError};
pub use passing::{LocalOp, OperandState, PASSINGS, Passes, Passing};
pub use state::{AxisState, TensorState};
