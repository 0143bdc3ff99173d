//! The catalogue of errors: why no plan is searched for, or none is found.

use hlo_ir::diag::Entity;
use hlo_ir::{InstId, Module, Opcode};
use hlo_mesh::SizeMismatch;
use hlo_pass::PassError;
use std::fmt;

/// Why there is no plan.
#[derive(Clone, PartialEq, Debug)]
pub enum SearchError {
    /// The module has no entry.
    NoEntry,
    /// An instruction of a program of one device, or of a manual region (`shard_map`), stands in the program.
    ManualWork {
        /// The instruction.
        inst: InstId,
        /// Its name.
        name: String,
        /// What it does.
        opcode: Opcode,
    },
    /// The machine has another number of devices.
    OtherSize(SizeMismatch),
    /// An option has a value that it cannot have.
    Option {
        /// Its name.
        name: &'static str,
        /// What would have been right.
        expected: String,
        /// What it has.
        found: String,
    },
    /// The pins are no TOML of numbers of parts.
    PinsSyntax {
        /// What the reader of TOML says.
        message: String,
        /// What may have been meant as the name of a file.
        file: Option<String>,
    },
    /// Several values have a name that a pin or a question uses.
    SharedName {
        /// The name.
        name: String,
        /// The names that tell them apart.
        places: Vec<String>,
    },
    /// A pin names nothing that has a state of its own.
    UnknownPin {
        /// The name.
        name: String,
    },
    /// A pin has another number of dims than its value, or a number of parts below 1.
    PinParts {
        /// The name.
        name: String,
        /// Dims of the value.
        rank: usize,
        /// The parts that were given.
        parts: Vec<i64>,
    },
    /// No mesh of as many axes as a kind of plan wants has so many devices.
    NoMeshOfPlan {
        /// Axes that the kind of plan wants.
        n_axes: usize,
        /// Devices.
        n_devices: i64,
    },
    /// No plan keeps the memory limit.
    Memory {
        /// The user's limit, in bytes.
        limit_bytes: u64,
        /// The share of it that may be planned.
        used_share: f64,
        /// The least of the plans that were looked at, in bytes.
        least_bytes: u64,
    },
    /// No mesh has a plan that cuts values as they are pinned.
    Pinned,
    /// The effort was used up before there was a plan.
    Effort,
    /// No program is rewritten, and the program as it is may not be taken.
    NothingRewritten,
    /// No plan takes less than one that is known.
    NotFaster {
        /// The bound, in seconds.
        bound_s: f64,
    },
    /// A step takes longer than times are counted.
    TooLong,
    /// An instruction depends on itself when the plan is written.
    DependsOnItself {
        /// The instruction.
        inst: InstId,
        /// Its name.
        name: String,
    },
}

/// Names that a message lists.
const SHOWN: usize = 4;

impl SearchError {
    /// An instruction that a global program must not have.
    pub(crate) fn manual_work(module: &Module, inst: InstId) -> SearchError {
        let (name, opcode) = (module.inst_name(inst).to_string(), module.inst(inst).opcode);
        SearchError::ManualWork { inst, name, opcode }
    }

    /// An instruction that depends on itself.
    pub(crate) fn depends_on_itself(module: &Module, inst: InstId) -> SearchError {
        SearchError::DependsOnItself { inst, name: module.inst_name(inst).to_string() }
    }

    /// The kind of error, kebab case.
    pub fn rule(&self) -> &'static str {
        match self {
            SearchError::NoEntry | SearchError::ManualWork { .. } => "search",
            SearchError::OtherSize(_) => "machine",
            SearchError::Option { .. } => "option",
            SearchError::PinsSyntax { .. }
            | SearchError::SharedName { .. }
            | SearchError::UnknownPin { .. }
            | SearchError::PinParts { .. }
            | SearchError::Pinned => "pins",
            SearchError::NoMeshOfPlan { .. } => "mesh",
            SearchError::Memory { .. } => "memory",
            SearchError::Effort => "effort",
            SearchError::TooLong => "time",
            SearchError::NothingRewritten | SearchError::NotFaster { .. } => "algebra",
            SearchError::DependsOnItself { .. } => "acyclic",
        }
    }

    /// What it is about.
    pub fn entity(&self) -> Entity {
        match self {
            SearchError::ManualWork { inst, .. } | SearchError::DependsOnItself { inst, .. } => Entity::Inst(*inst),
            SearchError::NoEntry
            | SearchError::OtherSize(_)
            | SearchError::Option { .. }
            | SearchError::PinsSyntax { .. }
            | SearchError::SharedName { .. }
            | SearchError::UnknownPin { .. }
            | SearchError::PinParts { .. }
            | SearchError::NoMeshOfPlan { .. }
            | SearchError::Memory { .. }
            | SearchError::Pinned
            | SearchError::TooLong
            | SearchError::NothingRewritten
            | SearchError::NotFaster { .. }
            | SearchError::Effort => Entity::Module,
        }
    }
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::NoEntry => f.write_str("expected an entry computation, found none"),
            SearchError::ManualWork { name, opcode, .. } => write!(
                f,
                "`%{name}`: expected a global program, found `{}`: a program of one device, or a manual region (shard_map), says \
                 itself how its devices work",
                opcode.name()
            ),
            SearchError::OtherSize(error) => error.fmt(f),
            SearchError::Option { name, expected, found } => {
                write!(f, "option `{name}`: expected {expected}, found {found}")
            }
            SearchError::PinsSyntax { file: Some(file), .. } => {
                write!(f, "pins: expected a file, or lines `\"NAME\" = [parts, …]`, found `{file}`, which is neither")
            }
            SearchError::PinsSyntax { message, file: None } => {
                write!(f, "pins: expected lines `\"NAME\" = [parts, …]`, found: {message}")
            }
            SearchError::SharedName { name, places } => {
                let shown = places.iter().take(SHOWN).map(|place| format!("`{place}`")).collect::<Vec<_>>().join(", ");
                write!(f, "`{name}`: expected the name of one value, found {} of that name: say {shown}", places.len())?;
                if places.len() > SHOWN { f.write_str(" …") } else { Ok(()) }
            }
            SearchError::UnknownPin { name } => write!(
                f,
                "pins: expected the name of a parameter or of a value that is taken twice or more, found `{name}`"
            ),
            SearchError::PinParts { name, rank, parts } => {
                write!(f, "pins: `{name}`: expected {rank} numbers of parts, each at least 1, found {parts:?}")
            }
            SearchError::NoMeshOfPlan { n_axes, n_devices } => write!(
                f,
                "option `plan`: expected a number of devices that {n_axes} axes can share, found {n_devices}: ask for another \
                 plan or number"
            ),
            SearchError::Memory { limit_bytes, used_share, least_bytes } => write!(
                f,
                "no plan found within {limit_bytes} bytes, of which {:.0} % may be planned; the least that was found is \
                 {least_bytes} bytes",
                100.0 * used_share
            ),
            SearchError::Pinned => f.write_str(
                "no plan found that cuts values as the pins say on a mesh of these devices: give other pins, or more `effort`",
            ),
            SearchError::TooLong => f.write_str(
                "no plan found that takes less than a million seconds a step, which is where modelled times end: check the units of \
                 the cluster and the device",
            ),
            SearchError::NotFaster { bound_s } => {
                write!(f, "no plan found that is faster than the one that is known; none of the plans searched takes less than {:.3} ms", bound_s * 1e3)
            }
            SearchError::NothingRewritten => {
                f.write_str("no branches that are alike, or no plan with them made one, and the program as it is does not compete")
            }
            SearchError::Effort => f.write_str("no plan found within the effort: give more with `effort`"),
            SearchError::DependsOnItself { name, .. } => write!(f, "`%{name}`: depends on itself after the change"),
        }
    }
}

impl std::error::Error for SearchError {}

impl From<SearchError> for PassError {
    fn from(error: SearchError) -> PassError {
        PassError::about(error.rule(), error.entity(), error.to_string())
    }
}
