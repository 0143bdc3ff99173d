//! The custom calls that have a meaning of their own: those by which a global program speaks to a partitioner, and those that move values between
//! the memories of a device and of its host.

use crate::attrs::{Attrs, CustomAttrs};
use crate::module::Instruction;
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
    Move(Destination),
    /// A function that the front end registered says what each device computes; the module does not.
    Callback,
}

/// An end of a manual region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Boundary {
    /// Whole values become tiles.
    Begin,
    /// Tiles become whole values.
    End,
}

/// Where a call puts its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// In the memory that the target names.
    Memory(MemorySpace),
    /// In the memory that the attribute [`PLACEMENT`] of the front end names.
    Attribute,
}

/// The attribute of the front end that names the memory of an `annotate_device_placement`.
pub const PLACEMENT: &str = "_xla_buffer_placement";

/// The targets that have a meaning.
const TARGETS: [(&str, CustomTarget); 14] = [
    ("Sharding", CustomTarget::Annotation),
    ("xla.sdy.PropagationBarrier", CustomTarget::Annotation),
    (shardy::FUNC_RESULT_SHARDING, CustomTarget::Annotation),
    ("xla.sdy.ShardingGroup", CustomTarget::Group),
    ("SPMDFullToShardShape", CustomTarget::Boundary(Boundary::Begin)),
    (shardy::GLOBAL_TO_LOCAL, CustomTarget::Boundary(Boundary::Begin)),
    ("SPMDShardToFullShape", CustomTarget::Boundary(Boundary::End)),
    (shardy::LOCAL_TO_GLOBAL, CustomTarget::Boundary(Boundary::End)),
    ("MoveToHost", CustomTarget::Move(Destination::Memory(MemorySpace::Host))),
    ("MoveToDevice", CustomTarget::Move(Destination::Memory(MemorySpace::Device))),
    ("PinToDevice", CustomTarget::Move(Destination::Memory(MemorySpace::Device))),
    ("PinToDeviceSram", CustomTarget::Move(Destination::Memory(MemorySpace::Device))),
    ("annotate_device_placement", CustomTarget::Move(Destination::Attribute)),
    ("CustomSPMDPartitioning", CustomTarget::Callback),
];

impl CustomTarget {
    /// Whether it speaks to a partitioner.
    pub fn is_of_partitioner(self) -> bool {
        match self {
            CustomTarget::Annotation | CustomTarget::Group | CustomTarget::Boundary(_) | CustomTarget::Callback => true,
            CustomTarget::Move(_) => false,
        }
    }

    /// Whether the result is the operand, element by element.
    pub fn is_identity(self) -> bool {
        match self {
            CustomTarget::Annotation | CustomTarget::Move(_) => true,
            CustomTarget::Group | CustomTarget::Boundary(_) | CustomTarget::Callback => false,
        }
    }

    /// The target of a custom call; `None` for one that a library computes.
    pub fn of(attrs: &Attrs) -> Option<CustomTarget> {
        let name = CustomAttrs::of(attrs)?.custom_call_target.0.as_str();
        TARGETS.iter().find(|(target, _)| *target == name).map(|&(_, meaning)| meaning)
    }
}

impl Destination {
    /// The memory into which `call` puts its operand; `None` if it names none, so that the value stays where it is.
    pub fn memory(self, call: &Instruction) -> Option<MemorySpace> {
        match self {
            Destination::Memory(memory) => Some(memory),
            Destination::Attribute => {
                let attributes = call.marks.as_deref().map_or(&[][..], |marks| &marks.frontend_attributes);
                match shardy::attribute(attributes, PLACEMENT)? {
                    "pinned_host" | "unpinned_host" => Some(MemorySpace::Host),
                    "device" | "pinned_device" | "vmem" => Some(MemorySpace::Device),
                    _ => None,
                }
            }
        }
    }
}

/// Whether a custom call has an effect that is seen from outside: it says so itself. JAX says so of calls that move their operand
/// to keep them in place; they have none.
pub fn has_effect(attrs: &Attrs) -> bool {
    let is_move = || matches!(CustomTarget::of(attrs), Some(CustomTarget::Move(_)));
    CustomAttrs::of(attrs).is_some_and(|custom| custom.custom_call_has_side_effect) && !is_move()
}
