//! What stops this crate's passes.

use hlo_ir::diag::Entity;
use hlo_pass::{OutOfTime, PassError};
use std::fmt;

/// Why a module cannot be partitioned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PartitionError {
    /// A text about one part of the module: entity first, expected and found.
    About {
        /// The kind of error, kebab case.
        rule: &'static str,
        /// The instruction or computation.
        entity: Entity,
        /// What was expected and found.
        message: String,
    },
    /// The time was over.
    OutOfTime(OutOfTime),
}

impl PartitionError {
    /// An error about a part of the module.
    pub fn about(rule: &'static str, entity: Entity, message: impl Into<String>) -> PartitionError {
        PartitionError::About { rule, entity, message: message.into() }
    }
}

impl fmt::Display for PartitionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PartitionError::About { message, .. } => f.write_str(message),
            PartitionError::OutOfTime(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for PartitionError {}

impl From<OutOfTime> for PartitionError {
    fn from(error: OutOfTime) -> PartitionError {
        PartitionError::OutOfTime(error)
    }
}

impl From<PartitionError> for PassError {
    fn from(error: PartitionError) -> PassError {
        match error {
            PartitionError::About { rule, entity, message } => PassError::about(rule, entity, message),
            PartitionError::OutOfTime(error) => error.into(),
        }
    }
}
