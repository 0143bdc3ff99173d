//! What can stop a run. The command line prints these; each names the entity or the library first.

use std::fmt;

use hlo_gpu::GpuError;

/// Why a plan cannot be run, or why a run ends early.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExecutionError {
    /// A kernel that is needed besides the plan's cannot be written.
    Kernel(GpuError),
    /// The host executor cannot compile or run something.
    Host {
        /// The kernel, buffer, file or program.
        what: String,
        /// What is wrong: "expected …, found …".
        reason: String,
    },
    /// A library, a driver or a graphics processor fails.
    Device {
        /// The device, the library or the call.
        what: String,
        /// What is wrong, and what to do about it.
        reason: String,
    },
    /// Processes that run a plan together have lost one another, or do not fit together.
    Ranks {
        /// A sentence that names the rank.
        reason: String,
    },
    /// A process does not know its place among all.
    Seat(SeatError),
    /// A value that is not a finite number, where the user asked for finite ones.
    NotFinite {
        /// The instruction whose step wrote it.
        instruction: String,
        /// The value and where it is.
        reason: String,
    },
}

/// Why a process does not know its place among all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SeatError {
    /// A variable of the environment is no number.
    NoNumber {
        /// Its name.
        variable: &'static str,
        /// What it holds.
        found: String,
    },
    /// Neither flags nor a launcher say which process this is.
    NoRank {
        /// Variables of the launchers that are known: rank, number of ranks.
        launchers: &'static [(&'static str, &'static str)],
    },
    /// Nobody says where rank 0 listens.
    NoCoordinator {
        /// All processes.
        n_ranks: u32,
    },
    /// There are not so many processes.
    RankOutOfRange {
        /// This process.
        rank: u32,
        /// All processes.
        n_ranks: u32,
    },
    /// The secret is too short or too long.
    NoSecret {
        /// The file or variable.
        origin: String,
        /// Least and most bytes.
        expected_bytes: (usize, usize),
        /// How many it has.
        found_bytes: usize,
    },
    /// The coordinator is no host with a port.
    NoPlace {
        /// As written.
        coordinator: String,
    },
}

impl fmt::Display for SeatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SeatError::NoNumber { variable, found } => {
                write!(f, "{variable}: expected a whole number, found `{found}`")
            }
            SeatError::NoRank { launchers } => {
                let variables: Vec<String> =
                    launchers.iter().map(|(rank, size)| format!("{rank} and {size}")).collect();
                let variables = variables.join(", ");
                write!(f, "expected --rank and --ranks, or one of {variables} in the environment, found none")
            }
            SeatError::NoCoordinator { n_ranks } => {
                let wanted = "--coordinator HOST:PORT, or MASTER_ADDR and MASTER_PORT in the environment";
                write!(f, "expected {wanted} for {n_ranks} ranks, found none")
            }
            SeatError::RankOutOfRange { rank, n_ranks } => {
                write!(f, "expected a rank below the number of ranks, found rank {rank} of {n_ranks}")
            }
            SeatError::NoSecret { origin, expected_bytes: (least, most), found_bytes } => {
                write!(f, "{origin}: expected a secret of {least} to {most} bytes, found {found_bytes}")
            }
            SeatError::NoPlace { coordinator } => {
                write!(f, "expected a coordinator HOST:PORT, found `{coordinator}`")
            }
        }
    }
}

impl std::error::Error for SeatError {}

impl From<SeatError> for ExecutionError {
    fn from(error: SeatError) -> ExecutionError {
        ExecutionError::Seat(error)
    }
}

impl From<GpuError> for ExecutionError {
    fn from(error: GpuError) -> ExecutionError {
        ExecutionError::Kernel(error)
    }
}

impl fmt::Display for ExecutionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecutionError::Kernel(error) => error.fmt(f),
            ExecutionError::Host { what, reason } | ExecutionError::Device { what, reason } => {
                write!(f, "{what}: {reason}")
            }
            ExecutionError::Ranks { reason } => f.write_str(reason),
            ExecutionError::Seat(error) => error.fmt(f),
            ExecutionError::NotFinite { instruction, reason } => write!(f, "{instruction}: {reason}"),
        }
    }
}

impl std::error::Error for ExecutionError {}
