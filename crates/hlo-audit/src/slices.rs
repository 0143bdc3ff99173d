//! Which part of a value is read, where nothing but slices read it.

use crate::collective::{Collective, SMALL_BYTES};
use crate::context::AuditCx;
use crate::follow::{depends_on_device_id, only_moves};
use hashbrown::HashSet;
use hlo_analysis::values::{Origin, User, ValueId};
use hlo_ir::{InstId, Opcode};
use hlo_spmd::{NoOwnSlice, find_own_slice};

/// Slices that together read a part of a value.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Slices {
    /// The slices.
    pub(crate) slices: Vec<InstId>,
    /// At most this share of the elements is read on one device.
    pub(crate) share: f64,
    /// Where they begin.
    pub(crate) starts: Starts,
    /// Whether each of them may give every device of a group another part, and the group all of the value.
    pub(crate) may_be_parts: bool,
}

/// A share in words.
pub(crate) fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent < 1.0 => "less than 1 %".into(),
        percent => format!("at most {percent:.0} %"),
    }
}

/// An array of an all-gather of which at most half is read.
pub(crate) struct SlicedGather<'a> {
    pub(crate) gather: &'a Collective,
    /// Of the gathered array.
    pub(crate) bytes: u64,
    pub(crate) found: Slices,
}

impl SlicedGather<'_> {
    /// Bytes that no device reads.
    pub(crate) fn needless_bytes(&self) -> u64 {
        (self.bytes as f64 * (1.0 - self.found.share)) as u64
    }
}

/// The gathered arrays of which only slices are read, which begin so.
pub(crate) fn sliced_gathers<'a>(cx: &'a AuditCx<'_>, starts: Starts) -> impl Iterator<Item = SlicedGather<'a>> {
    let gathers = cx.collectives.iter().filter(|c| c.is_all_gather() && !c.is_of_one_device());
    let arrays = gathers.flat_map(|gather| (0..gather.n_arrays(cx.module)).map(move |k| (gather, k)));
    arrays.filter_map(move |(gather, k)| {
        let bytes = cx.array_bytes(gather, k);
        let found = find_slices(cx, cx.result(gather, k)?, &gather.members.groups)?;
        (found.starts == starts && bytes >= SMALL_BYTES).then_some(SlicedGather { gather, bytes, found })
    })
}

/// Where slices begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Starts {
    /// At the same places on all devices of a group.
    Same,
    /// At places that the number of the device says.
    ByDevice,
    /// Neither is known.
    Unknown,
}

/// The slices that read a value; none where anything else does, or where they may read more than half of it.
pub(crate) fn find_slices(cx: &AuditCx<'_>, value: ValueId, groups: &[Vec<u32>]) -> Option<Slices> {
    let mut found = Slices { slices: Vec::new(), share: 0.0, starts: Starts::Same, may_be_parts: true };
    let mut open = vec![value];
    let mut seen: HashSet<ValueId> = HashSet::from_iter([value]);
    while let Some(value) = open.pop() {
        for one in &cx.values.uses[value] {
            match one.user {
                User::Exit(_) | User::Opaque(_) => return None,
                User::Becomes(next) => {
                    let is_handed_on =
                        cx.values.values[next].origin != Origin::Carry && cx.values.sources[next].len() == 1;
                    if !is_handed_on {
                        return None;
                    }
                    open.extend(seen.insert(next).then_some(next));
                }
                User::Op { inst, operand } => {
                    // Ops on elements are done on the slices: one after the other, as the pass that repairs it does them.
                    let computes = is_of_elements(cx, inst) && cx.values.uses[value].len() == 1;
                    if only_moves(cx, inst) || cx.module.inst(inst).opcode == Opcode::Convert || computes {
                        let next = cx.values.of(inst)?;
                        open.extend(seen.insert(next).then_some(next));
                    } else {
                        found.add(cx, inst, operand as usize, groups)?;
                    }
                }
            }
        }
    }
    (!found.slices.is_empty() && found.share <= 0.5).then_some(found)
}

/// Whether an instruction computes each element from those of arrays of the same dims at the same place, or from single numbers.
fn is_of_elements(cx: &AuditCx<'_>, inst: InstId) -> bool {
    let instruction = cx.module.inst(inst);
    let dims = |inst: InstId| cx.module.shape(inst).as_array().map(|array| array.dims.as_slice());
    let is_alike = |&operand: &InstId| dims(operand).is_some_and(|of| of.is_empty() || Some(of) == dims(inst));
    instruction.opcode.is_elementwise() && instruction.opcode.is_pure() && instruction.operands.iter().all(is_alike)
}

impl Slices {
    fn add(&mut self, cx: &AuditCx<'_>, inst: InstId, operand: usize, groups: &[Vec<u32>]) -> Option<()> {
        let instruction = cx.module.inst(inst);
        let is_slice = [Opcode::Slice, Opcode::DynamicSlice].contains(&instruction.opcode) && operand == 0;
        let n_elems = |inst: InstId| Some(cx.module.shape(inst).as_array()?.n_elems() as f64);
        let whole = n_elems(*instruction.operands.first()?).filter(|_| is_slice)?;
        self.share += n_elems(inst)? / whole.max(1.0);
        self.slices.push(inst);
        let differ = |start: &&InstId| !cx.replication.is_equal_within(**start, 0, groups);
        for &start in instruction.operands.iter().skip(1).filter(differ) {
            let is_by_device = depends_on_device_id(cx, start) && self.starts != Starts::Unknown;
            self.starts = if is_by_device { Starts::ByDevice } else { Starts::Unknown };
        }
        self.may_be_parts = self.may_be_parts && may_give_parts(cx, inst, groups);
        Some(())
    }
}

/// Whether a dynamic-slice gives every device of a group another part of its operand, and the group all of it, or begins at places that are
/// not known: in a fusion they are parameters.
fn may_give_parts(cx: &AuditCx<'_>, inst: InstId, groups: &[Vec<u32>]) -> bool {
    matches!(find_own_slice(cx.module, inst, groups), Ok(_) | Err(NoOwnSlice::UnknownStarts))
}
