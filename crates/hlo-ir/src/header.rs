//! What stands before the computations: the `HloModule` line and the debug-info tables.

use crate::attrs::RawBraces;
use crate::shape::{Dims, ShapeId};

/// Fields of the `HloModule` line in the order in which XLA prints them, and the tables after it.
#[derive(Clone, PartialEq, Debug)]
pub struct Header {
    /// The text order of each computation is its schedule.
    pub is_scheduled: bool,
    /// Outputs that share a buffer with a parameter.
    pub input_output_alias: Vec<AliasEntry>,
    /// Parameters whose buffers may be overwritten.
    pub buffer_donor: Vec<BufferDonor>,
    /// `alias_passthrough_params=true`.
    pub alias_passthrough_params: bool,
    /// Shapes with layouts of the entry's parameters and result.
    pub entry_computation_layout: Option<EntryLayout>,
    /// `allow_spmd_sharding_propagation_to_parameters`, one flag for each or one for all.
    pub allow_spmd_sharding_propagation_to_parameters: Option<Vec<bool>>,
    /// `allow_spmd_sharding_propagation_to_output`.
    pub allow_spmd_sharding_propagation_to_output: Option<Vec<bool>>,
    /// Replicas; 1 when not given.
    pub replica_count: i64,
    /// Partitions; 1 when not given.
    pub num_partitions: i64,
    /// Free key-value pairs, in printed order, values unescaped.
    pub frontend_attributes: Vec<(String, String)>,
    /// `origin_recovery_table={…}`, as written.
    pub origin_recovery_table: RawBraces,
    /// `debug_attributes={…}`, as written.
    pub debug_attributes: RawBraces,
    /// Tables that `stack_frame_id` of metadata points into.
    pub tables: DebugTables,
}

impl Default for Header {
    fn default() -> Header {
        Header {
            is_scheduled: false,
            input_output_alias: Vec::new(),
            buffer_donor: Vec::new(),
            alias_passthrough_params: false,
            entry_computation_layout: None,
            allow_spmd_sharding_propagation_to_parameters: None,
            allow_spmd_sharding_propagation_to_output: None,
            replica_count: 1,
            num_partitions: 1,
            frontend_attributes: Vec::new(),
            origin_recovery_table: RawBraces::default(),
            debug_attributes: RawBraces::default(),
            tables: DebugTables::default(),
        }
    }
}

/// `{output_index}: (param, {param_index}, may-alias)`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AliasEntry {
    /// Tuple index in the result.
    pub output_index: Dims,
    /// Parameter number.
    pub param: i64,
    /// Tuple index in the parameter.
    pub param_index: Dims,
    /// `must-alias`, not `may-alias`.
    pub is_must: bool,
}

/// `(param, {index})`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct BufferDonor {
    /// Parameter number.
    pub param: i64,
    /// Tuple index in the parameter.
    pub param_index: Dims,
}

/// `{(params)->result}`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EntryLayout {
    /// One shape for each parameter.
    pub params: Vec<ShapeId>,
    /// The result.
    pub result: ShapeId,
}

/// The FileNames, FunctionNames, FileLocations and StackFrames tables; entry `i` has the printed number `i + 1`.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DebugTables {
    /// File names, unescaped.
    pub file_names: Vec<String>,
    /// Function names, unescaped.
    pub function_names: Vec<String>,
    /// Places in files.
    pub file_locations: Vec<FileLocation>,
    /// Frames.
    pub stack_frames: Vec<StackFrame>,
}

impl DebugTables {
    /// Whether there is no table.
    pub fn is_empty(&self) -> bool {
        *self == DebugTables::default()
    }
}

/// `{file_name_id=1 function_name_id=1 line=190 end_line=190 column=4 end_column=4}`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub struct FileLocation {
    pub file_name_id: i64,
    pub function_name_id: i64,
    pub line: i64,
    pub end_line: i64,
    pub column: i64,
    pub end_column: i64,
}

/// `{file_location_id=1 parent_frame_id=1}`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[allow(missing_docs)]
pub struct StackFrame {
    pub file_location_id: i64,
    pub parent_frame_id: i64,
}
