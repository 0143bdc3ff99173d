//! Attributes that any instruction can carry, whatever its opcode.

use super::{Metadata, RawBraces};
use crate::ids::InstId;
use crate::sharding::Sharding;

/// Marks of one instruction; most have none, so instructions hold them boxed.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Marks {
    /// How the value is cut over devices.
    pub sharding: Option<Sharding>,
    /// Free key-value pairs for front ends, in printed order, values unescaped.
    pub frontend_attributes: Vec<(String, String)>,
    /// Instructions that must have run before.
    pub control_predecessors: Vec<InstId>,
    /// `statistics={…}`, as written.
    pub statistics: RawBraces,
    /// Where the instruction comes from.
    pub metadata: Option<Box<Metadata>>,
    /// Backend configuration, unescaped; printed bare if it looks like a JSON object.
    pub backend_config: Option<String>,
    /// `origin={…}`, as written.
    pub origin: RawBraces,
    /// `result_accuracy={…}`, as written.
    pub result_accuracy: RawBraces,
}

impl Marks {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Marks::default()
    }

    /// The name path of the framework, if the metadata gives one.
    pub fn op_name(&self) -> Option<&str> {
        Some(self.metadata.as_ref()?.op_name.as_ref()?.0.as_str())
    }
}
