//! What stops this crate's passes.

use hlo_ir::diag::Entity;
use hlo_pass::PassError;
use std::fmt;

/// Why no plan is searched for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SearchError {
    /// A text about one part of the module: entity first, expected and found.
    About {
        /// The kind of error, kebab case.
        rule: &'static str,
        /// The instruction or computation.
        entity: Entity,
        /// What was expected and found.
        message: String,
    },
}

impl SearchError {
    /// An error about a part of the module.
    pub fn about(rule: &'static str, entity: Entity, message: impl Into<String>) -> SearchError {
        SearchError::About { rule, entity, message: message.into() }
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::About { message, .. } => f.write_str(message),
        }
    }
}

impl std::error::Error for SearchError {}

impl From<SearchError> for PassError {
    fn from(error: SearchError) -> PassError {
        match error {
            SearchError::About { rule, entity, message } => PassError::about(rule, entity, message),
        }
    }
}
