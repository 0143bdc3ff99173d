//! What can stop the lowering or a run. The command line prints these; each names the instruction or the library first.

use std::fmt;

/// Why a module cannot be lowered, or a plan cannot be run.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GpuError {
    /// An instruction that no kernel, product or collective is written for.
    Unsupported {
        /// The instruction's name.
        instruction: String,
        /// What is not supported, and what would be: "expected …, found …".
        reason: String,
    },
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

impl GpuError {
    /// An instruction that nothing is written for.
    pub fn unsupported(instruction: &str, reason: impl Into<String>) -> GpuError {
        GpuError::Unsupported { instruction: instruction.into(), reason: reason.into() }
    }
}

impl fmt::Display for GpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GpuError::Unsupported { instruction, reason } | GpuError::NotFinite { instruction, reason } => {
                write!(f, "{instruction}: {reason}")
            }
            GpuError::Host { what, reason } | GpuError::Device { what, reason } => write!(f, "{what}: {reason}"),
            GpuError::Ranks { reason } => f.write_str(reason),
        }
    }
}

impl std::error::Error for GpuError {}
