//! The catalogue of errors: why a module cannot be sharded or a placement not emitted, and why a gradient is left as it is.

use hlo_ir::diag::Entity;
use hlo_ir::groups::GroupsError;
use hlo_ir::localize::CannotCut;
use hlo_ir::{InstId, Module};
use hlo_pass::{MEMORY_LIMIT_RULE, OutOfTime, PassError};
use hlo_spmd::SpmdError;
use std::fmt;

/// Why a module cannot be sharded, or a placement not emitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WusError {
    /// A part of the program cannot be built.
    Spmd(SpmdError),
    /// The attributes of an op on shards are not known.
    Localize(CannotCut),
    /// An instruction depends on itself after the rewrite.
    DependsOnItself {
        /// Its name.
        name: String,
    },
    /// An instruction that is needed in shards has no value.
    NoValue {
        /// Its name.
        name: String,
    },
    /// A leaf of a tuple has no value.
    LeafWithoutValue,
    /// An element of something that has no elements.
    TupleElement,
    /// No instruction of a computation holds a value that is needed there.
    NotAtHand {
        /// Name of the instruction that defines the value.
        name: String,
    },
    /// A whole value is to be gathered.
    WholeGathered,
    /// A value in shards is no array.
    NoArrayValue,
    /// An op that cannot be computed on shards is to be.
    NotOnShards {
        /// Name of the instruction.
        name: String,
    },
    /// An operand of an op on shards cannot be cut.
    OperandNotCut,
    /// Partial results of something that is no reduce.
    NotAReduce,
    /// A reduce without reducer.
    NoReducer,
    /// Something else stands where an all-reduce should.
    NotAnAllReduce,
    /// A module has no entry.
    NoEntry,
    /// An entry has no root.
    NoRoot,
    /// A parameter of an interface to shard is a tuple.
    TupleParameter {
        /// Its name.
        name: String,
    },
    /// A pair of a parameter and an output cannot be read.
    PairSyntax {
        /// What stands there.
        found: String,
    },
    /// A pair names a parameter or an output that another pair has named.
    PairTwice {
        /// The pair, flat leaves.as written.
        pair: String,
    },
    /// A pair names a parameter or an output that the module does not have.
    PairOutOfRange {
        /// Parameters of the module.
        n_params: usize,
        /// Outputs of the module.
        n_outputs: usize,
        /// The pair, flat leaves.
        pair: (usize, usize),
    },
    /// An output could be the next value of several parameters.
    AmbiguousOutput {
        /// The output.
        output: usize,
        /// The parameters.
        params: Vec<usize>,
    },
    /// An entry lacks a parameter.
    MissingParameter {
        /// Its number.
        number: i64,
    },
    /// An option about state in shards, and no state is to be in shards.
    ReplicatedState {
        /// The option.
        option: &'static str,
    },
    /// A pin cannot be read, or names a parameter twice.
    PinSyntax {
        /// What stands there.
        found: String,
    },
    /// Parameters that are pinned cannot be so.
    Pinned {
        /// Their flat numbers; empty: each could be, but not as the form of state and the other pins have it.
        params: Vec<usize>,
    },
    /// No placement that was made is within the memory limit.
    NothingFits {
        /// Bytes of a device.
        limit: u64,
        /// The least peak of those that were made, in bytes.
        least: u64,
        /// The peak with all state whole.
        whole: u64,
    },
    /// The time was over.
    OutOfTime(OutOfTime),
}

impl WusError {
    /// `inst` depends on itself.
    pub(crate) fn depends_on_itself(module: &Module, inst: InstId) -> WusError {
        WusError::DependsOnItself { name: module.inst_name(inst).into() }
    }
}

impl WusError {
    /// What kind of error it is, for messages and for scripts that read them.
    fn rule(&self) -> &'static str {
        match self {
            WusError::PairSyntax { .. }
            | WusError::PairTwice { .. }
            | WusError::PairOutOfRange { .. }
            | WusError::AmbiguousOutput { .. } => "state-pairs",
            WusError::NoEntry
            | WusError::NoRoot
            | WusError::TupleParameter { .. }
            | WusError::MissingParameter { .. } => "interface",
            WusError::DependsOnItself { .. } => "acyclic",
            WusError::PinSyntax { .. } | WusError::Pinned { .. } => "pins",
            WusError::ReplicatedState { option } => option,
            WusError::NothingFits { .. } => MEMORY_LIMIT_RULE,
            WusError::OutOfTime(_) => "deadline",
            // A placement that cannot be emitted is a defect of the pass.
            WusError::Spmd(_)
            | WusError::Localize(_)
            | WusError::NoValue { .. }
            | WusError::LeafWithoutValue
            | WusError::TupleElement
            | WusError::NotAtHand { .. }
            | WusError::WholeGathered
            | WusError::NoArrayValue
            | WusError::NotOnShards { .. }
            | WusError::OperandNotCut
            | WusError::NotAReduce
            | WusError::NoReducer
            | WusError::NotAnAllReduce => "placement-emitted",
        }
    }

    /// The error about a part of the module.
    pub(crate) fn about(&self, entity: Entity) -> PassError {
        match self {
            // Nothing is wrong with that part.
            WusError::OutOfTime(error) => (*error).into(),
            WusError::NothingFits { least, .. } => {
                PassError { least_bytes: Some(*least), ..PassError::about(self.rule(), entity, self.to_string()) }
            }
            _ => PassError::about(self.rule(), entity, self.to_string()),
        }
    }
}

impl From<SpmdError> for WusError {
    fn from(error: SpmdError) -> WusError {
        WusError::Spmd(error)
    }
}

impl From<OutOfTime> for WusError {
    fn from(error: OutOfTime) -> WusError {
        WusError::OutOfTime(error)
    }
}

impl fmt::Display for WusError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WusError::Spmd(error) => error.fmt(f),
            WusError::Localize(error) => error.fmt(f),
            WusError::DependsOnItself { name } => write!(f, "`%{name}` depends on itself"),
            WusError::NoValue { name } => write!(f, "`%{name}` has no value"),
            WusError::LeafWithoutValue => f.write_str("a leaf without value"),
            WusError::TupleElement => f.write_str("a tuple's element"),
            WusError::NotAtHand { name } => write!(f, "`%{name}` is not at hand where it is needed"),
            WusError::WholeGathered => f.write_str("a whole value cannot be gathered"),
            WusError::NoArrayValue => f.write_str("a value is an array"),
            WusError::NotOnShards { name } => write!(f, "`%{name}` cannot be computed on shards"),
            WusError::OperandNotCut => f.write_str("an operand cannot be cut"),
            WusError::NotAReduce => f.write_str("expected a reduce"),
            WusError::NoReducer => f.write_str("a reduce without reducer"),
            WusError::NotAnAllReduce => f.write_str("expected an all-reduce"),
            WusError::NoEntry => f.write_str("a module without entry"),
            WusError::NoRoot => f.write_str("an entry without root"),
            WusError::TupleParameter { name } => {
                write!(f, "state in shards takes a flat entry: expected arrays, found tuple `%{name}`")
            }
            WusError::PairSyntax { found } => write!(f, "state-pairs: expected PARAM:OUTPUT, found `{found}`"),
            WusError::PairTwice { pair } => {
                write!(f, "state-pairs: `{pair}` names a parameter or output that stands before")
            }
            WusError::PairOutOfRange { n_params, n_outputs, pair: (p, o) } => write!(
                f,
                "state-pairs: expected a parameter below {n_params} and an output below {n_outputs}, found {p}:{o}"
            ),
            WusError::AmbiguousOutput { output, params } => {
                let pairs: Vec<String> = params.iter().map(|param| format!("{param}:{output}")).collect();
                write!(
                    f,
                    "output {output} could be the next value of several parameters: say which with state-pairs=[…], \
                     one of {}",
                    pairs.join(", ")
                )
            }
            WusError::MissingParameter { number } => write!(f, "parameter {number} is missing"),
            WusError::PinSyntax { found } => {
                write!(f, "pins: expected PARAM:sharded or PARAM:whole, each parameter once, found `{found}`")
            }
            WusError::Pinned { params } if params.is_empty() => {
                f.write_str("pins: expected what can be together, found pins that contradict `state=` or each other")
            }
            WusError::Pinned { params } => {
                let params: Vec<String> = params.iter().map(usize::to_string).collect();
                write!(f, "pins: expected parameters that are state of a sharded update, found {}", params.join(", "))
            }
            WusError::ReplicatedState { option } => write!(
                f,
                "{option}: expected state=optimizer, gradients, parameters or auto beside it, found state=replicated"
            ),
            WusError::NothingFits { limit, least, whole } => write!(
                f,
                "no plan found within memory-limit={limit}: the least that was found takes {least} bytes on a device \
                 at its peak, state that is whole takes {whole}"
            ),
            WusError::OutOfTime(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WusError {}

/// Why a gradient's all-reduce is left as it is. Reports print it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GradientRefusal {
    /// It starts what another instruction ends.
    Asynchronous,
    /// It reduces several arrays.
    ReducesTuple,
    /// It has no dims.
    Scalar,
    /// Its shape has dynamic dims.
    DynamicDims,
    /// There is nobody to share the work with.
    OneDevice,
    /// Its groups are not valid on the module's devices.
    Groups(GroupsError),
    /// Its groups have members in different numbers.
    UnevenGroups,
    /// Each of its groups is one device.
    LoneDevices,
    /// Some devices are in no group.
    MissingDevices {
        /// Devices of the module.
        n_devices: usize,
        /// Devices in groups.
        n_held: usize,
    },
    /// Its reducer is no addition.
    NoAdd,
    /// It is smaller than the user wants.
    Small {
        /// Its bytes.
        bytes: u64,
        /// The least that is sharded.
        min_bytes: u64,
    },
    /// Its computation has several callers and no copies.
    SharedComputation,
    /// Another gradient's region has it.
    HasFormat,
    /// The replication analysis does not know its result to be the same on all devices of a group.
    NotReplicated,
    /// Its result is no array.
    NoArray,
    /// None of its dims can be cut.
    NoDims,
    /// No dim of its state is a multiple of the number of shards, and no other cut is allowed.
    NoEvenDim,
    /// Its state has no even dim, and is too small or would be padded by too much.
    NoCheapPadding,
}

impl fmt::Display for GradientRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GradientRefusal::Asynchronous => "asynchronous: run the pass before scheduling",
            GradientRefusal::ReducesTuple => "reduces several arrays, and cannot be split",
            GradientRefusal::Scalar => "a scalar",
            GradientRefusal::DynamicDims => "has dynamic dims",
            GradientRefusal::OneDevice => "the module runs on one device",
            GradientRefusal::Groups(error) => return error.fmt(f),
            GradientRefusal::UnevenGroups => "its groups differ in size",
            GradientRefusal::LoneDevices => "its groups have one device each: nothing is summed",
            GradientRefusal::MissingDevices { n_devices, n_held } => {
                return write!(f, "expected groups that hold all {n_devices} devices, found {n_held}");
            }
            GradientRefusal::NoAdd => "its reducer is not a plain add",
            GradientRefusal::Small { bytes, min_bytes } => {
                return write!(f, "{bytes} bytes, below min-bytes={min_bytes}");
            }
            GradientRefusal::SharedComputation => {
                "its computation is called from too many places to copy it for each: run inline-calls first"
            }
            GradientRefusal::HasFormat => "it has a format already",
            GradientRefusal::NotReplicated => "it is not known to be the same on all devices of its groups",
            GradientRefusal::NoArray => "it is no array",
            GradientRefusal::NoDims => "it has no dims",
            GradientRefusal::NoEvenDim => {
                "no dim of its state is a multiple of the number of shards, and `cuts=even` allows no other"
            }
            GradientRefusal::NoCheapPadding => {
                "no dim of its state is a multiple of the number of shards, and it is under 16 KiB or would need more than 2 % of padding"
            }
        })
    }
}
