//! What can stop an evaluation.

use std::error::Error;
use std::fmt;

/// Why a module could not be evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EvalError {
    /// The evaluator has no semantics for this operation, target or element type; the text says which and why.
    Unsupported(String),
    /// A constant's elements are needed, which were left out when the module was printed.
    NoElements,
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

    /// The name of the constant whose elements are needed and were left out.
    pub fn constant_without_elements(&self) -> Option<&str> {
        match self {
            Self::At { instruction, source, .. } if **source == Self::NoElements => Some(instruction),
            Self::At { source, .. } => source.constant_without_elements(),
            Self::NoElements | Self::Unsupported(_) | Self::Invalid(_) | Self::Divergent(_) | Self::Limit(_) => None,
        }
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
            Self::NoElements => f.write_str("not evaluated: expected the elements of the constant, found `{...}`"),
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
            Self::Unsupported(_) | Self::NoElements | Self::Invalid(_) | Self::Divergent(_) | Self::Limit(_) => None,
        }
    }
}

impl From<hlo_ir::groups::GroupsError> for EvalError {
    fn from(error: hlo_ir::groups::GroupsError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl From<hlo_ir::literal::LiteralShapeError> for EvalError {
    fn from(error: hlo_ir::literal::LiteralShapeError) -> Self {
        Self::Invalid(error.to_string())
    }
}

impl EvalError {
    /// The error with the place where it arose; an error that names its place already stays as it is.
    pub(crate) fn at(self, module: &hlo_ir::Module, inst: hlo_ir::InstId) -> Self {
        match self {
            Self::At { .. } | Self::Divergent(_) => self,
            Self::Unsupported(_) | Self::NoElements | Self::Invalid(_) | Self::Limit(_) => Self::At {
                instruction: module.inst_name(inst).to_string(),
                computation: module.comp_name(module.inst(inst).parent).to_string(),
                source: Box::new(self),
            },
        }
    }
}
