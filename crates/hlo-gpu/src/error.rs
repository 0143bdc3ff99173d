//! What can stop the lowering. The command line prints these; each names the instruction first.

use std::fmt;

/// Why a module cannot be lowered.
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
            GpuError::Unsupported { instruction, reason } => write!(f, "{instruction}: {reason}"),
        }
    }
}

impl std::error::Error for GpuError {}
