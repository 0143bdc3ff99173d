//! One view over the attributes of all collectives: channel, groups and mode, whatever the opcode.

use crate::attrs::Attrs;
use crate::groups::{DeviceGroups, GroupMode, ReplicaGroups};
use crate::module::{InstId, Module};

/// The attributes that say who takes part in a collective.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveView<'a> {
    /// Channel, if any.
    pub channel_id: Option<i64>,
    /// Groups as written.
    pub groups: &'a ReplicaGroups,
    /// `None` for ops that do not have the attribute.
    pub use_global_device_ids: Option<bool>,
}

impl CollectiveView<'_> {
    /// How the ids in the groups are read.
    ///
    /// # Errors
    /// The combination of attributes has no meaning.
    pub fn mode(&self) -> Result<GroupMode, &'static str> {
        GroupMode::of(self.channel_id.is_some(), self.use_global_device_ids)
    }
}

impl Attrs {
    /// The groups of a collective; `None` for other ops and for collective-permute, which has pairs.
    pub fn collective(&self) -> Option<CollectiveView<'_>> {
        match self {
            Attrs::Combining(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                groups: &a.replica_groups,
                use_global_device_ids: Some(a.use_global_device_ids),
            }),
            Attrs::Gathering(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                groups: &a.replica_groups,
                use_global_device_ids: Some(a.use_global_device_ids),
            }),
            Attrs::Exchanging(a) => Some(CollectiveView {
                channel_id: a.channel_id,
                groups: &a.replica_groups,
                use_global_device_ids: None,
            }),
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
}

impl Module {
    /// A channel from which on no channel is used, for as many as any module needs: behind the largest, or where that is near the
    /// largest number there is, behind the first with enough room after it.
    pub fn first_free_channel_id(&self) -> i64 {
        const ROOM: i64 = 1 << 40;
        let insts = self.computations().iter().flat_map(|&c| &self.comp(c).insts);
        let channel = |&inst: &InstId| match &self.inst(inst).attrs {
            Attrs::Permuting(a) => a.channel_id,
            Attrs::Transfer(a) => a.channel_id,
            other => other.collective().and_then(|c| c.channel_id),
        };
        let mut used: Vec<i64> = insts.filter_map(channel).filter(|&id| id > 0).collect();
        used.sort_unstable();
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
    pub fn device_groups(&self, inst: InstId) -> Result<DeviceGroups, String> {
        let view = self.inst(inst).attrs.collective().ok_or("not a collective with groups")?;
        let mode = view.mode()?;
        DeviceGroups::expand(view.groups, mode, self.header.replica_count, self.header.num_partitions)
    }

    /// The `(source, target)` pairs of a collective-permute as flat device ids.
    ///
    /// # Errors
    /// The instruction is no collective-permute, or an id is out of range.
    pub fn device_pairs(&self, inst: InstId) -> Result<Vec<(u32, u32)>, String> {
        let Attrs::Permuting(permute) = &self.inst(inst).attrs else {
            return Err("not a collective-permute".into());
        };
        let (r, p) = (self.header.replica_count.max(1), self.header.num_partitions.max(1));
        let crosses_partitions = permute.channel_id.is_some();
        let (n_ids, n_other) = if crosses_partitions { (p, r) } else { (r, p) };
        let mut out = Vec::new();
        for &(source, target) in &permute.source_target_pairs {
            for id in [source, target] {
                if !(0..n_ids).contains(&id) {
                    return Err(format!("expected ids 0..{n_ids}, found {id}"));
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
    use crate::attrs::CombiningAttrs;
    use crate::edit::Builder;
    use crate::{ArrayShape, DType, Module, Opcode, Shape};

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
    }
}
