//! Why an array cannot go from one sharding to another.

use hlo_ir::axes::AxesError;
use hlo_ir::{DType, monoid::Monoid};
use std::fmt;

/// Which of the two shardings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The one that the array has.
    Source,
    /// The one that it is to have.
    Target,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Target => "target",
        })
    }
}

/// Why an array cannot go from one sharding to another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedistributionError {
    /// A sharding is no mesh with axes.
    Axes {
        /// Which one.
        end: End,
        /// What it is.
        error: AxesError,
    },
    /// A sharding is for another number of dims or devices than the other one.
    Unlike {
        /// What is counted.
        what: &'static str,
        /// How many the source has.
        source: usize,
        /// How many the target has.
        target: usize,
    },
    /// A dim has no elements, or a size that is known at run time only.
    Size {
        /// The dim.
        dim: usize,
        /// Its size.
        size: i64,
    },
    /// The shardings are manual along different axes.
    Manual,
    /// The target is a partial result over an axis over which the source is none.
    Unreduced,
    /// Partial results or manual axes, and the devices of the two shardings stand in different orders.
    Order,
    /// The reduction has no meaning for elements of this type.
    Reduction {
        /// The reduction.
        monoid: Monoid,
        /// The type.
        dtype: DType,
    },
    /// So many axes that no search is made, and neither constructed steps nor pieces reach the target.
    NoSteps {
        /// Devices.
        n_devices: usize,
    },
    /// Tiles of a dim that do not lie on one another, of too many devices to be sent one by one.
    Unaligned {
        /// The dim.
        dim: usize,
        /// Its size.
        size: i64,
        /// Tiles of the source.
        source: i64,
        /// Tiles of the target.
        target: i64,
        /// Devices.
        n_devices: usize,
    },
}

impl fmt::Display for RedistributionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RedistributionError::Axes { end, error } => write!(f, "{end} {error}"),
            RedistributionError::Unlike { what, source, target } => {
                write!(f, "target sharding: expected {source} {what} as in the source, found {target}")
            }
            RedistributionError::Size { dim, size } => {
                write!(f, "dim {dim}: expected a size of at least 1, found {size}")
            }
            RedistributionError::Manual => f.write_str(
                "target sharding: expected the manual axes of the source, found others",
            ),
            RedistributionError::Unreduced => f.write_str(
                "target sharding: expected partial results over axes over which the source has them, found another axis",
            ),
            RedistributionError::Order => f.write_str(
                "target sharding: expected the source's device order, as axes are manual or unreduced, found another one",
            ),
            RedistributionError::Reduction { monoid, dtype } => {
                write!(f, "reduction: expected one that is defined on {dtype}, found {}", monoid.opcode().name())
            }
            RedistributionError::NoSteps { n_devices } => {
                write!(f, "mesh: expected shardings that a plan without search connects, found {n_devices} devices")
            }
            RedistributionError::Unaligned { dim, size, source, target, n_devices } => write!(
                f,
                "dim {dim} of size {size}: expected source and target tiles that lie on one another for {n_devices} devices, \
                 found {source} and {target} tiles of different borders"
            ),
        }
    }
}

impl std::error::Error for RedistributionError {}
