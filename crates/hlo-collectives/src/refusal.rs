//! Why a collective is left as it is: the one catalogue of this crate. Reports print it.

use hlo_cluster::ClusterError;
use hlo_ir::DType;
use hlo_ir::groups::GroupsError;
use hlo_spmd::{NoOwnSlice, Obstacle};
use std::fmt;

/// Why a collective is left as it is.
#[derive(Clone, PartialEq, Debug)]
pub enum CollectiveRefusal {
    /// What keeps any pass from changing it.
    Obstacle(Obstacle),
    /// Its groups are not valid on the module's devices.
    Groups(GroupsError),
    /// It has no attribute for groups.
    NoGroups,
    /// Its groups have members in different numbers.
    UnevenGroups,
    /// Each of its groups is one device.
    LoneDevices,
    /// Its reducer is not one associative op.
    UnknownReducer,
    /// It is not about arrays.
    NoArrays,
    /// A pass that combines collectives leaves it.
    Combine(CombineRefusal),
    /// A pass that decomposes collectives leaves it.
    Decompose(DecomposeRefusal),
    /// A pass that makes a reduce-scatter of it leaves it.
    Scatter(ScatterRefusal),
    /// A pass that folds an all-reduce of equal values leaves it.
    Fold(FoldRefusal),
    /// A pass that takes it apart beside a product leaves it.
    Matmul(MatmulRefusal),
}

/// What is wrong with the options of a pass.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum OptionError {
    /// One part is the whole.
    OnePart,
    /// A share that is none.
    MinGain {
        /// The number.
        found: f64,
    },
}

/// Why a collective beside a product is not taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatmulRefusal {
    /// Its reduction is no sum.
    NoSum,
    /// Its groups are too large for a ring that is written out.
    LongRing {
        /// Members of a group.
        n: usize,
        /// The most.
        most: usize,
    },
    /// Permutes name replicas or partitions, not both.
    ReplicasAndPartitions,
}

/// Why a collective is not combined with others.
#[derive(Clone, PartialEq, Debug)]
pub enum CombineRefusal {
    /// It is combined already.
    SeveralArrays,
    /// Its operand is no array.
    NoArray,
    /// Its operand is what packing makes.
    PackedAlready,
    /// It is empty or too large.
    Bytes {
        /// Its own.
        bytes: u64,
        /// Most that one may have.
        threshold_bytes: u64,
    },
}

/// Why a collective is not decomposed.
#[derive(Clone, PartialEq, Debug)]
pub enum DecomposeRefusal {
    /// Nothing is moved.
    NoElements,
    /// Its padded size might not be a number.
    TooLarge {
        /// Bytes that it must have fewer of.
        limit_bytes: u64,
    },
    /// The groups are no digits of the cluster's levels.
    StrayGroups,
    /// It has no arrays at all.
    NoParts,
    /// Its reducer is not one associative op.
    UnknownReducer,
    /// The groups span more levels than programs are made for.
    TooManyLevels {
        /// Levels that they span.
        n_levels: usize,
        /// Levels of a program, at most.
        most: usize,
    },
    /// No program of several steps takes less time.
    NoFasterProgram {
        /// What the collective is called.
        what: &'static str,
        /// Predicted time of the collective, in nanoseconds.
        before_ns: f64,
    },
    /// The best program does not take little enough time.
    SavesTooLittle {
        /// What the collective is called.
        what: &'static str,
        /// Predicted time of the collective, in nanoseconds.
        before_ns: f64,
        /// Predicted time of the program, in nanoseconds.
        after_ns: f64,
        /// Elements before and after padding.
        n_elems: (u64, u64),
        /// The least share that it must save.
        min_gain: f64,
    },
    /// Arrays cannot say any program.
    NoProgram,
    /// The groups do not hold every chunk.
    UncoveredChunks,
    /// Groups would need one array in several orders.
    ChunkOrder,
    /// The cluster refuses the request.
    Cluster(ClusterError),
}

/// Why an all-reduce does not become a reduce-scatter.
#[derive(Clone, PartialEq, Debug)]
pub enum ScatterRefusal {
    /// Something takes the whole result.
    WholeUsed {
        /// Its name.
        by: String,
    },
    /// The whole result is what the computation returns.
    WholeReturned,
    /// Nothing takes the result.
    Unused,
    /// Two users take different slices.
    DifferentSlices,
    /// A slice is not each device's own part.
    Slice(NoOwnSlice),
}

impl From<NoOwnSlice> for ScatterRefusal {
    fn from(reason: NoOwnSlice) -> ScatterRefusal {
        ScatterRefusal::Slice(reason)
    }
}

/// Why what is computed on the slices of a flat array is not computed on the array.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum FlattenRefusal {
    /// Some elements are in no slice, or in two.
    NoPartition,
    /// A slice is used in several places, or returned.
    SeveralUses {
        /// The slice, or its reshape.
        part: String,
    },
    /// The op is not elementwise on arrays of the slice's size.
    NotElementwise {
        /// The op's name.
        name: String,
    },
    /// Two slices are used by ops that are not alike.
    NotAlike {
        /// The first slice's op.
        first: String,
        /// The other's.
        other: String,
    },
    /// What is computed from one slice decides what is computed from another.
    Dependent {
        /// The op that waits.
        name: String,
    },
}

/// Why an all-reduce of equal values is not folded.
#[derive(Clone, PartialEq, Debug)]
pub enum FoldRefusal {
    /// A product of equal values is a power.
    Product,
    /// The number of devices is another one for each group.
    UnevenGroups,
    /// It is not about arrays.
    NoArray,
    /// Its reducer is not one associative op.
    UnknownReducer,
    /// The element type cannot hold the number of devices.
    NotHeld {
        /// The element type.
        dtype: DType,
        /// Devices of a group.
        n: usize,
    },
}

impl From<Obstacle> for CollectiveRefusal {
    fn from(obstacle: Obstacle) -> CollectiveRefusal {
        CollectiveRefusal::Obstacle(obstacle)
    }
}

impl From<CombineRefusal> for CollectiveRefusal {
    fn from(refusal: CombineRefusal) -> CollectiveRefusal {
        CollectiveRefusal::Combine(refusal)
    }
}

impl From<DecomposeRefusal> for CollectiveRefusal {
    fn from(refusal: DecomposeRefusal) -> CollectiveRefusal {
        CollectiveRefusal::Decompose(refusal)
    }
}

impl From<ScatterRefusal> for CollectiveRefusal {
    fn from(refusal: ScatterRefusal) -> CollectiveRefusal {
        CollectiveRefusal::Scatter(refusal)
    }
}

impl From<MatmulRefusal> for CollectiveRefusal {
    fn from(refusal: MatmulRefusal) -> CollectiveRefusal {
        CollectiveRefusal::Matmul(refusal)
    }
}

impl From<FoldRefusal> for CollectiveRefusal {
    fn from(refusal: FoldRefusal) -> CollectiveRefusal {
        CollectiveRefusal::Fold(refusal)
    }
}

impl fmt::Display for CollectiveRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CollectiveRefusal::Obstacle(obstacle) => obstacle.fmt(f),
            CollectiveRefusal::Groups(error) => error.fmt(f),
            CollectiveRefusal::NoGroups => f.write_str("has no groups"),
            CollectiveRefusal::UnevenGroups => f.write_str("its groups differ in size"),
            CollectiveRefusal::LoneDevices => f.write_str("its groups have one device each"),
            CollectiveRefusal::UnknownReducer => f.write_str("its reducer is none of the well-known ones"),
            CollectiveRefusal::NoArrays => f.write_str("takes something else than arrays"),
            CollectiveRefusal::Combine(refusal) => refusal.fmt(f),
            CollectiveRefusal::Decompose(refusal) => refusal.fmt(f),
            CollectiveRefusal::Scatter(refusal) => refusal.fmt(f),
            CollectiveRefusal::Fold(refusal) => refusal.fmt(f),
            CollectiveRefusal::Matmul(refusal) => refusal.fmt(f),
        }
    }
}

impl fmt::Display for MatmulRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MatmulRefusal::NoSum => f.write_str("its reduction is no sum"),
            MatmulRefusal::LongRing { n, most } => {
                write!(f, "its groups have {n} devices; rings are written for at most {most}")
            }
            MatmulRefusal::ReplicasAndPartitions => f.write_str(
                "the module has several replicas of several partitions, and a permute names one or the other",
            ),
        }
    }
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionError::OnePart => f.write_str("parts: expected 0 or at least 2, found 1"),
            OptionError::MinGain { found } => write!(f, "min-gain: expected a share from 0 to 1, found {found}"),
        }
    }
}

impl std::error::Error for OptionError {}

impl fmt::Display for CombineRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CombineRefusal::SeveralArrays => f.write_str("takes several arrays already"),
            CombineRefusal::NoArray => f.write_str("takes no array"),
            CombineRefusal::PackedAlready => f.write_str("is packed already: its operand is a concatenation"),
            CombineRefusal::Bytes { bytes, threshold_bytes } => {
                write!(f, "{bytes} bytes, with threshold-bytes={threshold_bytes}")
            }
        }
    }
}

impl fmt::Display for DecomposeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecomposeRefusal::NoElements => f.write_str("has no elements"),
            DecomposeRefusal::TooLarge { limit_bytes } => {
                write!(f, "is larger than any memory: expected fewer than {limit_bytes} bytes")
            }
            DecomposeRefusal::StrayGroups => f.write_str("its groups do not lie along the levels of the cluster"),
            DecomposeRefusal::NoParts => f.write_str("takes no array"),
            DecomposeRefusal::UnknownReducer => {
                f.write_str("its reduction is none of add, multiply, minimum, maximum, and, or")
            }
            DecomposeRefusal::TooManyLevels { n_levels, most } => {
                write!(f, "its groups span {n_levels} levels, programs are made for at most {most}")
            }
            DecomposeRefusal::NoFasterProgram { what, before_ns } => {
                write!(f, "one {what} takes {before_ns:.0} ns, no program takes less")
            }
            DecomposeRefusal::SavesTooLittle { what, before_ns, after_ns, n_elems: (bare, padded), min_gain } => {
                write!(f, "one {what} takes {before_ns:.0} ns, the best program")?;
                if bare != padded {
                    write!(f, " (padded from {bare} to {padded} elements)")?;
                }
                write!(f, " {after_ns:.0}: ")?;
                match after_ns < before_ns {
                    true => write!(f, "saves less than min-gain, {min_gain}"),
                    false => f.write_str("saves nothing"),
                }
            }
            DecomposeRefusal::NoProgram => f.write_str("no program can be said"),
            DecomposeRefusal::UncoveredChunks => f.write_str("its groups do not cover all chunks"),
            DecomposeRefusal::ChunkOrder => f.write_str("its groups need their chunks in different orders"),
            DecomposeRefusal::Cluster(error) => error.fmt(f),
        }
    }
}

impl fmt::Display for ScatterRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ScatterRefusal::WholeUsed { by } => return write!(f, "its whole result is used by %{by}"),
            ScatterRefusal::WholeReturned => "its whole result is the computation's",
            ScatterRefusal::Unused => "nothing uses it",
            ScatterRefusal::DifferentSlices => "its users take different slices",
            ScatterRefusal::Slice(NoOwnSlice::NoArray) => "is no array",
            ScatterRefusal::Slice(NoOwnSlice::NotOneDim) => "its slices are not cut along one dim",
            ScatterRefusal::Slice(NoOwnSlice::UnequalParts) => {
                "its slices are not equal parts, one for each device of a group"
            }
            ScatterRefusal::Slice(NoOwnSlice::NoStart) => "its slices have no start",
            ScatterRefusal::Slice(NoOwnSlice::UnknownStarts) => "its slices start where not only the device says",
            ScatterRefusal::Slice(NoOwnSlice::Overlap) => "its devices take overlapping slices",
        })
    }
}

impl fmt::Display for FlattenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FlattenRefusal::NoPartition => f.write_str("its slices are not a partition of its elements"),
            FlattenRefusal::SeveralUses { part } => write!(f, "%{part} is used in several places, or returned"),
            FlattenRefusal::NotElementwise { name } => {
                write!(f, "%{name} is not elementwise on arrays of its slice's size")
            }
            FlattenRefusal::NotAlike { first, other } => {
                write!(f, "one slice is used by %{first} and another by %{other}, which are not alike")
            }
            FlattenRefusal::Dependent { name } => write!(f, "%{name} takes what is computed from another slice"),
        }
    }
}

impl fmt::Display for FoldRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FoldRefusal::Product => f.write_str("a product of equal values is a power"),
            FoldRefusal::UnevenGroups => {
                f.write_str("its groups differ in size: each device would multiply by another number")
            }
            FoldRefusal::UnknownReducer => f.write_str("its reducer is none of the well-known ones"),
            FoldRefusal::NoArray => f.write_str("not an array"),
            FoldRefusal::NotHeld { dtype, n } => write!(f, "{dtype} does not hold the number {n}"),
        }
    }
}
