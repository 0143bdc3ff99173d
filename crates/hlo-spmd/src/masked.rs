//! Values that some devices hold, and of which the others hold zeros.

use crate::device_values::find_device_values;
use crate::scaling::{Splat, find_splat};
use hlo_ir::{InstId, Module, Opcode};

/// `select(mask, value, zeros)`, or the other way round, where the device alone says which.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Masked {
    /// The value that some devices hold.
    pub value: InstId,
    /// For each device whether it does.
    pub is_held: Vec<bool>,
}

impl Masked {
    /// Whether one device of each group holds the value: the sum over a group is the value then.
    pub fn is_held_once(&self, groups: &[Vec<u32>]) -> bool {
        let is_held = |device: &&u32| self.is_held.get(**device as usize).copied().unwrap_or(false);
        groups.iter().all(|group| group.iter().filter(is_held).count() == 1)
    }
}

/// Finds the value that `inst` holds on some devices only; none for anything but a choice between a value and zeros that depends on the device alone.
pub fn find_masked(module: &Module, inst: InstId) -> Option<Masked> {
    let instruction = module.inst(inst);
    let &[mask, on_true, on_false] = instruction.operands.as_slice() else { return None };
    if instruction.opcode != Opcode::Select {
        return None;
    }
    let is_zero = |inst: InstId| find_splat(module, inst).is_some_and(Splat::is_zero);
    let (value, held_if) = match (is_zero(on_true), is_zero(on_false)) {
        (true, false) => (on_false, 0),
        (false, true) => (on_true, 1),
        (true, true) | (false, false) => return None,
    };
    let Splat::Scalar(scalar) = find_splat(module, mask)? else { return None };
    let is_held = find_device_values(module, scalar)?.into_iter().map(|value| value == held_if).collect();
    Some(Masked { value, is_held })
}
