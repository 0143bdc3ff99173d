//! The custom calls that have a meaning of their own: those by which a global program speaks to a partitioner, and those that move values between
//! the memories of a device and of its host.

use crate::attrs::{Attrs, CustomAttrs};
use crate::shape::MemorySpace;
use crate::shardy;

/// The custom calls that have a meaning here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CustomTarget {
    /// Says how a value is cut, and is the value.
    Annotation,
    /// Says that a value is cut as others are, and gives nothing.
    Group,
    /// A manual region begins, or ends.
    Boundary(Boundary),
    /// Is its operand, in this memory.
    Move(MemorySpace),
}

/// An end of a manual region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// Whole values become tiles.
    Begin,
    /// Tiles become whole values.
    End,
}

impl CustomTarget {
    /// Whether it speaks to a partitioner.
    pub fn is_of_partitioner(self) -> bool {
        match self {
            CustomTarget::Annotation | CustomTarget::Group | CustomTarget::Boundary(_) => true,
            CustomTarget::Move(_) => false,
        }
    }

    /// Whether the result is the operand, element by element.
    pub fn is_identity(self) -> bool {
        match self {
            CustomTarget::Annotation | CustomTarget::Move(_) => true,
            CustomTarget::Group | CustomTarget::Boundary(_) => false,
        }
    }

    /// The target of a custom call; `None` for one that a library computes.
    pub fn of(attrs: &Attrs) -> Option<CustomTarget> {
        match CustomAttrs::of(attrs)?.custom_call_target.0.as_str() {
            "Sharding" | "xla.sdy.PropagationBarrier" | shardy::FUNC_RESULT_SHARDING => Some(CustomTarget::Annotation),
            "xla.sdy.ShardingGroup" => Some(CustomTarget::Group),
            "SPMDFullToShardShape" | shardy::GLOBAL_TO_LOCAL => Some(CustomTarget::Boundary(Boundary::Begin)),
            "SPMDShardToFullShape" | shardy::LOCAL_TO_GLOBAL => Some(CustomTarget::Boundary(Boundary::End)),
            "MoveToHost" => Some(CustomTarget::Move(MemorySpace::Host)),
            "MoveToDevice" => Some(CustomTarget::Move(MemorySpace::Device)),
            _ => None,
        }
    }
}
