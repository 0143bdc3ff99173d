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
    /// A value that is not a finite number, where the user asked for finite ones.
    NotFinite {
        /// The instruction whose step wrote it.
        instruction: String,
        /// The value and where it is.
        reason: String,
    },
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
            ExecutionError::NotFinite { instruction, reason } => write!(f, "{instruction}: {reason}"),
        }
    }
}

impl std::error::Error for ExecutionError {}
