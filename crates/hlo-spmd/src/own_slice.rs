//! Slices of an array that every device holds, of which each device of a group takes another one.

use crate::collective::array;
use crate::device_values::find_device_values;
use hlo_ir::{InstId, Module};

/// Which part of an array each device takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnSlice {
    /// The dim that is cut.
    pub dim: usize,
    /// The groups of flat device ids, members in the order of their slices.
    pub groups: Vec<Vec<u32>>,
}

/// Why a slice is not each device's own part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoOwnSlice {
    /// It is not about arrays.
    NoArray,
    /// More or fewer dims than one are cut.
    NotOneDim,
    /// The slices are not one equal part for each device.
    UnequalParts,
    /// It has no start along the dim that is cut.
    NoStart,
    /// The starts depend on something else than the device.
    UnknownStarts,
    /// Two devices of a group take the same elements.
    Overlap,
}

/// The part that each device of `groups` takes with a dynamic-slice: together those of a group are all of its operand.
///
/// # Errors
/// Why that is not so.
pub fn find_own_slice(module: &Module, slice: InstId, groups: &[Vec<u32>]) -> Result<OwnSlice, NoOwnSlice> {
    let operands = module.inst(slice).operands.as_slice();
    let whole = operands.first().and_then(|&whole| array(module, whole));
    let [Some(whole), Some(part)] = [whole, array(module, slice)] else { return Err(NoOwnSlice::NoArray) };
    let cut: Vec<usize> = (0..whole.rank()).filter(|&dim| whole.dims[dim] != part.dims[dim]).collect();
    let [dim] = cut.as_slice() else { return Err(NoOwnSlice::NotOneDim) };
    let (size, n) = (part.dims[*dim], whole.dims[*dim]);
    let is_part = |group: &Vec<u32>| size > 0 && group.len() as i64 * size == n;
    if !groups.iter().all(is_part) {
        return Err(NoOwnSlice::UnequalParts);
    }
    let start = operands.get(dim + 1).copied().ok_or(NoOwnSlice::NoStart)?;
    let starts = find_device_values(module, start).ok_or(NoOwnSlice::UnknownStarts)?;
    let mut groups = groups.to_vec();
    for group in &mut groups {
        let mut listed = vec![None; group.len()];
        for &device in group.iter() {
            let start = starts.get(device as usize).map_or(0, |start| (*start).clamp(0, n - size));
            let place = usize::try_from(start / size).ok().filter(|_| start % size == 0);
            let slot = place.and_then(|place| listed.get_mut(place)).filter(|slot| slot.is_none());
            *slot.ok_or(NoOwnSlice::Overlap)? = Some(device);
        }
        *group = listed.into_iter().flatten().collect();
    }
    Ok(OwnSlice { dim: *dim, groups })
}
