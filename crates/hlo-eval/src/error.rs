//! What can stop an evaluation.

use std::error::Error;
use std::fmt;

/// Why a module could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// The evaluator has no semantics for this operation, target or element type; the text says which and why.
    Unsupported(String),
    /// Operands, attributes or shapes do not fit each other; the text says what was expected and what was found.
    Invalid(String),
    /// Devices of one collective group do not meet: the text names both devices and where each of them is.
    Divergent(String),
    /// A limit of the options (steps, loop iterations, call depth, bytes) was reached.
    Limit(String),
    /// Another error, met inside an instruction.
    At {
        /// Name of the instruction, without `%`.
        instruction: String,
        /// Name of its computation, without `%`.
        computation: String,
        /// What went wrong there.
        source: Box<EvalError>,
    },
}

impl EvalError {
    /// An operation, target or element type without semantics here.
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::Unsupported(text.into())
    }

    /// Operands, attributes or shapes that do not fit each other.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid(text.into())
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported(text) => write!(f, "not evaluated: {text}"),
            Self::Invalid(text) => write!(f, "{text}"),
            Self::Divergent(text) => write!(f, "devices diverge: {text}"),
            Self::Limit(text) => write!(f, "limit reached: {text}"),
            Self::At { instruction, computation, source } => {
                write!(f, "%{instruction} in %{computation}: {source}")
            }
        }
    }
}

impl Error for EvalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::At { source, .. } => Some(source.as_ref()),
            Self::Unsupported(_) | Self::Invalid(_) | Self::Divergent(_) | Self::Limit(_) => None,
        }
    }
}
