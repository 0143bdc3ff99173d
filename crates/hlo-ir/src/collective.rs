//! One view over the attributes of all collectives, whatever their format: channel, participants, dim and reducer.

use crate::attrs::{Attrs, TransferAttrs};
use crate::groups::{DeviceGroups, GroupMode, GroupsError, ReplicaGroups};
use crate::module::{CompId, InstId, Module};
use crate::op::CollectiveRule;
use crate::shape::{Dims, Shape};

/// The attributes of a collective.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveView<'a> {
    /// Channel, if any.
    pub channel_id: Option<i64>,
    /// Who takes part.
    pub participants: Participants<'a>,
    /// The dim that is scattered or gathered, for ops that have one.
    pub dimensions: &'a [i64],
    /// The reducer, for ops that have one.
    pub to_apply: Option<CompId>,
    /// Operand layouts are fixed.
    pub constrain_layout: bool,
    /// It moves slices from one buffer into another (collective-permute with `slice_sizes`).
    pub is_in_place: bool,
}

/// Who takes part in a collective, as written.
#[derive(Clone, Copy, Debug)]
pub enum Participants<'a> {
    /// Groups, and how their ids are read.
    Groups {
        /// The groups.
        groups: &'a ReplicaGroups,
        /// The ids are flat device ids; `None` for ops that do not have the attribute.
        use_global_device_ids: Option<bool>,
    },
    /// `(source, target)` pairs.
    Pairs(&'a [(i64, i64)]),
}

impl<'a> CollectiveView<'a> {
    /// The groups and how the ids in them are read; `None` for pairs.
    ///
    /// # Errors
    /// The combination of attributes has no meaning.
    pub fn groups(&self) -> Option<Result<(&'a ReplicaGroups, GroupMode), GroupsError>> {
        match self.participants {
            Participants::Groups { groups, use_global_device_ids } => {
                Some(GroupMode::of(self.channel_id.is_some(), use_global_device_ids).map(|mode| (groups, mode)))
            }
            Participants::Pairs(_) => None,
        }
    }

    /// How the ids in the groups are read; `None` for pairs and for a combination of attributes without meaning.
    pub fn mode(&self) -> Option<GroupMode> {
        Some(self.groups()?.ok()?.1)
    }

    /// The dim that is scattered or gathered; `None` where none is named.
    pub fn dim(&self) -> Option<usize> {
        usize::try_from(*self.dimensions.first()?).ok()
    }
}

impl Attrs {
    /// The attributes of a collective; `None` for other ops and for what ends a collective.
    pub fn collective(&self) -> Option<CollectiveView<'_>> {
        match self {
            Attrs::Combining(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                participants: Participants::Groups {
                    groups: &a.replica_groups,
                    use_global_device_ids: Some(a.use_global_device_ids),
                },
                dimensions: &a.dimensions,
                to_apply: a.to_apply,
                constrain_layout: a.constrain_layout,
                is_in_place: false,
            }),
            Attrs::Gathering(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                participants: Participants::Groups {
                    groups: &a.replica_groups,
                    use_global_device_ids: Some(a.use_global_device_ids),
                },
                dimensions: &a.dimensions,
                to_apply: None,
                constrain_layout: a.constrain_layout,
                is_in_place: false,
            }),
            Attrs::Exchanging(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                participants: Participants::Groups { groups: &a.replica_groups, use_global_device_ids: None },
                dimensions: &a.dimensions,
                to_apply: None,
                constrain_layout: a.constrain_layout,
                is_in_place: false,
            }),
            Attrs::Permuting(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                participants: Participants::Pairs(&a.source_target_pairs),
                dimensions: &[],
                to_apply: None,
                constrain_layout: false,
                is_in_place: !a.slice_sizes.0.is_empty(),
            }),
            _ => None,
        }
    }

    /// Where a collective or a transfer keeps its channel.
    pub fn channel_place_mut(&mut self) -> Option<&mut Option<i64>> {
        match self {
            Attrs::Combining(a) => Some(&mut a.channel_id),
            Attrs::Gathering(a) => Some(&mut a.channel_id),
            Attrs::Exchanging(a) => Some(&mut a.channel_id),
            Attrs::Permuting(a) => Some(&mut a.channel_id),
            Attrs::Transfer(a) => Some(&mut a.channel_id),
            _ => None,
        }
    }

    /// The channel of a collective, if it has one; not that of a transfer, whose other end names it too.
    pub fn channel_id_mut(&mut self) -> Option<&mut i64> {
        match self {
            Attrs::Combining(a) => a.channel_id.as_mut(),
            Attrs::Gathering(a) => a.channel_id.as_mut(),
            Attrs::Exchanging(a) => a.channel_id.as_mut(),
            Attrs::Permuting(a) => a.channel_id.as_mut(),
            _ => None,
        }
    }

    /// The dims that a collective scatters or gathers, as its format has them.
    pub fn collective_dims_mut(&mut self) -> Option<&mut Dims> {
        match self {
            Attrs::Combining(a) => Some(&mut a.dimensions),
            Attrs::Gathering(a) => Some(&mut a.dimensions),
            Attrs::Exchanging(a) => Some(&mut a.dimensions),
            _ => None,
        }
    }
}

/// How many of a collective's operands it exchanges: all, but for the scalars behind the arrays of one that cuts or joins a dim. They
/// have no dim, and each device keeps its own. Front ends for AWS Neuron pass such a scalar on from collective to collective to
/// keep them in order.
pub fn n_exchanged(rule: CollectiveRule, operands: &[&Shape]) -> usize {
    let is_scalar = |shape: &Shape| shape.as_array().is_some_and(|array| array.rank() == 0);
    let n_scalars = operands.iter().rev().take_while(|shape| is_scalar(shape)).count();
    match operands.len() - n_scalars {
        n_arrays if rule.has_dim() && n_arrays > 0 => n_arrays,
        _ => operands.len(),
    }
}

impl Module {
    /// How many of an instruction's operands it exchanges between devices; see [`n_exchanged`].
    pub fn n_exchanged(&self, inst: InstId, rule: CollectiveRule) -> usize {
        let operands = &self.inst(inst).operands;
        n_exchanged(rule, &operands.iter().map(|&operand| self.shape(operand)).collect::<Vec<_>>())
    }

    /// A channel from which on no channel is used, for as many as any module needs: behind the largest, or where that is near the
    /// largest number there is, behind the first with enough room after it.
    pub fn first_free_channel_id(&self) -> i64 {
        const ROOM: i64 = 1 << 40;
        let insts = self.computations().iter().flat_map(|&c| &self.comp(c).insts);
        let channel = |&inst: &InstId| {
            let attrs = &self.inst(inst).attrs;
            let transfer = TransferAttrs::of(attrs).and_then(|a| a.channel_id);
            transfer.or_else(|| attrs.collective().and_then(|c| c.channel_id))
        };
        let mut used: Vec<i64> = insts.filter_map(channel).filter(|&id| id > 0).collect();
        used.sort();
        let last = used.last().copied().unwrap_or(0);
        if last <= i64::MAX - ROOM {
            return last + 1;
        }
        let starts = std::iter::once(0).chain(used.iter().copied());
        let gap = starts.zip(&used).find(|(from, to)| **to - *from > ROOM);
        gap.map_or(1, |(from, _)| from + 1)
    }

    /// The groups of flat device ids of a collective.
    ///
    /// # Errors
    /// The instruction is no collective with groups, or its groups are not valid on this module's devices.
    pub fn device_groups(&self, inst: InstId) -> Result<DeviceGroups, GroupsError> {
        let view = self.inst(inst).attrs.collective();
        let (groups, mode) = view.and_then(|view| view.groups()).ok_or(GroupsError::NoGroups)??;
        DeviceGroups::expand(groups, mode, self.header.replica_count, self.header.num_partitions)
    }

    /// The `(source, target)` pairs of a collective-permute as flat device ids.
    ///
    /// # Errors
    /// The instruction is no collective-permute, or an id is out of range.
    pub fn device_pairs(&self, inst: InstId) -> Result<Vec<(u32, u32)>, GroupsError> {
        let Some(CollectiveView { participants: Participants::Pairs(pairs), channel_id, .. }) =
            self.inst(inst).attrs.collective()
        else {
            return Err(GroupsError::NoPairs);
        };
        let (r, p) = (self.header.replica_count.max(1), self.header.num_partitions.max(1));
        let crosses_partitions = channel_id.is_some();
        let (n_ids, n_other) = if crosses_partitions { (p, r) } else { (r, p) };
        let mut out = Vec::new();
        for &(source, target) in pairs {
            for id in [source, target] {
                if !(0..n_ids).contains(&id) {
                    return Err(GroupsError::IdOutOfRange { n_ids, id });
                }
            }
            for other in 0..n_other {
                let flat = |id: i64| (if crosses_partitions { other * p + id } else { id * p + other }) as u32;
                out.push((flat(source), flat(target)));
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::n_exchanged;
    use crate::attrs::CombiningAttrs;
    use crate::edit::Builder;
    use crate::{ArrayShape, DType, Module, Opcode, Shape};

    #[test]
    fn scalars_behind_arrays_are_each_devices_own() {
        let (array, scalar) = (Shape::array(DType::F32, [4]), Shape::array(DType::F32, []));
        let n = |op: Opcode, operands: &[&Shape]| n_exchanged(op.row().collective.unwrap(), operands);
        for op in [Opcode::ReduceScatter, Opcode::AllGather, Opcode::AllToAll, Opcode::AllGatherStart] {
            assert_eq!(n(op, &[&array, &array, &scalar, &scalar]), 2, "{op}");
            assert_eq!(n(op, &[&array, &scalar, &array]), 3, "{op}: only those behind");
            assert_eq!(n(op, &[&scalar, &scalar]), 2, "{op}: scalars alone change places");
        }
        for op in [Opcode::AllReduce, Opcode::CollectivePermute, Opcode::CollectiveBroadcast] {
            assert_eq!(n(op, &[&array, &scalar]), 2, "{op} takes scalars as well");
        }
    }

    fn free_beside(channels: &[i64]) -> i64 {
        let mut module = Module::new("m");
        let name = module.names.intern("e");
        let comp = module.add_computation(name);
        let shape = Shape::Array(ArrayShape::new(DType::F32, []));
        for &channel in channels {
            let attrs = CombiningAttrs { channel_id: Some(channel), ..CombiningAttrs::default() };
            Builder::new(&mut module, comp).add("x", Opcode::AllReduce, shape.clone(), [], attrs);
        }
        module.first_free_channel_id()
    }

    #[test]
    fn free_channels_have_room_behind_them() {
        assert_eq!(free_beside(&[]), 1);
        assert_eq!(free_beside(&[3, 1, 0]), 4);
        assert_eq!(free_beside(&[7, i64::MAX - 1]), 8);
        assert_eq!(free_beside(&[i64::MAX]), 1);
        assert_eq!(free_beside(&[1 << 40, i64::MAX]), (1 << 40) + 1, "2^40 - 1 channels lie below the first");
    }
}
