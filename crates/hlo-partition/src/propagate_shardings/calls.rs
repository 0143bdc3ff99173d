//! The custom calls by which front ends speak of shardings.

use super::ties::Direction;
use hlo_ir::attrs::CustomAttrs;
use hlo_ir::shardy::{self, attribute};
use hlo_ir::{InstId, Module};

/// What a custom call says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SpokenCall {
    /// How its operand is cut; the call is that value.
    Annotation,
    /// How a result of the entry is cut; the call is that value.
    Result,
    /// Shardings go through it one way or not at all; the call is the value.
    Barrier,
    /// That a value is cut as others are; it gives nothing.
    Group,
    /// A manual region begins: whole values become local ones.
    Begin,
    /// A manual region ends.
    End,
}

const BARRIER: &str = "xla.sdy.PropagationBarrier";
const GROUP: &str = "xla.sdy.ShardingGroup";
const ALLOWED_DIRECTION: &str = "xla.sdy.allowed_direction";
const GROUP_ID: &str = "xla.sdy.sharding_group_id";

impl SpokenCall {
    /// `None` for calls of which a library computes the value.
    pub(crate) fn of(module: &Module, inst: InstId) -> Option<SpokenCall> {
        match CustomAttrs::of(&module.inst(inst).attrs)?.custom_call_target.0.as_str() {
            "Sharding" => Some(SpokenCall::Annotation),
            shardy::FUNC_RESULT_SHARDING => Some(SpokenCall::Result),
            BARRIER => Some(SpokenCall::Barrier),
            GROUP => Some(SpokenCall::Group),
            "SPMDFullToShardShape" | shardy::GLOBAL_TO_LOCAL => Some(SpokenCall::Begin),
            "SPMDShardToFullShape" | shardy::LOCAL_TO_GLOBAL => Some(SpokenCall::End),
            _ => None,
        }
    }

    /// Whether the call gives its operand.
    pub(crate) fn is_identity(self) -> bool {
        match self {
            SpokenCall::Annotation | SpokenCall::Result | SpokenCall::Barrier => true,
            SpokenCall::Group | SpokenCall::Begin | SpokenCall::End => false,
        }
    }
}

/// An instruction's attributes of front ends.
pub(crate) fn front_end(module: &Module, inst: InstId) -> &[(String, String)] {
    module.inst(inst).marks.as_ref().map_or(&[], |marks| &marks.frontend_attributes)
}

/// The direction that a barrier allows: a word, or the number of one.
pub(crate) fn allowed_direction(module: &Module, inst: InstId) -> Direction {
    let text = attribute(front_end(module, inst), ALLOWED_DIRECTION).unwrap_or_default();
    match text.trim().trim_matches('"').split(' ').next() {
        Some("FORWARD" | "1") => Direction::Forward,
        Some("BACKWARD" | "2") => Direction::Backward,
        Some("BOTH" | "3") => Direction::Both,
        Some(_) | None => Direction::Nowhere,
    }
}

/// The number of the group that a value is put into.
pub(crate) fn group_id(module: &Module, inst: InstId) -> Option<i64> {
    let text = attribute(front_end(module, inst), GROUP_ID)?;
    text.trim().trim_matches('"').split([' ', ':']).next()?.parse().ok()
}
