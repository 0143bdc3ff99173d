//! Equalities between sequences of operators along one axis, those that hold and those that do not.

use super::operator::Operator;

/// What a sequence starts from: a linear map's space has one copy of a replicated value, and one array for each device otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// One value, which all devices have: R.
    One,
    /// An array for each device, cut or partial.
    Each,
}

/// A side of an equality, as a function of a value x.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// These operators, the first one first; none is x itself.
    Operators(&'static [Operator]),
    /// n · x, where n is the size of the axis.
    TimesAxis,
    /// Each device adds the parts of what all devices have for it.
    ReduceScatter(usize),
    /// Each device sends its parts of the second dim, and joins what it gets along the first.
    AllToAll(usize, usize),
}

/// Whether two sides are equal for every x. Dims are those of a matrix whose dims n and the number of pieces divide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// What x is.
    pub space: Space,
    /// One side.
    pub left: &'static [Operator],
    /// The other side.
    pub right: Side,
    /// Whether they are equal, for every axis of at least two devices.
    pub holds: bool,
}

const fn equal(space: Space, left: &'static [Operator], right: Side) -> Identity {
    Identity { space, left, right, holds: true }
}

const fn unequal(space: Space, left: &'static [Operator], right: Side) -> Identity {
    Identity { space, left, right, holds: false }
}

const NOTHING: Side = Side::Operators(&[]);

/// The equalities, each followed by what is mistaken for it.
pub const IDENTITIES: &[Identity] = {
    use Operator::{Batch, Combine, Partition, Pipeline, Reduce, Replicate};
    use Space::{Each, One};
    &[
        // Partition and Combine of one dim are inverses; of two dims they are an all-to-all.
        equal(One, &[Partition(0), Combine(0)], NOTHING),
        equal(Each, &[Combine(0), Partition(0)], NOTHING),
        equal(Each, &[Combine(0), Partition(1)], Side::AllToAll(0, 1)),
        unequal(One, &[Partition(0), Combine(1)], NOTHING),
        unequal(Each, &[Combine(0), Partition(1)], NOTHING),
        unequal(Each, &[Combine(0), Partition(1)], Side::AllToAll(1, 0)),
        // Replicate and Reduce are adjoint, not inverse: a replicated value is not a partial one.
        equal(One, &[Replicate, Reduce], Side::TimesAxis),
        unequal(One, &[Replicate, Reduce], NOTHING),
        unequal(Each, &[Reduce, Replicate], NOTHING),
        unequal(Each, &[Reduce, Replicate], Side::TimesAxis),
        // A sum of which each device keeps a part.
        equal(Each, &[Reduce, Partition(0)], Side::ReduceScatter(0)),
        equal(Each, &[Reduce, Partition(0), Combine(0)], Side::Operators(&[Reduce])),
        unequal(Each, &[Reduce, Partition(0)], Side::ReduceScatter(1)),
        unequal(Each, &[Reduce, Partition(0)], NOTHING),
        // A cut value is not a partial one.
        unequal(One, &[Partition(0), Reduce], NOTHING),
        unequal(Each, &[Combine(0)], Side::Operators(&[Reduce])),
        // Pieces in time, of which the operators along the axis know nothing.
        equal(One, &[Pipeline { dim: 0, n_pieces: 2 }, Batch { dim: 0, n_pieces: 2 }], NOTHING),
        equal(
            One,
            &[Pipeline { dim: 0, n_pieces: 2 }, Partition(1), Batch { dim: 0, n_pieces: 2 }],
            Side::Operators(&[Partition(1)]),
        ),
        equal(
            Each,
            &[Pipeline { dim: 0, n_pieces: 2 }, Reduce, Batch { dim: 0, n_pieces: 2 }],
            Side::Operators(&[Reduce]),
        ),
        unequal(One, &[Pipeline { dim: 0, n_pieces: 2 }, Batch { dim: 1, n_pieces: 2 }], NOTHING),
        // Each piece is cut by itself: a device gets a part of every piece, not consecutive rows.
        unequal(
            One,
            &[Pipeline { dim: 0, n_pieces: 2 }, Partition(0), Batch { dim: 0, n_pieces: 2 }],
            Side::Operators(&[Partition(0)]),
        ),
    ]
};
